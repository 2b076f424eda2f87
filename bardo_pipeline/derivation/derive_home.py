"""Derive everything that a home's log implies, in this process: tables, verdicts, bundles, index and warehouse."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.death.complete_deaths import complete_deaths
from bardo_pipeline.derivation.memory.derive_episodes import refresh_index
from bardo_pipeline.derivation.repair.strikes_and_reorgs import withdraw
from bardo_pipeline.derivation.versions.rebuild import derive_everything
from bardo_pipeline.storage.warehouse.build import build_warehouse


def derive_home(
    context: DerivationContext,
    *,
    clock: Callable[[], datetime],
    marts: bool,
    tell: Callable[[str], None] = lambda _: None,
) -> None:
    """Update all derived tables to the log, as Dagster's curator and death jobs do. A second call changes nothing.

    Parameters
    ----------
    clock : current moment, UTC; recorded with verdicts, publications and vectors
    marts : build the warehouse with dbt
    tell : receives the name of each step when it begins
    """
    tell("retractions")
    withdraw(context, now=clock())
    derive_everything(context, now=clock(), tell=tell)
    tell("deaths")
    complete_deaths(context, now=clock())
    tell("index")
    refresh_index(context)
    if marts:
        tell("warehouse (dbt)")
        build_warehouse(context.home, context.derivation_id, context.policy)
