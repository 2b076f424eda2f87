"""`bardo watch`: print the newest events of a home, then new ones, one line each."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated

import orjson
import typer

from bardo_pipeline.cli.options import EmbedderOption, HomeOption, check_format, root_of
from bardo_pipeline.derivation.event_stream.watch import watch as watched
from bardo_pipeline.events.stream.catalogue import CATEGORIES, GolemEvent


def watch(
    category: Annotated[
        str | None, typer.Option(help=f"Only these categories, comma-separated: {', '.join(CATEGORIES)}.")
    ] = None,
    golem: Annotated[list[str] | None, typer.Option(help="Only this golem; repeatable.")] = None,
    replay: Annotated[
        int | None, typer.Option(min=0, help="Start with the matches among the newest N events (default 10,000).")
    ] = None,
    since: Annotated[str | None, typer.Option(help="Continue after this event position instead of a replay.")] = None,
    follow: Annotated[bool, typer.Option(help="Wait for new events.")] = True,
    format: Annotated[
        str, typer.Option("--format", help="Output format: table or json (one event per line, with its position).")
    ] = "table",
    home: HomeOption = None,
    embedder: EmbedderOption = None,
) -> None:
    """Watch events: perception, mood, decisions, actions, memory and death of golems."""
    check_format(format)
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
