"""`bardo bundle checks | waive`: failed expectations of bundles, and a steward's waivers."""

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
    target: Annotated[str | None, typer.Argument(help="Bundle hash (or a unique prefix) or golem.")] = None,
    suite: Annotated[bool, typer.Option("--suite", help="List all expectations with their limits instead.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit 1 if a bundle is refused or a warning is open.")] = False,
    home: HomeOption = None,
    format: FormatOption = "table",
) -> None:
    """List failed expectations of bundles, and which warnings a steward waived."""
    check_format(format)
    stores = DerivationContext.open(root_of(home))
    if suite:
        _suite(stores, format)
        return
    failures = bundle_failures(stores)
    if target is not None:
        names = {name for row in stores.life("BundleJudged").to_pylist() for name in _names(row)}
        if not any(name == target or name.startswith(target) for name in names):
            raise QueryError(f"{target!r}: no judged bundle matches: `bardo bundle checks` lists all")
        failures = [
            failure for failure in failures if failure.golem_id == target or failure.bundle_hash.startswith(target)
        ]
    if format == "json":
        print_json([failure._asdict() for failure in failures])
    else:
        _print(failures)
    if check and any(failure.open for failure in failures):
        raise typer.Exit(1)


def waive_warning(
    target: Annotated[str, typer.Argument(help="Bundle hash (or a unique prefix) or dead golem.")],
    expectation: Annotated[str, typer.Argument(help="Name of the warning, from `bardo bundle checks`.")],
    why: Annotated[str, typer.Option(help="Reason; recorded.")],
    home: HomeOption = None,
) -> None:
    """Waive a warning about a bundle; a critical failure cannot be waived."""
    waived = record_waiver(DerivationContext.open(root_of(home)), target, expectation, why, now=now())
    bundle = f"bundle {waived.bundle_hash[:16]} of {waived.golem_id}"
    out.print(escape(f"{bundle}: {expectation} is waived ({waived.observed})"), soft_wrap=True)


def _names(row: dict[str, object]) -> tuple[str, str]:
    judged = row["judged"]
    assert isinstance(judged, dict), "a verdict has its payload"
    return str(row["golem_id"]), str(judged["bundle_hash"])


def _print(failures: list[BundleFailure]) -> None:
    rows = [
        (
            failure.golem_id,
            failure.bundle_hash[:16],
            failure.expectation,
            failure.severity,
            failure.observed,
            _state(failure),
        )
        for failure in failures
    ]
    if rows:
        print_table(out, None, ["golem", "bundle", "expectation", "severity", "observed", ""], rows)
    open_count = sum(failure.open for failure in failures)
    out.print(f"{len(failures)} failed, {len(failures) - open_count} waived, {open_count} open")


def _state(failure: BundleFailure) -> str:
    if failure.why is not None:
        return f"waived: {failure.why}"
    return "refused" if failure.severity == "critical" else "open"


def _suite(stores: DerivationContext, format: str) -> None:
    rows = [
        (
            expectation.name,
            expectation.severity,
            orjson.dumps(expectation.limits).decode() if expectation.limits else "",
            expectation.description,
        )
        for expectation in bundle_expectations(stores.policy)
    ]
    names = ["expectation", "severity", "limits", "says"]
    if format == "json":
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        print_table(out, None, names, rows)
