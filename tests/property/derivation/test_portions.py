"""Portions of a long log hold the same records as one complete read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental import cycle_reader
from bardo_pipeline.derivation.incremental.cycle_reader import CycleBatch, CycleReader
from bardo_pipeline.storage.delta import append_only_table
from tests.conftest import NOW
from tests.property.derivation.test_laws import Parcel, birth_of, deliver, parcels, stores_at
from tests.support.example_count import some
from tests.support.records.handmade_records import SPAN, Life, full

COLUMNS = ("golem_id", "tick", "observed_at", "resolutions")


def reader_of(stores: DerivationContext, *also: str) -> CycleReader:
    return CycleReader(stores, "portions", (*COLUMNS, *also), stores.left_out(), ordered=False)


def nothing(golem_id: str) -> None:
    """Nothing of this golem is derived yet."""


def ticks_of(rows: pa.Table) -> list[tuple[str, int]]:
    return sorted(zip(rows["golem_id"].to_pylist(), rows["tick"].to_pylist(), strict=True))


def portions_of(
    stores: DerivationContext, rows: int, *, as_wide: float = 0.8
) -> tuple[dict[str, int], list[CycleBatch]]:
    """Return the portions of a log read by this many rows. as_wide: required width of a portion."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(append_only_table, "_PART_ROWS", rows)
        patch.setattr(cycle_reader, "_WIDTH_SHARE_MIN", as_wide)
        upto, portions = reader_of(stores).batches(nothing)
        return upto, list(portions)


@pytest.mark.row("P-2")
@some(12)
@given(parcels(), st.integers(1, 8), st.integers(0, 3), st.sampled_from((0.8, 0.1, 0.0)))
def test_portions_hold_the_records_of_one_complete_read(
    arriving: list[Parcel], rows: int, kept: int, as_wide: float
) -> None:
    with TemporaryDirectory() as folder:
        stores = stores_at(Path(folder))
        for number, parcel in enumerate(arriving):
            deliver(stores, parcel, number)
            if number + 1 == kept:  # some records wait already, with a column that an earlier version read
                earlier = reader_of(stores, "tier")
                earlier.advance(earlier.next_batch(lambda golem_id: 2**31))
        whole = reader_of(stores).next_batch(nothing)
        upto, portions = portions_of(stores, rows, as_wide=as_wide)
        event(f"{min(len(portions), 3)} portions")
        assert upto == whole.upto
        assert sorted(t for p in portions for t in ticks_of(p.records)) == ticks_of(whole.records)
        assert ticks_of(portions[-1].waiting) == ticks_of(whole.waiting)
        assert {p.version for p in portions} == {whole.version}
        reached = dict.fromkeys(upto, 0)
        for portion in portions:
            golems = portion.records["golem_id"].to_pylist()
            for golem_id, cycle in zip(golems, portion.cycle.tolist(), strict=True):
                assert reached[golem_id] < cycle <= portion.upto[golem_id]
            assert all(reached[golem_id] < cycle for golem_id, cycle in portion.upto.items())
            reached |= portion.upto
        assert reached == upto


def lived(root: Path, *batches: Sequence[tuple[str, range]]) -> DerivationContext:
    """A home of golems with quiet ticks only, appended in these batches."""
    quiet = {g: Life(g, {}, (0,), timedelta(minutes=1), 10 * SPAN) for batch in batches for g, _ in batch}
    stores = stores_at(root)
    stores.log.record([birth_of(value) for value in quiet.values()], NOW)
    for number, batch in enumerate(batches):
        rows = [quiet[golem_id].rows()[tick - 1] for golem_id, ticks in batch for tick in ticks]
        stores.log.append(full(rows), writer="w", segment=number, recorded_at=NOW)
    return stores


def test_golems_in_step_share_each_portion(tmp_path: Path) -> None:
    ticks = [range(1 + 2 * SPAN * k, 1 + 2 * SPAN * (k + 1)) for k in range(5)]
    stores = lived(tmp_path, *([("g-0", some), ("g-1", some)] for some in ticks))
    _, portions = portions_of(stores, 4 * SPAN)
    assert [p.upto for p in portions] == [{"g-0": k, "g-1": k} for k in (2, 4, 6, 8, 10)]


def test_golems_appended_in_sequence_share_one_portion(tmp_path: Path) -> None:
    stores = lived(tmp_path, *([(f"g-{k}", range(1, 10 * SPAN + 1))] for k in range(4)))
    _, (whole,) = portions_of(stores, SPAN)
    assert whole.upto == {f"g-{k}": 10 for k in range(4)}


def test_an_incomplete_cycle_waits_for_its_missing_ticks(tmp_path: Path) -> None:
    late, rest = range(2 * SPAN, 6 * SPAN + 1), range(1, 2 * SPAN)
    stores = lived(tmp_path, [("g-0", rest)], [("g-0", late)], [("g-0", range(6 * SPAN + 1, 7 * SPAN))])
    upto, portions = portions_of(stores, 1)
    assert upto == {"g-0": 6}
    assert [(t, p.cycle.size) for p in portions for t in p.upto.values()] == [(1, SPAN), (6, 5 * SPAN)]
    assert ticks_of(portions[-1].waiting) == [("g-0", tick) for tick in range(6 * SPAN + 1, 7 * SPAN)]
