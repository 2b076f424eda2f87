"""The projections of a derivation: schema, key and statistics of each table. Data.

Source: P-2; architecture ("Projections").
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.choice_rules import CHOICE_FIELDS, NO_CHOICES
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
from bardo_pipeline.storage.delta.earlier_columns import NO_EARLIER, Earlier

FACT_SCHEMA = pa.schema(
    [
        *all_required(pa.string(), "golem_id", "entry_id", "chain", "protocol", "pair", "metric", "unit"),
        *all_required(pa.int64(), "p10", "p25", "median", "p75", "p90"),
        *all_required(pa.int64(), "day_count", "reinforcement_count", "confidence_ppm"),
        required("last_reinforced_at", MOMENT),
        required("text", pa.string()),
    ]
)
"""One row per known (golem, protocol, metric): quantiles of its readings, market days, reinforcements. p10 and p90
are 0 for an inherited level that its heir has not restated."""

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
    """A projection: its columns, its key, and whether it grows by rows or is renewed by bucket.

    Parameters
    ----------
    earlier : values of the columns that editions before this one lack
    """

    schema: pa.Schema
    key: tuple[str, ...]
    grows: bool
    stats: tuple[str, ...]
    earlier: Earlier = NO_EARLIER


_UNSTATED = pc.scalar(0)
_BEFORE_QUANTILES = Earlier({"level_p10": _UNSTATED, "level_p90": _UNSTATED})
"""Before edition 16 an entry stated a mean and one spread below and above, which are read as median and quartiles."""

_FACTS_BEFORE_QUANTILES = Earlier(
    {
        "p10": _UNSTATED,
        "p25": pc.field("low"),
        "median": pc.field("mean"),
        "p75": pc.field("high"),
        "p90": _UNSTATED,
        "day_count": pc.field("episode_count"),
    },
    pa.schema(all_required(pa.int64(), "mean", "low", "high", "episode_count")),
)
_BEFORE_CHOICES = Earlier(
    {field.name: pc.scalar(pa.scalar(NO_CHOICES.columns[field.name], field.type)) for field in CHOICE_FIELDS}
)
_BEFORE_BANDS = Earlier({"question_id": pc.field("proposition_id")})


TABLES: dict[str, TableSpec] = {
    "episodes": TableSpec(EPISODE_SCHEMA, ("episode_id",), True, ("golem_id", "tick")),
    "curation": TableSpec(DECISION_SCHEMA, DECISION_KEY, True, ("golem_id", "cycle"), _BEFORE_QUANTILES),
    "cycles": TableSpec(CYCLE_SCHEMA, ("golem_id", "cycle"), True, ("golem_id", "cycle")),
    "playbooks": TableSpec(PLAYBOOK_SCHEMA, ("golem_id", "version"), True, ("golem_id", "version"), _BEFORE_CHOICES),
    "grimoire": TableSpec(ENTRY_SCHEMA, ("golem_id", "entry_id"), False, ("golem_id",), _BEFORE_QUANTILES),
    "facts": TableSpec(FACT_SCHEMA, ("golem_id", "entry_id"), False, ("golem_id",), _FACTS_BEFORE_QUANTILES),
    "credits": TableSpec(CREDIT_SCHEMA, ("golem_id", "cycle", "entry_id"), True, ("golem_id", "cycle")),
    "hypotheses": TableSpec(HYPOTHESIS_SCHEMA, HYPOTHESIS_KEY, True, ("golem_id", "cycle")),
    "dreams": TableSpec(DREAM_SCHEMA, DREAM_KEY, True, ("golem_id", "cycle")),
    "lessons": TableSpec(ENTRY_SCHEMA, ("golem_id", "entry_id"), False, ("golem_id",), _BEFORE_QUANTILES),
    "links": TableSpec(LINK_SCHEMA, ("golem_id", "entry_id", "other_id"), False, ("golem_id",)),
    "crossings": TableSpec(CROSSING_SCHEMA, ("golem_id", "entry_id"), False, ("golem_id",)),
    "failures": TableSpec(FAILURE_SCHEMA, ("golem_id", "seq"), True, ("owner_id", "golem_id", "cycle")),
    "scars": TableSpec(SCAR_SCHEMA, ("owner_id", "scar_id"), False, ("owner_id",)),
    "votes": TableSpec(VOTE_SCHEMA, ("vote_id",), True, ("proposition_id",), _BEFORE_BANDS),
    "vote_causes": TableSpec(VOTE_CAUSE_SCHEMA, ("vote_id",), True, ("golem_id",)),
    "consensus": TableSpec(CONSENSUS_SCHEMA, ("proposition_id",), False, ("proposition_id",)),
    "testaments": TableSpec(TESTAMENT_SCHEMA, ("golem_id",), True, ("golem_id",)),
    "candidates": TableSpec(CANDIDATE_SCHEMA, ("golem_id",), True, ("golem_id",)),
    "library": TableSpec(LIBRARY_SCHEMA, ("owner_id", "entry_id"), False, ("owner_id",)),
    "kits": TableSpec(KIT_SCHEMA, ("owner_id", "kit_id"), False, ("owner_id",)),
    "shelved_playbooks": TableSpec(PLAYBOOK_DEPOSIT_SCHEMA, ("owner_id", "golem_id"), False, ("owner_id",)),
}
"""Every projection by name, causes before effects."""
