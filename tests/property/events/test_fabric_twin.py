"""The events built by columns equal those of the row-at-a-time twin, in the same order, with the same ids."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bardo_pipeline.curator.state.decision_log import OPERATIONS
from bardo_pipeline.events.stream.catalogue import GolemEvent
from bardo_pipeline.events.stream.event_table import NEIGHBOUR_COLUMNS, Emitted
from bardo_pipeline.events.stream.from_projections import CYCLE_COLUMNS, DECISION_COLUMNS, cycle_events, decision_events
from bardo_pipeline.events.stream.from_records import RECORD_COLUMNS, record_events
from bardo_pipeline.policy import FabricPolicy
from tests.reference import fabric as twin
from tests.support.records.drawn_records import records

pytestmark = pytest.mark.row("EV-7")

TIERS = ("routine", "notable", "critical", "emergency")
DECISIONS = pa.schema(
    [
        *((n, pa.string()) for n in ("golem_id", "operation", "entry_id", "kind", "category", "provenance", "because")),
        *((n, pa.int64()) for n in ("revision", "cycle", "seq", "confidence_ppm", "turn")),
        ("at", pa.timestamp("us", tz="UTC")),
        ("cause_ticks", pa.list_(pa.int64())),
    ]
)

CYCLES = pa.schema(
    [
        *((n, pa.int64()) for n in CYCLE_COLUMNS if n not in ("golem_id", "closed_at", "because")),
        ("golem_id", pa.string()),
        ("closed_at", pa.timestamp("us", tz="UTC")),
        ("because", pa.string()),
    ]
)


def by_path(table: pa.Table) -> pa.Table:
    """Return the records with nested paths as columns, as the log reads them."""
    columns = {}
    for path in RECORD_COLUMNS:
        name, _, below = path.partition(".")
        columns[path] = pc.struct_field(table[name], below) if below else table[name]
    return pa.table(columns)


def plain(emitted: Emitted) -> list[twin.PlainEvent]:
    """Return the events in the form of the twin."""

    def plain_event(event: GolemEvent) -> twin.PlainEvent:
        payload = event.payload.model_dump(mode="python")
        return twin.PlainEvent(event.event_id, event.name, event.golem_id, event.tick, event.at, _lists(payload))

    return [plain_event(event) for _, event in emitted.events()]


def _lists(value: object) -> object:
    if isinstance(value, dict):
        return {k: _lists(v) for k, v in value.items()}
    return [_lists(v) for v in value] if isinstance(value, list | tuple) else value


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 40), golems=st.integers(1, 4), dense=st.booleans(),
       split=st.integers(0, 40), warns_at=st.integers(1, 5), accuracy_every=st.integers(1, 7))  # fmt: skip
def test_events_of_records_equal_the_row_by_row_twin(
    seed: int, count: int, golems: int, dense: bool, split: int, warns_at: int, accuracy_every: int
) -> None:
    table = records(count, golems=golems, seed=seed, dense=dense, tick=seed % 97 + 1)
    rng = np.random.default_rng(seed)
    table = table.take(pa.array(rng.permutation(count)))
    before, fresh = table.slice(0, min(split, count)), table.slice(min(split, count))
    tiers = [TIERS[i] for i in rng.integers(0, 4, fresh.num_rows)]
    policy = FabricPolicy(queue_warning_depth=warns_at, accuracy_ticks=accuracy_every)
    neighbours = by_path(before).select(NEIGHBOUR_COLUMNS)
    made = record_events(by_path(fresh), neighbours, pa.array(tiers, pa.string()), policy=policy, window=500)
    wanted = twin.record_events(
        fresh.to_pylist(), neighbours.to_pylist(), tiers, warns_at=warns_at, accuracy_every=accuracy_every, window=500
    )
    assert plain(made) == wanted
    assert len(made) == len(wanted)


GOLEMS = st.sampled_from(["g", "g/1", "ü:2"])
TURNS = st.sampled_from([None, None, 1, 2])


@st.composite
def decisions(draw: st.DrawFn) -> list[dict]:
    """Draw a commit of decisions; every other commit retracts some."""
    repairs = draw(st.booleans())
    item = st.fixed_dictionaries(
        {
            "golem_id": GOLEMS, "revision": st.integers(0, 2), "operation": st.sampled_from(OPERATIONS),
            "entry_id": st.just("e1"), "kind": st.just("insight"), "category": st.just("gas_timing"),
            "confidence_ppm": st.integers(0, 10**6), "provenance": st.just("self"),
            "cause_ticks": st.lists(st.integers(1, 9), max_size=5), "turn": TURNS, "cycle": st.integers(0, 3),
            "because": st.sampled_from([None, "event-1"]) if repairs else st.none(),
        }
    )  # fmt: skip
    rows = draw(st.lists(item, max_size=25))
    return [row | {"seq": seq, "at": row["cycle"] * 3_000_000_000} for seq, row in enumerate(rows)]


@settings(max_examples=60, deadline=None)
@given(decisions())
def test_events_of_decisions_equal_the_row_by_row_twin(rows: list[dict]) -> None:
    table = pa.Table.from_pylist(rows, schema=DECISIONS)
    made = decision_events(table.select(DECISION_COLUMNS))
    assert plain(made) == twin.decision_events(table.to_pylist())


cycles = st.fixed_dictionaries(
    {
        "golem_id": GOLEMS, "cycle": st.integers(1, 10**6), "record_count": st.integers(0, 50),
        "entries_pruned": st.integers(0, 9), "entries_promoted": st.integers(0, 9), "turn": TURNS,
        "heuristics_proposed": st.integers(0, 9), "because": st.sampled_from([None, None, "event-1"]),
    }
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(cycles, max_size=15, unique_by=lambda row: (row["golem_id"], row["cycle"])))
def test_events_of_closed_cycles_equal_the_row_by_row_twin(rows: list[dict]) -> None:
    ends = [row | {"tick_last": 50 * row["cycle"], "closed_at": row["cycle"] * 10**6} for row in rows]
    table = pa.Table.from_pylist(ends, schema=CYCLES)
    assert plain(cycle_events(table)) == twin.cycle_events(table.to_pylist())
