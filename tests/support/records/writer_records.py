"""Single records and their results, for tests of live writers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import cache

import orjson

from bardo_pipeline.events.record.arrow_schema import to_models
from bardo_pipeline.events.record.model import DecisionCycleRecord
from bardo_pipeline.policy import Policy, WriterPolicy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.journal.drainer import DrainReport, drain_once
from bardo_pipeline.storage.journal.event_writer import EventWriter
from bardo_pipeline.storage.log.event_log import EventLog
from tests.support.records.drawn_records import records
from tests.support.records.log_queries import GOLEM, NOW

Opener = Callable[..., EventWriter]


def clock() -> datetime:
    return NOW


@cache
def model(tick: int, golem: int = 0, seed: int = 0) -> DecisionCycleRecord:
    table = records(golem + 1, golems=golem + 1, tick=tick, seed=1000 * seed + tick).slice(golem)
    return to_models(table, DecisionCycleRecord)[0]


@cache
def line(tick: int, golem: int = 0, seed: int = 0) -> bytes:
    return model(tick, golem, seed).model_dump_json().encode()


def changed(record: bytes, **changes: object) -> bytes:
    return orjson.dumps(orjson.loads(record) | changes)


def limited(**limits: object) -> Policy:
    return Policy(writer=WriterPolicy.model_validate(limits))


def on_record(home: Home, golem_id: str = GOLEM) -> list[dict]:
    with EventLog(home) as log:
        rows = log.read_cycles(["tick", "payload", "link", "writer", "segment"], golems=[golem_id])
        return rows.sort_by("tick").to_pylist()


def drained(home: Home) -> DrainReport:
    with EventLog(home) as log:
        return drain_once(home, log, clock=clock)
