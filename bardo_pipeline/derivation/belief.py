"""Belief: votes from decisions and deaths, consensus from votes, each at the cost of what is new.

Source: KAT (Lethe); architecture ("Cross-golem tables are functions of sets, recomputed for the
keys that were touched").
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.reading import curated, cycle_of, keep_table_place, table_place
from bardo_pipeline.derivation.stores import Stores
from bardo_pipeline.katabasis.consensus import consensus
from bardo_pipeline.katabasis.votes import DEATH_SCHEMA, backed_votes, death_votes, routine_votes
from bardo_pipeline.storage.projections import GrowingTable, Written


def owners(stores: Stores) -> pa.Table:
    """golem_id and owner_id of every golem that was born."""
    births = stores.life("GolemBorn")
    return pa.table(
        {"golem_id": births["golem_id"], "owner_id": pc.struct_field(births["born"].combine_chunks(), "owner_id")}
    )


def recorded_deaths(stores: Stores) -> pa.Table:
    """Deaths on record whose owner is known, by golem (DEATH_SCHEMA); of two the earlier tick counts."""
    deaths = stores.life("DeathDeclared")
    died = deaths["died"].combine_chunks()
    tick = pc.struct_field(died, "tick")
    ticks = tick.to_numpy(zero_copy_only=False).astype("int64")
    cycle = cycle_of(ticks, stores.policy.curator.cycle_ticks)
    table = pa.table(
        {
            "golem_id": deaths["golem_id"],
            "cycle": pa.array(cycle, pa.int64()),
            "at": deaths["observed_at"],
            "tick": tick,
        }
    )
    table = table.join(owners(stores), "golem_id", join_type="inner").sort_by(
        [("golem_id", "ascending"), ("tick", "ascending")]
    )
    names = table["golem_id"].to_pylist()
    first = pa.array([i == 0 or names[i] != names[i - 1] for i in range(len(names))], pa.bool_())
    return table.filter(first).select(DEATH_SCHEMA.names).combine_chunks().cast(DEATH_SCHEMA)


def derive_votes(stores: Stores) -> list[Written]:
    """Cast the votes of cycles that were curated since, and the last votes of golems whose last cycle is curated."""
    with stores.deriving():
        votes, causes = stores.projections.growing("votes"), stores.projections.growing("vote_causes")
        place = stores.projections.root / "readers" / "votes"
        curation = stores.projections.growing("curation")
        version = curation.table.version
        decisions = curation.read(since_version=table_place(place))
        written = []
        living = routine_votes(decisions, owners(stores), stores.policy)
        upto = _cycles_of(decisions)
        cast = [(living, upto)]
        deaths = recorded_deaths(stores)
        deaths = deaths.filter(pa.array([_may_speak(stores, g, c) for g, c in _pairs(deaths)], pa.bool_()))
        if deaths.num_rows:
            grimoire = stores.projections.renewed("grimoire")
            last = death_votes(grimoire.read(grimoire.buckets(deaths["golem_id"].to_pylist())), deaths, stores.policy)
            cast.append((last, {f"death/{g}": c for g, c in _pairs(deaths)}))
        for ballots, reached in cast:
            by_vote = {
                r["vote_id"]: (r["golem_id"], r["cycle"])
                for r in ballots.causes.select(["vote_id", "golem_id", "cycle"]).to_pylist()
            }
            prefix = "death/" if reached and next(iter(reached)).startswith("death/") else ""
            for table, rows in ((votes, ballots.votes), (causes, ballots.causes)):
                kept = _not_yet(table, rows, by_vote, prefix)
                if reached:
                    written.append(table.put(kept, reached))
        keep_table_place(place, version)
        return written


def _cycles_of(decisions: pa.Table) -> dict[str, int]:
    grouped = decisions.group_by("golem_id").aggregate([("cycle", "max")])
    return dict(zip(grouped["golem_id"].to_pylist(), grouped["cycle_max"].to_pylist(), strict=True))


def _pairs(deaths: pa.Table) -> list[tuple[str, int]]:
    return list(zip(deaths["golem_id"].to_pylist(), deaths["cycle"].to_pylist(), strict=True))


def _may_speak(stores: Stores, golem_id: str, cycle: int) -> bool:
    """Whether a dead golem's last cycle is curated and its last votes are not cast."""
    known = curated(stores, golem_id)
    return (
        known is not None and known >= cycle and stores.projections.growing("votes").done(f"death/{golem_id}") is None
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


def derive_consensus(stores: Stores) -> list[Written]:
    """Count again the propositions that got votes since, and those whose death votes may now count."""
    with stores.deriving():
        place = stores.projections.root / "readers" / "consensus"
        votes = stores.projections.growing("votes")
        version = votes.table.version
        fresh = votes.read(["proposition_id"], since_version=table_place(place))
        if not fresh.num_rows:
            return []
        touched = fresh["proposition_id"].unique()
        renewed = stores.projections.renewed("consensus")
        buckets = renewed.buckets(touched.to_pylist())
        concerned = votes.table.read(None, None, pc.field("proposition_id").isin(touched))
        last_words = concerned.filter(concerned["is_death_vote"])["vote_id"].unique()
        causes = stores.projections.growing("vote_causes").table.read(None, None, pc.field("vote_id").isin(last_words))
        backed = backed_votes(concerned, causes, recorded_deaths(stores))
        counted = consensus(concerned, backed, stores.policy.katabasis, touched)
        kept = renewed.read(buckets)
        kept = kept.filter(pc.invert(pc.is_in(kept["proposition_id"], value_set=touched)))
        written = renewed.renew(pa.concat_tables([kept, counted]).sort_by("proposition_id"), buckets)
        keep_table_place(place, version)
        return [written]
