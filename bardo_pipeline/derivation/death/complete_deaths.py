"""Completes recorded deaths: everything that follows a death, in order.

Source: MEM ("The death moment: Thanatopsis Protocol"), INH S7.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.derivation.death.derive_thanatopsis import record_phases
from bardo_pipeline.derivation.legacy.derive_legacies import derive_candidates, derive_testaments
from bardo_pipeline.derivation.legacy.publish_legacies import judge_candidates, publish_candidates
from bardo_pipeline.derivation.memory.derive_episodes import derive_episodes


def curate_and_complete_deaths(context: DerivationContext, *, now: datetime) -> list[str]:
    """Curate the last cycles of dead golems, then complete their deaths. Return the published bundle hashes."""
    derive_curation(context)
    return complete_deaths(context, now=now)


def complete_deaths(context: DerivationContext, *, now: datetime, data_docs_dir: Path | None = None) -> list[str]:
    """Complete the deaths of curated golems: testament, bundle, verdict, publication. Return the published hashes."""
    record_phases(context, now=now)  # acceptance and settlement need the log alone, so they are recorded first
    derive_episodes(context, now=now)
    derive_testaments(context)
    derive_candidates(context)
    judge_candidates(context, now=now, data_docs_dir=data_docs_dir)
    published = publish_candidates(context, now=now)
    record_phases(context, now=now)  # reflection needs the testament, legacy needs the verdict
    return published
