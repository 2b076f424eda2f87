"""`bardo derive | rebuild | accept-gap | sql`: derived tables of a home, without Dagster."""

from __future__ import annotations

from typing import Annotated

import typer

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.options import format_option, moment_of, now, open_context, root_of
from bardo_pipeline.cli.output.tables import out, print_rows, print_table, spinner
from bardo_pipeline.derivation.derive_home import derive_home
from bardo_pipeline.derivation.versions import rebuild as versions
from bardo_pipeline.errors import QueryError
from bardo_pipeline.events.life.events import Gap, life_event
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.warehouse import build


def derive(
    home: opt.Home = None,
    marts: Annotated[bool, typer.Option(help="Build the warehouse (dbt).")] = True,
    embedder: opt.Embedder = None,
) -> None:
    """Derive every table from the log, judge and publish bundles, build the warehouse; Dagster is not needed."""
    context = open_context(home, embedder)
    with spinner("deriving") as tell:
        derive_home(context, clock=now, marts=marts, tell=tell)
    cycles, version = context.projections.digest("cycles").rows, context.log.version
    out.print(f"{cycles:,} cycles derived, as of log version {version}")
    context.log.close()


def rebuild(
    home: opt.Home = None,
    as_of: Annotated[str | None, typer.Option(help="Compare as of a moment of event time (ISO 8601, UTC).")] = None,
    as_of_version: Annotated[int | None, typer.Option(min=0, help="Compare as of a version of the log.")] = None,
    embedder: opt.Embedder = None,
) -> None:
    """Derive every table again from the log, in a separate folder, and compare fingerprints; exit 1 on a difference."""
    stores, moment = open_context(home, embedder), None if as_of is None else moment_of(as_of, "--as-of")
    with spinner("deriving again") as tell:
        comparisons = versions.rebuild(stores, now=now(), moment=moment, version=as_of_version, tell=tell)
    rows = [
        (c.table, c.row_count, c.fingerprint[:16], c.rebuilt_fingerprint[:16], "equal" if c.equal else "DIFFERENT")
        for c in comparisons
    ]
    print_table("Rebuilt and active tables", ["table", "rows", "in force", "rebuilt", ""], rows)
    if not all(c.equal for c in comparisons):
        raise typer.Exit(1)


def accept_gap(
    golem: Annotated[str, typer.Argument(help="Golem with missing ticks.")],
    tick_from: Annotated[int, typer.Argument(min=1, help="First missing tick.")],
    tick_to: Annotated[int, typer.Argument(min=1, help="Last missing tick.")],
    why: Annotated[str, typer.Option(help="Reason why they are lost; recorded.")],
    home: opt.Home = None,
) -> None:
    """Record that missing ticks are lost, so that derivation continues after them."""
    log, moment = open_context(home).log, now()
    missing = [g for g in log.gaps() if g.golem_id == golem and g.tick_from <= tick_from and tick_to <= g.tick_to]
    if not missing or tick_from > tick_to:
        raise QueryError(
            f"golem {golem}: ticks {tick_from} to {tick_to} are not all missing: `bardo status` lists the gaps"
        )
    log.record([life_event(golem, moment, Gap(tick_from=tick_from, tick_to=tick_to, why=why))], moment)
    out.print(f"golem {golem}: ticks {tick_from} to {tick_to} are accepted as lost")


def sql(
    query: Annotated[str, typer.Argument(help='SQL over the marts, for example "from dim_golem".')],
    home: opt.Home = None,
    format: Annotated[str, format_option("table", "csv", "json", help="table, csv or json.")] = "table",
    limit: Annotated[int | None, typer.Option(min=1, help="Maximum number of rows.")] = None,
) -> None:
    """Query the DuckDB warehouse."""
    names, rows = build.query(Home.open(root_of(home)), query, limit)
    print_rows(None, names, rows, format)
