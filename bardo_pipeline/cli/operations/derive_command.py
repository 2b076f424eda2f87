"""The command `bardo derive`: the derivations of Dagster's jobs, in this process."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from bardo_pipeline.cli.options import EmbedderOption, HomeOption, now, root_of
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.derive_home import derive_home

out = Console(soft_wrap=False)


def derive(
    home: HomeOption = None,
    marts: Annotated[bool, typer.Option(help="Build the warehouse (dbt).")] = True,
    embedder: EmbedderOption = None,
) -> None:
    """Derive every table from the log, judge and publish bundles, build the warehouse; Dagster is not needed."""
    context = DerivationContext.open(root_of(home), embedder=embedder)
    with out.status("deriving") as status:
        derive_home(context, clock=now, marts=marts, tell=lambda step: status.update(f"deriving {step}"))
    cycles, version = context.projections.digest("cycles").rows, context.log.version
    out.print(f"{cycles:,} cycles derived, as of log version {version}", highlight=False)
    context.log.close()
