"""Laws of maintenance: rows, answers and projections stay equal, with concurrent readers and writers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bardo_pipeline.events.life.events import Died, life_event
from bardo_pipeline.events.record.model import Vitality
from bardo_pipeline.events.record.row_digest import fingerprint
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.delta.append_only_table import AppendOnlyTable
from bardo_pipeline.storage.delta.compaction import below, closed_below, tier_of
from bardo_pipeline.storage.delta.parquet_io import scan
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.index.tick_index import TickIndex
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.log.protocol import CYCLES_SCHEMA
from bardo_pipeline.storage.log.snapshot import LogAsOf
from bardo_pipeline.storage.operations.maintenance import MaintenanceReport, maintain
from tests.conftest import NOW
from tests.property.derivation.test_laws import (
    BRIEF,
    SPAN,
    beside,
    birth_of,
    death_of,
    derive_all,
    fingerprints,
    stores_at,
)
from tests.support.example_count import some
from tests.support.processes.forked_processes import CONTEXT
from tests.support.records.drawn_records import records
from tests.support.records.handmade_records import Life, lives, stream
from tests.support.records.handmade_records import full as whole_records

HOUR = timedelta(hours=1)
CARE = Policy().care.model_copy(
    update={"lookback_ticks": 8, "rewrite_rows_max": 60, "log_commits_kept": 4, "projection_commits_kept": 2}
)
SMALL = BRIEF.model_copy(update={"care": CARE})
"""Cycles of four ticks, a lookback of two cycles, files of sixty rows: everything happens within a few commits."""

KEY = ("golem_id", "tick")
COLUMNS = ["golem_id", "tick", "version", "bucket", "content_hash", "link", "payload"]


def seen(rows: pa.Table) -> set[tuple[str, int]]:
    items = list(zip(*(rows[name].to_pylist() for name in KEY), strict=True))
    assert len(items) == len(set(items)), "a row came twice"
    return set(items)


def tend(log: EventLog, home: Home, at: datetime) -> MaintenanceReport:
    return maintain(home, log, SMALL, now=at, in_force=[path.name for path in home.derivations.iterdir()])


class RecordedAnswers:
    """The answers of a log before maintenance, which later answers must equal."""

    def __init__(self, log: EventLog, home: Home) -> None:
        rows = log.read_cycles()
        self.content = fingerprint(rows, KEY)
        self.keys = seen(rows)
        self.versions = {(g, t): v for g, t, v in zip(*(rows[n].to_pylist() for n in (*KEY, "version")), strict=True)}
        self.heads, self.gaps, self.version = log.heads(), log.gaps(), log.version

    def holds(self, log: EventLog, home: Home) -> None:
        rows = log.read_cycles()
        assert fingerprint(rows, KEY) == self.content
        assert log.heads().equals(self.heads)
        assert log.gaps() == self.gaps
        for version in range(self.version + 1):
            later = {key for key, brought in self.versions.items() if brought > version}
            assert seen(log.read_cycles(["golem_id", "tick"], since_version=version)) == later
            as_of = LogAsOf(log, version=version).read_cycles(["golem_id", "tick"])
            assert seen(as_of) == self.keys - later
        index = TickIndex.open(home, log)
        assert seen(index.ticks(limit=10**6)) == self.keys


def lived(golem_ids: Sequence[str], batch: pa.Table) -> pa.Table:
    """A batch of two golems under other names."""
    names = pa.array(golem_ids).take(batch["golem_id"].combine_chunks().dictionary_encode().indices)
    return batch.set_column(batch.schema.get_field_index("golem_id"), batch.schema.field("golem_id"), names)


died = Died(
    cause="economic",
    tick=1,
    phase="terminal",
    vitality=Vitality(economic=0.0, epistemic=0.5, stochastic=0.5, composite=0.0),
    credits_micros=0,
    capital_micros=1,
    earned_micros=0,
)

moves = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 3), st.sampled_from([1, 4, 13, 30])),
    st.tuples(st.just("append"), st.integers(0, 3), st.sampled_from([8, 20])),
    st.tuples(st.just("skip"), st.integers(0, 3), st.integers(1, 3)),
    st.tuples(st.just("die"), st.integers(0, 3), st.sampled_from([0, 0, 9])),
    st.tuples(st.just("maintain"), st.sampled_from([0, 2]), st.just(0)),
    st.tuples(st.just("maintain"), st.sampled_from([0, 2]), st.just(0)),
)


@pytest.mark.row("EV-6", "X-13")
@some(3)
@given(st.lists(moves, min_size=6, max_size=16))
def test_every_reader_sees_each_row_once_across_appends_and_maintenance(actions: list[tuple[str, int, int]]) -> None:
    with TemporaryDirectory() as folder:
        home = Home.create(Path(folder), SMALL, NOW)
        log, at, segment = EventLog(home, SMALL, durable=False), datetime.now(UTC), 0
        reached = dict.fromkeys(range(4), 0)
        dead: set[int] = set()
        for what, which, count in actions:
            pair, golems = which, [f"g-{which}", f"h-{which}"]
            if what == "append" and pair not in dead:
                segment += 1
                batch = records(2 * count, golems=2, tick=reached[pair] + 1, seed=segment)
                log.append(lived(golems, batch), writer="w", segment=segment, recorded_at=NOW)
                reached[pair] += count
            elif what == "skip" and pair not in dead:
                reached[pair] += count  # a gap: the ticks after it stay warm
            elif what == "die" and reached[pair] and pair not in dead:
                log.record([life_event(golems[0], NOW, died.model_copy(update={"tick": reached[pair] + count}))], NOW)
                dead.add(pair)
            elif what == "maintain":
                before = RecordedAnswers(log, home)
                at += which * HOUR
                tend(log, home, at)
                before.holds(log, home)
                before.holds(EventLog(home, SMALL), home)
                assert not tend(log, home, at).changed, "a second run changed something"
        check_tiers(log, home)


def check_tiers(log: EventLog, home: Home, tended_at: datetime | None = None) -> None:
    """Check the files after maintenance: few files, and cold files only of closed cycles past the lookback.

    tended_at: time of the last maintenance, if later than now.
    """
    for hours in (90, 99):
        tend(log, home, (tended_at or datetime.now(UTC)) + hours * HOUR)
    table = AppendOnlyTable(home.cycles, CYCLES_SCHEMA, ["golem_id", "tick"], by_version=True)
    deaths = {row["golem_id"]: row["died"]["tick"] for row in log.life("DeathDeclared").to_pylist()}
    limits = closed_below(log.heads(), deaths, SPAN, CARE.lookback_ticks)
    named = {file.path for file in table.stored()}
    on_disk = {p.relative_to(home.cycles).as_posix() for p in home.cycles.rglob("*.parquet*") if "_log" not in str(p)}
    assert on_disk == named, "a file that no commit names outlived its grace period"
    full = 0
    for file in table.stored():
        rows = scan([str(home.cycles / file.path)], CYCLES_SCHEMA, COLUMNS)
        ordered = rows.take(pc.sort_indices(rows, [(n, "ascending") for n in ("bucket", *KEY)]))
        assert ordered.equals(rows), "a file is not clustered"
        cold = below(limits)(rows)
        assert tier_of(file.path) == "cold" or 2 * int(cold.sum()) < max(file.rows, 1)
        assert tier_of(file.path) == "warm" or bool(cold.all())
        full += 2 * file.rows > CARE.rewrite_rows_max
    rows_count = log.read_cycles(["tick"]).num_rows
    assert len(named) - full <= 2 * (1 + np.log2(CARE.rewrite_rows_max)), "small files were left apart"
    assert full <= 2 * rows_count / CARE.rewrite_rows_max + 2


@pytest.mark.full
@pytest.mark.row("EV-6")
@some(2)
@given(lives(), st.data())
def test_projections_derived_across_a_compaction_equal_those_without(
    lived_through: tuple[Life, ...], data: st.DataObject
) -> None:
    rows = whole_records(stream(lived_through).to_pylist())
    births = [birth_of(life, SMALL) for life in lived_through]
    with TemporaryDirectory() as folder:
        plain = stores_at(Path(folder) / "plain", SMALL)
        plain.log.record(births, NOW)
        plain.log.append(rows, writer="w", segment=1, recorded_at=NOW)
        derive_all(plain)
        tended = stores_at(Path(folder) / "tended", SMALL)
        tended.log.record(births, NOW)
        at, start = datetime.now(UTC), 0
        cuts = sorted(data.draw(st.sets(st.integers(1, rows.num_rows), min_size=2, max_size=4)) | {rows.num_rows})
        for segment, stop in enumerate(cuts, 1):
            part = rows.take(pa.array(range(start, stop)))
            tended.log.append(part, writer="w", segment=segment, recorded_at=NOW)
            derived_first = data.draw(st.booleans())
            if derived_first:
                derive_all(tended)
            for hours in (0, 2):  # the second run deletes the files that the first replaced
                at += hours * HOUR
                tend(tended.log, tended.home, at)
            start = stop
        derive_all(tended)
        assert fingerprints(tended) == fingerprints(plain)
        for life in lived_through:
            tended.log.record([death_of(life)], NOW)
        tend(tended.log, tended.home, at + HOUR)
        derive_all(tended)
        again = beside(tended, Path(folder) / "beside")
        derive_all(again)
        assert fingerprints(again) == fingerprints(tended)


def write_many(root: str, name: str, count: int, go: Any) -> None:
    """A process that appends batch after batch."""
    log = EventLog(Home.open(Path(root)), SMALL, durable=False)
    go.wait()
    for number in range(count):
        batch = records(10, golems=2, tick=1 + 5 * number, seed=number, prefix=name)
        log.append(batch, writer=name, segment=number + 1, recorded_at=NOW)


@pytest.mark.full
@pytest.mark.row("EV-6", "X-13")
def test_concurrent_appends_during_maintenance_lose_no_rows(tmp_path: Path) -> None:
    home = Home.create(tmp_path / "home", SMALL, NOW)
    log = EventLog(home, SMALL)
    go = CONTEXT.Event()
    writers = [CONTEXT.Process(target=write_many, args=(str(home.root), name, 12, go)) for name in "abc"]
    for writer in writers:
        writer.start()
    go.set()
    at, runs = datetime.now(UTC), 0
    while any(writer.is_alive() for writer in writers):
        at += 2 * HOUR
        tend(log, home, at)
        runs += 1
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert runs > 2
    answers = RecordedAnswers(log, home)
    assert answers.keys == {(f"{n}-{g:04}", t) for n in "abc" for g in (0, 1) for t in range(1, 61)}
    tend(log, home, at + 2 * HOUR)
    answers.holds(EventLog(home, SMALL), home)
    check_tiers(log, home, at + 2 * HOUR)
