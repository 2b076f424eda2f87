"""What a run is told, and what it tells: settings, progress, ending."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from bardo_pipeline.events.life.events import Born
from bardo_pipeline.heartbeat.fleet import Founding
from bardo_pipeline.market.market import Market


class Heir(NamedTuple):
    """A golem that was born between runs, and when."""

    golem_id: str
    birth: Born
    at: datetime


Succeed = Callable[[Mapping[str, Born], datetime], list[tuple[str, Born]]]
"""From the dead whose heirs may follow in this run, with their births, and the moment of birth, to the heirs."""


@dataclass(frozen=True)
class Run:
    """What a run is told.

    steers: (golem id or *, tick) to (severity, intent). killed: asked once a tick, whether the kill switch is thrown.
    oracle: whether golems predict; without it they judge surprise by the fallback (HB S3). heirs: born between runs,
    to be lived in this one. succeed: who decides on the heirs of the dead, in place of a run's own way. replicants: how
    many each golem may send out (replicants.py).
    """

    name: str
    market: Market
    golems: int
    generations: int
    founding: Founding
    steers: Mapping[tuple[str, int], tuple[str, str]] = field(default_factory=dict)
    heirs: tuple[Heir, ...] = ()
    succeed: Succeed | None = None
    killed: Callable[[], bool] = lambda: False
    oracle: bool = True
    replicants: int = 0


@dataclass
class Progress:
    """How a run goes: for whoever shows it."""

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
    """How a run ended."""

    records: int
    births: int
    deaths: int
    published: int
    refused: int
