"""Votes and their private causes, derived from the curator's decisions and from deaths.

Source: KAT (Lethe).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import BoolArray
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.checkpoints import checkpoint_of
from bardo_pipeline.derivation.incremental.incremental_projection import IncrementalProjection, Retraction
from bardo_pipeline.derivation.incremental.record_queries import last_cycle_by_golem
from bardo_pipeline.derivation.incremental.retraction_tracking import is_from_cycle, retraction_event_ids
from bardo_pipeline.derivation.legacy.death_queries import curated_deaths, golem_owners, recorded_deaths
from bardo_pipeline.events.life.retractions import LeftOut
from bardo_pipeline.katabasis.anonymous_votes import ROUTINE_COLUMNS, Ballots, death_votes, routine_votes
from bardo_pipeline.storage.delta.table_digest import Written
from bardo_pipeline.storage.projections.projections import GrowingTable

_DEATH = "death/"
"""Prefix of the transaction ids of death votes, which are cast apart from the routine votes of the same cycle."""

_CAUSE_KEY = ["vote_id", "golem_id", "cycle"]


def derive_votes(context: DerivationContext) -> list[Written]:
    """Cast the votes of newly curated cycles and deaths, and again those that a retraction touches."""
    return _Votes().update(context)


class _Votes(IncrementalProjection):
    name, sources = "votes", ("curation",)

    def retract(self, context: DerivationContext, retraction: Retraction) -> list[Written]:
        """Cast the votes of touched golems again, from the first touched cycle to the last cycle cast."""
        first = retraction.first
        growing, since = context.projections.growing, pc.field("cycle") >= min(first.values())
        decisions = growing("curation").read(ROUTINE_COLUMNS, golems=first, only=since)
        deaths = recorded_deaths(context)
        decisions, deaths = (rows.filter(is_from_cycle(rows, first)) for rows in (decisions, deaths))
        ballots = (
            ("", routine_votes(decisions, golem_owners(context), context.policy)),
            (_DEATH, _votes_at_death(context, deaths)),
        )
        votes, causes = growing("votes"), growing("vote_causes")
        standing_causes = retraction.touched_rows(causes, first)
        corrected_votes = _correct_votes(votes, standing_causes, ballots, retraction)
        wanted = [b.causes.filter(pa.array(_is_cast(causes, b, prefix))) for prefix, b in ballots]
        return [corrected_votes, retraction.correct(causes, standing_causes, pa.concat_tables(wanted))]

    def derive(self, context: DerivationContext, left_out: LeftOut) -> list[Written]:
        """Cast the votes of newly curated cycles, and the last votes of golems whose last cycle is curated."""
        checkpoint, curation = checkpoint_of(context, self.name), context.projections.growing("curation")
        version = curation.table.version
        decisions = curation.read(ROUTINE_COLUMNS, checkpoint.version)
        routine = routine_votes(decisions, golem_owners(context), context.policy)
        written = _append(context, routine, last_cycle_by_golem(decisions))
        deaths = _deaths_without_votes(context)
        if deaths.num_rows:
            upto = {_DEATH + golem_id: cycle for golem_id, cycle in last_cycle_by_golem(deaths).items()}
            written += _append(context, _votes_at_death(context, deaths), upto, _DEATH)
        checkpoint.save(version)
        return written


def _append(context: DerivationContext, ballots: Ballots, upto: Mapping[str, int], prefix: str = "") -> list[Written]:
    """Append the ballots that are not on record.

    Causes come before votes. Votes are anonymous, so after a crash between the two writes a vote without its cause
    could never be retracted.
    """
    written = []
    for name, rows in (("vote_causes", ballots.causes), ("votes", ballots.votes)):
        table = context.projections.growing(name)
        if upto:
            written.append(table.put(rows.filter(pa.array(~_is_cast(table, ballots, prefix))), upto))
    return written


def _is_cast(table: GrowingTable, ballots: Ballots, prefix: str) -> BoolArray:
    """Return which ballots are of cycles that the table holds."""
    golem_ids = ballots.causes["golem_id"].to_pylist()
    last = {g: -1 if (done := table.done(prefix + g)) is None else done for g in set(golem_ids)}
    return ballots.causes["cycle"].to_numpy() <= np.array([last[g] for g in golem_ids], np.int64)


def _votes_at_death(context: DerivationContext, deaths: pa.Table) -> Ballots:
    grimoire = context.projections.replaceable("grimoire")
    return death_votes(grimoire.read(grimoire.buckets(deaths["golem_id"].to_pylist())), deaths, context.policy)


def _deaths_without_votes(context: DerivationContext) -> pa.Table:
    """Return the deaths whose last cycle is curated and whose last votes are not cast."""
    deaths, votes = curated_deaths(context), context.projections.growing("votes")
    is_due = [votes.done(_DEATH + golem_id) is None for golem_id in deaths["golem_id"].to_pylist()]
    return deaths.filter(pa.array(is_due, pa.bool_()))


def _correct_votes(
    votes: GrowingTable, standing_causes: pa.Table, ballots: Sequence[tuple[str, Ballots]], retraction: Retraction
) -> Written:
    """Correct the votes. A vote names no golem, so its cause (standing or wanted) gives the golem and cycle."""
    wanted = pa.concat_tables([b.votes.filter(pa.array(_is_cast(votes, b, prefix))) for prefix, b in ballots])
    ids = pa.chunked_array([*standing_causes["vote_id"].chunks, *wanted["vote_id"].chunks], pa.string()).unique()
    standing = votes.read(only=pc.field("vote_id").isin(ids), hidden=True)
    causes = pa.concat_tables([rows.select(_CAUSE_KEY) for rows in (standing_causes, *(b.causes for _, b in ballots))])
    causes = causes.take(pc.index_in(standing["vote_id"], value_set=causes["vote_id"].combine_chunks()))
    event_ids = retraction_event_ids(causes, retraction.causes, retraction.cycle_ticks)
    return votes.repair(standing, wanted, event_ids)
