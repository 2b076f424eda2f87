"""Options and arguments that commands share, imported as `opt`; the wall clock, and how a command opens its home.

Every command has --owner (`with_shared_options`). `open_context` and `open_log` open the home for the named owner. A
command that acts on the whole home opens it by `root_of` or `open_whole`, which refuse a named owner.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, get_args

from typer import Argument, Option, Typer
from typer.main import get_command
from typer.models import OptionInfo

from bardo_pipeline.clock import utc_now
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental import record_queries
from bardo_pipeline.errors import ConfigError, NoHomeError
from bardo_pipeline.heartbeat.fleet import Founding
from bardo_pipeline.storage import home as home_folder
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.log.owner_log import LogOfOwner, require_visible
from bardo_pipeline.storage.operations.inspected_home import inspected_home

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

GasTokenPrice = Annotated[
    float | None,
    Option(
        "--gas-token-price",
        help="Price of the gas token in dollars, for a recorded market (default: as the pool quotes it, or as recorded"
        " for the month of the bars).",
    ),
]

Json = Annotated[bool, Option("--json", help="Print JSON.")]


def _checked_name(name: str) -> str:
    if not 0 < len(name) <= _NAME_CHARACTERS_MAX:
        raise ConfigError(f"a name has 1 to {_NAME_CHARACTERS_MAX} characters, not {len(name):,}: give another")
    return name


_NAME_CHARACTERS_MAX = 256
"""Characters of an id or an owner in an event."""

Golem = Annotated[str, Argument(help="Golem id.", callback=_checked_name)]

Owner = Annotated[str, Argument(help="Owner.", callback=_checked_name)]

Entry = Annotated[str, Argument(help="Entry id, or a unique prefix.")]

Why = Annotated[str, Option(help="Reason; recorded.")]

_given_owner: ContextVar[str | None] = ContextVar("given_owner", default=None)


INTEGER_MAX, NUMBER_MAX = 2**53, 1e15
"""Largest values of numeric options that state no bound. Their sums fit in 64 bits, and numbers are finite."""

GOLEMS_MAX, BARS_MAX, HOURS_MAX = 100_000, 10_000_000, 876_600
"""Largest number of golems, minutes of a market (19 years) and hours (100 years) of an option."""

DAYS_MAX, MARKETS_MAX, WORKERS_MAX, LIFESPAN_MAX = BARS_MAX // 1_440, 10_000, 1_024, 2**32 - 1
"""Largest number of days, markets and processes of an evaluation, and ticks of a lifespan."""

DOLLARS_MAX = 1e9
"""Largest amount of money of an option."""

NAME_MAX = 256
"""Longest name of an owner or golem in an event."""

SEED_MAX = 2**53
"""Largest seed; JSON in any language holds it."""

FirstSeed = Annotated[
    int, Option(min=0, max=SEED_MAX, help="Seed of the first market; later markets use the next seeds.")
]

Seeds = Annotated[int, Option(min=1, max=MARKETS_MAX, help="Number of markets, one seed each.")]

Workers = Annotated[int | None, Option(min=1, max=WORKERS_MAX, help="Parallel processes (default: one per processor).")]


def with_shared_options(command: Any) -> Any:
    """Add the option --owner to each command with --home that lacks it, and bounds to numeric options without them."""
    for inside in getattr(command, "commands", {}).values():
        with_shared_options(inside)
    for parameter in command.params:
        kinds = {parameter.type_descriptor.annotation, *get_args(parameter.type_descriptor.annotation)}
        limit = INTEGER_MAX if int in kinds else NUMBER_MAX if float in kinds else None
        stated = parameter.type_descriptor.parameter_info
        if limit is not None:
            stated.min = -limit if stated.min is None else stated.min
            stated.max = limit if stated.max is None else stated.max
    options = {option for parameter in command.params for option in parameter.opts}
    if "--home" in options and "--owner" not in options:
        command.params.extend(p for p in get_command(_owner_app).params if "--owner" in p.opts)
    return command


def checked_owner(name: str) -> str:
    """Return the name of an owner. Raises ConfigError if it is empty or too long."""
    if not 1 <= len(name) <= NAME_MAX:
        shown = f"{name[:20]}..." if name else "an empty text"
        raise ConfigError(f"--owner: {shown} is no name of an owner: give 1 to {NAME_MAX} characters, or no --owner")
    return name


def _give_owner(value: str | None) -> str | None:
    if value is not None:
        checked_owner(value)
    _given_owner.set(value)
    return value


_owner_app = Typer(add_completion=False)


@_owner_app.command()
def _work_for(
    for_owner: Annotated[  # not `owner`, which is an argument of some commands
        str | None,
        Option(
            "--owner",
            callback=_give_owner,
            expose_value=False,
            help="Work for this owner only (default: BARDO_OWNER, else the whole home).",
        ),
    ] = None,
) -> None:
    """Declare the option that `with_shared_options` adds to all commands."""


def named_owner() -> str | None:
    """Return the owner for whom the command works: the option, else BARDO_OWNER; None for the whole home."""
    return _given_owner.get() or home_folder.owner_of_environment(os.environ)


def require_named(owner: str) -> None:
    """Raise ConfigError if the command works for another owner."""
    named = named_owner()
    if named not in (None, owner):
        raise ConfigError(f"owner {owner!r}: this command works for {named!r}: change --owner or BARDO_OWNER")


now = utc_now
"""The clock of all commands; a moment is only stored as the moment of recording."""


def open_context(home: Path | None, embedder: str | None = None) -> DerivationContext:
    """Open the active derivation of a home, or the one by `embedder`, for the named owner."""
    return DerivationContext.open(root_for_owner(home), embedder=embedder, owner=named_owner())


def open_whole(home: Path | None, embedder: str | None = None) -> DerivationContext:
    """Open the active derivation of a whole home, or the one by `embedder`. Raises ConfigError for a named owner."""
    return DerivationContext.open(root_of(home), embedder=embedder)


def context_or_none(home: Path | None) -> DerivationContext | None:
    """Open the active derivation of a home, None without a home."""
    try:
        return open_context(home)
    except NoHomeError:
        return None


def inspected(home: Path | None, embedder: str | None = None) -> DerivationContext:
    """Open the active derivation as `open_context`, also of a backup or of a home that this user cannot write."""
    return DerivationContext.open(inspected_home(root_for_owner(home)), embedder=embedder, owner=named_owner())


@contextmanager
def open_log(home: Path | None, golem: str | None = None) -> Iterator[EventLog]:
    """Open the log of a home for the named owner, and close it at the end. Raises QueryError for another's golem."""
    opened, owner = home_folder.Home.open(root_for_owner(home)), named_owner()
    with EventLog(opened) if owner is None else LogOfOwner(opened, owner=owner) as log:
        if golem is not None:
            require_visible(log, golem)
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


def gas_token_micros(dollars: float | None) -> int | None:
    """Return --gas-token-price in micro-dollars; None if it is not given. Raises ConfigError below a micro-dollar."""
    if dollars is None:
        return None
    if not 1e-6 <= dollars <= 1e9:
        raise ConfigError(f"--gas-token-price {dollars} is not a price in dollars: for example 0.65")
    return round(dollars * 1e6)


def bounds_of(text: str | None) -> tuple[int, int]:
    """Parse LOW-HIGH; None gives the default bounds. Raises ConfigError."""
    if text is None:
        return Founding().lifespan_ticks
    low, _, high = text.partition("-")
    are_short = len(text) <= 21 and low.isdecimal() and high.isdecimal()
    if not (are_short and 1 <= int(low) <= int(high) <= LIFESPAN_MAX):
        raise ConfigError(f"--lifespan {text[:40]!r} is not LOW-HIGH in ticks: for example 2000-8000")
    return int(low), int(high)


def root_of(home: Path | None) -> Path:
    """Return the folder of a home on which the whole command acts. Raises ConfigError for a named owner."""
    owner = named_owner()
    if owner is not None:
        raise ConfigError(
            f"this command acts on the whole home, not on owner {owner!r} alone: run it without --owner and BARDO_OWNER"
        )
    return root_for_owner(home)


def root_for_owner(home: Path | None) -> Path:
    """Return a home's folder: option, BARDO_HOME or ./.bardo. The caller shows only the named owner's part."""
    return home_folder.local_folder(home) if home is not None else home_folder.home_root(os.environ)
