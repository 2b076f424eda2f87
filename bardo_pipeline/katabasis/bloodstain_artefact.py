"""The bloodstain: all that a death leaves, as one artefact named by its content. Pure.

What is whole stays with the owner's clade (L1): scars, last words, the state in which death came. Its echo may go to
anybody (L2): written anew from public words, it names the pool and the regime and how it fails there; it has no place
for who died, when, with what, by which threshold, or which votes were its own, since they are anonymous.
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
"""Acts on a range that have a name in public; any other is an action there."""

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
    """One death's artefact, as JSON has it; its `bloodstain_id` is the SHA-256 of all the rest.

    death: golem_id, owner_id, lineage_id, generation, tick, at, cause. scars: rows of SCAR_SCHEMA that this death
    published. votes: its last words (vote_id, proposition_id, claim, confidence_ppm, weight_tenths). conditions: the
    market at death, None where its last record is left out. testament_hash, bundle_hash: None before they are made.
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
    told = {n: vote[n] for n in ("vote_id", "proposition_id", "claim", "confidence_ppm")}
    return told | {"weight": vote["weight_tenths"] / LIVING_WEIGHT_TENTHS}


def echo_of(
    scars: Sequence[Mapping[str, Any]],
    conditions: Mapping[str, Any] | None,
    vote_count: int,
    testament_hash: str | None,
) -> dict[str, Any]:
    """What of a death anybody may know (L2): the pool, the regime, how it fails there, and a seal on the rest.

    testament_hash seals what the owner keeps, so that it can be shown later to be what was left.
    """
    known = ("chain", "protocol", "pair", "regime", "market_regime", "gas_band")
    return {
        "version": BLOODSTAIN_VERSION,
        "is_bloodstain": True,
        "conditions": None if conditions is None else {name: conditions[name] for name in known},
        "failure_patterns": sorted({pattern_words(scar) for scar in scars}),
        "death_vote_count": vote_count,
        "testament_hash": testament_hash,
    }


def pattern_words(scar: Mapping[str, Any]) -> str:
    """How acting fails in a situation, in public words alone: no size, no threshold, no name that a golem made up."""
    act = PUBLIC_ACTS.get(scar["action_type"])
    said = "an action" if act is None else f"{act} {RANGE_WORDS[scar['anomaly_band']]}"
    cause = CAUSE_WORDS.get(scar["cause_variable"] or "", "something else that moves")
    why = PUBLIC_MECHANISMS[scar["mechanism"]].format(cause=cause)
    return (
        f"On {scar['chain']}, {scar['protocol']} {scar['pair']}: in {REGIME_WORDS[scar['regime']]}, with "
        f"{GAS_WORDS[scar['gas_band']]}, {said} {why}."
    )
