"""Records and events that were observed ahead of the recording clock are refused, and silence has two witnesses."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from bardo_pipeline.errors import ClockError
from bardo_pipeline.events.custody.hash_chain import content_of
from bardo_pipeline.events.life.events import Gap, life_event
from bardo_pipeline.events.record.arrow_schema import MOMENT, RECORD_SCHEMA
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.intake.json_reader import read_lines
from bardo_pipeline.storage.intake.line_buffer import Lines
from bardo_pipeline.storage.intake.quarantine_retry import retry
from bardo_pipeline.storage.journal.event_writer import EventWriter
from tests import fuzz
from tests.conftest import NOW
from tests.support.homes.spool_homes import (
    OWNER_KEY,
    SMALL,
    Place,
    arrow,
    line_of,
    lines,
    record_owned_birth,
    signed,
    some,
)
from tests.support.processes.bardo_command import bardo
from tests.support.records.drawn_records import records

pytestmark = pytest.mark.row("EV-4")
AHEAD = timedelta(seconds=Policy().writer.clock_ahead_seconds_max)
LATE = NOW + AHEAD + timedelta(microseconds=1)


def at(moment: datetime, **options: Any) -> bytes:
    """One record that was observed at this moment."""
    return fuzz.dumps(some(1, **options)[0] | {"observed_at": moment.isoformat()})


def moved(table: pa.Table, moment: datetime) -> pa.Table:
    times = pa.array([moment] * table.num_rows, MOMENT)
    return table.set_column(table.column_names.index("observed_at"), RECORD_SCHEMA.field("observed_at"), times)


def test_a_line_ahead_of_the_clock_waits_in_quarantine_until_the_clock_reaches_it(place: Place) -> None:
    assert timedelta(minutes=5) == AHEAD
    place.drop("a.jsonl", [at(LATE), at(NOW + AHEAD, tick=2)])
    (taken,) = place.take()
    assert (taken.written, place.reasons()) == (1, [("a.jsonl", 1, "ClockError")])
    (item,) = place.refused()
    assert "more than 300 s ahead of the clock of this home: set the runtime's clock, then retry" in item.reason
    quarantine = place.spool.quarantine
    assert retry(place.log, quarantine, [item.item_id], at=NOW, policy=SMALL).taken == []
    assert retry(place.log, quarantine, [item.item_id], at=LATE, policy=SMALL).stayed == []
    assert place.ticks("g-1") == [1, 2]


def test_rows_of_an_arrow_file_ahead_of_the_clock_are_quarantined(place: Place) -> None:
    good, late = records(5, golems=1), moved(records(5, golems=1, tick=6), LATE)
    place.drop("a.arrow", arrow(pa.concat_tables([good, late])))
    (taken,) = place.take()
    assert (taken.written, set(taken.errors)) == (5, {"ClockError"})


def test_a_life_event_ahead_of_the_clock_is_quarantined(place: Place) -> None:
    record_owned_birth(place, "g-1")
    event = line_of(life_event("g-1", LATE, Gap(tick_from=1, tick_to=2, why="lost")))
    place.drop("a.life.jsonl", [event], [signed("g-1", content_of(event), OWNER_KEY)])
    place.take()
    assert place.reasons() == [("a.life.jsonl", 1, "ClockError")]


def test_a_batch_ahead_of_the_clock_is_refused_unless_it_is_simulated(place: Place) -> None:
    late = moved(records(2, golems=1), LATE)
    with pytest.raises(ClockError, match="golem golem-0000: tick 1 was observed at 2026-11-01 00:05:00"):
        place.log.append(late, writer="w", segment=1, recorded_at=NOW)
    assert place.log.append(late, writer="w", segment=1, recorded_at=NOW, simulated=True).written == 2
    assert place.log.append(late, writer="w", segment=2, recorded_at=NOW).repeated == 2, "what is on record stays"


def test_a_writer_refuses_a_record_ahead_of_its_clock(place: Place) -> None:
    with EventWriter.open(place.home, "g-1", clock=lambda: NOW, drain="none") as writer:
        with pytest.raises(ClockError, match="golem g-1: tick 1 was observed at"):
            writer.append(at(LATE))
        assert writer.append(at(NOW + AHEAD)).tick == 1
        with pytest.raises(ClockError, match="GapAccepted was observed at"):
            writer.record(life_event("g-1", LATE, Gap(tick_from=2, tick_to=2, why="lost")))


def test_an_acknowledged_record_is_drained_although_the_clock_was_set_back(place: Place) -> None:
    moments = [NOW]
    with EventWriter.open(place.home, "g-1", clock=lambda: moments[-1], drain="none") as writer:
        writer.append(at(NOW))
        moments.append(NOW - timedelta(days=1))
    assert place.ticks("g-1") == [1]


@pytest.mark.row("INH-2")
def test_one_record_of_the_year_9999_declares_no_other_golem_dead(place: Place) -> None:
    for golem_id, owner in (("g-1", "owner-1"), ("g-2", "owner-1"), ("g-3", "owner-2")):
        record_owned_birth(place, golem_id, owner)
        place.drop(f"{golem_id}.jsonl", lines(3, golem_id=golem_id))
    place.take()
    far = at(datetime.fromisoformat("9999-12-30T00:00:00+00:00"), golem_id="g-3", tick=4)
    place.drop("far.jsonl", [far])
    place.take()
    assert place.reasons() == [("far.jsonl", 1, "ClockError")]
    assert "No golem fell silent" in bardo("golem", "observe", home=place.home.root)
    # A home from before the check has the record.
    place.log.append(read_lines(Lines.of([far])).records, writer="old", segment=1, recorded_at=NOW, simulated=True)
    assert "No golem fell silent" in bardo("golem", "observe", home=place.home.root)
    assert place.log.life("DeathDeclared").num_rows == 0
