"""Effects of owners' overrides on an entry: pin, unpin, retract, correct."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from bardo_pipeline.curator.curate import curate
from bardo_pipeline.curator.playbook import Playbooks
from bardo_pipeline.curator.state.grimoire_state import GrimoireState, entry_id, to_table
from bardo_pipeline.events.life.events import life_event
from bardo_pipeline.events.life.life_schema import LIFE_SCHEMA
from bardo_pipeline.events.life.override_events import Corrected, Order, Overrides, Pinned, Retracted, Unpinned
from bardo_pipeline.events.record.arrow_schema import to_table as events_table
from bardo_pipeline.grimoire.entry_columns import confidence_of
from bardo_pipeline.inheritance.weismann import attenuate, leave_bloodstains, shed
from tests.support.homes.owner_events import order
from tests.support.knowledge import handmade_grimoires
from tests.support.records.handmade_records import KEEN, SPAN, START, STORM, Chapter, Life, cycles_of, stream

POLICY = KEEN
CYCLE = POLICY.curator.cycle_ticks
GOOD, BAD, STRONG, WORSE, SILENCE = (
    Chapter(3, 1_500),
    Chapter(3, -1_500),
    Chapter(14, 6_000),
    Chapter(14, -6_000),
    Chapter(0),
)
RULE = entry_id("g-1", STORM.structure.key)
WEEK = timedelta(days=7)

Row = dict[str, Any]


def override(kind: str, cycle: int, number: int = 1, *, every: timedelta = WEEK / SPAN, **fields: Any) -> Order:
    """An override of the storm's rule at the beginning of a cycle."""
    at = START + SPAN * (cycle - 1) * every
    return order("g-1", number, f"Entry{kind}", RULE, CYCLE * (cycle - 1), at=at, **fields)


def decide_storm(story: Sequence[Chapter], *orders: Order, every: timedelta = WEEK / SPAN) -> tuple[list[Row], Row]:
    """Return the decisions about the storm's rule, and its present state, after a life of several weeks."""
    records = stream([Life("g-1", {STORM: tuple(story)}, (0,), every, SPAN * len(story))])
    state = GrimoireState()
    made = curate(
        state, Playbooks(), records, cycles_of(records), policy=POLICY, policy_hash=POLICY.hash, orders=orders
    )
    about = STORM.structure.key
    decided = [row for row in made.decisions.to_pylist() if row["structure"] == about]
    entries = to_table(state, POLICY.curator, POLICY.decay).to_pylist()
    return decided, next(row for row in entries if row["structure"] == about)


def operations(decided: list[Row]) -> list[tuple[int, str]]:
    return [(row["cycle"], row["operation"]) for row in decided]


@pytest.mark.row("X-8")
def test_a_pinned_entry_does_not_decay_and_is_not_pruned() -> None:
    loose, _ = decide_storm([GOOD, *[SILENCE] * 8])
    assert loose[-1]["operation"] == "pruned"
    decided, entry = decide_storm([GOOD, *[SILENCE] * 8], override("Pinned", 2))
    assert operations(decided) == [(1, "created"), (2, "pinned")]
    assert (decided[1]["reason"], decided[1]["cause_event"]) == ("its owner pinned it: I was there", "g-1-1")
    assert decided[1]["cause_ticks"] == []
    assert (entry["status"], entry["pinned_ppm"], entry["fades_at"]) == ("active", 600_000, None)
    long_after = datetime(2034, 1, 1, tzinfo=UTC)
    assert handmade_grimoires.confidence_at(handmade_grimoires.grimoire(_bare(entry)), long_after) == [600_000]


def _bare(entry: Row) -> Row:
    return {name: value for name, value in entry.items() if name != "fades_at"} | {"fades_at": None}


@pytest.mark.row("X-8")
def test_evidence_changes_a_pinned_entry_without_pruning_it() -> None:
    against = [STRONG, *[WORSE] * 12]
    decided, entry = decide_storm(against, override("Pinned", 2), every=timedelta(minutes=1))
    assert "contradicted" in {row["operation"] for row in decided}
    assert entry["confidence_ppm"] < 50_000 < entry["pinned_ppm"]
    assert entry["status"] == "active"


@pytest.mark.row("X-8")
def test_an_unpinned_entry_decays_from_that_moment_on() -> None:
    story = [GOOD, *[SILENCE] * 7]
    decided, entry = decide_storm(story, override("Pinned", 2), override("Unpinned", 5, 2))
    assert operations(decided)[:3] == [(1, "created"), (2, "pinned"), (5, "unpinned")]
    assert decided[2]["confidence_ppm"] == 600_000, "it did not decay while it was pinned"
    assert decided[2]["anchor_at"] == decided[2]["at"]
    assert entry["pinned_ppm"] == 0
    half_life = timedelta(days=POLICY.decay.regime_conditional_days)
    table = handmade_grimoires.grimoire(_bare(entry))
    assert handmade_grimoires.confidence_at(table, decided[2]["at"] + half_life) == [300_000]


@pytest.mark.row("X-8")
def test_a_retracted_entry_is_created_again_only_by_later_evidence() -> None:
    instant = timedelta(milliseconds=1)
    item = Chapter(1, 1_500)
    gone, entry = decide_storm([GOOD, GOOD, item, item], override("Retracted", 2, every=instant), every=instant)
    place = operations(gone).index((2, "retracted"))
    assert operations(gone)[:2] == [(1, "created"), (2, "reinforced")], "decisions of the cycle before the retraction"
    assert gone[place]["confidence_before_ppm"] == gone[place]["confidence_ppm"] > 600_000
    assert (gone[place]["status"], gone[place]["fades_at"]) == ("retracted", None)
    assert [o for _, o in operations(gone)[place + 1 :]] == ["staged"] * 2, (
        "two decisions are no cluster, and older evidence does not count"
    )
    assert (entry["status"], entry["own_count"], entry["pinned_ppm"]) == ("retracted", 2, 0)
    back, entry = decide_storm([GOOD, GOOD, item, item, item], override("Retracted", 2, every=instant), every=instant)
    assert operations(back)[-1] == (5, "created")
    assert (entry["status"], entry["evidence_count"], entry["confidence_ppm"]) == ("active", 3, 600_000)


@pytest.mark.row("X-8")
def test_a_retraction_prevails_over_other_overrides_of_its_cycle() -> None:
    instant = timedelta(milliseconds=1)
    orders = (
        override("Retracted", 2, 1, every=instant), override("Pinned", 2, 2, every=instant),
        override("Corrected", 2, 3, every=instant, confidence=1.0),
    )  # fmt: skip
    decided, entry = decide_storm([GOOD, SILENCE, SILENCE], *orders, every=instant)
    assert operations(decided)[1:] == [(2, "pinned"), (2, "corrected"), (2, "retracted")]
    assert (entry["status"], entry["pinned_ppm"]) == ("retracted", 0)


@pytest.mark.row("X-8")
def test_a_correction_replaces_confidence_and_decay_class() -> None:
    decided, entry = decide_storm(
        [GOOD, SILENCE, SILENCE], override("Corrected", 2, confidence=0.9, decay_class="ephemeral")
    )
    assert operations(decided) == [(1, "created"), (2, "corrected"), (3, "pruned")], "a week at a half-life of a day"
    assert (decided[1]["confidence_ppm"], decided[1]["anchor_at"]) == (900_000, decided[1]["at"])
    assert decided[1]["decay_class"] == "ephemeral"
    assert entry["decay_class"] == "ephemeral"
    decided, _ = decide_storm([GOOD, SILENCE], override("Corrected", 2, decay_class="structural"))
    faded = decided[1]["confidence_before_ppm"]
    assert faded < 600_000
    assert (decided[1]["confidence_ppm"], decided[1]["fades_at"]) == (faded, None), "earlier decay is not undone"


@pytest.mark.row("X-8")
def test_a_pin_follows_a_corrected_confidence() -> None:
    decided, entry = decide_storm(
        [GOOD, *[SILENCE] * 6], override("Pinned", 2), override("Corrected", 3, 2, confidence=0.3)
    )
    assert [row["pinned_ppm"] for row in decided] == [0, 600_000, 300_000]
    assert entry["status"] == "active"


@pytest.mark.row("X-8")
@pytest.mark.parametrize(
    ("verdict", "sign", "kind", "anti"),
    [("pays", 1, "heuristic", False), ("harms", -1, "warning", False), ("anti_knowledge", -1, "warning", True)],
)
def test_a_corrected_verdict_discards_the_evidence_for_the_old_verdict(
    verdict: str, sign: int, kind: str, anti: bool
) -> None:
    minute = timedelta(minutes=1)
    story = [STRONG, STRONG, STRONG, STRONG]
    before, rule = decide_storm(story, every=minute)
    assert (rule["sign"], rule["kind"]) == (1, "heuristic"), before
    orders = override("Corrected", 5, every=minute, verdict=verdict, confidence=0.8)
    decided, entry = decide_storm([*story, SILENCE], orders, every=minute)
    assert (entry["sign"], entry["kind"], entry["is_anti_knowledge"]) == (sign, kind, anti)
    assert entry["confidence_ppm"] == 800_000
    turned = sign < 0
    assert (entry["own_count"] == entry["validations"] == entry["effect_mean_ppm"] == 0) is turned
    assert ("do not act" in entry["text"]) is turned
    decided, entry = decide_storm([*story, SILENCE, Chapter(3, -4_000)], orders, every=minute)
    if turned:
        last_operations = [row["operation"] for row in decided if row["cycle"] == decided[-1]["cycle"]]
        assert "reinforced" in last_operations, "the old evidence does not outweigh the new"


@pytest.mark.row("X-8")
def test_an_override_of_a_missing_entry_changes_nothing() -> None:
    quiet, _ = decide_storm([GOOD, SILENCE], every=timedelta(minutes=1))
    early, _ = decide_storm([GOOD, SILENCE], override("Retracted", 1), every=timedelta(minutes=1))
    assert early == quiet, "the entry does not exist before its first cycle closes"


@pytest.mark.row("X-8")
def test_an_override_is_applied_in_a_cycle_without_records() -> None:
    records = stream([Life("g-1", {STORM: (GOOD,)}, (0,), timedelta(minutes=1), SPAN)])
    state = GrimoireState()
    orders = (override("Retracted", 3, every=timedelta(minutes=1)),)
    made = curate(state, Playbooks(), records, cycles_of(records), policy=POLICY, policy_hash="p", orders=orders)
    assert made.decisions["operation"].to_pylist()[-1] == "retracted"
    assert made.decisions["at"][-1].as_py() == orders[0].at
    assert made.cycles["cycle"].to_pylist() == [1], "the cycle has no records"


@pytest.mark.row("X-8")
def test_a_pin_ends_at_death_with_the_confidence_that_it_held() -> None:
    held = handmade_grimoires.entry(pinned_ppm=600_000, decay_class="tactical")
    entries, deaths = handmade_grimoires.grimoire(held), handmade_grimoires.deaths("g-1")
    assert handmade_grimoires.confidence_at(entries, handmade_grimoires.DIED) == [600_000]
    left = leave_bloodstains(entries, deaths, POLICY)
    assert left["pinned_ppm"].to_pylist() == [0]
    crossed = shed(attenuate(left, POLICY), POLICY)
    assert handmade_grimoires.confidence_at(crossed, handmade_grimoires.DIED) == [510_000], (
        "0.85 of the pinned confidence"
    )
    later = handmade_grimoires.DIED + timedelta(days=POLICY.decay.tactical_days)
    assert handmade_grimoires.confidence_at(crossed, later) == [255_000]
    unpinned = leave_bloodstains(handmade_grimoires.grimoire(held | {"pinned_ppm": 0}), deaths, POLICY)
    assert confidence_of(unpinned, 0, POLICY.decay).tolist() == [600_000]


PLACE = {"number": 1, "entry_id": RULE, "tick_seen": 7, "cycle_seen": 0, "why": "so"}


@pytest.mark.row("X-8")
@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"confidence": 1.7}, "confidence"),
        ({"confidence": -0.1}, "confidence"),
        ({"confidence": float("nan")}, "confidence"),
        ({"confidence": 0.4, "verdict": "perhaps"}, "verdict"),
        ({"verdict": "harms"}, "needs a confidence"),
        ({"decay_class": "fact"}, "decay_class"),
        ({}, "a correction names"),
        ({"confidence": 0.4, "why": ""}, "why"),
        ({"confidence": 0.4, "number": 0}, "number"),
        ({"confidence": 0.4, "sign": 1}, "sign"),
    ],
)
def test_an_invalid_correction_is_refused(wrong: Row, text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        Corrected.model_validate(PLACE | wrong)


@pytest.mark.row("X-8")
def test_overrides_do_not_depend_on_order_or_repetition_of_events() -> None:
    payloads = [
        Pinned(**PLACE | {"number": 1}), Corrected(**PLACE | {"number": 2, "confidence": 0.5, "note": "n"}),
        Unpinned(**PLACE | {"number": 3, "tick_seen": 120}), Retracted(**PLACE | {"number": 4, "tick_seen": 149}),
    ]  # fmt: skip
    events = [life_event(golem, START, payload) for golem in ("g-2", "g-1") for payload in payloads]
    result = Overrides.of(events_table(events, LIFE_SCHEMA))
    assert result == Overrides.of(events_table([*reversed(events), *events], LIFE_SCHEMA))
    assert [order.golem_id for order in result.events] == ["g-1"] * 4 + ["g-2"] * 4
    assert [order.kind for order in result.of_golem("g-1")] == [
        "EntryPinned", "EntryCorrected", "EntryUnpinned", "EntryRetracted",
    ]  # fmt: skip
    assert (result.events[1].confidence, result.events[1].note) == (0.5, "n")
    assert [order.number for order in result.due({"g-1": 1}, {"g-1": 3, "g-3": 9}, 50)] == [3, 4]
    assert [order.number for order in result.due({}, {"g-1": 2}, 50)] == [1, 2]
    assert [order.number for order in result.due({}, {"g-1": 6}, 20)] == [1, 2]
