"""A live writer acknowledges an input or refuses it with a typed error; the log has each acknowledged record."""

from __future__ import annotations

from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest

from bardo_pipeline.errors import InputError, SchemaVersionError, StreamError
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.intake.quarantine import Quarantine
from bardo_pipeline.storage.journal.event_writer import EventWriter
from bardo_pipeline.storage.log.event_log import EventLog
from tests import fuzz
from tests.support.example_count import draw_seed

NOW = datetime(2026, 11, 1, tzinfo=UTC)
GOLEM = "golem-0000"
LINES = 1_500


@pytest.mark.row("EV-3")
def test_the_log_holds_exactly_the_acknowledged_fuzzed_records(tmp_path: Path) -> None:
    mutator = fuzz.Mutator(Random(draw_seed()), big=0.0)
    good = fuzz.good_records(LINES // 5, tick=1, seed=1)
    acknowledged: dict[int, tuple[bytes, bytes]] = {}
    refused: list[str] = []
    home = Home.create(tmp_path / "home", Policy(), NOW)
    with EventWriter.open(home, GOLEM, clock=lambda: NOW, drain="none") as writer:
        for tick in range(1, LINES + 1):
            line = mutator.line(deepcopy(good[tick % len(good)]) | {"golem_id": GOLEM, "tick": tick})
            try:
                ack = writer.append(line)
            except (InputError, StreamError, SchemaVersionError) as error:
                refused.append(str(error))
            else:
                if not ack.repeated:
                    acknowledged[ack.tick] = line, ack.link.hash
    assert len(refused) > LINES / 10
    assert all(refused), "a refusal has no reason"
    assert len(acknowledged) > LINES / 4
    with EventLog(home) as log:
        rows = log.read_cycles(["golem_id", "tick", "payload", "link"]).to_pylist()
    assert {row["tick"]: (row["payload"], row["link"]["hash"]) for row in rows} == acknowledged
    assert len(rows) == len(acknowledged)
    assert {row["golem_id"] for row in rows} == {GOLEM}
    assert len(Quarantine(home).open()) == 0
