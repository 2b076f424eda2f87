"""The command `bardo watch`: the newest events of a home, then those that come, a line each."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated

import orjson
import typer

from bardo_pipeline.cli.options import EmbedderOption, HomeOption, root_of
from bardo_pipeline.derivation.event_stream.watch import watch as watched
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.events.stream.catalogue import CATEGORIES, GolemEvent

FORMATS = ("table", "json")


def watch(
    category: Annotated[
        str | None, typer.Option(help=f"Only these, separated by commas: {', '.join(CATEGORIES)}.")
    ] = None,
    golem: Annotated[list[str] | None, typer.Option(help="Only this golem's; several times for several.")] = None,
    replay: Annotated[
        int | None, typer.Option(min=0, help="Begin with those among the newest N events of all categories (10,000).")
    ] = None,
    since: Annotated[str | None, typer.Option(help="Go on behind an event's position, instead of a replay.")] = None,
    follow: Annotated[bool, typer.Option(help="Stay, and tell what comes.")] = True,
    format: Annotated[
        str, typer.Option("--format", help="table or json (a line an event, its position in it).")
    ] = "table",
    home: HomeOption = None,
    embedder: EmbedderOption = None,
) -> None:
    """Watch the event fabric: what golems perceive, feel, think, do, remember, and how they die."""
    if format not in FORMATS:
        raise ConfigError(f"--format {format!r} is none of {', '.join(FORMATS)}")
    wanted = None if category is None else {name.strip() for name in category.split(",") if name.strip()}

    async def tell() -> None:
        events = watched(
            root_of(home), wanted, golems=golem, replay=replay, since=since, follow=follow, embedder=embedder
        )
        async for event in events:
            typer.echo(event.model_dump_json() if format == "json" else _line(event))

    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        asyncio.run(tell())


def _line(event: GolemEvent) -> str:
    payload = orjson.dumps(event.payload.model_dump(exclude={"tick"})).decode()
    tick = "" if event.tick is None else str(event.tick)
    return f"{event.at:%Y-%m-%d %H:%M:%S}  {event.golem_id:<12} {tick:>7}  {event.name:<32} {payload}"
