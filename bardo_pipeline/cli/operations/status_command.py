"""Watching: what an operator looks at, `bardo status`. Reads, never derives. Source: X-11."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bardo_pipeline.cli.options import check_format
from bardo_pipeline.cli.output.tables import print_json, print_table
from bardo_pipeline.derivation.active_derivation import adoptions_of
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.reports.home_health import Fault, Health, Lag, faults, health_of
from bardo_pipeline.errors import BardoError
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.operations.health_metrics import Backlog
from bardo_pipeline.storage.projections.table_specs import TABLES
from bardo_pipeline.storage.warehouse.build import query


def status(out: Console, root: Path, embedder: str | None, now: datetime, format: str) -> bool:
    """The log, what waits before and behind it, the projections and the warehouse. True if no threshold is broken."""
    check_format(format)
    stores = DerivationContext.open(root, embedder=embedder)
    if stores.frozen is not None and format == "table":
        out.print(stores.frozen, style="yellow", soft_wrap=True, highlight=False)
    health = health_of(stores, now)
    found = faults(health, stores.policy)
    if format == "json":
        print_json(_document(root, stores, health, found))
    else:
        _print(out, root, stores, health, found)
    return not found


def _document(root: Path, stores: DerivationContext, health: Health, found: list[Fault]) -> dict[str, Any]:
    """All of it under keys that stay: those of the measures, and what the table shows beside."""
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
        "faults": [asdict(fault) for fault in found],
        "projections": {n: {"rows": d.rows, "fingerprint": d.fingerprint} for n, d in digests.items()},
        "warehouse": _as_of(root),
    }


def _print(out: Console, root: Path, stores: DerivationContext, health: Health, found: list[Fault]) -> None:
    ticks = pc.sum(stores.log.heads()["contiguous"]).as_py() or 0
    facts = [
        ("home", str(root)),
        ("derivation", stores.derivation_id),
        ("policy", stores.policy.hash),
        ("adopted", _adopted(stores) or "nothing: the home goes by the specification and this version's passes"),
        ("golems", f"{health.golems.born} born, {health.golems.dead} dead"),
        ("log", f"{ticks:,} ticks in order, version {stores.log.version}; {_silence(health)}"),
        ("taken", f"{health.intake.minute:,} records in a minute, {health.intake.hour:,} in an hour, "
                  f"{health.intake.day:,} in a day"),
        ("closed cycles not curated", _lag(health.curation)),
        ("closed cycles without episodes", _lag(health.episodes)),
        ("embedder", _embedder(health)),
        ("index of episodes", _index(health)),
        ("leases", f"{health.leases.held} held, {health.leases.stale} left by the dead"),
        ("spool", _backlog(health.spool)),
        ("quarantine", f"{health.quarantine.open:,} wait for a ruling, {health.quarantine.day:,} of them from the last "
                       f"day ({health.quarantine.day_share:.2%} of what came)"),
        ("verdicts", f"{health.judgements.refused} bundles refused, {health.judgements.unjudged} not judged yet; "
                     f"{health.judgements.warnings} warnings, {health.judgements.waived} of them waived"),
        ("successions", f"{health.successions.halted} halted without an heir, {health.successions.waiting} are tried "
                        f"again; {health.successions.unregistered} heirs without their identity"),
        ("warehouse", _as_of(root)),
    ]  # fmt: skip
    grid = Table.grid(padding=(0, 2))
    for name, value in facts:
        grid.add_row(f"[dim]{name}[/]", escape(value))
    out.print(grid)
    if health.journals:
        rows = [
            (j.writer, "alive" if j.alive else "dead", j.depth.files, j.depth.bytes, _age(j.depth.oldest_seconds))
            for j in health.journals
        ]
        print_table(out, "Journals", ["writer", "", "segments", "bytes", "oldest"], rows)
    digests = [(name, stores.projections.digest(name)) for name in TABLES]
    print_table(out, "Projections", ["table", "rows", "fingerprint"], [(n, d.rows, d.fingerprint) for n, d in digests])
    if health.golems.unborn:
        print_table(out, "No birth on record: derivation waits here", ["golem"], [(g,) for g in health.golems.unborn])
    if gaps := stores.log.gaps():
        print_table(out, "Gaps: derivation waits here", ["golem", "from", "to"], [tuple(gap) for gap in gaps])
    if found:
        broken = [(f.measure, round(f.value, 4), round(f.limit, 4), f.says) for f in found]
        print_table(out, "Beyond what the policy bears", ["measure", "is", "at most", "what it means"], broken)


def _adopted(stores: DerivationContext) -> str | None:
    """Why what is in force was adopted; None where it follows the program."""
    told = adoptions_of(stores.log.life("DerivationAdopted"))
    return told[-1].why if told else None


def _silence(health: Health) -> str:
    if health.silent_seconds is None:
        return "nothing recorded yet"
    return f"the last record was taken {_age(health.silent_seconds)} ago"


def _lag(lag: Lag) -> str:
    behind = f"{lag.cycles:,}"
    if lag.waiting_seconds is not None:
        behind += f", the first for {_age(lag.waiting_seconds)}"
    if lag.golem_max is not None:
        behind += f"; {lag.ticks:,} ticks, {lag.ticks_max:,} of them of {lag.golem_max}"
    return behind


def _embedder(health: Health) -> str:
    found = health.embedder
    told = f"{found.name}, not checked yet"
    if found.checked_at is not None:
        told = f"{found.name}, {found.verdict} on {found.checked_at:%Y-%m-%d %H:%M}"
    return told + (f"; on the way to {found.migrating_to} (`bardo reembed`)" if found.migrating_to else "")


def _index(health: Health) -> str:
    found = health.embedder.index
    if found is None:
        return "none yet"
    told = f"{found.episodes:,} episodes in {found.texts:,} texts"
    told += ", each compared" if found.recall is None else f", searched in part: {found.recall:.1%} is found"
    return told + (f"; without those that may go before {found.gone_before[:16]}" if found.gone_before else "")


def _backlog(backlog: Backlog) -> str:
    if not backlog.files:
        return "empty"
    return f"{backlog.files:,} files wait, {backlog.bytes:,} bytes, the oldest for {_age(backlog.oldest_seconds)}"


def _age(seconds: float | None) -> str:
    """A length of time in the unit that suits it."""
    if seconds is None:
        return "-"
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:,.0f} s"


def _as_of(root: Path) -> str:
    home = Home.open(root)
    if not home.warehouse.exists():
        return "none yet: `bardo run` or the curator job builds it"
    try:
        _, rows = query(home, "select max(as_of) from dim_golem")
    except BardoError as error:
        return str(error)
    return f"as of {rows[0][0]}"
