"""Builds the bloodstain, the JSON artefact of one death, named by the SHA-256 of its content. Pure.

The full artefact stays in the owner's clade (layer L1): scars, death votes, conditions at death. Its `echo` is public
(layer L2): it names the pool, the regime and the failure patterns in fixed public words. The echo holds no golem, time,
size, threshold or vote id, because votes are anonymous.
Source: KAT (Bloodstain integration, What Does Not Flow), canon 44, 46.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from bardo_pipeline.grimoire.entry_text import CAUSE_WORDS, GAS_WORDS, REGIME_WORDS
from bardo_pipeline.katabasis.anonymous_votes import LIVING_WEIGHT_TENTHS
from bardo_pipeline.katabasis.propositions import RANGE_WORDS
from bardo_pipeline.katabasis.scar_text import MECHANISMS, UNEXPLAINED

BLOODSTAIN_VERSION = 1

PUBLIC_ACTS = {"rebalance": "re-centring", "add_liquidity": "entering", "remove_liquidity": "leaving"}
"""Public names of the actions on a range; every other action is called "an action"."""

PUBLIC_MECHANISMS = {
    "refused": "is refused on inclusion, since the market outruns it",
    "slipped": "slips by more than it can win",
    "gas": "costs more gas than it can win",
    "cause": "is hurt by {cause}",
    "cost": "does not earn back what it costs",
    "return": "comes too late, since price comes back",
}
assert {*PUBLIC_MECHANISMS, UNEXPLAINED} == {*MECHANISMS}


def bloodstain_of(
    death: Mapping[str, Any],
    *,
    scars: Sequence[Mapping[str, Any]],
    votes: Sequence[Mapping[str, Any]],
    conditions: Mapping[str, Any] | None,
    testament_hash: str | None,
    bundle_hash: str | None,
    published: bool,
) -> dict[str, Any]:
    """Return the artefact of one death as a JSON object; `bloodstain_id` is the SHA-256 of the other fields.

    Parameters
    ----------
    death : golem_id, owner_id, lineage_id, generation, tick, at, cause
    scars : rows of SCAR_SCHEMA that this death published
    votes : the death votes (vote_id, proposition_id, claim, confidence_ppm, weight_tenths)
    conditions : market at the last record, None if that record is retracted
    testament_hash, bundle_hash : None until the testament or bundle exists
    """
    content = {
        "version": BLOODSTAIN_VERSION,
        "is_bloodstain": True,
        **{n: death[n] for n in ("golem_id", "owner_id", "lineage_id", "generation", "tick", "cause")},
        "died_at": death["at"].isoformat(),
        "conditions": None if conditions is None else dict(conditions),
        "scars": [_scar(s) for s in sorted(scars, key=lambda s: (s["confirmed_tick"], s["tick"], s["scar_id"]))],
        "death_votes": [_vote(v) for v in sorted(votes, key=lambda v: str(v["vote_id"]))],
        "testament_hash": testament_hash,
        "bundle_hash": bundle_hash,
        "bundle_published": published,
        "echo": echo_of(scars, conditions, len(votes), testament_hash),
    }
    name = hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()
    return {"bloodstain_id": name, **content}


def _scar(scar: Mapping[str, Any]) -> dict[str, Any]:
    names = (
        "scar_id", "episode_id", "tick", "outcome_class", "mechanism", "causal_narrative", "causal_context",
        "market_regime", "confidence_ppm", "pnl_ppm", "effect_ppm", "emotion",
    )  # fmt: skip
    return {name: scar[name] for name in names} | {"cause_ticks": list(scar["cause_ticks"])}


def _vote(vote: Mapping[str, Any]) -> dict[str, Any]:
    public = {n: vote[n] for n in ("vote_id", "proposition_id", "claim", "confidence_ppm")}
    return public | {"weight": vote["weight_tenths"] / LIVING_WEIGHT_TENTHS}


def echo_of(
    scars: Sequence[Mapping[str, Any]],
    conditions: Mapping[str, Any] | None,
    vote_count: int,
    testament_hash: str | None,
) -> dict[str, Any]:
    """Return the public part of a bloodstain (L2): pool, regime, failure patterns and the testament's hash.

    The hash lets the owner prove later that a shown testament is the original one.
    """
    public = ("chain", "protocol", "pair", "regime", "market_regime", "gas_band")
    return {
        "version": BLOODSTAIN_VERSION,
        "is_bloodstain": True,
        "conditions": None if conditions is None else {name: conditions[name] for name in public},
        "failure_patterns": sorted({pattern_words(scar) for scar in scars}),
        "death_vote_count": vote_count,
        "testament_hash": testament_hash,
    }


def pattern_words(scar: Mapping[str, Any]) -> str:
    """Describe in fixed public words how an action fails in a situation, without sizes or thresholds."""
    act = PUBLIC_ACTS.get(scar["action_type"])
    action = "an action" if act is None else f"{act} {RANGE_WORDS[scar['anomaly_band']]}"
    cause = CAUSE_WORDS.get(scar["cause_variable"] or "", "something else that moves")
    why = PUBLIC_MECHANISMS[scar["mechanism"]].format(cause=cause)
    return (
        f"On {scar['chain']}, {scar['protocol']} {scar['pair']}: in {REGIME_WORDS[scar['regime']]}, with "
        f"{GAS_WORDS[scar['gas_band']]}, {action} {why}."
    )
