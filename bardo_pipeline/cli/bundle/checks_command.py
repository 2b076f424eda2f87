"""`bardo bundle checks` and `bardo bundle waive`: what bundles did not meet, and a steward's word on it."""

from __future__ import annotations

from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.markup import escape

from bardo_pipeline.cli.options import FormatOption, HomeOption, check_format, now, root_of
from bardo_pipeline.cli.output.tables import print_json, print_table
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.legacy.warning_waivers import BundleFailure, bundle_failures, record_waiver
from bardo_pipeline.errors import QueryError
from bardo_pipeline.quality.bundle_expectations import bundle_expectations

out = Console(soft_wrap=False, highlight=False)


def checks(
    target: Annotated[str | None, typer.Argument(help="A bundle's hash or its beginning, or a golem.")] = None,
    suite: Annotated[bool, typer.Option("--suite", help="List the expectations instead, with their limits.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit 1 while something is refused or open.")] = False,
    home: HomeOption = None,
    format: FormatOption = "table",
) -> None:
    """Show what bundles did not meet, and which warnings a steward lets stand."""
    check_format(format)
    stores = DerivationContext.open(root_of(home))
    if suite:
        _suite(stores, format)
        return
    found = bundle_failures(stores)
    if target is not None:
        known = {name for row in stores.life("BundleJudged").to_pylist() for name in _names(row)}
        if not any(name == target or name.startswith(target) for name in known):
            raise QueryError(f"{target!r}: no judged bundle answers to it: `bardo bundle checks` lists all")
        found = [one for one in found if one.golem_id == target or one.bundle_hash.startswith(target)]
    if format == "json":
        print_json([one._asdict() for one in found])
    else:
        _print(found)
    if check and any(one.open for one in found):
        raise typer.Exit(1)


def waive_warning(
    target: Annotated[str, typer.Argument(help="A bundle's hash or its beginning, or the golem that left it.")],
    expectation: Annotated[str, typer.Argument(help="The warning's name, as `bardo bundle checks` lists it.")],
    why: Annotated[str, typer.Option(help="Why it may stand; it is recorded.")],
    home: HomeOption = None,
) -> None:
    """Let a warning about a bundle stand, for a reason that is recorded; what is critical cannot be waived."""
    one = record_waiver(DerivationContext.open(root_of(home)), target, expectation, why, now=now())
    out.print(escape(f"bundle {one.bundle_hash[:16]} of {one.golem_id}: {expectation} is waived ({one.observed})"),
              soft_wrap=True)  # fmt: skip


def _names(row: dict[str, object]) -> tuple[str, str]:
    judged = row["judged"]
    assert isinstance(judged, dict), "a verdict has its payload"
    return str(row["golem_id"]), str(judged["bundle_hash"])


def _print(found: list[BundleFailure]) -> None:
    rows = [
        (one.golem_id, one.bundle_hash[:16], one.expectation, one.severity, one.observed, _standing(one))
        for one in found
    ]
    if rows:
        print_table(out, None, ["golem", "bundle", "expectation", "severity", "observed", ""], rows)
    still = sum(one.open for one in found)
    out.print(f"{len(found)} not met, {len(found) - still} waived, {still} open")


def _standing(one: BundleFailure) -> str:
    if one.why is not None:
        return f"waived: {one.why}"
    return "refused" if one.severity == "critical" else "open"


def _suite(stores: DerivationContext, format: str) -> None:
    rows = [
        (one.name, one.severity, orjson.dumps(one.limits).decode() if one.limits else "", one.description)
        for one in bundle_expectations(stores.policy)
    ]
    names = ["expectation", "severity", "limits", "says"]
    if format == "json":
        said = [dict(zip(names, row, strict=True)) for row in rows]
        print_json(said)
    else:
        print_table(out, None, names, rows)
