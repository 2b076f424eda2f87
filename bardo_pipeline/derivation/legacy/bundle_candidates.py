"""Makes the candidate bundles of dead golems and writes them to their folders.

Golems are processed in batches; every table is read and transformed once per batch.
Source: INH S7, canon 40; architecture ("Projections").
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.episodes import EPISODE_SCHEMA, TEXT_FIELDS
from bardo_pipeline.curator.views.crossings import links_of
from bardo_pipeline.derivation.active_derivation import knowledge_id
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.record_queries import (
    ancestors,
    birth_rows,
    counts_by_golem,
    in_batches,
    predecessors,
    records_between,
    values_by_golem,
)
from bardo_pipeline.derivation.incremental.retraction_tracking import handled_retractions
from bardo_pipeline.derivation.legacy.bundle_store import load_bundle, write_bundle
from bardo_pipeline.grimoire.entry_columns import grouped_by_golem, query_tables
from bardo_pipeline.inheritance.bottleneck import bottleneck
from bardo_pipeline.inheritance.bundle_files import pack, procedures_of
from bardo_pipeline.inheritance.choice_evidence import crossing_evidence, evidence_of
from bardo_pipeline.inheritance.learning_state import (
    LEARNING_COLUMNS,
    THOUGHT_COLUMNS,
    Learning,
    attended,
    attention_of,
    learned,
)
from bardo_pipeline.inheritance.weismann import attenuate, leave_bloodstains, shed
from bardo_pipeline.storage.delta.table_specs import CANDIDATE_SCHEMA

PRIVATE_EPISODE_FIELDS = ("value_micros", "gas_cost_micros", "pnl_impact_micros", "golem_id")
"""Episode fields that are not bequeathed, because they reveal position sizes, profits or the golem."""

BEFORE_CANDIDATES = ("curation", "episodes", "testaments")
"""Derivations whose tables a candidate is made from."""

Births = Mapping[str, Mapping[str, Any]]


def make_candidates(context: DerivationContext, deaths: pa.Table) -> pa.Table:
    """Write the candidate bundles of these deaths. Return one row per bundle (CANDIDATE_SCHEMA).

    Parameters
    ----------
    deaths : pa.Table as of `with_lives`; the testaments of these golems are derived
    """
    births = birth_rows(context)
    rows = [row for some in in_batches(context, deaths) for row in _of_slice(context, some, births)]
    return pa.Table.from_pylist(rows, schema=CANDIDATE_SCHEMA)


def candidate_folder(context: DerivationContext) -> Path:
    """Return the folder of the candidate bundles."""
    return context.projections.root / "bundles"


def entries_of(context: DerivationContext, deaths: pa.Table) -> pa.Table:
    """Return the entries of these dead golems (ENTRY_SCHEMA), by golem and entry."""
    return context.projections.replaceable("grimoire").read(only=deaths["golem_id"].to_pylist())


def _of_slice(context: DerivationContext, deaths: pa.Table, births: Births) -> list[dict[str, Any]]:
    """Make the bundles of one batch of deaths. Return rows of CANDIDATE_SCHEMA."""
    rows = context.projections.growing("testaments").read(golems=deaths["golem_id"].to_pylist()).to_pylist()
    testament = {row["golem_id"]: row for row in rows}
    known = entries_of(context, deaths)
    inherited = ((g, births[g]["bundle_hash"]) for g in testament)
    at_birth = {g: None if h is None else load_bundle(context.home, h).learning for g, h in inherited}
    received = {g: evidence_of(state) for g, state in at_birth.items()}
    evidence = crossing_evidence(known, received, context.policy)
    entries = leave_bloodstains(known, deaths, context.policy)
    is_held = pc.and_(entries["is_anti_knowledge"], pc.equal(entries["status"], "active"))
    anti_knowledge = counts_by_golem(entries.filter(is_held))
    crossing = shed(attenuate(bottleneck(entries, deaths, context.policy), context.policy), context.policy)
    del known, entries
    books = _last_playbooks(context, deaths)
    page = values_by_golem(books, "markdown")
    links, procedures = grouped_by_golem(links_of(crossing)), grouped_by_golem(procedures_of(crossing, books))
    crossed, remembered = grouped_by_golem(crossing), grouped_by_golem(_episodes_of_the_dead(context, deaths))
    learning = _learned(context, deaths, births, at_birth)
    left = handled_retractions(context, BEFORE_CANDIDATES)
    made_by = {"derivation_id": knowledge_id(context.policy), "policy_hash": context.policy.hash}
    rows, predecessor_of, episode_max = [], predecessors(context), context.policy.inheritance.episode_count
    for death in deaths.to_pylist():
        golem_id = death["golem_id"]
        crossing_rows, episodes = crossed(golem_id), _most_telling(remembered(golem_id), episode_max)
        bundle = pack(
            golem_id=golem_id,
            generation=death["generation"],
            lineage_id=death["lineage_id"],
            lineage=[
                {"golem_id": g, **{name: births[g][name] for name in ("generation", "bundle_hash")}}
                for g in ancestors(predecessor_of, golem_id)
            ],
            died_at=death["at"],
            entries=crossing_rows,
            episodes=episodes,
            playbook=page.get(golem_id, ""),
            testament=testament[golem_id],
            links=links(golem_id),
            procedures=procedures(golem_id),
            learning={**learning[golem_id], "evidence": [e._asdict() for e in evidence.get(golem_id, ())]},
            **made_by,
            source_watermark=death["tick"],
            left_out=left.listing(golem_id),
        )
        write_bundle(candidate_folder(context), bundle)
        row = _row(death, bundle.bundle_hash, crossing_rows, episodes.num_rows)
        rows.append(row | {"anti_knowledge_at_death": anti_knowledge.get(golem_id, 0)})
    return rows


def _row(death: dict[str, Any], bundle_hash: str, crossed: pa.Table, episode_count: int) -> dict[str, Any]:
    return {
        "golem_id": death["golem_id"],
        "owner_id": death["owner_id"],
        "lineage_id": death["lineage_id"],
        "generation": death["generation"],
        "died_at": death["at"],
        "bundle_hash": bundle_hash,
        "entry_count": crossed.num_rows,
        "episode_count": episode_count,
        "anti_knowledge_count": pc.sum(crossed["is_anti_knowledge"]).as_py() or 0,
        "cause_entries": sorted(crossed["entry_id"].to_pylist()),
    }


def _learned(
    context: DerivationContext, deaths: pa.Table, births: Births, at_birth: Mapping[str, Any]
) -> dict[str, Learning]:
    """Golem -> learning state: forecasts from the records of the last cycle, attention from all records and birth.

    The records reach back to the first tick of the last delta too, which holds the router's state.

    at_birth: golem -> the learning state that it inherited, None without one.
    """
    policy, golems = context.policy, deaths["golem_id"].to_pylist()
    span = max(policy.curator.cycle_ticks, policy.gating.delta_ticks)
    ticks = {g: (max(t - span + 1, 1), t) for g, t in zip(golems, deaths["tick"].to_pylist(), strict=True)}
    records = records_between(context, LEARNING_COLUMNS, ticks, context.left_out())
    memory = {g: births[g]["traits"]["forecast_memory"] for g in golems}
    lives = {g: (1, t) for g, t in zip(golems, deaths["tick"].to_pylist(), strict=True)}
    thoughts = records_between(context, THOUGHT_COLUMNS, lives, context.left_out())
    begun = {g: attention_of(at_birth[g]) for g in golems}
    return learned(records, memory, attended(thoughts, begun, policy), policy)


def _episodes_of_the_dead(context: DerivationContext, deaths: pa.Table) -> pa.Table:
    """Episodes of these golems without texts and vectors."""
    names = [n for n in EPISODE_SCHEMA.names if n not in TEXT_FIELDS]
    return context.projections.growing("episodes").read(names, golems=deaths["golem_id"].to_pylist())


def _most_telling(episodes: pa.Table, count: int) -> pa.Table:
    """The most important verified episodes without private fields; ties go to curiosity, then to the newest."""
    verified = episodes.filter(episodes["verified"])
    keys = [("importance", "descending"), ("curiosity", "descending"), ("tick", "descending")]
    ordered = verified.sort_by(keys).slice(0, count)
    names = [n for n in EPISODE_SCHEMA.names if n not in (*TEXT_FIELDS, *PRIVATE_EPISODE_FIELDS)]
    return ordered.select(names)


def _last_playbooks(context: DerivationContext, deaths: pa.Table) -> pa.Table:
    names = ["golem_id", "version", "markdown", "cause_entries", "staged_entries"]
    rows = context.projections.growing("playbooks").read(names, golems=deaths["golem_id"].to_pylist())
    last = "select * from books qualify row_number() over (partition by golem_id order by version desc) = 1 order by 1"
    return query_tables(last, books=rows)
