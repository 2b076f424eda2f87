"""Cursor: how far a sensor has read the log of which home."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Self

from bardo_pipeline.derivation.stores import Stores


@dataclass(frozen=True)
class Cursor:
    """Versions of the log that were read last, None before the first look; home: when the home was made."""

    home: str
    log_version: int | None
    life_version: int | None

    @classmethod
    def of(cls, stores: Stores) -> Self:
        """Where the log is now."""
        return cls(stores.home.created_at.isoformat(), stores.log.version, stores.log.life_version)

    @classmethod
    def read(cls, text: str | None, *, home: str) -> Self:
        """What was kept; a fresh start where nothing was, where it cannot be read, or if it is of another home."""
        try:
            kept = cls(**json.loads(text or "{}"))
        except (TypeError, json.JSONDecodeError):
            kept = cls("", None, None)
        return kept if kept.home == home else cls(home, None, None)

    @property
    def text(self) -> str:
        """As Dagster keeps it."""
        return json.dumps(asdict(self))
