"""Settings, progress and result of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from bardo_pipeline.events.life.events import Born
from bardo_pipeline.heartbeat.fleet import Founding
from bardo_pipeline.market.market import Market
from bardo_pipeline.runtime.entry_counts import EntryCounts

COMMIT_CHUNKS = 8
"""Chunks between commits of curation; a death commits at once."""


class Heir(NamedTuple):
    """A golem that was born between runs, and its moment of birth."""

    golem_id: str
    birth: Born
    at: datetime


Succeed = Callable[[Mapping[str, Born], datetime], list[tuple[str, Born]]]
"""Maps dead golems that may have heirs (with their births) and the moment of birth to births of heirs."""


@dataclass(frozen=True)
class Run:
    """Settings of a run.

    steers: (golem id or *, tick) -> (severity, intent). killed: returns the kill switch, called once a tick. oracle:
    whether golems predict; without it the gate uses the fallback surprise (HB S3). heirs: golems born between runs.
    succeed: replaces the run's own succession. exchange: called when the curation is written, to exchange knowledge
    with siblings of other homes. commit_chunks: cycles between these exchanges. back_up: called after each cycle, to
    back up what is due. replicants: maximum number per golem (replicants.py).
    """

    name: str
    market: Market
    golems: int
    generations: int
    founding: Founding
    steers: Mapping[tuple[str, int], tuple[str, str]] = field(default_factory=dict)
    heirs: tuple[Heir, ...] = ()
    succeed: Succeed | None = None
    exchange: Callable[[], None] | None = None
    commit_chunks: int = COMMIT_CHUNKS
    back_up: Callable[[], None] | None = None
    killed: Callable[[], bool] = lambda: False
    oracle: bool = True
    replicants: int = 0


@dataclass
class Progress:
    """Progress of a run."""

    ticks_done: int
    ticks_total: int
    records: int
    living: int
    births: int
    deaths: int
    published: int
    refused: int


@dataclass(frozen=True)
class Ending:
    """Result of a run. no_entry: a statement with figures if no golem could enter the pool, else None."""

    records: int = 0
    births: int = 0
    deaths: int = 0
    published: int = 0
    refused: int = 0
    entries: EntryCounts = field(default_factory=EntryCounts)
    no_entry: str | None = None

    def __add__(self, other: Ending) -> Ending:
        """Return the result of both passes of a run; a golem that entered in one of them refutes the statement."""
        entries = self.entries + other.entries
        no_entry = None if entries.executed else self.no_entry or other.no_entry
        return Ending(
            self.records + other.records, self.births + other.births, self.deaths + other.deaths,
            self.published + other.published, self.refused + other.refused, entries, no_entry,
        )  # fmt: skip
