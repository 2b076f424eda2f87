"""Policies at the door: `bardo whatif`, which derives the log under another one beside, and `bardo adopt`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import orjson
import pyarrow as pa
import typer
from rich.console import Console

from bardo_pipeline.cli.options import HomeOption, JsonOption, now, root_of
from bardo_pipeline.cli.output.tables import print_json, print_table
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.versions.adoption import adopt, adoptions, settle
from bardo_pipeline.derivation.versions.policy_diff import Setting, altered
from bardo_pipeline.derivation.versions.side_derivations import Held, as_it_stands, drop, held
from bardo_pipeline.derivation.versions.what_if import WhatIf, compare, what_if
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.grimoire.entry_columns import query_tables
from bardo_pipeline.quality.calibration import Calibration

out = Console(soft_wrap=False, highlight=False)


_HOURS_MAX = 876_600

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


def add_to(app: typer.Typer) -> None:
    """Put these commands into `bardo`."""
    app.command("whatif")(ask_what_if)
    app.command("adopt")(adopt_derivation)


def ask_what_if(
    change: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE, as decay.tactical_days=14; may be repeated.")
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(help="A JSON file of a policy, or of parts of one, over the one in force.")
    ] = None,
    home: HomeOption = None,
    golem: Annotated[list[str] | None, typer.Option(help="Only of this golem; several times for several.")] = None,
    hours: Annotated[float, typer.Option(min=0.1, help="So long after a belief, judged decisions test it.")] = 24.0,
    examples: Annotated[int, typer.Option(min=0, help="So many entries are shown.")] = 5,
    listed: Annotated[bool, typer.Option("--list", help="List the derivations on disk, instead.")] = False,
    dropped: Annotated[str | None, typer.Option("--drop", help="Take this derivation away, instead.")] = None,
    against: Annotated[
        str | None, typer.Option(help="Compare with this derivation as it stands, an older version's too.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Derive the same log under another policy, beside: what is known apart, who was right, what would be recalled.

    Nothing is switched: `bardo adopt` does that. Without a change, this version's passes, where others are in force.
    """
    if not hours <= _HOURS_MAX:
        raise ConfigError(f"--hours {hours:g}: say how many, at most {_HOURS_MAX:,}: 24 is a day")
    horizon_us = round(timedelta(hours=hours) / timedelta(microseconds=1))
    stores = DerivationContext.open(root_of(home))
    if listed:
        _list(held(stores), json)
    elif dropped is not None:
        drop(stores, dropped)
        out.print(f"derivation {dropped} is gone")
    else:
        if not change and policy is None and against is None and stores.frozen is None:
            raise ConfigError("nothing is changed: give --set NAME=VALUE, or --policy FILE")
        if against is not None:
            found = compare(stores, as_it_stands(stores, against), horizon_us=horizon_us)
            print_json(_told(found)) if json else _show(found, examples)
            return
        changed = altered(stores.policy, change or (), None if policy is None else _overlay(policy))
        with nullcontext() if json else out.status("deriving beside") as spinner:
            found = what_if(
                stores,
                changed,
                now=now(),
                golems=golem,
                horizon_us=horizon_us,
                tell=lambda name: None if spinner is None else spinner.update(f"deriving beside: {name}"),
            )
        print_json(_told(found)) if json else _show(found, examples)


def _overlay(path: Path) -> Mapping[str, Any]:
    try:
        told = orjson.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"--policy {path}: {error.strerror}: name a JSON file") from error
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"--policy {path} is not JSON: {error}") from error
    if not isinstance(told, dict):
        raise ConfigError(f'--policy {path} holds no parts with settings, as {{"decay": {{"tactical_days": 14}}}}')
    return told


def adopt_derivation(
    derivation: Annotated[str | None, typer.Argument(help="The id of a derivation that `bardo whatif` built.")] = None,
    why: Annotated[str, typer.Option(help="Why; it is recorded.")] = "",
    home: HomeOption = None,
    listed: Annotated[bool, typer.Option("--list", help="List what was adopted, instead.")] = False,
    json: JsonOption = False,
) -> None:
    """Put a derivation in force that was built beside: one recorded event, and every command, job and fleet follows.

    A fleet that is under way ends under the policy it began with.
    """
    root = root_of(home)
    stores = DerivationContext.open(root)
    if listed:
        _history(stores, json)
        return
    if derivation is None:
        raise ConfigError("say which derivation: `bardo whatif --list` shows those that were built")
    with nullcontext() if json else out.status("bringing it up to the log") as spinner:
        event = adopt(
            stores,
            derivation,
            why,
            now=now(),
            tell=lambda name: None if spinner is None else spinner.update(f"bringing it up to the log: {name}"),
        )
        settle(DerivationContext.open(root), now=now())
    assert event.adopted is not None, "an adoption says what was adopted"
    if json:
        print_json(event.model_dump(exclude_none=True))
    else:
        before = event.adopted.previous_derivation_id
        out.print(f"derivation {derivation} is in force ({event.event_id}); `bardo adopt {before}` would go back")


def _history(stores: DerivationContext, json: bool) -> None:
    rows = adoptions(stores).to_pylist()
    if json:
        print_json(rows)
    elif rows:
        told = [
            (r["recorded_at"].isoformat(timespec="seconds"), r["adopted"]["derivation_id"],
             r["adopted"]["previous_derivation_id"], r["adopted"]["passes_edition"], r["adopted"]["why"])
            for r in rows
        ]  # fmt: skip
        print_table(out, "Adopted", ["recorded", "derivation", "before it", "passes", "why"], told)
    else:
        out.print(f"nothing was adopted: the home goes by the specification ({stores.derivation_id})")


def _list(found: list[Held], json: bool) -> None:
    if json:
        print_json([asdict(one) for one in found])
        return
    for one in found:
        of = "" if one.golems is None else f", of {len(one.golems)} golems alone"
        of += "" if one.embedder is None else f", by {one.embedder}"
        out.print(
            f"{one.name}  {'in force' if one.in_force else 'beside'}{of}, passes {one.passes_edition or 'unknown'}, "
            f"{one.own_bytes:,} bytes of its own, written {one.written_at.isoformat(timespec='seconds')}"
        )
        if not one.in_force:
            out.print(f"    {_settings(one.changed)}", markup=False, soft_wrap=True)
            out.print(f"    cannot be adopted: {one.fit}" if one.fit else f"    bardo adopt {one.name}", soft_wrap=True)


def _settings(changed: tuple[Setting, ...] | None) -> str:
    if changed is None:
        return "unknown"
    return ", ".join(f"{s.name}={_value(s.after)} (not {_value(s.before)})" for s in changed) or "as in force"


def _value(value: Any) -> str:
    return orjson.dumps(value).decode()


def _told(found: WhatIf) -> dict[str, Any]:
    """All of it, entries by kind and category, by golem and one by one."""
    return {
        "in_force": found.in_force,
        "beside": found.name,
        "same": found.same,
        "as_of": found.at,
        "changed": [s._asdict() for s in found.changed],
        "golems": found.golems,
        "frozen": found.frozen,
        "incomparable": found.incomparable,
        "adoptable": found.adoptable,
        "tables": [asdict(t) for t in found.tables],
        "active_entries": dict(zip(("in_force", "beside"), found.known, strict=True)),
        "by_kind": query_tables(_BY_KIND, changes=found.entries).to_pylist(),
        "by_golem": query_tables(_BY_GOLEM, changes=found.entries).to_pylist(),
        "entries": found.entries.to_pylist(),
        "calibration": {
            name: asdict(one) | {"bands": one.bands.to_pylist()}
            for name, one in zip(("in_force", "beside"), found.calibration, strict=True)
        },
        "retrievals": asdict(found.retrievals),
    }


def _show(found: WhatIf, examples: int) -> None:
    out.print(f"in force {found.in_force}, beside {found.name}: {_settings(found.changed)}", markup=False)
    if found.frozen is not None:
        out.print(f"not brought up to the log: {found.frozen}", soft_wrap=True)
    if found.incomparable is not None:
        out.print(f"not compared: {found.incomparable}", soft_wrap=True)
        return
    if found.golems is not None:
        out.print(f"of {len(found.golems)} golems alone: what concerns everyone is not derived, nor can it be adopted")
    rows = [
        (t.table, t.rows, t.rows_beside, t.only_in_force, t.only_beside, "shared" if t.shared else "")
        for t in found.tables
    ]
    names = ["table", "rows", "rows beside", "only in force", "only beside", ""]
    print_table(out, "Rows, whatever policy they name", names, rows)
    _show_entries(found, examples)
    _show_calibration(found.calibration)
    r = found.retrievals
    out.print(
        f"retrievals: of {r.decisions:,} recorded decisions, {r.differing:,} would have met other entries, "
        f"{r.warnings:,} more or fewer warnings; re-centring barred in {r.blocked_in_force:,} and beside in "
        f"{r.blocked_beside:,}, not alike in {r.blocks:,}\n"
        f"(what is in force gives the very entries on record in {r.reproduced:,})",
        soft_wrap=True,
    )
    if found.same:
        out.print("nothing that is derived differs: what golems live by is not lived again", soft_wrap=True)
    elif found.golems is None and found.adoptable:
        out.print(f'bardo adopt {found.name} --why "..." would put it in force; published bundles stay as they are')


def _show_entries(found: WhatIf, examples: int) -> None:
    out.print(f"active entries: {found.known[0]:,}, beside {found.known[1]:,}; confidence as of {found.at}")
    if not found.entries.num_rows:
        return
    for title, query in (("Entries that differ", _BY_KIND), ("By golem", _BY_GOLEM)):
        _print(title, query_tables(query, changes=found.entries))
    if examples:
        shown = query_tables(_EXAMPLES, changes=found.entries).slice(0, examples)
        _print(f"{shown.num_rows} of {found.entries.num_rows:,}", shown)


def _print(title: str, rows: pa.Table) -> None:
    print_table(out, title, rows.column_names, [tuple(row.values()) for row in rows.to_pylist()])


def _show_calibration(both: tuple[Calibration, Calibration]) -> None:
    """The two calibration tables side by side, and their Brier scores."""
    bands: dict[int, list[Any]] = {}
    for side, one in enumerate(both):
        for row in one.bands.to_pylist():
            cells = bands.setdefault(row["confidence_low_ppm"], [None] * 6)
            told = (row["belief_count"], row["held_ppm"] / PPM, row["agreed_ppm"] / PPM)
            cells[side * 3 : side * 3 + 3] = told
    rows = [(f"{low / PPM:.1f}", *cells) for low, cells in sorted(bands.items())]
    names = ["confidence", "beliefs", "held", "agreed", "beside", "held", "agreed"]
    if rows:
        print_table(out, "Beliefs, and what was judged after them", names, rows)
    said = [
        "nothing to judge by" if c.brier_held_ppm is None or c.brier_agreed_ppm is None
        else f"{c.brier_held_ppm / PPM:.3f} by what held, {c.brier_agreed_ppm / PPM:.3f} by single decisions"
        for c in both
    ]  # fmt: skip
    out.print(f"Brier score: {said[0]}; beside {said[1]} (0 is perfect, a coin 0.25)")
