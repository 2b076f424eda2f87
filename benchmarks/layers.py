"""The cost of the layers of `[styx]`: the same fleet on the same market with all layers off, and with all on.

Both lives run in turn, a few times. The figure compares the processor time of a tick, because waiting depends on the
disk. The relay is in the same process, and its own time is subtracted.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from bardo_pipeline.clock import micros_of
from bardo_pipeline.derivation.clade.clade_backup import back_up
from bardo_pipeline.derivation.clade.clade_exchange import exchange
from bardo_pipeline.derivation.clade.clade_notes import newest_tick_at
from bardo_pipeline.derivation.clade.lethe_exchange import exchange_posts
from bardo_pipeline.derivation.configuration import record_configuration
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.events.custody.clade_secret import CladeSecret
from bardo_pipeline.heartbeat.fleet import Founding
from bardo_pipeline.market.synthetic import synthetic_market
from bardo_pipeline.policy import Policy
from bardo_pipeline.policy.toml_config import parse
from bardo_pipeline.relay.relay_in_process import RelayInProcess
from bardo_pipeline.runtime.fleet_run import FleetRun
from bardo_pipeline.runtime.run_settings import Run
from bardo_pipeline.storage.home import Home
from benchmarks.figures import Figure
from benchmarks.world import NOW

GOLEMS, BARS, TURNS = 8, 1_300, 3
COST_MAX = 1.15

_OWNER, _SECRET = "owner-1", CladeSecret(b"o" * 32)
_FOUNDING = Founding(owners=(_OWNER,), budget_micros=10**10, credit_share=0.995, lifespan_ticks=(10**9, 10**9))
_ON = "[styx]\nvault_enabled = true\nclade_enabled = true\nlethe_enabled = true\n"
_spent = time.process_time


def layers_figure(folder: Path) -> Figure:
    """Measure the processor time of a tick with all layers on, beside one with all layers off."""
    off, on = list[float](), list[float]()
    parts: list[dict[str, float]] = []
    for turn in range(TURNS):
        off.append(_Life(folder / f"off {turn}", is_on=False).tick_us())
        life = _Life(folder / f"on {turn}", is_on=True)
        on.append(life.tick_us())
        parts.append(life.parts_us)
    value, peer = statistics.median(on), statistics.median(off)
    named = ", ".join(f"{name} {statistics.median(p[name] for p in parts):,.0f} us" for name in parts[0])
    how = (
        f"{GOLEMS} golems of one owner in one home, {BARS:,} bars, layers vault, clade and Lethe; processor time of a "
        f"golem's tick with records, curation and storage, without the relay's own; median of {TURNS} lives each, in "
        f"turn; of it {named}; peer: the same with all layers off"
    )
    return Figure("styx_tick_us", value, "us", peer, value / peer, f"ratio <= {COST_MAX:g}", how)


class _Life:
    """One life of the fleet in a new home. parts_us: processor time a tick of the exchanges and of the backups."""

    def __init__(self, folder: Path, *, is_on: bool) -> None:
        folder.mkdir(parents=True)
        Home.create(folder / "home", Policy(), NOW)
        self._folder, self._is_on = folder, is_on
        self._context = DerivationContext.open(folder / "home")
        self._relay_seconds = 0.0
        self._parts = {"exchange": 0.0, "posts": 0.0, "backup": 0.0}
        self.parts_us: dict[str, float] = {}

    def tick_us(self) -> float:
        """Let the fleet live; return the processor time of a golem's tick in microseconds, without the relay's."""
        context, market = self._context, synthetic_market(seed=7, bars=BARS, start=NOW)
        name = self._folder.name.split()[-1]
        run = Run(name, market, GOLEMS, 1, _FOUNDING)
        if self._is_on:
            record_configuration(context, parse(_ON, "bardo.toml"), now=NOW, why="a benchmark", at=NOW)
            run = self._with_relay(run)
        life, began = FleetRun(context, run, lambda: NOW), _spent()
        records = life.live().records
        seconds = _spent() - began - self._relay_seconds
        self.parts_us = {part: spent / records * 1e6 for part, spent in self._parts.items()}
        context.log.close()
        return seconds / records * 1e6

    def _with_relay(self, run: Run) -> Run:
        """Return the run with exchanges and backups through a relay in this process, at the time of the golems."""
        vault, database = _SECRET.vault, self._folder / "relay.db"
        moment = [NOW]

        def opened(secret: CladeSecret, identities: Sequence[str]) -> _VaultInProcess:
            return _VaultInProcess(database, secret.topic, secret.token, identities, lambda: moment[0])

        clade, kept = opened(_SECRET, [_SECRET.identity_name]), opened(vault, [])
        topic, board, backups = (_Timed(door, self._count) for door in (clade, clade.board, kept))

        def at() -> datetime:
            moment[0] = newest_tick_at(self._context, _OWNER) or NOW
            return moment[0]

        def exchange_all() -> None:
            now = at()
            self._part("exchange", lambda: exchange(self._context, _OWNER, _SECRET, topic, now=now))
            self._part("posts", lambda: exchange_posts(self._context, _OWNER, _SECRET, board, now=now))

        def back_up_all() -> None:
            self._part("backup", lambda: back_up(self._context, _OWNER, vault, backups, now=at(), is_due_only=True))

        return Run(
            run.name, run.market, run.golems, run.generations, run.founding, exchange=exchange_all, back_up=back_up_all
        )

    def _part(self, name: str, work: Callable[[], object]) -> None:
        """Do work and count its processor time, without the relay's."""
        began, relay = _spent(), self._relay_seconds
        work()
        self._parts[name] += _spent() - began - (self._relay_seconds - relay)

    def _count(self, seconds: float) -> None:
        self._relay_seconds += seconds


class _VaultInProcess(RelayInProcess):
    """A topic of a relay that also keeps messages longer, as backups need."""

    def keep(self, message_ids: Sequence[str], days: int) -> list[str]:
        """Keep messages for so many days; return the ids of those that the relay does not have."""
        until = micros_of(self._clock() + timedelta(days=days))
        return self._store.keep(self._topic, self._token, message_ids, until)


class _Timed:
    """A door of the relay whose calls are counted. count: takes the seconds of a call."""

    def __init__(self, door: object, count: Callable[[float], None]) -> None:
        self._door, self._seconds = door, count

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._door, name)

        def timed(*given: Any, **named: Any) -> Any:
            began = _spent()
            try:
                return call(*given, **named)
            finally:
                self._seconds(_spent() - began)

        return timed
