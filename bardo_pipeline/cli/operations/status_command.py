"""`bardo status | watch`: state and events of a home. Reads, never derives. Source: X-11."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated

import orjson
from typer import Exit, Option

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.options import format_option, inspected, named_owner, now, root_for_owner
from bardo_pipeline.cli.output.rendering import show_report
from bardo_pipeline.cli.output.tables import print_line
from bardo_pipeline.derivation.event_stream.watch import watch as watched
from bardo_pipeline.derivation.home_status import status_of
from bardo_pipeline.events.stream.catalogue import CATEGORIES, GolemEvent
from bardo_pipeline.storage.verification.check_projections import damaged_tables
from bardo_pipeline.visible_text import escaped


def status(
    home: opt.Home = None,
    format: opt.Format = "table",
    check: Annotated[
        bool,
        Option("--check", help="Exit 1 if a threshold of the policy is exceeded; 2 if a derived table is damaged."),
    ] = False,
    embedder: opt.Embedder = None,
) -> None:
    """Show the state of a home: log, lag, journals, spool, quarantine, verdicts, tables, exceeded thresholds."""
    root, stores = root_for_owner(home), inspected(home, embedder)
    for error in damaged_tables(stores.whole.projections) if check else ():
        raise error
    document = {"home": str(root), **status_of(stores, now())}
    show_report("status", document, as_json=format == "json")
    if document["faults"] and check:
        raise Exit(1)


def watch(
    category: Annotated[
        str | None, Option(help=f"Only these categories, comma-separated: {', '.join(CATEGORIES)}.")
    ] = None,
    golem: Annotated[list[str] | None, Option(help="Only this golem; repeatable.")] = None,
    replay: Annotated[
        int | None, Option(min=0, help="Start with the matches among the newest N events (default 10,000).")
    ] = None,
    since: Annotated[str | None, Option(help="Continue after this event position instead of a replay.")] = None,
    follow: Annotated[bool, Option(help="Wait for new events.")] = True,
    format: Annotated[
        str,
        format_option("table", "json", help="Output format: table or json (one event per line, with its position)."),
    ] = "table",
    home: opt.Home = None,
    embedder: opt.Embedder = None,
) -> None:
    """Watch events: perception, mood, decisions, actions, memory and death of golems."""
    wanted = None if category is None else {name.strip() for name in category.split(",") if name.strip()}

    async def print_events() -> None:
        events = watched(
            root_for_owner(home), wanted, golems=golem, replay=replay, since=since, follow=follow, embedder=embedder,
            owner=named_owner(),
        )  # fmt: skip
        async for event in events:
            print_line(escaped(event.model_dump_json()) if format == "json" else _line(event))

    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        asyncio.run(print_events())


def _line(event: GolemEvent) -> str:
    payload = orjson.dumps(event.payload.model_dump(exclude={"tick"})).decode()
    tick = "" if event.tick is None else str(event.tick)
    return f"{event.at:%Y-%m-%d %H:%M:%S}  {event.golem_id:<12} {tick:>7}  {event.name:<32} {payload}"
