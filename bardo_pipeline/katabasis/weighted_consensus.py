"""Computes the weighted consensus of the votes on each proposition. Pure.

The result depends on the set of votes alone, not on their order or their division into runs, because all sums are
128-bit integers. Source: KAT (Vote Weighting and Consensus), canon 48.
"""

from __future__ import annotations

import pyarrow as pa

from bardo_pipeline.events.record.arrow_columns import all_required, required
from bardo_pipeline.grimoire.confidence import PPM, ppm
from bardo_pipeline.grimoire.entries import MOMENT
from bardo_pipeline.grimoire.entry_columns import query_tables
from bardo_pipeline.katabasis.anonymous_votes import VOTE_SCHEMA
from bardo_pipeline.policy import KatabasisPolicy

CONSENSUS_SCHEMA = pa.schema(
    [
        *all_required(pa.string(), "proposition_id", "domain", "claim"),
        *all_required(pa.int64(), "weighted_mean_ppm", "confidence_ppm", "total_weight_tenths", "vote_count"),
        required("death_vote_count", pa.int64()),
        *all_required(pa.bool_(), "quorum_met", "contradicted"),
        required("variance_ppm2", pa.int64()),
        *all_required(MOMENT, "first_vote_at", "last_vote_at"),
        required("votes_hash", pa.string()),
    ]
)
"""One row per proposition with a valid vote; key proposition_id. weighted_mean_ppm: rounded half up. confidence_ppm:
mean, raised to the floor if only a death vote meets the quorum. variance_ppm2: weighted population variance in
(1e-6)^2, rounded down. first_vote_at, last_vote_at: over all valid votes, replaced ones included. votes_hash: SHA-256
of the sorted ids of the counted votes."""

COUNT = """
    with valid as (
        select * from votes
        where (not is_death_vote or vote_id in (select vote_id from backed))
            and proposition_id in (select proposition_id from touched)
    ),
    latest as (
        select * from valid
        qualify row_number() over (
            partition by proposition_id, voter_id order by "at" desc, is_death_vote desc, vote_id desc
        ) = 1
    ),
    span as (
        select proposition_id, min("at") as first_vote_at, max("at") as last_vote_at from valid group by all
    ),
    summed as (
        select
            proposition_id, min(domain) as domain, min(claim) as claim,
            sum(weight_tenths)::hugeint as w,
            sum(weight_tenths * confidence_ppm)::hugeint as s,
            sum(weight_tenths * confidence_ppm * confidence_ppm)::hugeint as q,
            count(*) as vote_count,
            count(*) filter (is_death_vote) as death_vote_count,
            coalesce(max(confidence_ppm) filter (is_death_vote), -1) as death_confidence_ppm,
            sha256(string_agg(vote_id, ',' order by vote_id)) as votes_hash
        from latest group by proposition_id
    ),
    counted as (
        select *,
            w as total_weight_tenths,
            (2 * s + w) // (2 * w) as weighted_mean_ppm,
            vote_count >= $quorum or death_vote_count > 0 as quorum_met,
            vote_count < $quorum and death_confidence_ppm >= $floored_from as rests_on_death,
            w * q - s * s > $variance_max::hugeint * w * w as contradicted,
            (w * q - s * s) // (w * w) as variance_ppm2
        from summed
    )
    select *, if(rests_on_death, greatest(weighted_mean_ppm, $floor), weighted_mean_ppm) as confidence_ppm
    from counted join span using (proposition_id) order by proposition_id
"""


def consensus(votes: pa.Table, backed: pa.Array, policy: KatabasisPolicy, touched: pa.Array | None = None) -> pa.Table:
    """Count the latest vote of each voter on each proposition. Returns CONSENSUS_SCHEMA sorted by proposition_id.

    Among votes of the same time a death vote is later than a routine vote, then the greater id is later.

    Parameters
    ----------
    votes : pa.Table, VOTE_SCHEMA, all votes of the touched propositions, any order, duplicates allowed
    backed : pa.Array, ids of death votes with a recorded death (`backed_votes`); other death votes are ignored
    touched : pa.Array, ids of the propositions to count, None for all
    """
    numbers = {
        "quorum": policy.quorum_votes,
        "floor": ppm(policy.death_floor),
        "floored_from": ppm(policy.death_floor_confidence_min),
        "variance_max": ppm(policy.contradiction_variance) * PPM,
    }
    counted = query_tables(
        COUNT,
        numbers,
        votes=votes,
        backed=pa.table({"vote_id": backed.cast(pa.string())}),
        touched=pa.table({"proposition_id": votes["proposition_id"] if touched is None else touched.cast(pa.string())}),
    )
    return counted.select(CONSENSUS_SCHEMA.names).cast(CONSENSUS_SCHEMA)


def decisive(votes: pa.Table) -> pa.Table:
    """Return the distinct votes that can affect a count; counting them equals counting all votes.

    These are the first and last routine vote of each voter on each proposition, and every death vote, because a death
    vote starts to count when its death is recorded. votes: VOTE_SCHEMA, any order, duplicates allowed.
    """
    return query_tables(_DECISIVE, votes=votes.select(VOTE_SCHEMA.names)).cast(VOTE_SCHEMA)


_DECISIVE = """
    select * from (select distinct * from votes)
    qualify is_death_vote
        or row_number() over (partition by proposition_id, voter_id, is_death_vote order by "at", vote_id) = 1
        or row_number() over (
            partition by proposition_id, voter_id, is_death_vote order by "at" desc, vote_id desc
        ) = 1
    order by vote_id
"""
