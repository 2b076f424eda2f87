"""A measure above its limit names a command after which `bardo status` is silent about it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bardo_pipeline.clock import utc_now
from bardo_pipeline.events.experience.reported_experience import record_of, report
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.journal.event_writer import EventWriter
from tests.support.processes.bardo_command import bardo
from tests.support.processes.forked_processes import CONTEXT
from tests.support.processes.printed_cures import cure_in, ids

pytestmark = [pytest.mark.row("P-4"), pytest.mark.full]


def faults(home: Path) -> dict[str, str]:
    """Return the sentences about the measures above their limits."""
    facts = json.loads(bardo("status", "--format", "json", home=home))
    return {fault["measure"]: fault["says"] for fault in facts["faults"]}


def _acknowledge_and_die(root: Path) -> None:
    writer = EventWriter.open(Home.open(root), "g-1", clock=utc_now, drain="none")
    writer.append(record_of("g-1", 1, utc_now(), [report({}, "move", 0.5)]))
    os._exit(0)


def test_records_of_a_dead_writer_are_drained(founded: Path) -> None:
    process = CONTEXT.Process(target=_acknowledge_and_die, args=(founded,))
    process.start()
    process.join()
    printed = faults(founded)["leases.stale"]
    assert "1" in bardo(*cure_in(printed), home=founded)
    assert "leases.stale" not in faults(founded)
    assert "g-1:1" in bardo("ticks", home=founded)


@pytest.mark.parametrize("cure", ["send the ticks", "accept-gap"])
def test_missing_ticks_are_sent_or_accepted(cure: str, founded: Path) -> None:
    for tick in ("1", "4"):
        bardo("report", "g-1", "move", "0.5", "--tick", tick, home=founded)
    bardo("drain", home=founded)
    printed = faults(founded)["log.missing_ticks"]
    assert cure in printed
    if cure == "accept-gap":
        bardo(*cure_in(printed), "g-1", "2", "3", "--why", "lost", home=founded)
    else:
        for tick in ("2", "3"):
            bardo("report", "g-1", "move", "0.5", "--tick", tick, home=founded)
        bardo("drain", home=founded)
    assert "log.missing_ticks" not in faults(founded)


def test_refused_records_are_listed_with_their_reasons(founded: Path) -> None:
    (founded / "spool" / "bad.jsonl").write_text("{}\n" * 3)
    bardo("spool", "take", home=founded)
    printed = faults(founded)["quarantine.share"]
    items = ids(bardo(*cure_in(printed), home=founded))
    bardo("quarantine", "drop", *items, "--why", "x", home=founded)
    assert all(item not in bardo(*cure_in(printed), home=founded) for item in items)


def test_a_file_that_is_never_taken_gets_a_taken_name(founded: Path) -> None:
    file = founded / "spool" / "records.json"
    file.write_text("{}\n")
    os.utime(file, (1, 1))
    assert "name it so, or remove it" in faults(founded)["spool.untaken"]
    file.rename(file.with_suffix(".jsonl"))
    os.utime(file.with_suffix(".jsonl"), (1, 1))
    bardo(*cure_in(faults(founded)["spool.age"]), home=founded)
    assert {"spool.untaken", "spool.age"}.isdisjoint(faults(founded))


def test_closed_cycles_that_wait_are_derived(living: Path) -> None:
    printed = faults(living)
    assert "curation.waiting" in printed
    bardo(*cure_in(printed["curation.waiting"]), "--no-marts", home=living)
    assert {"curation.waiting", "episodes.waiting"}.isdisjoint(faults(living))
