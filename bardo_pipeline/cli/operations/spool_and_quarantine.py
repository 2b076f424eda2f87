"""`bardo spool | quarantine | schema`: ingest records written by other runtimes."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from rich.markup import escape
from typer import Argument, Exit, Option, Typer

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.options import now, root_of
from bardo_pipeline.cli.output.tables import out, print_json, print_table, say
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.events.record_json import life_json_schema, record_json_schema, report_json_schema
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.intake.quarantine import Quarantine
from bardo_pipeline.storage.intake.quarantine_retry import retry as retry_items
from bardo_pipeline.storage.intake.spool_folder import Spool
from bardo_pipeline.storage.log.event_log import EventLog

spool = Typer(help="Files that runtimes in any language drop into the folder spool/ of a home (docs/writing.md).")
quarantine = Typer(help="Refused records, each with its reason and bytes, until you retry or drop them.")

Items = Annotated[list[str] | None, Argument(help="Item ids from `bardo quarantine list`, or unique prefixes.")]
_LISTED = 12  # characters of an id in a list


@spool.command()
def take(home: opt.Home = None) -> None:
    """Ingest all files in the spool; create the home if missing. Quarantined records do not change the exit code."""
    place = Home.create(root_of(home), Policy(), now())
    with EventLog(place) as log:
        _take(Spool(place, log), quiet=False)


@spool.command()
def watch(
    home: opt.Home = None,
    seconds: Annotated[float, Option(min=0.05, max=86_400.0, help="Seconds between checks.")] = 1.0,
) -> None:
    """Ingest files as they arrive, until Ctrl-C; an alternative to Dagster's spool sensor."""
    place = Home.create(root_of(home), Policy(), now())
    with EventLog(place) as log, suppress(KeyboardInterrupt):
        spool_folder, pause = Spool(place, log), threading.Event()
        say(f"ingesting from {place.spool} (stop it with Ctrl-C)")
        while True:
            _take(spool_folder, quiet=True)
            pause.wait(seconds)


def _take(spool_folder: Spool, *, quiet: bool) -> None:
    count, started = 0, time.perf_counter()
    for taken in spool_folder.take(now()):
        spent, count = time.perf_counter() - started, count + 1
        out.print(
            f"[bold]{taken.records:,}[/] records in {escape(taken.file)}: {taken.written:,} new, "
            f"{taken.repeated:,} on record already, {taken.quarantined:,} in quarantine "
            f"({taken.size / 1e6:,.1f} MB, {taken.size / 1e6 / max(spent, 1e-9):,.0f} MB/s)",
            soft_wrap=True,
        )
        for error, times in taken.errors.most_common():
            out.print(f"  {times:,} x {error}: `bardo quarantine list` shows why")
        started = time.perf_counter()
    if not count and not quiet:
        out.print("the spool is empty")


@quarantine.command("list")
def list_(
    home: opt.Home = None,
    limit: Annotated[int, Option(min=1, help="Number of newest items.")] = 50,
    format: opt.Format = "table",
) -> None:
    """List open items: id, file and line, claimed golem, reason of refusal."""
    items = _open(home).open(["source", "file", "line", "golem_id", "tick", "error", "reason", "raw_bytes", "taken_at"])
    rows = items.slice(max(len(items) - limit, 0)).to_pylist()
    if format == "json":
        print_json(rows, indent=True)
        return
    if not rows:
        out.print("the quarantine is empty")
        return
    cells = [
        (r["item_id"][:_LISTED], r["file"], r["line"], r["golem_id"], r["tick"], r["error"], r["reason"]) for r in rows
    ]
    title = f"{len(items):,} in quarantine" + (f", the newest {limit}" if len(items) > limit else "")
    print_table(title, ["item", "file", "line", "golem", "tick", "error", "reason"], cells)


@quarantine.command()
def show(
    item: Annotated[str, Argument(help="Item id, or a unique prefix.")],
    home: opt.Home = None,
    raw: Annotated[bool, Option("--raw", help="Write the original bytes to standard output.")] = False,
) -> None:
    """Show one item; with --raw its original bytes."""
    held = _open(home)
    item_id = held.find(item)
    entry = held.show(item_id)
    if raw:
        if sys.stdout.isatty():
            raise ConfigError("--raw writes the bytes as they came, and a terminal obeys them: send them to a file")
        sys.stdout.buffer.write(held.raw_of(entry))
        return
    ruling = held.ruling_of(item_id)
    rows = [
        ("item", item_id), ("source", entry.source), ("file", entry.file), ("line", entry.line),
        ("golem", entry.golem_id), ("tick", entry.tick), ("error", entry.error), ("reason", entry.reason),
        ("bytes", entry.kept.length), ("SHA-256", entry.kept.hash),
        ("signed by", entry.signature.key_id if entry.signature else None),
        ("ruling", None if ruling is None else f"{ruling[0]} at {ruling[1]}: {ruling[2]}"),
    ]  # fmt: skip
    for name, value in rows:
        say(f"{name:<10} {'-' if value is None else value}")


@quarantine.command()
def retry(
    items: Items = None,
    home: opt.Home = None,
    everything: Annotated[bool, Option("--all", help="All open items.")] = False,
) -> None:
    """Ingest items again after their cause is fixed; exit 1 if one is still refused."""
    place = Home.open(root_of(home))
    held = Quarantine(place)
    ids = _chosen(held, items, everything)
    with EventLog(place) as log:
        retried = retry_items(log, held, ids, at=now(), policy=Policy())
    out.print(f"{len(retried.taken):,} taken, {len(retried.stayed):,} still refused")
    for item_id, error in retried.stayed[:20]:
        say(f"  {item_id[:_LISTED]} {type(error).__name__}: {error}")
    if retried.stayed:
        raise Exit(1)


@quarantine.command()
def drop(
    why: Annotated[str, Option(help="Reason; recorded.")],
    items: Items = None,
    home: opt.Home = None,
    everything: Annotated[bool, Option("--all", help="All open items.")] = False,
) -> None:
    """Drop items: they are no longer listed or retried. Their bytes and the ruling are kept."""
    held = _open(home)
    count = held.rule(_chosen(held, items, everything), "dropped", at=now(), why=why)
    out.print(f"{count:,} dropped")


def schema(
    what: Annotated[
        str, Argument(help="record (*.jsonl), life (*.life.jsonl) or report (*.experience.jsonl).")
    ] = "record",
) -> None:
    """Print the JSON Schema (draft 2020-12) of the records, life events or reports that a runtime writes."""
    schemas = {"record": record_json_schema, "life": life_json_schema, "report": report_json_schema}
    if what not in schemas:
        raise ConfigError(f"schema {what!r} is unknown: use {', '.join(schemas)}")
    print_json(schemas[what](), indent=True)


def _open(home: Path | None) -> Quarantine:
    return Quarantine(Home.open(root_of(home)))


def _chosen(held: Quarantine, items: list[str] | None, everything: bool) -> list[str]:
    if everything == bool(items):
        raise ConfigError("name items, or give --all")
    return held.open([]).column("item_id").to_pylist() if everything else [held.find(item) for item in items or ()]
