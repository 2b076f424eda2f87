"""What others write, at the door: `bardo spool`, `bardo quarantine`, `bardo schema`."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.markup import escape

from bardo_pipeline.cli.options import FormatOption, HomeOption, check_format, now, root_of
from bardo_pipeline.cli.output.tables import print_table
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.events.record.json_schema import life_json_schema, record_json_schema
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.intake.quarantine import Quarantine
from bardo_pipeline.storage.intake.quarantine_retry import retry as retry_items
from bardo_pipeline.storage.intake.spool_folder import Spool
from bardo_pipeline.storage.log.event_log import EventLog

spool = typer.Typer(help="Files that runtimes in any language drop into the folder spool/ of a home (docs/writing.md).")
quarantine = typer.Typer(help="What came and was not taken: each with its reason and its bytes, until you rule on it.")
out = Console(soft_wrap=False, highlight=False)

Items = Annotated[list[str] | None, typer.Argument(help="Ids, or their beginnings, as `bardo quarantine list` says.")]
_LISTED = 12  # characters of an id in a list


def add_to(app: typer.Typer) -> None:
    """Give the command these words."""
    app.add_typer(spool, name="spool")
    app.add_typer(quarantine, name="quarantine")
    app.command("schema")(schema)


@spool.command()
def take(home: HomeOption = None) -> None:
    """Take every file that waits. Makes the home if there is none. Exit 0 also where records went to quarantine."""
    place = Home.create(root_of(home), Policy(), now())
    with EventLog(place) as log:
        _take(Spool(place, log), quiet=False)


@spool.command()
def watch(
    home: HomeOption = None, seconds: Annotated[float, typer.Option(min=0.05, help="How often to look.")] = 1.0
) -> None:
    """Take files as they come, until interrupted; for those who do not run Dagster, whose sensor does the same."""
    place = Home.create(root_of(home), Policy(), now())
    with EventLog(place) as log, suppress(KeyboardInterrupt):
        found, never = Spool(place, log), threading.Event()
        out.print(f"taking from {place.spool} (stop it with Ctrl-C)", soft_wrap=True)
        while True:
            _take(found, quiet=True)
            never.wait(seconds)


def _take(found: Spool, *, quiet: bool) -> None:
    count, started = 0, time.perf_counter()
    for taken in found.take(now()):
        spent, count = time.perf_counter() - started, count + 1
        out.print(
            f"[bold]{taken.records:,}[/] records in {escape(taken.file)}: {taken.written:,} new, "
            f"{taken.repeated:,} on record already, {taken.quarantined:,} in quarantine "
            f"({taken.size / 1e6:,.1f} MB, {taken.size / 1e6 / max(spent, 1e-9):,.0f} MB/s)",
            soft_wrap=True,
        )
        for error, times in taken.errors.most_common():
            out.print(f"  {times:,} x {error}: `bardo quarantine list` says why")
        started = time.perf_counter()
    if not count and not quiet:
        out.print("nothing waits in the spool")


@quarantine.command("list")
def list_(
    home: HomeOption = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest.")] = 50,
    format: FormatOption = "table",
) -> None:
    """What nobody ruled on yet: id, where it stood, whose it says it is, and why it was refused."""
    check_format(format)
    found = _open(home).open(["source", "file", "line", "golem_id", "tick", "error", "reason", "raw_bytes", "taken_at"])
    rows = found.slice(max(len(found) - limit, 0)).to_pylist()
    if format == "json":
        sys.stdout.buffer.write(orjson.dumps(rows, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
        return
    if not rows:
        out.print("nothing is in quarantine")
        return
    names = ["item", "file", "line", "golem", "tick", "error", "reason"]
    print_table(
        out,
        f"{len(found):,} in quarantine" + (f", the newest {limit}" if len(found) > limit else ""),
        names,
        [
            (r["item_id"][:_LISTED], r["file"], r["line"], r["golem_id"], r["tick"], r["error"], r["reason"])
            for r in rows
        ],
    )


@quarantine.command()
def show(
    item: Annotated[str, typer.Argument(help="An id, or the beginning of it.")],
    home: HomeOption = None,
    raw: Annotated[bool, typer.Option("--raw", help="Only the bytes as they came, to standard output.")] = False,
) -> None:
    """All that is known of one item; with --raw its very bytes."""
    found = _open(home)
    item_id = found.find(item)
    chosen = found.show(item_id)
    if raw:
        sys.stdout.buffer.write(found.raw_of(chosen))
        return
    ruled = found.ruling_of(item_id)
    rows = [
        ("item", item_id), ("source", chosen.source), ("file", chosen.file), ("line", chosen.line),
        ("golem", chosen.golem_id), ("tick", chosen.tick), ("error", chosen.error), ("reason", chosen.reason),
        ("bytes", chosen.kept.length), ("SHA-256", chosen.kept.hash),
        ("signed by", chosen.signature.key_id if chosen.signature else None),
        ("ruling", None if ruled is None else f"{ruled[0]} at {ruled[1]}: {ruled[2]}"),
    ]  # fmt: skip
    for name, value in rows:
        out.print(f"{name:<10} {escape('-' if value is None else str(value))}", soft_wrap=True)


@quarantine.command()
def retry(
    items: Items = None,
    home: HomeOption = None,
    everything: Annotated[bool, typer.Option("--all", help="All that nobody ruled on yet.")] = False,
) -> None:
    """Send items through the same door again, once the cause is cured; exit 1 where one is still refused."""
    place = Home.open(root_of(home))
    found = Quarantine(place)
    ids = _chosen(found, items, everything)
    with EventLog(place) as log:
        retried = retry_items(log, found, ids, at=now(), policy=Policy())
    out.print(f"{len(retried.taken):,} taken, {len(retried.stayed):,} still refused")
    for item_id, error in retried.stayed[:20]:
        out.print(f"  {item_id[:_LISTED]} {escape(f'{type(error).__name__}: {error}')}", soft_wrap=True)
    if retried.stayed:
        raise typer.Exit(1)


@quarantine.command()
def drop(
    why: Annotated[str, typer.Option(help="Why nobody wants them; it is recorded.")],
    items: Items = None,
    home: HomeOption = None,
    everything: Annotated[bool, typer.Option("--all", help="All that nobody ruled on yet.")] = False,
) -> None:
    """Rule that items will never be taken. Their bytes stay, as does the ruling; they are listed no more."""
    found = _open(home)
    count = found.rule(_chosen(found, items, everything), "dropped", at=now(), why=why)
    out.print(f"{count:,} dropped")


def schema(
    what: Annotated[
        str, typer.Argument(help="record (a line of *.jsonl) or life (a line of *.life.jsonl).")
    ] = "record",
) -> None:
    """Print the JSON Schema (draft 2020-12) of what a runtime may write."""
    schemas = {"record": record_json_schema, "life": life_json_schema}
    if what not in schemas:
        raise ConfigError(f"there is no schema of {what!r}: record or life")
    sys.stdout.buffer.write(orjson.dumps(schemas[what](), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def _open(home: Path | None) -> Quarantine:
    return Quarantine(Home.open(root_of(home)))


def _chosen(found: Quarantine, items: list[str] | None, everything: bool) -> list[str]:
    if everything == bool(items):
        raise ConfigError("name some items, or say --all")
    return found.open([]).column("item_id").to_pylist() if everything else [found.find(item) for item in items or ()]
