"""Derive everything that a home's log implies, in this process: tables, deaths, verdicts, bundles, index, warehouse.

Source: MEM ("The death moment: Thanatopsis Protocol"), INH S7.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.derivation.death.derive_thanatopsis import record_phases
from bardo_pipeline.derivation.death.unfinished_deaths import UnfinishedDeath, unfinished_deaths, waiting_lives
from bardo_pipeline.derivation.legacy.bundle_store import invalid_publications
from bardo_pipeline.derivation.legacy.data_docs import judge_with_docs
from bardo_pipeline.derivation.legacy.derive_legacies import derive_candidates, derive_testaments
from bardo_pipeline.derivation.legacy.publish_legacies import judge_candidates, publish_candidates
from bardo_pipeline.derivation.memory.derive_episodes import derive_episodes, refresh_index
from bardo_pipeline.derivation.strikes_and_reorgs import withdraw
from bardo_pipeline.derivation.versions.rebuild import derive_everything, remake_damaged
from bardo_pipeline.errors import DerivationError
from bardo_pipeline.events.life.events import ATTRIBUTE_OF
from bardo_pipeline.storage.operations.maintenance import merge_life_files
from bardo_pipeline.storage.warehouse.build import WarehouseReport, build_warehouse


@dataclass(frozen=True)
class DerivedHome:
    """Result of a derivation of a home: what it completed, and the deaths that wait.

    Parameters
    ----------
    notices : the owners' notices of the deaths that were completed now, by golem
    published : hashes of the bundles that were published now
    refused : (golem, hash) of the candidates that were refused now
    unfinished : recorded deaths that cannot be completed yet, with reason and cure
    waiting : (golem, reason and cure) of the golems without a death whose records cannot be derived yet
    changed_verdicts : hashes of the bundles that were judged again with another result, because they were altered
    data_docs : index page of the Data Docs of this run, None without a verdict that lacked them
    warehouse : the built warehouse, None if it was not requested
    """

    notices: tuple[str, ...]
    published: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]
    unfinished: tuple[UnfinishedDeath, ...]
    waiting: tuple[tuple[str, str], ...]
    changed_verdicts: tuple[str, ...]
    data_docs: Path | None
    warehouse: WarehouseReport | None


def derive_home(
    context: DerivationContext,
    *,
    clock: Callable[[], datetime],
    marts: bool,
    data_docs: str | None = None,
    on_step: Callable[[str], None] = lambda _: None,
) -> DerivedHome:
    """Update all derived tables to the log, as Dagster's curator, dream and death jobs do.

    A second call changes nothing. Damaged tables are made again first.

    Parameters
    ----------
    clock : current moment, UTC; recorded with verdicts, publications and vectors
    marts : build the warehouse with dbt
    data_docs : name of the run for the Data Docs of its verdicts; None: no Data Docs
    on_step : receives the name of each step when it begins

    Raises
    ------
    DerivationError : a published bundle lacks a passed verdict or was altered, so the marts are not built
    """
    kinds = ("LegacyLeft", "BundlePublished", "BundleJudged")
    known = {kind: set(context.life(kind)["event_id"].to_pylist()) for kind in kinds}
    on_step("damaged tables")
    remake_damaged(context, now=clock(), on_step=on_step)
    on_step("retractions")
    withdraw(context, now=clock())
    derive_everything(context, now=clock(), on_step=on_step)
    on_step("deaths")
    docs = None
    if data_docs is not None:  # the candidates are derived already, so complete_deaths finds none without a verdict
        docs = judge_with_docs(context, now=clock(), run=data_docs)
    complete_deaths(context, now=clock())
    on_step("index")
    refresh_index(context)
    warehouse = None
    if marts:
        on_step("published bundles")
        _require_valid_publications(context)
        on_step("warehouse (dbt)")
        warehouse = build_warehouse(context.home, context.derivation_id, context.policy)
    merge_life_files(context.home, context.policy, now=clock())
    fresh = {kind: _content_of_others(context, kind, ids) for kind, ids in known.items()}
    return DerivedHome(
        notices=tuple(content["notice"] for _, content in fresh["LegacyLeft"]),
        published=tuple(content["bundle_hash"] for _, content in fresh["BundlePublished"]),
        refused=tuple((g, content["bundle_hash"]) for g, content in fresh["BundleJudged"] if not content["passed"]),
        unfinished=tuple(unfinished_deaths(context)),
        waiting=tuple(waiting_lives(context)),
        changed_verdicts=docs.changed if docs else (),
        data_docs=docs.page if docs else None,
        warehouse=warehouse,
    )


def _require_valid_publications(context: DerivationContext) -> None:
    """Raise DerivationError if a published bundle lacks a passed verdict or does not match its hash."""
    if invalid := invalid_publications(context):
        raise DerivationError(
            f"published bundles are altered or have no passed verdict: {', '.join(invalid)}; the warehouse is "
            f"unchanged: restore their folders in {context.home.bundles} from a backup, then run `bardo derive` again"
        )


def _content_of_others(context: DerivationContext, kind: str, known: set[str]) -> list[tuple[str, dict[str, Any]]]:
    """Golem and content of the events of a kind that are not known, by golem."""
    rows = context.life(kind).select(["golem_id", "event_id", ATTRIBUTE_OF[kind]]).sort_by("golem_id").to_pylist()
    return [(row["golem_id"], row[ATTRIBUTE_OF[kind]]) for row in rows if row["event_id"] not in known]


def curate_and_complete_deaths(context: DerivationContext, *, now: datetime) -> list[str]:
    """Curate the last cycles of dead golems, then complete their deaths. Return the published bundle hashes."""
    derive_curation(context)
    return complete_deaths(context, now=now)


def complete_deaths(context: DerivationContext, *, now: datetime, golems: Collection[str] | None = None) -> list[str]:
    """Complete the deaths of curated golems: testament, bundle, verdict, publication. Return the published hashes.

    golems: complete only the deaths of these golems; the episodes of all others wait for the next derivation, so
    that the cost of a death does not grow with the fleet. None: all deaths, and the episodes of all golems.
    """
    record_phases(context, now=now)  # acceptance and settlement need the log alone, so they are recorded first
    derive_episodes(context, now=now, golems=golems)
    derive_testaments(context, golems)
    derive_candidates(context)
    judge_candidates(context, now=now)
    published = publish_candidates(context, now=now)
    record_phases(context, now=now)  # reflection needs the testament, legacy needs the verdict
    return published
