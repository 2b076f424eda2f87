"""The projections of a derivation: schema, key and statistics of each table. Data.

Source: P-2; architecture ("Projections").
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from bardo_pipeline.curator.curate import CYCLE_SCHEMA
from bardo_pipeline.curator.episodes import EPISODE_SCHEMA
from bardo_pipeline.curator.playbook import PLAYBOOK_SCHEMA
from bardo_pipeline.curator.state.decision_log import DECISION_KEY, DECISION_SCHEMA
from bardo_pipeline.curator.views.crossings import CROSSING_SCHEMA, LINK_SCHEMA
from bardo_pipeline.dreams.dream_cycle import DREAM_KEY, DREAM_SCHEMA
from bardo_pipeline.dreams.hypothesis_table import HYPOTHESIS_KEY, HYPOTHESIS_SCHEMA
from bardo_pipeline.events.record.arrow_columns import all_required, listed, required
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA, MOMENT
from bardo_pipeline.inheritance.library.library_entries import KIT_SCHEMA, LIBRARY_SCHEMA, PLAYBOOK_DEPOSIT_SCHEMA
from bardo_pipeline.inheritance.testament import TESTAMENT_SCHEMA
from bardo_pipeline.katabasis.anonymous_votes import VOTE_CAUSE_SCHEMA, VOTE_SCHEMA
from bardo_pipeline.katabasis.scar_rules import FAILURE_SCHEMA, SCAR_SCHEMA
from bardo_pipeline.katabasis.weighted_consensus import CONSENSUS_SCHEMA
from bardo_pipeline.retrieval.credit_rules import CREDIT_SCHEMA

FACT_SCHEMA = pa.schema(
    [
        *all_required(pa.string(), "golem_id", "entry_id", "chain", "protocol", "pair", "metric", "unit"),
        *all_required(pa.int64(), "mean", "low", "high"),
        *all_required(pa.int64(), "episode_count", "reinforcement_count", "confidence_ppm"),
        required("last_reinforced_at", MOMENT),
        required("text", pa.string()),
    ]
)
"""One row per known (golem, protocol, metric): mean, one standard deviation below and above, reinforcements."""

CANDIDATE_SCHEMA = pa.schema(
    [
        *all_required(pa.string(), "golem_id", "owner_id", "lineage_id"),
        required("generation", pa.int64()),
        required("died_at", MOMENT),
        required("bundle_hash", pa.string()),
        *all_required(pa.int64(), "entry_count", "episode_count"),
        *all_required(pa.int64(), "anti_knowledge_count", "anti_knowledge_at_death"),
        listed("cause_entries", pa.string()),
    ]
)
"""One row per golem that died: the bundle it would leave, before any verdict."""


@dataclass(frozen=True)
class TableSpec:
    """A projection: its columns, its key, and whether it grows by rows or is renewed by bucket."""

    schema: pa.Schema
    key: tuple[str, ...]
    grows: bool
    stats: tuple[str, ...]


TABLES: dict[str, TableSpec] = {
    "episodes": TableSpec(EPISODE_SCHEMA, ("episode_id",), True, ("golem_id", "tick")),
    "curation": TableSpec(DECISION_SCHEMA, DECISION_KEY, True, ("golem_id", "cycle")),
    "cycles": TableSpec(CYCLE_SCHEMA, ("golem_id", "cycle"), True, ("golem_id", "cycle")),
    "playbooks": TableSpec(PLAYBOOK_SCHEMA, ("golem_id", "version"), True, ("golem_id", "version")),
    "grimoire": TableSpec(ENTRY_SCHEMA, ("golem_id", "entry_id"), False, ("golem_id",)),
    "facts": TableSpec(FACT_SCHEMA, ("golem_id", "entry_id"), False, ("golem_id",)),
    "credits": TableSpec(CREDIT_SCHEMA, ("golem_id", "cycle", "entry_id"), True, ("golem_id", "cycle")),
    "hypotheses": TableSpec(HYPOTHESIS_SCHEMA, HYPOTHESIS_KEY, True, ("golem_id", "cycle")),
    "dreams": TableSpec(DREAM_SCHEMA, DREAM_KEY, True, ("golem_id", "cycle")),
    "lessons": TableSpec(ENTRY_SCHEMA, ("golem_id", "entry_id"), False, ("golem_id",)),
    "links": TableSpec(LINK_SCHEMA, ("golem_id", "entry_id", "other_id"), False, ("golem_id",)),
    "crossings": TableSpec(CROSSING_SCHEMA, ("golem_id", "entry_id"), False, ("golem_id",)),
    "failures": TableSpec(FAILURE_SCHEMA, ("golem_id", "seq"), True, ("owner_id", "golem_id", "cycle")),
    "scars": TableSpec(SCAR_SCHEMA, ("owner_id", "scar_id"), False, ("owner_id",)),
    "votes": TableSpec(VOTE_SCHEMA, ("vote_id",), True, ("proposition_id",)),
    "vote_causes": TableSpec(VOTE_CAUSE_SCHEMA, ("vote_id",), True, ("golem_id",)),
    "consensus": TableSpec(CONSENSUS_SCHEMA, ("proposition_id",), False, ("proposition_id",)),
    "testaments": TableSpec(TESTAMENT_SCHEMA, ("golem_id",), True, ("golem_id",)),
    "candidates": TableSpec(CANDIDATE_SCHEMA, ("golem_id",), True, ("golem_id",)),
    "library": TableSpec(LIBRARY_SCHEMA, ("owner_id", "entry_id"), False, ("owner_id",)),
    "kits": TableSpec(KIT_SCHEMA, ("owner_id", "kit_id"), False, ("owner_id",)),
    "shelved_playbooks": TableSpec(PLAYBOOK_DEPOSIT_SCHEMA, ("owner_id", "golem_id"), False, ("owner_id",)),
}
"""Every projection by name, causes before effects."""
