"""Belief: votes from decisions and deaths, consensus from votes, each at the cost of what is new.

Source: KAT (Lethe); architecture ("Cross-golem tables are functions of sets, recomputed for the
keys that were touched").
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.checkpoints import checkpoint_of
from bardo_pipeline.derivation.incremental.record_queries import curated_through, cycle_of
from bardo_pipeline.derivation.incremental.retraction_tracking import (
    RetractionCursor,
    first_touched_cycles,
    is_from_cycle,
    retraction_event_ids,
)
from bardo_pipeline.derivation.katabasis.decisive_votes_cache import DecisiveVotesCache
from bardo_pipeline.events.life.retractions import Cause, LeftOut
from bardo_pipeline.katabasis.anonymous_votes import (
    DEATH_SCHEMA,
    VOTE_CAUSE_SCHEMA,
    Ballots,
    backed_votes,
    death_votes,
    routine_votes,
)
from bardo_pipeline.katabasis.weighted_consensus import consensus
from bardo_pipeline.storage.delta.table_digest import Written
from bardo_pipeline.storage.projections.projections import GrowingTable


def golem_owners(context: DerivationContext) -> pa.Table:
    """golem_id and owner_id of every golem that was born."""
    births = context.life("GolemBorn")
    return pa.table(
        {"golem_id": births["golem_id"], "owner_id": pc.struct_field(births["born"].combine_chunks(), "owner_id")}
    )


def recorded_deaths(context: DerivationContext) -> pa.Table:
    """Deaths on record whose owner is known, by golem (DEATH_SCHEMA); of two the earlier tick counts."""
    deaths = context.life("DeathDeclared")
    died = deaths["died"].combine_chunks()
    tick = pc.struct_field(died, "tick")
    ticks = tick.to_numpy(zero_copy_only=False).astype("int64")
    cycle = cycle_of(ticks, context.policy.curator.cycle_ticks)
    table = pa.table(
        {
            "golem_id": deaths["golem_id"],
            "cycle": pa.array(cycle, pa.int64()),
            "at": deaths["observed_at"],
            "tick": tick,
        }
    )
    table = table.join(golem_owners(context), "golem_id", join_type="inner").sort_by(
        [("golem_id", "ascending"), ("tick", "ascending")]
    )
    names = table["golem_id"].to_pylist()
    first = pa.array([i == 0 or names[i] != names[i - 1] for i in range(len(names))], pa.bool_())
    return table.filter(first).select(DEATH_SCHEMA.names).combine_chunks().cast(DEATH_SCHEMA)


def derive_votes(context: DerivationContext) -> list[Written]:
    """Cast the votes of cycles that were curated since, and the last votes of golems whose last cycle is curated.

    Votes that were cast for something that is left out since are cast again as if it had never been.
    """
    with context.deriving():
        votes, causes = context.projections.growing("votes"), context.projections.growing("vote_causes")
        written = _repair(context, context.left_out())
        checkpoint = checkpoint_of(context, "votes")
        curation = context.projections.growing("curation")
        version = curation.table.version
        decisions = curation.read(since_version=checkpoint.version)
        living = routine_votes(decisions, golem_owners(context), context.policy)
        upto = _cycles_of(decisions)
        cast = [(living, upto)]
        deaths = recorded_deaths(context)
        deaths = deaths.filter(pa.array([_may_speak(context, g, c) for g, c in _pairs(deaths)], pa.bool_()))
        if deaths.num_rows:
            cast.append((_last_words(context, deaths), {f"death/{g}": c for g, c in _pairs(deaths)}))
        for ballots, reached in cast:
            by_vote = {
                r["vote_id"]: (r["golem_id"], r["cycle"])
                for r in ballots.causes.select(["vote_id", "golem_id", "cycle"]).to_pylist()
            }
            prefix = "death/" if reached and next(iter(reached)).startswith("death/") else ""
            # Causes first: a vote says nobody's name, so one that a cut left without its cause could not be repaired.
            for table, rows in ((causes, ballots.causes), (votes, ballots.votes)):
                kept = _not_yet(table, rows, by_vote, prefix)
                if reached:
                    written.append(table.put(kept, reached))
        checkpoint.save(version)
        return written


def _last_words(context: DerivationContext, deaths: pa.Table) -> Ballots:
    grimoire = context.projections.replaceable("grimoire")
    return death_votes(grimoire.read(grimoire.buckets(deaths["golem_id"].to_pylist())), deaths, context.policy)


def _repair(context: DerivationContext, left: LeftOut) -> list[Written]:
    """Cast again, from the cycle that it touches, what rests on something that is left out since."""
    heeded, span = RetractionCursor(context, "votes"), context.policy.curator.cycle_ticks
    due = heeded.pending(left, after=["curation"])
    first = first_touched_cycles(due, span)
    written: list[Written] = []
    if first:
        late = pc.field("cycle") >= min(first.values())
        decisions = context.projections.growing("curation").read(golems=first, only=late)
        deaths = recorded_deaths(context)
        deaths = deaths.filter(is_from_cycle(deaths, first))
        cast = (
            (
                "",
                routine_votes(decisions.filter(is_from_cycle(decisions, first)), golem_owners(context), context.policy),
            ),
            ("death/", _last_words(context, deaths)),
        )
        causes = context.projections.growing("vote_causes").read(golems=first, only=late, hidden=True)
        causes = causes.filter(is_from_cycle(causes, first))
        written = [
            _recast(context.projections.growing(name), causes, cast, due, span) for name in ("votes", "vote_causes")
        ]
    heeded.mark_handled(cause.event_id for cause in due)
    return written


def _recast(
    table: GrowingTable,
    causes: pa.Table,
    cast: Sequence[tuple[str, Ballots]],
    due: Sequence[Cause],
    span: int,
) -> Written:
    """Repair one of the two tables, as far as it had come: what it has not cast yet is cast in its turn.

    causes: the private causes that stand. cast: prefix of the app and the ballots as they should be.
    """
    wanted = []
    for prefix, ballots in cast:
        rows = ballots.votes if table.name == "votes" else ballots.causes
        golem = ballots.causes["golem_id"].to_pylist()
        done = {g: table.done(prefix + g) for g in set(golem)}
        limit = np.array([-1 if (known := done[g]) is None else known for g in golem], np.int64)
        wanted.append(rows.filter(pa.array(ballots.causes["cycle"].to_numpy() <= limit, pa.bool_())))
    again = pa.concat_tables(wanted)
    if table.name == "vote_causes":
        return table.repair(causes, again, retraction_event_ids(causes, due, span))
    ids = pa.chunked_array([*causes["vote_id"].chunks, *again["vote_id"].chunks], pa.string()).unique()
    standing = table.read(only=pc.field("vote_id").isin(ids), hidden=True)
    behind = pa.concat_tables([causes.select(CAUSED), *(b.causes.select(CAUSED) for _, b in cast)])
    place = pc.index_in(standing["vote_id"], value_set=behind["vote_id"].combine_chunks())
    return table.repair(standing, again, retraction_event_ids(behind.take(place), due, span))


CAUSED = ["vote_id", "golem_id", "cycle"]
"""What of a vote's cause says which golem's cycle cast it."""


def _cycles_of(decisions: pa.Table) -> dict[str, int]:
    grouped = decisions.group_by("golem_id").aggregate([("cycle", "max")])
    return dict(zip(grouped["golem_id"].to_pylist(), grouped["cycle_max"].to_pylist(), strict=True))


def _pairs(deaths: pa.Table) -> list[tuple[str, int]]:
    return list(zip(deaths["golem_id"].to_pylist(), deaths["cycle"].to_pylist(), strict=True))


def _may_speak(context: DerivationContext, golem_id: str, cycle: int) -> bool:
    """Whether a dead golem's last cycle is curated and its last votes are not cast."""
    known = curated_through(context, golem_id)
    return (
        known is not None and known >= cycle and context.projections.growing("votes").done(f"death/{golem_id}") is None
    )


def _not_yet(table: GrowingTable, rows: pa.Table, by_vote: dict[str, tuple[str, int]], prefix: str) -> pa.Table:
    """Rows whose golem's cycle is not on record in this table."""
    done: dict[str, int | None] = {}
    keep = []
    for vote in rows["vote_id"].to_pylist():
        golem, cycle = by_vote[vote]
        app = prefix + golem
        if app not in done:
            done[app] = table.done(app)
        known = done[app]
        keep.append(known is None or known < cycle)
    return rows.filter(pa.array(keep, pa.bool_()))


def _causes_of(context: DerivationContext, vote_ids: pa.Array) -> pa.Table:
    """The private causes of these votes; where there is no vote, of all that were ever cast none is looked at."""
    if not len(vote_ids):
        return VOTE_CAUSE_SCHEMA.empty_table()
    return context.projections.growing("vote_causes").read(only=pc.field("vote_id").isin(vote_ids))


def derive_consensus(context: DerivationContext) -> list[Written]:
    """Count again the propositions that got votes since, or lost them, and those whose death votes may now count."""
    with context.deriving():
        box = DecisiveVotesCache(context.projections.growing("votes"), checkpoint_of(context, "consensus"))
        fresh = box.look()
        if fresh is None:
            return []
        touched, concerned = fresh.touched, fresh.votes
        renewed = context.projections.replaceable("consensus")
        buckets = renewed.buckets(touched.to_pylist())
        last_words = concerned.filter(concerned["is_death_vote"])["vote_id"].unique()
        causes = _causes_of(context, last_words)
        backed = backed_votes(concerned, causes, recorded_deaths(context))
        counted = consensus(concerned, backed, context.policy.katabasis, touched)
        kept = renewed.read(buckets, trusting=True)
        kept = kept.filter(pc.invert(pc.is_in(kept["proposition_id"], value_set=touched)))
        written = renewed.replace(pa.concat_tables([kept, counted]), buckets)
        box.keep(fresh)
        return [written]
