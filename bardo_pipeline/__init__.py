"""Bardo: the memory of mortal agents, derived from append-only decision records.

The names below are the public API. They are imported on first use, so `import bardo_pipeline` takes milliseconds.

Examples
--------
Run golems through a synthetic market, then read their events and records:

>>> from bardo_pipeline import EventLog, LifeEvent, Policy, open_home, read_records, run_fleet
>>> home = open_home("tour", policy=Policy())
>>> ending = run_fleet(home, golems=1, generations=1, bars=120, lifespan_ticks=(60, 80))
>>> with EventLog(home) as log:
...     births = log.life("GolemBorn")
>>> LifeEvent.model_validate(births.drop_columns("recorded_at").to_pylist()[0]).born.owner_id
'owner-1'
>>> record = read_records(home, births["golem_id"][0].as_py())[0]

Write your own records. `append` returns when the record is durable:

>>> from bardo_pipeline import AsyncEventWriter, DecisionCycleRecord, EventWriter, birth
>>> golem_id = birth(home, lineage="mine/1", at=record.observed_at)
>>> def record_at(tick: int) -> DecisionCycleRecord:
...     return record.model_copy(update={"golem_id": golem_id, "tick": tick})
>>> with EventWriter.open(home, golem_id) as writer:
...     ack = writer.append(record_at(1))
>>> ack.tick, ack.repeated
(1, False)

The same from an event loop:

>>> import asyncio
>>> async def write() -> int:
...     async with await AsyncEventWriter.open(home, golem_id) as writer:
...         ack = await writer.append(record_at(2))
...     return ack.tick
>>> asyncio.run(write())
2

A runtime of another domain records reports, each a situation, an action and its reward. `advice` returns an `Advice`
with the rules that follow from them:

>>> from bardo_pipeline import Advice, Report, advice, record_of, report
>>> searched = report({"task": "lookup"}, "search", 0.8)
>>> isinstance(searched, Report)
True
>>> with EventWriter.open(home, golem_id) as writer:
...     ack = writer.append(record_of(golem_id, 3, record.observed_at, [searched], domain="tools"))
>>> known = advice(home, golem_id)
>>> isinstance(known, Advice), known.best({"task": "lookup"}, ["search", "guess"])
(True, 'search')

Every error that the library raises on purpose is a `BardoError`:

>>> from bardo_pipeline import ask, errors
>>> try:
...     ask(home, "g-unknown", "what does gas cost?")
... except errors.QueryError as error:
...     print(str(error).split(":")[0])
golem g-unknown
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bardo_pipeline import errors
    from bardo_pipeline.api import (
        advice,
        ask,
        birth,
        derive,
        lineage,
        open_home,
        read_records,
        run_fleet,
        search,
        search_texts,
        store_episode,
        watch,
    )
    from bardo_pipeline.events.experience.reported_experience import Report, record_of, report
    from bardo_pipeline.events.life.events import LifeEvent
    from bardo_pipeline.events.record.model import DecisionCycleRecord
    from bardo_pipeline.policy import Policy
    from bardo_pipeline.retrieval.advice import Advice
    from bardo_pipeline.storage.home import Home
    from bardo_pipeline.storage.journal.async_event_writer import AsyncEventWriter
    from bardo_pipeline.storage.journal.event_writer import Ack, EventWriter
    from bardo_pipeline.storage.log.event_log import EventLog

__all__ = [
    "Ack",
    "Advice",
    "AsyncEventWriter",
    "DecisionCycleRecord",
    "EventLog",
    "EventWriter",
    "Home",
    "LifeEvent",
    "Policy",
    "Report",
    "advice",
    "ask",
    "birth",
    "derive",
    "errors",
    "lineage",
    "open_home",
    "read_records",
    "record_of",
    "report",
    "run_fleet",
    "search",
    "search_texts",
    "store_episode",
    "watch",
]

_MODULES = {
    "Ack": "storage.journal.event_writer",
    "Advice": "retrieval.advice",
    "AsyncEventWriter": "storage.journal.async_event_writer",
    "DecisionCycleRecord": "events.record.model",
    "EventLog": "storage.log.event_log",
    "EventWriter": "storage.journal.event_writer",
    "Home": "storage.home",
    "LifeEvent": "events.life.events",
    "Policy": "policy",
    "Report": "events.experience.reported_experience",
    "record_of": "events.experience.reported_experience",
    "report": "events.experience.reported_experience",
}
"""Module of each class and pure function; the other functions are in `api`."""


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "errors":
        return import_module("bardo_pipeline.errors")
    value = getattr(import_module(f"bardo_pipeline.{_MODULES.get(name, 'api')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
