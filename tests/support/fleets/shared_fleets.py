"""Fleets shared by several tests, each run once per process: a crowd, heirs, and golems with different knowledge."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pyarrow as pa

from bardo_pipeline.policy import Policy
from tests.support.fleets.memory_fleets import FOUNDING, Lived, live, lively_market, rule
from tests.support.knowledge import handmade_grimoires

SHORT = replace(FOUNDING, lifespan_ticks=(150, 400))
STEERS = {("*", 20): ("high", "look again"), ("*", 50): ("low", "how is it"), ("*", 51): ("low", "and now")}
Row = dict[str, Any]


def cage(**limits: float) -> Policy:
    """The policy with other limits of the cage."""
    policy = Policy()
    return policy.model_copy(update={"cage": policy.cage.model_copy(update=limits)})


def credit(**rules: float) -> Policy:
    """The policy with other rules of the credit partitions."""
    policy = Policy()
    return policy.model_copy(update={"credit": policy.credit.model_copy(update=rules)})


@cache
def crowd() -> Lived:
    """Five lines of three generations on a lively market, steered at times: the births of heirs fall into the run."""
    return live(lively_market(900), lineages=range(5), founding=SHORT, generations=3, steers=STEERS)


REGIMES = ("volatile", "trending_up", "trending_down", "unknown", "range_bound")
LONG = replace(FOUNDING, lifespan_ticks=(600, 900))


@cache
def known() -> pa.Table:
    """Rules of an earlier golem on when to act. Later outcomes contradict one of them."""
    market = lively_market(900)
    rows = [rule(market, regime, band, "normal") for regime in REGIMES for band in ("calm", "stirred")]
    rows += [rule(market, r, "broken", "normal", kind="warning", sign=-1) for r in ("volatile", "trending_up")]
    rows.append(rule(market, "range_bound", "stretched", "normal", kind="warning", sign=-1, confidence_ppm=503_000))
    return handmade_grimoires.grimoire(*rows)


@cache
def heirs() -> Lived:
    """Four golems with inherited entries, narrow cage limits, and a kill switch that is used at times."""
    calls = iter(range(10**6))
    return live(
        lively_market(900), lineages=range(4), founding=LONG, steers=STEERS, inherited=known(),
        killed=lambda: next(calls) % 97 == 5, policy=cage(slippage_max=0.0009),
    )  # fmt: skip


@cache
def live_fleet(kind: str) -> Lived:
    """Return the same four golems on the same market: without entries, or with those of a cautious, wary or eager
    life.
    """
    market = lively_market(900)
    bands = {
        "plain": (),
        "cautious": ("stretched", "broken"),
        "wary": ("strained", "stretched"),
        "eager": ("stirred", "strained"),
    }[kind]
    fields = {"kind": "warning", "sign": -1} if kind in ("cautious", "wary") else {}
    rules = [rule(market, regime, band, "normal", **fields) for regime in REGIMES for band in bands]
    return live(
        market, lineages=range(4), founding=LONG, inherited=handmade_grimoires.grimoire(*rules) if rules else None
    )
