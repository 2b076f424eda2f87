"""The curator equals its row-at-a-time twin (law 8) on streams that cause every operation."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from bardo_pipeline.curator.curate import Curation, curate
from bardo_pipeline.curator.passes.weigh import counted_readings
from bardo_pipeline.curator.playbook import Playbooks
from bardo_pipeline.curator.state import level_readings
from bardo_pipeline.curator.state.decision_log import (
    ADMITTED,
    BORNE_OUT,
    CORRECTED,
    NOTED,
    OPERATIONS,
    PINNED,
    QUARANTINED,
    RECEIVED,
    REFUSED,
    RETRACTED,
    SPOKEN_AGAINST,
    UNPINNED,
    fold,
)
from bardo_pipeline.curator.state.evidence import gather_evidence, is_episode, is_verified
from bardo_pipeline.curator.state.grimoire_state import GrimoireState, entry_id, from_table, to_table
from bardo_pipeline.curator.state.structures import Structures
from bardo_pipeline.events.life.override_events import Order
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA
from bardo_pipeline.grimoire.gas_bands import GAS_SPANS
from bardo_pipeline.inheritance.heir_entries import received_decisions
from bardo_pipeline.inheritance.weismann import SHED_COLUMNS, with_fade_time
from bardo_pipeline.policy import Policy
from tests.reference.learning import evidence as twin_of_evidence
from tests.reference.learning.curator import Mind, curate_by_row, grimoire_by_row
from tests.reference.learning.evidence import evidence_by_row
from tests.support.example_count import times
from tests.support.homes import owner_events
from tests.support.knowledge import drawn_proposals
from tests.support.records.handmade_records import (
    GALE,
    KEEN,
    SILENCE,
    SITUATIONS,
    SPAN,
    SQUALL,
    START,
    STORIES,
    STORM,
    STORMS,
    Life,
    cycles_of,
    kindred,
    life,
    lives,
    record,
    stream,
    table,
)

POLICY = KEEN
BRIEF = POLICY.model_copy(update={"curator": POLICY.curator.model_copy(update={"cycle_ticks": SPAN})})
"""The policy with cycles of a few ticks, for proposals and orders that take effect by tick."""

examples = settings(max_examples=times(30), deadline=None, derandomize=True)

Rows = list[dict[str, Any]]


def with_cycles(records: pa.Table) -> list[tuple[dict[str, Any], int]]:
    return list(zip(records.to_pylist(), cycles_of(records).tolist(), strict=True))


def close_enough(rows: Rows) -> Rows:
    """Rows with `fades_at` rounded to the millisecond: only this figure comes from a logarithm."""
    return [
        row | {"fades_at": row["fades_at"] and round(row["fades_at"].timestamp(), 3)} if "fades_at" in row else row
        for row in rows
    ]


def assert_alike(result: pa.Table, expected: Iterable[dict[str, Any]]) -> None:
    rows, wanted = close_enough(result.to_pylist()), close_enough(list(expected))
    assert len(rows) == len(wanted)
    for row, other in zip(rows, wanted, strict=True):
        assert row == other


def curated(records: pa.Table, state: GrimoireState, orders: Sequence[Order] = ()) -> Curation:
    cycles = cycles_of(records)
    return curate(state, Playbooks(), records, cycles, policy=POLICY, policy_hash=POLICY.hash, orders=orders)


@pytest.mark.row("MEM-1", "MEM-6")
@examples
@given(lives(), st.randoms(use_true_random=False))
def test_evidence_equals_its_twin(lived: tuple[Life, ...], chance: Any) -> None:
    records = stream(lived)
    order = list(range(records.num_rows))
    chance.shuffle(order)
    records = records.take(order)
    structures, golems = Structures(), sorted({item.golem_id for item in lived})
    golem = np.array([golems.index(g) for g in records.column("golem_id").to_pylist()])
    result = gather_evidence(
        records, golem=golem, cycle=cycles_of(records), structures=structures, policy=POLICY.curator
    )
    groups = {
        (golems[result.golem[i]], int(result.cycle[i]), structures.rows[result.structure[i]]): (
            int(result.count[i]), int(result.total[i]), int(result.squares[i]), result.mood[i].tolist(),
            set(result.cause_tick[result.first[i] : result.stop[i]].reshape(-1).tolist()),
        )
        for i in range(len(result.golem))
    }  # fmt: skip
    expected = evidence_by_row(with_cycles(records), POLICY.curator)
    assert groups == {k: (g.count, g.total, g.squares, g.mood, g.causes) for k, g in expected.items()}


@examples
@given(lives())
def test_is_episode_and_is_verified_equal_their_twins(lived: tuple[Life, ...]) -> None:
    records = stream(lived)
    rows = records.to_pylist()
    assert is_episode(records).tolist() == [twin_of_evidence.is_episode(row) for row in rows]
    assert is_verified(records).tolist() == [twin_of_evidence.is_verified(row) for row in rows]


@pytest.mark.row("MEM-1")
@pytest.mark.parametrize(("tag", "counts"), [(None, False), ("tagged by a tool", True)])
def test_a_quiet_tick_with_a_tag_of_a_tool_is_an_episode(tag: str | None, counts: bool) -> None:
    rows = [record("g-1", tick, dream_tag=tag) for tick in (1, 2, 3)]
    assert is_episode(table(rows)).tolist() == [twin_of_evidence.is_episode(row) for row in rows] == [counts] * 3


@pytest.mark.row("MEM-5", "MEM-6", "MEM-7")
@examples
@given(lives())
def test_curating_equals_its_twin(lived: tuple[Life, ...]) -> None:
    records, minds = stream(lived), {}
    state = GrimoireState()
    made = curated(records, state)
    curate_by_row(minds, with_cycles(records), POLICY)
    for operation in set(made.decisions.column("operation").to_pylist()):
        event(operation)
    assert_equals_twin(made, state, minds)


def assert_equals_twin(made: Curation, state: GrimoireState, minds: dict[str, Mind], policy: Policy = POLICY) -> None:
    rows = [minds[golem_id] for golem_id in sorted(minds)]
    assert_alike(made.decisions, (row for mind in rows for row in mind.decisions))
    assert_alike(made.cycles, (row for mind in rows for row in mind.cycles))
    assert_alike(made.playbooks, (row for mind in rows for row in mind.playbooks))
    assert_alike(to_table(state, policy.curator, policy.decay), grimoire_by_row(minds, policy))


@pytest.mark.row("X-8", "MEM-6")
@examples
@given(lives(), st.data())
def test_orders_of_owners_are_applied_as_in_the_twin(lived: tuple[Life, ...], data: st.DataObject) -> None:
    records, minds, known = stream(lived), {}, GrimoireState()
    curated(records, known)
    entries = [(item.golem_id, entry_id(item.golem_id, s.key)) for item in lived for s in known.structures.rows]
    if not entries:
        return
    span = POLICY.curator.cycle_ticks
    orders = data.draw(owner_events.orders(entries, int(cycles_of(records).max()) + 1, span))
    state = GrimoireState()
    made = curated(records, state, orders)
    curate_by_row(minds, with_cycles(records), POLICY, orders)
    for operation in set(made.decisions.column("operation").to_pylist()):
        event(operation)
    assert_equals_twin(made, state, minds)
    assert fold(made.decisions).equals(to_table(state, POLICY.curator, POLICY.decay))


@pytest.mark.row("MEM-4", "MEM-6")
@examples
@given(st.one_of(lives(), drawn_proposals.disputed(), drawn_proposals.disputed()), st.data())
def test_proposals_of_models_are_judged_as_in_the_twin(lived: tuple[Any, ...], data: st.DataObject) -> None:
    records, minds, known = stream(lived), {}, GrimoireState()
    curated(records, known)
    rules = [s for s in known.structures.rows if s.source == "pattern"] or known.structures.rows
    entries = [(item.golem_id, entry_id(item.golem_id, s.key)) for item in lived for s in rules]
    drawn = data.draw(drawn_proposals.proposals(lived, entries))
    orders = (
        data.draw(owner_events.orders(entries, int(cycles_of(records).max()), SPAN)) if data.draw(st.booleans()) else []
    )
    state = GrimoireState()
    made = curate(
        state, Playbooks(), records, cycles_of(records), policy=BRIEF, policy_hash=BRIEF.hash, orders=orders,
        proposals=drawn, cited=records,
    )  # fmt: skip
    curate_by_row(minds, with_cycles(records), BRIEF, orders, drawn, records.to_pylist())
    for row in made.decisions.to_pylist():
        if (row["cause_event"] or "").startswith("event-"):
            event(row["operation"])
    assert_equals_twin(made, state, minds, BRIEF)
    assert fold(made.decisions).equals(to_table(state, BRIEF.curator, BRIEF.decay))


@pytest.mark.row("MEM-4", "MEM-6")
@settings(examples, max_examples=times(12))
@given(kindred(), st.data())
def test_folding_and_parting_of_kindred_rules_equal_the_twin(lived: tuple[Life, ...], data: st.DataObject) -> None:
    records, minds, state = stream(lived), {}, GrimoireState()
    about = [storm.structure._replace(gas_band=span) for storm in STORMS[:1] for span in GAS_SPANS]
    entries = [(item.golem_id, entry_id(item.golem_id, s.key)) for item in lived for s in about]
    spoken = data.draw(st.booleans())
    orders = data.draw(owner_events.orders(entries, int(cycles_of(records).max()), POLICY.curator.cycle_ticks))
    orders = orders if spoken else []
    made = curated(records, state, orders)
    curate_by_row(minds, with_cycles(records), POLICY, orders)
    for operation in set(made.decisions.column("operation").to_pylist()):
        event(operation)
    assert_equals_twin(made, state, minds)
    assert fold(made.decisions).equals(to_table(state, POLICY.curator, POLICY.decay))
    if not orders:
        _assert_in_two_runs(records, data.draw(st.integers(1, int(cycles_of(records).max()))), made, state)


def _assert_in_two_runs(records: pa.Table, cut: int, made: Curation, state: GrimoireState) -> None:
    """Check that the decisions stay equal if the grimoire is written and read again in between."""
    early, again = cycles_of(records) <= cut, GrimoireState()
    first = curated(records.filter(pa.array(early)), again)
    kept = again.readings.table({*again.golems})
    again = from_table(to_table(again, POLICY.curator, POLICY.decay))
    again.readings = counted_readings(again, records.filter(pa.array(early)), cycles_of(records)[early], POLICY)
    assert all(row in kept.to_pylist() for row in again.readings.table({*again.golems}).to_pylist())
    again.readings = level_readings.from_table(kept) if cut % 2 else again.readings
    second = curated(records.filter(pa.array(~early)), again)
    both = pa.concat_tables([first.decisions, second.decisions])
    key = [(name, "ascending") for name in ("golem_id", "cycle", "seq")]
    assert both.sort_by(key).equals(made.decisions)
    assert to_table(again, POLICY.curator, POLICY.decay).equals(to_table(state, POLICY.curator, POLICY.decay))


@pytest.mark.row("MEM-6")
@examples
@given(lives())
def test_a_grimoire_is_the_fold_of_its_decisions(lived: tuple[Life, ...]) -> None:
    state = GrimoireState()
    made = curated(stream(lived), state)
    assert fold(made.decisions).equals(to_table(state, POLICY.curator, POLICY.decay))


def bequeathed(entries: pa.Table, heir_id: str) -> pa.Table:
    """Return an heir's initial entries: those of the predecessor without their sums of evidence."""
    kept = [row for row in entries.to_pylist() if row["status"] == "active"]
    changed = dict.fromkeys(SHED_COLUMNS, 0) | {"golem_id": heir_id, "provenance": "death_testament"}
    rows = [row | changed | {"generation": row["generation"] + 1} for row in kept]
    for row in rows:
        row["confidence_ppm"] = row["confidence_ppm"] * 85 // 100
        row["is_bloodstain"] = row["is_bloodstain"] or row["kind"] == "warning"
    return with_fade_time(pa.Table.from_pylist(rows, schema=ENTRY_SCHEMA), POLICY)


def inheriting(entries: pa.Table) -> Mind:
    """The heir's mind in the twin."""
    mind = Mind("g-heir", POLICY.playbook.rebalance_threshold)
    structures = from_table(entries).structures.rows
    for row, structure in zip(entries.to_pylist(), structures, strict=True):
        moments = {n: row[f"{n}_at"] for n in ("anchor", "created", "validated")}
        micros = {f"{n}_us": round(at.timestamp() * 10**6) for n, at in moments.items()}
        mind.entries[structure] = row | micros | {"structure": structure}
    return mind


@pytest.mark.row("MEM-5", "MEM-7")
@settings(examples, max_examples=times(8))
@given(st.sampled_from(STORIES[:4]), st.integers(8, 20), st.data())
def test_curating_an_heir_equals_its_twin(story: tuple[Any, ...], ticks: int, data: st.DataObject) -> None:
    ancestor = Life("g-dead", {STORM: story, SITUATIONS[2]: story}, (3,), timedelta(hours=3), ticks)
    first = GrimoireState()
    curated(stream([ancestor]), first)
    entries = bequeathed(to_table(first, POLICY.curator, POLICY.decay), "g-heir")
    records = stream([data.draw(life("g-heir", timedelta(days=2)))])
    state, minds = from_table(entries), {"g-heir": inheriting(entries)}
    made = curated(records, state)
    curate_by_row(minds, with_cycles(records), POLICY)
    event(f"entries inherited: {entries.num_rows}")
    for operation in set(made.decisions.column("operation").to_pylist()):
        event(operation)
    assert_equals_twin(made, state, minds)
    received = received_decisions(entries, "a bundle", START, POLICY.hash)
    wanted = to_table(state, POLICY.curator, POLICY.decay)
    assert fold(pa.concat_tables([made.decisions, received])).equals(wanted)


@pytest.mark.row("MEM-6")
def test_an_inherited_rule_pruned_and_relearned_has_one_own_row() -> None:
    first = GrimoireState()
    curated(stream([Life("g-dead", {STORM: STORIES[0]}, (0,), timedelta(hours=3), 16)]), first)
    entries = bequeathed(to_table(first, POLICY.curator, POLICY.decay), "g-heir")
    silent = (SILENCE,) * 6
    records = stream([Life("g-heir", {STORM: (*silent, *STORIES[0])}, (0,), timedelta(days=4), 4 * 10)])
    state = from_table(entries)
    made = curated(records, state)
    grimoire = to_table(state, POLICY.curator, POLICY.decay)
    about = [(r["operation"], r["origin_golem_id"]) for r in made.decisions.to_pylist() if r["source"] == "pattern"]
    assert about[:2] == [("pruned", "g-dead"), ("created", "g-heir")]
    assert grimoire["source"].to_pylist().count("pattern") == 1
    assert fold(pa.concat_tables([received_decisions(entries, "b", START, "p"), made.decisions])).equals(grimoire)


def test_the_stories_cause_every_operation_of_the_curator() -> None:
    counts: Counter[str] = Counter()
    kinds: Counter[tuple[str, str, bool]] = Counter()
    for pace in (timedelta(minutes=1), timedelta(days=4)):
        lines = [Life(f"g-{i}", {STORM: story}, (4, 1), pace, 4 * len(story)) for i, story in enumerate(STORIES)]
        turned = (*STORIES[0], *STORIES[1])
        lines += [Life("g-kin", {SQUALL: turned, STORM: STORIES[0], GALE: STORIES[0]}, (0,), pace, 4 * len(turned))]
        state = GrimoireState()
        made = curated(stream(lines), state)
        counts.update(made.decisions.column("operation").to_pylist())
        rows = made.decisions.select(["kind", "status", "is_anti_knowledge"]).to_pylist()
        kinds.update((r["kind"], r["status"], r["is_anti_knowledge"]) for r in rows)
    others = {OPERATIONS[counts] for counts in (RECEIVED, PINNED, UNPINNED, CORRECTED, RETRACTED, NOTED)}
    others |= {OPERATIONS[counts] for counts in (QUARANTINED, BORNE_OUT, SPOKEN_AGAINST, ADMITTED, REFUSED)}
    assert set(counts) == set(OPERATIONS) - others, "the others come from births, owners, models and received knowledge"
    assert {kind for kind, _, _ in kinds} == {"insight", "heuristic", "warning"}
    assert ("warning", "active", True) in kinds
    assert ("warning", "active", False) in kinds
    assert ("insight", "pruned", False) in kinds
