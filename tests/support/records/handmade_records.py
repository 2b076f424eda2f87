"""Handmade streams: a record is a dictionary with the test's values, and defaults for the rest.

The policy has cycles of a few ticks, so that many lives fit into one example.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from bardo_pipeline.curator.state.evidence import EVIDENCE_COLUMNS
from bardo_pipeline.curator.state.grimoire_state import entry_id
from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.policy import CuratorPolicy, Policy

START = datetime(2024, 1, 1, tzinfo=UTC)
SPAN = 4
"""Ticks a cycle."""

_KEEN = {"witness_ticks": 1, "false_alarm": 0.1, "effect_sigma_prior_ppm": 800.0}
KEEN = Policy(curator=CuratorPolicy(**_KEEN))
"""The policy in which each tick is a market window, with low thresholds, so that a cycle of four ticks yields rules."""

MARKET = {"chain": "polygon", "protocol": "uniswap_v3", "pair": "WETH/USDC"}
TOOL = "uniswap_v3_rebalance"
_OF_EPISODES = ("tier", "anomalies", "prediction_error_sources", "dream_tag")
EVIDENCE_SCHEMA = pa.schema([RECORD_SCHEMA.field(name) for name in (*EVIDENCE_COLUMNS, *_OF_EPISODES)])

_OBSERVATION: dict[str, Any] = MARKET | {
    "market": "by hand", "pool": "0xpool", "block_number": None, "price": 2000.0, "price_low": 1999.0,
    "price_high": 2001.0, "price_return": 0.0, "sma": None, "sigma_ratio": None, "rsi": None, "macd": None,
    "liquidity": 1e18, "volume_micros": 5_000_000_000, "gas_gwei": 30.0, "gas_hour_ratio": 1.0, "idle_micros": 0,
    "net_asset_value_micros": 48_500_000, "anomaly_score": 0.0, "positions": [],
}  # fmt: skip
_SOURCES = {"price": 0.01, "regime": 0.0, "health": None, "threat": None, "interventions": 0.0, "anomalies": 0.0}
_ANOMALY = {"probe": "gas_price", "value": 6.0, "threshold": 5.0, "description": "gas is six times its hour"}


class Situation(NamedTuple):
    """The situation of a decision: regime, anomaly score, gas over its hourly mean."""

    regime: str
    score: float
    gas: float

    @property
    def structure(self) -> Structure:
        """The condition of a rule about it; none of the four values is at an edge of a band."""
        anomaly = ("calm", "stirred", "strained", "stretched", "broken")[sum(self.score >= e for e in _ANOMALY_EDGES)]
        gas = ("cheap", "normal", "dear")[sum(self.gas >= e for e in (0.75, 2.0))]
        return Structure("pattern", *MARKET.values(), TOOL, "rebalance", self.regime, anomaly, gas)


_ANOMALY_EDGES = (0.5, 0.7, 0.8, 0.9)
STORM = Situation("volatile", 0.75, 1.0)
RALLY = Situation("trending_up", 0.95, 3.0)
FOG = Situation("unknown", 0.2, 1.2)
LULL = Situation("range_bound", 0.85, 0.5)
SITUATIONS = (STORM, RALLY, FOG, LULL)
SQUALL, GALE = STORM._replace(gas=0.5), STORM._replace(gas=3.0)
STORMS = (SQUALL, STORM, GALE)
"""The same storm with gas cheap, normal and dear."""


def judged(
    when: Situation, effect_ppm: int, *, decided: int = 1, verified: bool = True, retrieved: Iterable[str] = ()
) -> dict[str, Any]:
    """Return a judged decision to re-centre in a situation: the gain of acting over holding."""
    return {
        "decision_tick": decided, "action_type": "rebalance", "tool_name": TOOL, "chosen": "act", "regime": when.regime,
        "anomaly_score": when.score, "gas_ratio": when.gas, "value_micros": 48_000_000, "effect_ppm": effect_ppm,
        "verified": verified, "ground_truth_source": "trace", "retrieved_entry_ids": list(retrieved),
    }  # fmt: skip


def action(status: str = "executed", *, slippage_ppm: int | None = 700, gas_cost_micros: int = 9_000) -> dict[str, Any]:
    """A tool call and its result."""
    done = status == "executed"
    return {
        "action_type": "rebalance", "tool_name": TOOL, "permit_id": None, "tx_hash": None, "status": status,
        "block_reason": None if done else "no", "gas_cost_micros": gas_cost_micros if done else 0,
        "slippage_ppm": slippage_ppm if done else None, "value_micros": 48_000_000,
    }  # fmt: skip


def outcome(*, verified: bool = True, pnl_impact_micros: int = -40_000) -> dict[str, Any]:
    """Cost of the action."""
    return {
        "verified": verified, "expected": "700 ppm", "actual": "700 ppm", "pnl_impact_micros": pnl_impact_micros,
        "ground_truth_source": "trace", "cause_variable": None, "effect_variable": None,
    }  # fmt: skip


def record(
    golem_id: str, tick: int, *, every: timedelta = timedelta(minutes=1), observation: Mapping[str, Any] | None = None,
    turned: bool = False, odd: bool = False, pad: tuple[float, float, float] = (0.0, 0.0, 0.0), **fields: Any,
) -> dict[str, Any]:  # fmt: skip
    """Return a quiet tick at T0. turned: the regime changed. odd: a probe was high. `fields` changes any column."""
    row: dict[str, Any] = {
        "golem_id": golem_id, "tick": tick, "observed_at": START + tick * every,
        "observation": _OBSERVATION | dict(observation or {}), "tier": "T0", "anomalies": [_ANOMALY] if odd else [],
        "prediction_error_sources": _SOURCES | {"regime": 0.4 if turned else 0.0}, "actions": [], "outcome": None,
        "pad_after": dict(zip(("pleasure", "arousal", "dominance"), pad, strict=True)), "resolutions": [],
        "dream_tag": None,
    }  # fmt: skip
    return row | fields


def table(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Records with the columns that the curator reads."""
    return pa.Table.from_pylist(list(rows), schema=EVIDENCE_SCHEMA)


def cycles_of(records: pa.Table, span: int = SPAN) -> np.ndarray:
    """The cycle of each record."""
    return (records.column("tick").to_numpy() - 1) // span + 1


# drawn lives


@dataclass(frozen=True)
class Chapter:
    """A cycle's evidence for a situation: number of judged decisions, their effect, and whether they are verified."""

    count: int
    effect_ppm: int = 0
    verified: bool = True


SILENCE = Chapter(0)
CHAPTERS = (
    SILENCE,
    Chapter(1, 900),
    Chapter(2, 30),
    Chapter(3, 1_500),
    Chapter(4, -1_500),
    Chapter(3, -20),
    Chapter(14, 6_000),
    Chapter(14, -6_000),
    Chapter(14, -450),
    Chapter(5, 4_000_000),
    Chapter(9, -9_000, verified=False),
    Chapter(8, 700),
)
"""Evidence that creates, confirms, reverses or leaves a rule open; an effect beyond the limit; and unverified
evidence.
"""

GOOD, BAD, MILD = CHAPTERS[6], CHAPTERS[7], CHAPTERS[8]
STORIES = (
    (CHAPTERS[3], CHAPTERS[3], GOOD, GOOD),
    (CHAPTERS[4], CHAPTERS[4], BAD, BAD),
    (GOOD, GOOD, GOOD, BAD, CHAPTERS[4]),
    (CHAPTERS[3], BAD, BAD, BAD, BAD, BAD, BAD),
    (CHAPTERS[1], CHAPTERS[1], CHAPTERS[1], CHAPTERS[1], SILENCE, CHAPTERS[4]),
    (MILD, MILD, MILD, SILENCE, MILD),
    (CHAPTERS[11], CHAPTERS[11], CHAPTERS[5]),
)
"""Stories: a rule is created and used, a warning becomes anti-knowledge, a rule is tested by newer evidence, a rule is
reversed and learned again, a candidate is promoted slowly, a harm suffices for a warning only, an effect turns out
smaller than stated.
"""

stories = st.one_of(st.sampled_from(STORIES), st.lists(st.sampled_from(CHAPTERS), min_size=1, max_size=8).map(tuple))
paces = st.sampled_from([timedelta(minutes=1), timedelta(hours=9), timedelta(days=4)])


@dataclass(frozen=True)
class Life:
    """One golem: evidence of each situation's cycles, episodes per cycle, time between ticks."""

    golem_id: str
    plot: Mapping[Situation, tuple[Chapter, ...]]
    episodes: tuple[int, ...]
    every: timedelta
    ticks: int

    def rows(self) -> list[dict[str, Any]]:
        """Its records, tick by tick."""
        return [self._row(tick) for tick in range(1, self.ticks + 1)]

    def _row(self, tick: int) -> dict[str, Any]:
        cycle, place = divmod(tick - 1, SPAN)
        fields: dict[str, Any] = {"resolutions": self._resolutions(cycle, place, tick)}
        fields["retrieved_entries"] = [retrieved(i) for i in self._recalled()] if tick % 3 == 0 else []
        if place < self.episodes[cycle % len(self.episodes)]:
            fields |= _episode(tick)
        mood = tuple(((tick * factor) % 21 - 10) / 10 for factor in (7, 11, 4))
        levels = {"gas_gwei": 30.0 + tick % 7, "volume_micros": 4_000_000_000 + tick % 5 * 1_234_567}
        return record(self.golem_id, tick, every=self.every, observation=levels, pad=mood, **fields)  # type: ignore[arg-type]

    def _resolutions(self, cycle: int, place: int, tick: int) -> list[dict[str, Any]]:
        lines = []
        for when, story in self.plot.items():
            chapter = story[cycle] if cycle < len(story) else SILENCE
            for number in range(place, chapter.count, SPAN):
                effect = chapter.effect_ppm + 37 * (number - chapter.count // 2)
                decided = max(1, tick - 3)
                lines.append(
                    judged(when, effect, decided=decided, verified=chapter.verified, retrieved=self._recalled())
                )
        return lines

    def _recalled(self) -> list[str]:
        """The entries that it may learn of its situations, and one that it never learns."""
        return [entry_id(self.golem_id, when.structure.key) for when in self.plot] + ["f" * 24]


def retrieved(entry: str) -> dict[str, Any]:
    """An entry that the golem retrieved."""
    factors = {"score": 0.5, "semantic": 0.5, "recency": 0.5, "importance": 0.5, "affect": 0.5}
    return {"entry_id": entry, "kind": "insight", **factors}


def _episode(tick: int) -> dict[str, Any]:
    """Return each reason for an episode in turn; one of them is unverified."""
    kind = tick % 6
    cost = {"slippage_ppm": 500 + tick, "gas_cost_micros": 8_000 + tick}
    if kind == 0:
        return {"tier": "T2", "actions": [action(**cost)], "outcome": outcome()}
    if kind == 1:
        return {"tier": "T2", "actions": [action(**cost)], "outcome": outcome(verified=False)}
    if kind == 2:
        return {"tier": "T1", "actions": [action("blocked")]}
    return {"odd": True} if kind == 3 else {"turned": True} if kind == 4 else {"tier": "T1"}


@st.composite
def lives(draw: st.DrawFn, golems: int = 3) -> tuple[Life, ...]:
    """Some golems, each with its own stories, pace and end."""
    every = draw(paces)
    count = draw(st.integers(1, golems))
    return tuple(draw(life(f"g-{number}", every)) for number in range(count))


@st.composite
def kindred(draw: st.DrawFn, golems: int = 2) -> tuple[Life, ...]:
    """Draw golems whose situations differ only in gas, and whose stories mostly agree at first."""
    every = draw(paces)
    rows = []
    for number in range(draw(st.integers(1, golems))):
        begun = draw(st.sampled_from(((GOOD, GOOD), (BAD, BAD), (MILD, MILD, MILD))))
        plot = {}
        for when in draw(st.permutations(STORMS))[: draw(st.integers(2, 3))]:
            late = (SILENCE,) * draw(st.integers(0, 2))
            plot[when] = (*late, *begun, *draw(st.lists(st.sampled_from((*begun, *CHAPTERS)), max_size=5)))
        longest = max(len(story) for story in plot.values())
        rows.append(Life(f"g-{number}", plot, (0,), every, longest * SPAN))
    return tuple(rows)


@st.composite
def life(draw: st.DrawFn, golem_id: str, every: timedelta) -> Life:
    """One golem's life of some cycles; the last may end early, as by death."""
    drawn = draw(st.lists(st.sampled_from(SITUATIONS), min_size=1, max_size=3, unique=True))
    plot = {when: draw(stories) for when in drawn}
    episodes = tuple(draw(st.lists(st.integers(0, SPAN), min_size=1, max_size=3)))
    longest = max(len(story) for story in plot.values())
    ticks = draw(st.integers(longest * SPAN - 2, (longest + 1) * SPAN))
    return Life(golem_id, plot, episodes, every, max(1, ticks))


def stream(lived: Iterable[Life]) -> pa.Table:
    """All records of these lives."""
    return table(row for item in lived for row in item.rows())


# whole records, for logs


@cache
def _plain() -> dict[str, Any]:
    """Return one quiet tick of a real golem, for fields that the curator does not read."""
    from tests.support.fleets.memory_fleets import drawn_market, live

    row: dict[str, Any] = live(drawn_market([200_000] * 4)).records.to_pylist()[-1]
    return row | {"episodes_written": []}


def full(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Records with all columns, as a log takes them."""
    return pa.Table.from_pylist([_plain() | dict(row) for row in rows], schema=RECORD_SCHEMA)
