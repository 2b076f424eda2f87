"""`bardo whatif | adopt`: derive the log under another policy in a separate folder, compare, put in force."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import orjson
from pydantic import TypeAdapter, ValidationError
from typer import Argument, Option

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.options import now, open_whole, root_of
from bardo_pipeline.cli.output.tables import out, print_json, print_nonempty, print_records, print_table, say, spinner
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.versions import side_derivations as derivations
from bardo_pipeline.derivation.versions.policy_diff import Setting, altered
from bardo_pipeline.derivation.versions.what_if import WhatIf, compare, what_if
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.grimoire.entry_columns import query_tables
from bardo_pipeline.quality.calibration import Calibration

_BY_KIND = """
    select coalesce(kind_after, kind_before) as kind, category,
        count(*) filter (before_ppm is null) as gained, count(*) filter (after_ppm is null) as lost,
        count(*) filter (after_ppm > before_ppm) as surer, count(*) filter (after_ppm < before_ppm) as less_sure,
        count(*) filter (kind_before <> kind_after) as other_kind, max(abs(after_ppm - before_ppm)) as shift_max
    from changes group by 1, 2 order by 1, 2
"""
_BY_GOLEM = """
    select golem_id, count(*) filter (before_ppm is null) as gained, count(*) filter (after_ppm is null) as lost,
        count(*) filter (before_ppm is not null and after_ppm is not null) as changed
    from changes group by 1 order by 1
"""
_EXAMPLES = """
    select golem_id, coalesce(kind_after, kind_before) as kind, text, before_ppm, after_ppm
    from changes
    order by (before_ppm is null or after_ppm is null) desc, abs(coalesce(after_ppm, 0) - coalesce(before_ppm, 0)) desc,
        golem_id, entry_id
"""


def ask_what_if(
    change: Annotated[
        list[str] | None, Option("--set", help="NAME=VALUE, for example decay.tactical_days=14; repeatable.")
    ] = None,
    policy: Annotated[
        Path | None, Option(help="JSON file with a policy, or parts of one that override the active policy.")
    ] = None,
    home: opt.Home = None,
    golem: Annotated[list[str] | None, Option(help="Only this golem; repeatable.")] = None,
    hours: Annotated[
        float, Option(min=0.1, max=opt.HOURS_MAX, help="Hours during which decisions test a belief.")
    ] = 24.0,
    examples: Annotated[int, Option(min=0, help="Number of example entries.")] = 5,
    listed: Annotated[bool, Option("--list", help="List the derivations on disk instead.")] = False,
    dropped: Annotated[str | None, Option("--drop", help="Delete this derivation instead.")] = None,
    against: Annotated[
        str | None, Option(help="Compare with this existing derivation, also of an older version.")
    ] = None,
    json: opt.Json = False,
) -> None:
    """Derive the log under another policy in a separate folder; compare entries, calibration and retrievals.

    The active derivation stays; `bardo adopt` switches. Without a change, a home frozen at older passes is derived by
    this version's passes.
    """
    horizon_us = round(timedelta(hours=hours) / timedelta(microseconds=1))
    stores = open_whole(home)
    if listed:
        _list(derivations.stored_derivations(stores), json)
        return
    if dropped is not None:
        derivations.drop(stores, dropped)
        out.print(f"derivation {dropped} is deleted")
        return
    if against is not None:
        comparison = compare(stores, derivations.open_read_only(stores, against), horizon_us=horizon_us)
    elif change or policy is not None or stores.frozen is not None:
        changed = altered(stores.policy, change or (), None if policy is None else _overlay(policy))
        with spinner("deriving", quiet=json) as on_step:
            comparison = what_if(stores, changed, now=now(), golems=golem, horizon_us=horizon_us, on_step=on_step)
    else:
        raise ConfigError("the policy is unchanged: give --set NAME=VALUE or --policy FILE")
    print_json(_comparison_facts(comparison)) if json else _show(comparison, examples)


def _overlay(path: Path) -> Mapping[str, Any]:
    try:
        return TypeAdapter(dict[str, Any]).validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"--policy {path}: {error.strerror}: name a readable JSON file") from error
    except ValidationError as error:
        fault, cure = error.errors()[0]["msg"], 'write it as {"decay": {"tactical_days": 14}}'
        raise ConfigError(f"--policy {path} is no JSON object ({fault}): {cure}") from error


def adopt_derivation(
    derivation: Annotated[str | None, Argument(help="Id of a derivation that `bardo whatif` built.")] = None,
    why: Annotated[str, Option(help="Reason; recorded.")] = "",
    home: opt.Home = None,
    listed: Annotated[bool, Option("--list", help="List adoptions instead.")] = False,
    json: opt.Json = False,
) -> None:
    """Make a derivation of `bardo whatif` the active one, recorded as one event; all commands, jobs and fleets use it.

    A running fleet ends under the policy that it started with.
    """
    root = root_of(home)
    stores = DerivationContext.open(root)
    if listed:
        _history(stores, json)
        return
    if derivation is None:
        raise ConfigError("no derivation is named: `bardo whatif --list` lists them")
    with spinner("updating the derivation", quiet=json) as on_step:
        event = derivations.adopt(stores, derivation, why, now=now(), on_step=on_step)
        derivations.settle(DerivationContext.open(root), now=now())
    assert event.adopted is not None, "an adoption event has its payload"
    if json:
        print_json(event.model_dump(exclude_none=True))
    else:
        before = event.adopted.previous_derivation_id
        out.print(f"derivation {derivation} is active ({event.event_id}); `bardo adopt {before}` switches back")


def _history(stores: DerivationContext, json: bool) -> None:
    rows = derivations.adoptions(stores).to_pylist()
    if json:
        print_json(rows)
    elif rows:
        cells = [
            (r["recorded_at"].isoformat(timespec="seconds"), r["adopted"]["derivation_id"],
             r["adopted"]["previous_derivation_id"], r["adopted"]["passes_edition"], r["adopted"]["why"])
            for r in rows
        ]  # fmt: skip
        print_table("Adopted", ["recorded", "derivation", "before it", "passes", "why"], cells)
    else:
        out.print(f"nothing was adopted: the specification's policy applies ({stores.derivation_id})")


def _list(built_derivations: list[derivations.StoredDerivation], json: bool) -> None:
    if json:
        print_json([asdict(built) for built in built_derivations])
        return
    for built in built_derivations:
        scope = "" if built.golems is None else f", only of {len(built.golems)} golems"
        scope += "" if built.embedder is None else f", by {built.embedder}"
        out.print(
            f"{built.name}  {'in force' if built.in_force else 'beside'}{scope}, "
            f"passes {built.passes_edition or 'unknown'}, {built.own_bytes:,} bytes of its own, "
            f"written {built.written_at.isoformat(timespec='seconds')}"
        )
        if not built.in_force:
            say(f"    {_settings(built.changed)}")
            say(f"    cannot be adopted: {built.fit}" if built.fit else f"    bardo adopt {built.name}")


def _settings(changed: tuple[Setting, ...] | None) -> str:
    if changed is None:
        return "unknown"
    return ", ".join(f"{s.name}={_value(s.after)} (not {_value(s.before)})" for s in changed) or "as in force"


def _value(value: Any) -> str:
    return orjson.dumps(value).decode()


def _comparison_facts(comparison: WhatIf) -> dict[str, Any]:
    """Return the comparison as JSON; entries by kind and category, by golem, and singly."""
    return {
        "in_force": comparison.in_force,
        "beside": comparison.name,
        "same": comparison.same,
        "as_of": comparison.at,
        "changed": [s._asdict() for s in comparison.changed],
        "golems": comparison.golems,
        "frozen": comparison.frozen,
        "incomparable": comparison.incomparable,
        "adoptable": comparison.adoptable,
        "tables": [asdict(t) for t in comparison.tables],
        "active_entries": dict(zip(("in_force", "beside"), comparison.active_counts, strict=True)),
        "by_kind": query_tables(_BY_KIND, changes=comparison.entries).to_pylist(),
        "by_golem": query_tables(_BY_GOLEM, changes=comparison.entries).to_pylist(),
        "entries": comparison.entries.to_pylist(),
        "calibration": {
            name: asdict(calibration)
            | {"bands": calibration.bands.to_pylist(), "subjects": calibration.subjects.to_pylist()}
            for name, calibration in zip(("in_force", "beside"), comparison.calibration, strict=True)
        },
        "retrievals": asdict(comparison.retrievals),
    }


def _show(comparison: WhatIf, examples: int) -> None:
    out.print(
        f"active {comparison.in_force}, compared {comparison.name}: {_settings(comparison.changed)}", markup=False
    )
    if comparison.frozen is not None:
        say(f"not updated: {comparison.frozen}")
    if comparison.incomparable is not None:
        say(f"not compared: {comparison.incomparable}")
        return
    if comparison.golems is not None:
        out.print(
            f"only of {len(comparison.golems)} golems: tables over all golems are not derived, and it cannot be adopted"
        )
    rows = [
        (t.table, t.rows, t.rows_beside, t.only_in_force, t.only_beside, "shared" if t.shared else "")
        for t in comparison.tables
    ]
    print_table("Rows", ["table", "rows", "rows beside", "only in force", "only beside", ""], rows)
    _show_entries(comparison, examples)
    _show_calibration(comparison.calibration)
    r = comparison.retrievals
    say(
        f"retrievals: of {r.decisions:,} recorded decisions, {r.differing:,} would retrieve other entries, "
        f"{r.warnings:,} more or fewer warnings; re-centring would be blocked in {r.blocked_in_force:,} (active) and "
        f"{r.blocked_beside:,} (compared), and only by one of the two in {r.blocks:,}\n"
        f"(the active derivation reproduces the recorded entries in {r.reproduced:,})"
    )
    if comparison.same:
        say("all derived tables are equal; the comparison does not rerun the golems")
    elif comparison.golems is None and comparison.adoptable:
        out.print(f'bardo adopt {comparison.name} --why "..." makes it active; published bundles stay unchanged')


def _show_entries(comparison: WhatIf, examples: int) -> None:
    out.print(
        f"active entries: {comparison.active_counts[0]:,}, compared {comparison.active_counts[1]:,}; "
        f"confidence as of {comparison.at}"
    )
    if not comparison.entries.num_rows:
        return
    for title, query in (("Entries that differ", _BY_KIND), ("By golem", _BY_GOLEM)):
        print_records(title, query_tables(query, changes=comparison.entries).to_pylist())
    if examples:
        shown = query_tables(_EXAMPLES, changes=comparison.entries).slice(0, examples)
        print_records(f"{shown.num_rows} of {comparison.entries.num_rows:,}", shown.to_pylist())


def _show_calibration(both: tuple[Calibration, Calibration]) -> None:
    bands: dict[int, list[Any]] = {}
    for side, calibration in enumerate(both):
        for row in calibration.bands.to_pylist():
            cells = bands.setdefault(row["confidence_low_ppm"], [None] * 6)
            figures = (row["belief_count"], row["held_ppm"] / PPM, row["agreed_ppm"] / PPM)
            cells[side * 3 : side * 3 + 3] = figures
    rows = [(f"{low / PPM:.1f}", *cells) for low, cells in sorted(bands.items())]
    names = ["confidence", "beliefs", "held", "agreed", "beside", "held", "agreed"]
    print_nonempty("Calibration: beliefs and later verdicts", names, rows)
    scores = [
        "no verdicts" if c.brier_held_ppm is None or c.brier_agreed_ppm is None
        else f"{c.brier_held_ppm / PPM:.3f} of beliefs, {c.brier_agreed_ppm / PPM:.3f} of single decisions"
        for c in both
    ]  # fmt: skip
    out.print(f"Brier score: {scores[0]}; compared {scores[1]} (0 is perfect, a coin 0.25)")
