"""A note of a clade is read as written; a wrong value is refused with its name."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from bardo_pipeline.errors import BundleError
from bardo_pipeline.events.record.model import ItemResiduals
from bardo_pipeline.inheritance.clade_note import (
    End,
    Note,
    Reflection,
    Residuals,
    Scar,
    Shift,
    failure_row,
    read_note,
    text_of,
)
from bardo_pipeline.katabasis.scar_rules import FAILURE_SCHEMA

AT = datetime(2026, 1, 1, 12, tzinfo=UTC)
FAILURE: dict[str, Any] = {
    "scar_id": "scar-g-1-3", "golem_id": "g-1", "owner_id": "owner-1", "seq": 3, "cycle": 4, "episode_id": "g-1:180",
    "tick": 180, "at": AT.isoformat(), "confirmed": "deferred", "confirmed_tick": 210, "confirmed_at": AT.isoformat(),
    "outcome_class": "lasting", "mechanism": "cost", "cause_variable": None, "is_clear": True,
    "confidence_ppm": 700_000, "position_state": "open", "chain": "base", "protocol": "uniswap_v3",
    "pair": "WETH/USDC", "tool_name": "rebalance", "action_type": "rebalance", "regime": "volatile",
    "market_regime": "HighVol", "anomaly_band": "stirred", "gas_band": "normal", "structure": "pattern/…",
    "pnl_ppm": -300, "effect_ppm": -4_000, "causal_narrative": "In a volatile market re-centring cost 0.4 %.",
    "causal_context": dict.fromkeys(
        ("active_strategy", "hypothesis_at_action", "actual_outcome", "counterfactual_hint"), "words"
    ),
    "pleasure": -0.4, "arousal": 0.7, "dominance": 0.2, "emotion": "Shocked", "playbook_version": 2,
    "cause_ticks": [180, 210],
}  # fmt: skip


def scar(**changes: Any) -> Note:
    facts = Scar(failure=FAILURE | changes, death=End(tick=212, cycle=5))
    return Note("owner-1", "g-1", "scar", AT, facts)


NOTES = (
    scar(),
    Note("owner-1", "g-1", "regime_shift", AT, Shift(chain="base", protocol="uniswap_v3", pair="WETH/USDC", tick=9,
                                                      before="range_bound", regime="volatile")),
    Note("owner-1", "g-1", "residual_digest", AT, Residuals(chain="base", protocol="uniswap_v3", pair="WETH/USDC",
         tick=50, items=(ItemResiduals(item="gas", resolved=50, violations=2, mean=-0.001, variance=0.0004),))),
    Note("owner-1", "g-1", "death_reflection", AT, Reflection(bundle_hash="a" * 64, page="# What worked\n")),
)  # fmt: skip


@pytest.mark.parametrize("note", NOTES, ids=lambda note: note.about)
def test_a_note_is_read_as_it_was_written(note: Note) -> None:
    read = read_note(note.content, "owner-1")
    assert read == note
    assert read.content_hash == note.content_hash
    assert text_of(read)


def test_a_scar_is_a_row_of_failures() -> None:
    facts = read_note(scar().content, "owner-1").facts
    assert isinstance(facts, Scar)
    row = failure_row(facts)
    assert row.schema == FAILURE_SCHEMA
    assert row["confirmed_at"].to_pylist() == [AT]


def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    document = json.loads(scar().content)
    change(document)
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (scar(confidence_ppm=1_000_001).content, "confidence_ppm is 1000001"),
        (scar(regime="sideways").content, "unknown regime 'sideways'"),
        (scar(arousal=float("nan")).content, "no arousal"),
        (scar(tick="soon").content, "another type"),
        (scar(golem_id="g-2").content, "another golem"),
        (scar(confirmed_at="yesterday").content, "another type"),
        (scar(size=7).content, "size"),
        (changed(lambda d: d["scar"]["failure"].pop("pair")), "pair"),
        (changed(lambda d: d.pop("scar")), "one fact, not 0"),
        (changed(lambda d: d.update(regime_shift=json.loads(NOTES[1].content)["regime_shift"])), "one fact, not 2"),
        (changed(lambda d: d.update(extra=1)), "extra"),
        (changed(lambda d: d.update(owner_id="owner-2")), "none of the clade of 'owner-1'"),
        (b"{" * 70_000, "65,536 at most"),
        (b"{}", "malformed"),
    ],
)  # fmt: skip
def test_a_wrong_note_is_refused_with_its_reason(content: bytes, reason: str) -> None:
    with pytest.raises(BundleError, match=reason):
        read_note(content, "owner-1")
