"""Computes the weighted consensus of the votes on each proposition. Pure.

The result depends on the set of votes alone, not on their order or their division into runs, because all sums are
128-bit integers. Source: KAT (Vote Weighting and Consensus), canon 48.
"""

from __future__ import annotations

import pyarrow as pa

from bardo_pipeline.events.record.arrow_columns import all_required, required
from bardo_pipeline.grimoire.confidence import DAY_US, PPM, ppm
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
"""One row per proposition for which a vote stands; key proposition_id. weighted_mean_ppm: rounded half up.
confidence_ppm: mean, raised to the floor if only a death vote meets the quorum. variance_ppm2: weighted population
variance in (1e-6)^2, rounded down. first_vote_at, last_vote_at: over all valid votes, replaced ones included.
votes_hash: SHA-256 of the sorted ids of the counted votes. A band counts the votes for other bands of its level, but
vote_count and death_vote_count name those for itself."""

COUNT = """
    with valid as (
        select *, question_id <> proposition_id as is_band from votes
        where (not is_death_vote or vote_id in (select vote_id from backed))
            and question_id in (select question_id from touched)
    ),
    latest as (
        select * from valid
        qualify row_number() over (
            partition by question_id, voter_id order by "at" desc, is_death_vote desc, vote_id desc
        ) = 1
    ),
    claims as (
        select question_id, proposition_id, is_band, min(domain) as domain, min(claim) as claim,
            min("at") as first_vote_at, max("at") as last_vote_at
        from valid group by all
    ),
    heard as (
        select c.proposition_id, c.is_band, v.* exclude (proposition_id, is_band, confidence_ppm),
            v.proposition_id = c.proposition_id as is_own,
            if(is_own, v.confidence_ppm, $whole - v.confidence_ppm) as confidence_ppm,
            if(c.is_band, epoch_us("at") // $day, row_number() over ()) as witness
        from claims as c join latest as v using (question_id)
    ),
    witnesses as (
        select proposition_id, max(weight_tenths)::hugeint as w,
            ((2 * sum(weight_tenths * confidence_ppm) + sum(weight_tenths)) // (2 * sum(weight_tenths)))::hugeint as c
        from heard group by proposition_id, witness
    ),
    summed as (
        select proposition_id, sum(w)::hugeint as w, sum(w * c)::hugeint as s, sum(w * c * c)::hugeint as q
        from witnesses group by all
    ),
    days as (
        select l.proposition_id, count(distinct epoch_us(v."at") // $day) as day_count
        from valid as v join latest as l using (proposition_id, voter_id) group by all
    ),
    own as (
        select proposition_id, any_value(is_band) as is_band,
            count(*) filter (is_own) as vote_count,
            count(*) filter (is_own and is_death_vote) as death_vote_count,
            coalesce(max(confidence_ppm) filter (is_own and is_death_vote), -1) as death_confidence_ppm,
            count(*) filter (not is_own) > 0 as is_opposed,
            sha256(string_agg(vote_id, ',' order by vote_id)) as votes_hash
        from heard group by proposition_id
    ),
    counted as (
        select *,
            w as total_weight_tenths,
            (2 * s + w) // (2 * w) as weighted_mean_ppm,
            if(is_band, coalesce(day_count, 0), vote_count) as witness_count,
            witness_count >= $quorum or death_vote_count > 0 as quorum_met,
            witness_count < $quorum and death_confidence_ppm >= $floored_from and not is_opposed as rests_on_death,
            w * q - s * s > $variance_max::hugeint * w * w as contradicted,
            (w * q - s * s) // (w * w) as variance_ppm2
        from own join summed using (proposition_id) left join days using (proposition_id)
        where vote_count > 0
    )
    select *, if(rests_on_death, greatest(weighted_mean_ppm, $floor), weighted_mean_ppm) as confidence_ppm
    from counted join (select * exclude (is_band) from claims) using (proposition_id) order by proposition_id
"""


def consensus(votes: pa.Table, backed: pa.Array, policy: KatabasisPolicy, touched: pa.Array | None = None) -> pa.Table:
    """Count the latest vote of each voter on each question. Returns CONSENSUS_SCHEMA sorted by proposition_id.

    Among votes of the same time a death vote is later than a routine vote, then the greater id is later. The bands of
    one level exclude each other: a vote of confidence c for one is a vote of 1 - c for each other band. Voters on a
    level of one market day watched the same market, so together they weigh as one, and the quorum of a band counts
    market days.

    Parameters
    ----------
    votes : pa.Table, VOTE_SCHEMA, all votes of the touched questions, any order, duplicates allowed
    backed : pa.Array, ids of death votes with a recorded death (`backed_votes`); other death votes are ignored
    touched : pa.Array, ids of the questions to count, None for all
    """
    numbers = {
        "quorum": policy.quorum_votes,
        "floor": ppm(policy.death_floor),
        "floored_from": ppm(policy.death_floor_confidence_min),
        "variance_max": ppm(policy.contradiction_variance) * PPM,
        "whole": PPM,
        "day": DAY_US,
    }
    counted = query_tables(
        COUNT,
        numbers,
        votes=votes,
        backed=pa.table({"vote_id": backed.cast(pa.string())}),
        touched=pa.table({"question_id": votes["question_id"] if touched is None else touched.cast(pa.string())}),
    )
    return counted.select(CONSENSUS_SCHEMA.names).cast(CONSENSUS_SCHEMA)


def decisive(votes: pa.Table) -> pa.Table:
    """Return the distinct votes that can affect a count; counting them equals counting all votes.

    These are the first and last routine vote of each voter on each proposition, its last one of each market day if it
    is a band, and every death vote, because a death vote starts to count when its death is recorded. votes:
    VOTE_SCHEMA, any order, duplicates allowed.
    """
    return query_tables(_DECISIVE, votes=votes.select(VOTE_SCHEMA.names)).cast(VOTE_SCHEMA)


_DECISIVE = """
    select * from (select distinct * from votes)
    qualify is_death_vote
        or row_number() over (partition by proposition_id, voter_id, is_death_vote order by "at", vote_id) = 1
        or row_number() over (
            partition by proposition_id, voter_id, is_death_vote,
                if(question_id = proposition_id, null, epoch_us("at") // 86_400_000_000)
            order by "at" desc, vote_id desc
        ) = 1
    order by vote_id
"""
