"""Options and checks that commands share, and the wall clock."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.errors import ConfigError, QueryError
from bardo_pipeline.storage.home import home_root

HomeOption = Annotated[
    Path | None, typer.Option("--home", help="Folder of the home (default: BARDO_HOME, else ./.bardo).")
]

EmbedderOption = Annotated[
    str | None,
    typer.Option("--embedder", help="Use the derivation by minilm, minilm-int8 or nomic (default: the active one)."),
]

ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="Configuration file (default: bardo.toml in the home, if present).")
]

FormatOption = Annotated[str, typer.Option("--format", help="Output format: table or json.")]

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


GolemArgument = Annotated[str, typer.Argument(help="Golem id.")]

EntryArgument = Annotated[str, typer.Argument(help="Entry id, or a unique prefix.")]

WhyOption = Annotated[str, typer.Option(help="Reason; recorded.")]


def require_born(stores: DerivationContext, golem: str | None) -> None:
    """Raise QueryError for a golem whose birth is not on record; None passes."""
    if golem is not None and golem not in stores.life("GolemBorn")["golem_id"].to_pylist():
        raise QueryError(f'golem {golem}: no golem of this name was born: `bardo sql "from dim_golem"` lists all')


def check_format(format: str, *, text: str = "table") -> None:
    """Raise ConfigError unless the format is `text` or json."""
    if format not in (text, "json"):
        raise ConfigError(f"--format {format!r}: {text} or json")


def now() -> datetime:
    """Return the current moment (UTC); it is only stored as the moment of recording."""
    return datetime.now(UTC)


def moment_of(text: str, option: str) -> datetime:
    """Parse an ISO 8601 moment, UTC unless it has an offset. Raises ConfigError."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ConfigError(f"{option} {text!r} is not an ISO 8601 moment: for example 2026-01-02T12:00:00") from None


def root_of(home: Path | None) -> Path:
    """Return the home's folder: the option, else BARDO_HOME, else ./.bardo."""
    return home.absolute() if home is not None else home_root(os.environ)
