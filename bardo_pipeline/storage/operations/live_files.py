"""Files between a live run and other processes: steers that wait for it, and the view that it shows.

Both are left out of the log: a steer is recorded when it reaches its golem, and a view is of the moment.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bardo_pipeline.errors import ConfigError
from bardo_pipeline.heartbeat.rhythm.heartbeat_state import Steer
from bardo_pipeline.storage.home import Home, make_folder, replace_file
from bardo_pipeline.storage.leases import holder_of

LIVE_WRITER = "live-"
"""Beginning of the name of a live run's writer."""

INTENT_MAX = 1_000
"""Longest intent of a steer."""

_SUFFIX = ".json"


class _Sent(BaseModel):
    """A steer in its file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    steer_id: str = Field(min_length=1, max_length=256)
    golem_id: str
    is_high: bool
    intent: str = Field(min_length=1, max_length=INTENT_MAX)


class SteerFolder:
    """Steers that wait in a home, one file each. A live run takes them in the order of their arrival."""

    def __init__(self, home: Home) -> None:
        self._folder, self._home = home.live / "steers", home
        self._told: set[str] = set()

    def send(self, steer: Steer) -> None:
        """Leave a steer for the live run of its golem.

        Raises ConfigError if no live run has the golem, or if the intent is empty or too long.
        """
        if not (holder_of(self._home, steer.golem_id) or "").startswith(LIVE_WRITER):
            raise ConfigError(f"golem {steer.golem_id}: no live run has it: start one by `bardo live`")
        if not 1 <= len(steer.intent) <= INTENT_MAX:
            raise ConfigError(f"golem {steer.golem_id}: an intent has 1 to {INTENT_MAX:,} characters: shorten it")
        make_folder(self._folder)
        replace_file(self._folder / f"{steer.steer_id}{_SUFFIX}", orjson.dumps(steer._asdict()))

    def arrivals(self, now_us: int) -> list[Steer]:
        """Return the steers that were not returned before, oldest first."""
        try:
            found = [each for each in os.scandir(self._folder) if each.name.endswith(_SUFFIX)]
        except FileNotFoundError:
            return []
        steers = []
        for each in sorted(found, key=lambda entry: (entry.stat().st_mtime_ns, entry.name)):
            if each.name in self._told or each.name.startswith("."):
                continue
            self._told.add(each.name)
            try:
                with open(each.path, "rb") as file:
                    steers.append(Steer(**_Sent.model_validate_json(file.read()).model_dump()))
            except ValidationError:
                continue  # no file of `send`; it stays for its author
        return steers

    def next_us(self) -> int:
        """Return the largest moment: a folder names no moment of the next steer."""
        return 2**63 - 1

    def settle(self, steer_ids: Iterable[str]) -> None:
        """Delete the files of steers that are on record."""
        for steer_id in steer_ids:
            (self._folder / f"{steer_id}{_SUFFIX}").unlink(missing_ok=True)
            self._told.discard(f"{steer_id}{_SUFFIX}")


def write_view(home: Home, name: str, golems: list[dict[str, Any]]) -> None:
    """Replace the view of a live run. It is not durable: the next tick writes it again."""
    make_folder(home.live)
    draft = home.live / f".{name}.draft"
    draft.write_bytes(orjson.dumps(golems))
    draft.replace(home.live / f"{name}.view")


def remove_view(home: Home, name: str) -> None:
    """Remove the view of a live run that ends."""
    (home.live / f"{name}.view").unlink(missing_ok=True)


def read_views(home: Home) -> list[dict[str, Any]]:
    """Return the golems of all live runs, by id; a golem without a live writer is left out."""
    golems: list[dict[str, Any]] = []
    for path in sorted(home.live.glob("*.view")):
        golems += orjson.loads(path.read_bytes())
    living = [golem for golem in golems if (holder_of(home, golem["golem_id"]) or "").startswith(LIVE_WRITER)]
    return sorted(living, key=lambda golem: golem["golem_id"])
