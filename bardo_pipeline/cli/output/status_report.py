"""Prints the status of a home from its document, equal for a local one and for one of a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bardo_pipeline.cli.output.tables import as_moment, out, print_facts, print_nonempty, print_table


def show_status(status: Mapping[str, Any]) -> None:
    """Print the document of `status_of` with the folder of the home; its moments may be texts."""
    health, log = status["health"], status["log"]
    if status["frozen"] is not None:
        out.print(status["frozen"], style="yellow", soft_wrap=True)
    silent = health["silent_seconds"]
    newest = "no record yet" if silent is None else f"the last record was taken {_age(silent)} ago"
    golems, intake, leases = health["golems"], health["intake"], health["leases"]
    quarantine, judged, successions = health["quarantine"], health["judgements"], health["successions"]
    facts = [
        ("home", status["home"]),
        ("derivation", status["derivation_id"]),
        ("policy", status["policy_hash"]),
        ("adopted", status["adopted"] or "nothing: the specification's policy and this version's passes apply"),
        ("golems", f"{golems['born']} born, {golems['dead']} dead"),
        ("log", f"{log['ticks']:,} ticks in order, version {log['version']}; {newest}"),
        ("taken", f"{intake['minute']:,} records in a minute, {intake['hour']:,} in an hour, "
                  f"{intake['day']:,} in a day"),
        ("closed cycles not curated", _lag(health["curation"])),
        ("closed cycles without episodes", _lag(health["episodes"])),
        ("embedder", _embedder(health["embedder"])),
        ("index of episodes", _index(health["embedder"]["index"])),
        ("leases", f"{leases['held']} held, {leases['stale']} of dead writers"),
        ("spool", _backlog(health["spool"]) + _untaken(health["untaken"])),
        ("quarantine", f"{quarantine['open']:,} wait for a ruling, {quarantine['day']:,} of them from the last "
                       f"day ({quarantine['day_share']:.2%} of its records)"),
        ("verdicts", f"{judged['refused']} bundles refused, {judged['unjudged']} not judged yet; "
                     f"{judged['warnings']} warnings, {judged['waived']} of them waived"),
        ("successions", f"{successions['halted']} halted without an heir, {successions['waiting']} are "
                        f"retried; {successions['unregistered']} heirs are not registered"),
        ("warehouse", status["warehouse"]),
    ]  # fmt: skip
    print_facts(facts)
    rows = [
        (journal["writer"], "alive" if journal["alive"] else "dead", journal["depth"]["files"],
         journal["depth"]["bytes"], _age(journal["depth"]["oldest_seconds"]))
        for journal in health["journals"]
    ]  # fmt: skip
    print_nonempty("Journals", ["writer", "", "segments", "bytes", "oldest"], rows)
    tables = [(name, table["rows"], table["fingerprint"]) for name, table in status["projections"].items()]
    print_table("Projections", ["table", "rows", "fingerprint"], tables)
    print_nonempty("No birth on record: derivation waits here", ["golem"], [(name,) for name in golems["unborn"]])
    gaps = [tuple(gap.values()) for gap in log["gaps"]]
    print_nonempty("Gaps: derivation waits here", ["golem", "from", "to"], gaps)
    deaths = [tuple(death.values()) for death in status["unfinished_deaths"]]
    print_nonempty("Deaths that are not completed", ["golem", "tick", "what it waits for"], deaths)
    broken = [(f["measure"], round(f["value"], 4), round(f["limit"], 4), f["says"]) for f in status["faults"]]
    print_nonempty("Exceeded thresholds", ["measure", "is", "at most", "what it means"], broken)


def _lag(lag: Mapping[str, Any]) -> str:
    behind = f"{lag['cycles']:,}"
    if lag["waiting_seconds"] is not None:
        behind += f", the first for {_age(lag['waiting_seconds'])}"
    if lag["golem_max"] is not None:
        behind += f"; {lag['ticks']:,} ticks, {lag['ticks_max']:,} of them of {lag['golem_max']}"
    return behind


def _embedder(embedder: Mapping[str, Any]) -> str:
    state = f"{embedder['name']}, not checked yet"
    if embedder["checked_at"] is not None:
        state = f"{embedder['name']}, {embedder['verdict']} on {as_moment(embedder['checked_at']):%Y-%m-%d %H:%M}"
    return state + (f"; migrating to {embedder['migrating_to']} (`bardo reembed`)" if embedder["migrating_to"] else "")


def _index(index: Mapping[str, Any] | None) -> str:
    if index is None:
        return "none yet"
    state = f"{index['episodes']:,} episodes in {index['texts']:,} texts"
    recall, gone_before = index["recall"], index["gone_before"]
    state += ", exact search" if recall is None else f", approximate search with recall {recall:.1%}"
    return state + (f"; without episodes forgotten before {gone_before[:16]}" if gone_before else "")


def _backlog(backlog: Mapping[str, Any]) -> str:
    if not backlog["files"]:
        return "empty"
    oldest = _age(backlog["oldest_seconds"])
    return f"{backlog['files']:,} files wait, {backlog['bytes']:,} bytes, the oldest for {oldest}"


def _untaken(untaken: Mapping[str, Any]) -> str:
    return f"; {untaken['files']:,} files are never taken, such as {untaken['oldest']}" if untaken["files"] else ""


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:,.0f} s"
