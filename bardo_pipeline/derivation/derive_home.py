"""Derive everything that a home's log implies, in this process: tables, deaths, verdicts, bundles, index, warehouse.

Source: MEM ("The death moment: Thanatopsis Protocol"), INH S7.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime
from pathlib import Path

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.derivation.death.derive_thanatopsis import record_phases
from bardo_pipeline.derivation.legacy.derive_legacies import derive_candidates, derive_testaments
from bardo_pipeline.derivation.legacy.publish_legacies import judge_candidates, publish_candidates
from bardo_pipeline.derivation.memory.derive_episodes import derive_episodes, refresh_index
from bardo_pipeline.derivation.strikes_and_reorgs import withdraw
from bardo_pipeline.derivation.versions.rebuild import derive_everything, remake_damaged
from bardo_pipeline.storage.warehouse.build import build_warehouse


def derive_home(
    context: DerivationContext,
    *,
    clock: Callable[[], datetime],
    marts: bool,
    on_step: Callable[[str], None] = lambda _: None,
) -> None:
    """Update all derived tables to the log, as Dagster's curator and death jobs do. A second call changes nothing.

    Damaged tables are made again first.

    Parameters
    ----------
    clock : current moment, UTC; recorded with verdicts, publications and vectors
    marts : build the warehouse with dbt
    on_step : receives the name of each step when it begins
    """
    on_step("damaged tables")
    remake_damaged(context, now=clock(), on_step=on_step)
    on_step("retractions")
    withdraw(context, now=clock())
    derive_everything(context, now=clock(), on_step=on_step)
    on_step("deaths")
    complete_deaths(context, now=clock())
    on_step("index")
    refresh_index(context)
    if marts:
        on_step("warehouse (dbt)")
        build_warehouse(context.home, context.derivation_id, context.policy)


def curate_and_complete_deaths(context: DerivationContext, *, now: datetime) -> list[str]:
    """Curate the last cycles of dead golems, then complete their deaths. Return the published bundle hashes."""
    derive_curation(context)
    return complete_deaths(context, now=now)


def complete_deaths(
    context: DerivationContext,
    *,
    now: datetime,
    data_docs_dir: Path | None = None,
    golems: Collection[str] | None = None,
) -> list[str]:
    """Complete the deaths of curated golems: testament, bundle, verdict, publication. Return the published hashes.

    golems: complete only the deaths of these golems; the episodes of all others wait for the next derivation, so that a
    death does not cost what the whole fleet lived. None: all deaths, and the episodes of all golems.
    """
    record_phases(context, now=now)  # acceptance and settlement need the log alone, so they are recorded first
    derive_episodes(context, now=now, golems=golems)
    derive_testaments(context, golems)
    derive_candidates(context)
    judge_candidates(context, now=now, data_docs_dir=data_docs_dir)
    published = publish_candidates(context, now=now)
    record_phases(context, now=now)  # reflection needs the testament, legacy needs the verdict
    return published
