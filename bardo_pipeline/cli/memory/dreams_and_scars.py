"""`bardo dreams | scars | bloodstain`: dreams, verified failures, and the record of a death."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.options import open_context
from bardo_pipeline.cli.output.rendering import show_report
from bardo_pipeline.cli.output.tables import ROWS_SHOWN
from bardo_pipeline.derivation.dreams.derive_dreams import dreams_and_hypotheses
from bardo_pipeline.derivation.katabasis.bloodstains import bloodstain as bloodstain_of_golem
from bardo_pipeline.derivation.katabasis.scars import failures_with_scars


def dreams(
    golem: Annotated[str | None, Argument(help="Golem id (default: the newest dreams of all golems).")] = None,
    home: opt.Home = None,
    json: opt.Json = False,
    limit: Annotated[int, Option(min=1, help="Maximum rows per table.")] = ROWS_SHOWN,
    embedder: opt.Embedder = None,
) -> None:
    """List dreams with their causes, and hypotheses: staged, confirmed by later outcomes, or rejected."""
    show_report("dreams", dreams_and_hypotheses(open_context(home, embedder), golem), as_json=json, limit=limit)


def scars(
    golem: Annotated[str | None, Argument(help="Golem id (default: all golems).")] = None,
    home: opt.Home = None,
    format: opt.Format = "table",
    failures: Annotated[bool, Option("--failures", help="Include failures without a scar, with the reason.")] = False,
    embedder: opt.Embedder = None,
) -> None:
    """List scars: verified failures that were new to the golem's clade, with their causes."""
    rows = failures_with_scars(open_context(home, embedder), golem, only_scars=not failures)
    show_report("scars", rows, as_json=format == "json")


def bloodstain(
    golem: Annotated[str, Argument(help="Dead golem.")],
    home: opt.Home = None,
    format: opt.Format = "table",
    public: Annotated[bool, Option("--public", help="Show only the public part (the echo).")] = False,
    embedder: opt.Embedder = None,
) -> None:
    """Show the bloodstain of a death: market conditions, scars, last votes, testament, bundle."""
    stain = bloodstain_of_golem(open_context(home, embedder), golem, public=public)
    show_report("bloodstain", stain, as_json=format == "json")
