"""`bardo status | watch`: state and events of a home. Reads, never derives. Source: X-11."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import orjson
import pyarrow.compute as pc
from rich.markup import escape
from rich.table import Table
from typer import Exit, Option

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.options import format_option, inspected, named_owner, now, root_for_owner
from bardo_pipeline.cli.output.tables import escaped, out, print_json, print_line, print_nonempty, print_table
from bardo_pipeline.derivation.active_derivation import adoptions_of
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.event_stream.watch import watch as watched
from bardo_pipeline.derivation.reports.home_health import Fault, Health, Lag, faults, health_of
from bardo_pipeline.errors import BardoError
from bardo_pipeline.events.stream.catalogue import CATEGORIES, GolemEvent
from bardo_pipeline.storage.delta.table_specs import TABLES
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.operations.health_metrics import Backlog
from bardo_pipeline.storage.verification.check_projections import damaged_tables
from bardo_pipeline.storage.warehouse.build import query


def status(
    home: opt.Home = None,
    format: opt.Format = "table",
    check: Annotated[
        bool,
        Option(
            "--check",
            help="Exit 1 if a threshold of the policy is exceeded; 2 if a derived table is damaged.",
        ),
    ] = False,
    embedder: opt.Embedder = None,
) -> None:
    """Show the state of a home: log, lag, journals, spool, quarantine, verdicts, tables, exceeded thresholds."""
    root, stores = root_for_owner(home), inspected(home, embedder)
    for error in damaged_tables(stores.whole.projections) if check else ():
        raise error
    if stores.frozen is not None and format == "table":
        out.print(stores.frozen, style="yellow", soft_wrap=True)
    health = health_of(stores, now())
    exceeded = faults(health, stores.policy)
    if format == "json":
        print_json(_document(root, stores, health, exceeded))
    else:
        _print(root, stores, health, exceeded)
    if exceeded and check:
        raise Exit(1)


def _document(root: Path, stores: DerivationContext, health: Health, exceeded: list[Fault]) -> dict[str, Any]:
    """Return the status as JSON; its keys are stable."""
    digests = {name: stores.projections.digest(name) for name in TABLES}
    return {
        "home": str(root),
        "derivation_id": stores.derivation_id,
        "policy_hash": stores.policy.hash,
        "adopted": _adopted(stores),
        "frozen": stores.frozen,
        "log": {
            "version": stores.log.version,
            "ticks": pc.sum(stores.log.heads()["contiguous"]).as_py() or 0,
            "gaps": [gap._asdict() for gap in stores.log.gaps()],
        },
        "health": asdict(health),
        "faults": [asdict(fault) for fault in exceeded],
        "projections": {n: {"rows": d.rows, "fingerprint": d.fingerprint} for n, d in digests.items()},
        "warehouse": _as_of(stores.home),
    }


def _print(root: Path, stores: DerivationContext, health: Health, exceeded: list[Fault]) -> None:
    ticks = pc.sum(stores.log.heads()["contiguous"]).as_py() or 0
    silent = health.silent_seconds
    newest = "no record yet" if silent is None else f"the last record was taken {_age(silent)} ago"
    facts = [
        ("home", str(root)),
        ("derivation", stores.derivation_id),
        ("policy", stores.policy.hash),
        ("adopted", _adopted(stores) or "nothing: the specification's policy and this version's passes apply"),
        ("golems", f"{health.golems.born} born, {health.golems.dead} dead"),
        ("log", f"{ticks:,} ticks in order, version {stores.log.version}; {newest}"),
        ("taken", f"{health.intake.minute:,} records in a minute, {health.intake.hour:,} in an hour, "
                  f"{health.intake.day:,} in a day"),
        ("closed cycles not curated", _lag(health.curation)),
        ("closed cycles without episodes", _lag(health.episodes)),
        ("embedder", _embedder(health)),
        ("index of episodes", _index(health)),
        ("leases", f"{health.leases.held} held, {health.leases.stale} of dead writers"),
        ("spool", _backlog(health.spool) + _untaken(health)),
        ("quarantine", f"{health.quarantine.open:,} wait for a ruling, {health.quarantine.day:,} of them from the last "
                       f"day ({health.quarantine.day_share:.2%} of its records)"),
        ("verdicts", f"{health.judgements.refused} bundles refused, {health.judgements.unjudged} not judged yet; "
                     f"{health.judgements.warnings} warnings, {health.judgements.waived} of them waived"),
        ("successions", f"{health.successions.halted} halted without an heir, {health.successions.waiting} are "
                        f"retried; {health.successions.unregistered} heirs are not registered"),
        ("warehouse", _as_of(stores.home)),
    ]  # fmt: skip
    grid = Table.grid(padding=(0, 2))
    for name, value in facts:
        grid.add_row(f"[dim]{name}[/]", escape(value))
    out.print(grid)
    rows = [
        (j.writer, "alive" if j.alive else "dead", j.depth.files, j.depth.bytes, _age(j.depth.oldest_seconds))
        for j in health.journals
    ]
    print_nonempty("Journals", ["writer", "", "segments", "bytes", "oldest"], rows)
    digests = [(name, stores.projections.digest(name)) for name in TABLES]
    print_table("Projections", ["table", "rows", "fingerprint"], [(n, d.rows, d.fingerprint) for n, d in digests])
    print_nonempty("No birth on record: derivation waits here", ["golem"], [(g,) for g in health.golems.unborn])
    print_nonempty("Gaps: derivation waits here", ["golem", "from", "to"], stores.log.gaps())
    broken = [(f.measure, round(f.value, 4), round(f.limit, 4), f.says) for f in exceeded]
    print_nonempty("Exceeded thresholds", ["measure", "is", "at most", "what it means"], broken)


def _adopted(stores: DerivationContext) -> str | None:
    adopted = adoptions_of(stores.log.life("DerivationAdopted"))
    return adopted[-1].why if adopted else None


def _lag(lag: Lag) -> str:
    behind = f"{lag.cycles:,}"
    if lag.waiting_seconds is not None:
        behind += f", the first for {_age(lag.waiting_seconds)}"
    if lag.golem_max is not None:
        behind += f"; {lag.ticks:,} ticks, {lag.ticks_max:,} of them of {lag.golem_max}"
    return behind


def _embedder(health: Health) -> str:
    embedder = health.embedder
    state = f"{embedder.name}, not checked yet"
    if embedder.checked_at is not None:
        state = f"{embedder.name}, {embedder.verdict} on {embedder.checked_at:%Y-%m-%d %H:%M}"
    return state + (f"; migrating to {embedder.migrating_to} (`bardo reembed`)" if embedder.migrating_to else "")


def _index(health: Health) -> str:
    index = health.embedder.index
    if index is None:
        return "none yet"
    state = f"{index.episodes:,} episodes in {index.texts:,} texts"
    state += ", exact search" if index.recall is None else f", approximate search with recall {index.recall:.1%}"
    return state + (f"; without episodes forgotten before {index.gone_before[:16]}" if index.gone_before else "")


def _backlog(backlog: Backlog) -> str:
    if not backlog.files:
        return "empty"
    return f"{backlog.files:,} files wait, {backlog.bytes:,} bytes, the oldest for {_age(backlog.oldest_seconds)}"


def _untaken(health: Health) -> str:
    count = health.untaken.files
    return f"; {count:,} files are never taken, such as {health.untaken.oldest}" if count else ""


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:,.0f} s"


def _as_of(home: Home) -> str:
    if not home.warehouse.exists():
        return "none yet: `bardo run` or the curator job builds it"
    try:
        _, rows = query(home, "select max(as_of) from dim_golem")
    except BardoError as error:
        return str(error)
    return f"as of {rows[0][0]}"


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
