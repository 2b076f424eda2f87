"""Options that commands share, and the clock that only doors read."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from bardo_pipeline.errors import ConfigError
from bardo_pipeline.storage.home import home_root

HomeOption = Annotated[
    Path | None, typer.Option("--home", help="The folder that holds everything (default: BARDO_HOME, else ./.bardo).")
]

EmbedderOption = Annotated[
    str | None,
    typer.Option("--embedder", help="minilm, minilm-int8 or nomic: whose derivation (default: the one in force)."),
]

ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="A configuration (default: bardo.toml in the home, if it is there).")
]

FormatOption = Annotated[str, typer.Option("--format", help="table or json.")]

JsonOption = Annotated[bool, typer.Option("--json", help="As JSON.")]


def check_format(format: str) -> None:
    """Raise ConfigError for a format that `FormatOption` does not offer."""
    if format not in ("table", "json"):
        raise ConfigError(f"--format {format!r}: table or json")


def now() -> datetime:
    """The clock at the door; what it says is only ever recorded as the moment of recording."""
    return datetime.now(UTC)


def moment_of(text: str, option: str) -> datetime:
    """A moment as the user wrote it, UTC where no offset is given. Raises ConfigError for anything else."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ConfigError(f"{option} {text!r} is no moment: for example 2026-01-02T12:00:00") from None


def root_of(home: Path | None) -> Path:
    """The folder that the option names, or BARDO_HOME, or ./.bardo."""
    return home.absolute() if home is not None else home_root(os.environ)
