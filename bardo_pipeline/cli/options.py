"""Options and arguments that commands share, imported as `opt`; the wall clock, and how a command opens its home."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from typer import Argument, Option
from typer.models import OptionInfo

from bardo_pipeline.clock import utc_now
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental import record_queries
from bardo_pipeline.errors import ConfigError, NoHomeError
from bardo_pipeline.heartbeat.fleet import Founding
from bardo_pipeline.storage import home as home_folder
from bardo_pipeline.storage.log.event_log import EventLog

Home = Annotated[Path | None, Option("--home", help="Folder of the home (default: BARDO_HOME, else ./.bardo).")]

Embedder = Annotated[
    str | None,
    Option("--embedder", help="Use the derivation by minilm, minilm-int8 or nomic (default: the active one)."),
]

Config = Annotated[
    Path | None, Option("--config", help="Configuration file (default: bardo.toml in the home, if present).")
]


def format_option(*formats: str, help: str) -> OptionInfo:
    """Return the option --format; another format than these raises ConfigError."""

    def checked(format: str) -> str:
        if format not in formats:
            raise ConfigError(f"--format {format!r}: {', '.join(formats[:-1])} or {formats[-1]}")
        return format

    return Option("--format", help=help, callback=checked)


Format = Annotated[str, format_option("table", "json", help="Output format: table or json.")]

Json = Annotated[bool, Option("--json", help="Print JSON.")]

Golem = Annotated[str, Argument(help="Golem id.")]

Owner = Annotated[str, Argument(help="Owner.")]

Entry = Annotated[str, Argument(help="Entry id, or a unique prefix.")]

Why = Annotated[str, Option(help="Reason; recorded.")]

now = utc_now
"""The clock of all commands; a moment is only stored as the moment of recording."""


def open_context(home: Path | None, embedder: str | None = None) -> DerivationContext:
    """Open the active derivation of a home, or the one by `embedder`."""
    return DerivationContext.open(root_of(home), embedder=embedder)


def context_or_none(home: Path | None) -> DerivationContext | None:
    """Open the active derivation of a home, None without a home."""
    try:
        return open_context(home)
    except NoHomeError:
        return None


@contextmanager
def open_log(home: Path | None) -> Iterator[EventLog]:
    """Open the log of a home, and close it at the end."""
    with EventLog(home_folder.Home.open(root_of(home))) as log:
        yield log


def require_born(stores: DerivationContext, golem: str | None) -> None:
    """Raise QueryError for a golem whose birth is not on record; None passes."""
    if golem is not None:
        record_queries.require_born(stores, golem)


def moment_of(text: str, option: str) -> datetime:
    """Parse an ISO 8601 moment, UTC unless it has an offset. Raises ConfigError."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ConfigError(f"{option} {text!r} is not an ISO 8601 moment: for example 2026-01-02T12:00:00") from None


def bounds_of(text: str | None) -> tuple[int, int]:
    """Parse LOW-HIGH; None gives the default bounds. Raises ConfigError."""
    if text is None:
        return Founding().lifespan_ticks
    low, _, high = text.partition("-")
    if not (low.isdigit() and high.isdigit() and 1 <= int(low) <= int(high)):
        raise ConfigError(f"--lifespan {text!r} is not LOW-HIGH in ticks: for example 2000-8000")
    return int(low), int(high)


def root_of(home: Path | None) -> Path:
    """Return the home's folder: the option, else BARDO_HOME, else ./.bardo."""
    return home.absolute() if home is not None else home_folder.home_root(os.environ)
