"""Makes anonymous votes: a golem's confidence in a proposition, without its name. Pure.

Vote ids are hashes of public fields alone (voter id, proposition, time, death vote or not), so they reveal no golem.
The golem and the entry behind a vote are in the owner's private table of causes, keyed by vote id.
Source: KAT (Lethe: votes, write paths), canon 48; architecture ("lineage must not undo anonymity").
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.errors import DerivationError
from bardo_pipeline.events.record.arrow_columns import all_required, contiguous, required
from bardo_pipeline.grimoire.confidence import ppm
from bardo_pipeline.grimoire.entries import MOMENT
from bardo_pipeline.grimoire.entry_columns import confidence_of, micros, query_tables
from bardo_pipeline.katabasis.propositions import with_claims
from bardo_pipeline.policy import Policy

LIVING_WEIGHT_TENTHS = 10
"""Weight of a living golem's vote: 1.0."""

VOTE_SCHEMA = pa.schema(
    [
        *all_required(pa.string(), "vote_id", "proposition_id", "question_id", "domain", "claim", "voter_id"),
        required("confidence_ppm", pa.int64()),
        required("is_death_vote", pa.bool_()),
        required("weight_tenths", pa.int64()),
        required("at", MOMENT),
    ]
)
"""One row per vote, public; key vote_id. confidence_ppm is the confidence in the claim. question_id: the proposition's
own id, or the id that the mutually exclusive bands of one level share. A voter has one id for each question."""

VOTE_CAUSE_SCHEMA = pa.schema(
    [
        *all_required(pa.string(), "vote_id", "owner_id", "golem_id"),
        required("cycle", pa.int64()),
        required("entry_id", pa.string()),
    ]
)
"""One row per vote, private to the owner; key vote_id. The cycle of a death vote is the cycle closed by the death."""

DEATH_SCHEMA = pa.schema(
    [*all_required(pa.string(), "golem_id", "owner_id"), required("cycle", pa.int64()), required("at", MOMENT)]
)
"""Columns that votes need of a recorded death: the cycle that it closed, and its time. Further columns are ignored."""

ROUTINE = """
    with surviving as (
        select *, max(revision) over (partition by golem_id, cycle) as revision_last from claims
    ),
    last_decision as (
        select * from surviving where revision = revision_last
        qualify rank() over (partition by golem_id, cycle, entry_id order by seq desc) = 1
    )
    select golem_id, cycle, entry_id, proposition_id, question_id, domain, claim, confidence_ppm, "at",
        false as is_death_vote,
        $weight as weight_tenths
    from last_decision
    where operation in ('created', 'reinforced', 'promoted', 'generalized')
        and kind in ('insight', 'heuristic', 'warning') and status = 'active'
        and confidence_ppm >= if(
            kind = 'warning' and operation <> 'created' and effect_mean_ppm <= $critical_effect, $critical_gate, $gate
        )
    qualify row_number() over (partition by golem_id, cycle, proposition_id order by confidence_ppm desc, entry_id) = 1
"""

LAST = """
    select golem_id, cycle, entry_id, proposition_id, question_id, domain, claim, confidence_ppm, "at",
        true as is_death_vote,
        $weight as weight_tenths
    from claims join deaths using (golem_id)
    qualify row_number() over (partition by golem_id, proposition_id order by confidence_ppm desc, entry_id) = 1
"""

NAMED = """
    with named as (
        select chosen.*, owner_id, left(sha256(golem_id || owner_id || question_id), 12) as voter_id
        from chosen left join owners using (golem_id)
    )
    select *, left(sha256(concat_ws('|', voter_id, proposition_id, epoch_us("at"), is_death_vote)), 24) as vote_id
    from named order by vote_id
"""

BACKED = """
    select distinct vote_id from votes join causes using (vote_id) join deaths using (golem_id)
    where is_death_vote and votes."at" = deaths."at" order by vote_id
"""


ROUTINE_COLUMNS = [
    "golem_id", "revision", "cycle", "seq", "at", "operation", "entry_id", "structure", "domain", "kind", "status",
    "source", "chain", "protocol", "pair", "action_type", "regime", "anomaly_band", "gas_band", "metric", "sign",
    "effect_mean_ppm", "confidence_ppm", "anchor_at", "decay_class", "own_count", "evidence_count", "pinned_ppm",
    "is_anti_knowledge", "is_bloodstain", "provenance",
]  # fmt: skip
"""Columns of a decision that `routine_votes` reads."""


class Ballots(NamedTuple):
    """Votes (VOTE_SCHEMA) and their private causes (VOTE_CAUSE_SCHEMA), each sorted by vote_id."""

    votes: pa.Table
    causes: pa.Table


def routine_votes(decisions: pa.Table, owners: pa.Table, policy: Policy) -> Ballots:
    """Cast one vote per golem, closed cycle and proposition for the entries that the cycle created or confirmed.

    An entry votes if the cycle's last decision about it created, reinforced, promoted or generalized it, and if its
    confidence reached `vote_confidence_min`. A warning of a loss of `critical_loss` or more, which evidence confirmed
    after its creation, needs `critical_confidence_min`. Received entries do not vote. Of several entries with the same
    claim the most confident votes; ties go to the lower entry id.

    Parameters
    ----------
    decisions : pa.Table, ROUTINE_COLUMNS of DECISION_SCHEMA, whole cycles
    owners : pa.Table, columns golem_id and owner_id; a voter without an owner raises DerivationError
    """
    claims = with_claims(decisions)
    rules = policy.katabasis
    numbers = {
        "gate": ppm(rules.vote_confidence_min),
        "critical_gate": ppm(rules.critical_confidence_min),
        "critical_effect": -ppm(rules.critical_loss),
        "weight": LIVING_WEIGHT_TENTHS,
    }
    confidence = confidence_of(claims, micros(claims, "at"), policy.decay)
    candidates = _claim_columns(
        claims, confidence, "revision", "cycle", "seq", "at", "operation", "kind", "status",
        "effect_mean_ppm",
    )  # fmt: skip
    return _ballots(query_tables(ROUTINE, numbers, claims=candidates), owners)


def death_votes(entries: pa.Table, deaths: pa.Table, policy: Policy) -> Ballots:
    """Cast a death vote for every public active entry of the dead golems, at its confidence at the time of death.

    entries: ENTRY_SCHEMA as folded at death; entries of living golems are ignored. deaths: DEATH_SCHEMA.
    """
    claims, at_us = entries_of_dead_golems(with_claims(entries), deaths)
    weight = round(policy.katabasis.death_vote_weight * LIVING_WEIGHT_TENTHS)
    candidates = _claim_columns(claims, confidence_of(claims, at_us, policy.decay))
    death_times = deaths.select(["golem_id", "cycle", "at"])
    return _ballots(query_tables(LAST, {"weight": weight}, claims=candidates, deaths=death_times), deaths)


def entries_of_dead_golems(entries: pa.Table, deaths: pa.Table) -> tuple[pa.Table, Int64Array]:
    """Return the entries of the golems in `deaths`, and for each row the time of death in microseconds."""
    death_row = pc.index_in(entries.column("golem_id"), value_set=contiguous(deaths.column("golem_id")))
    selected = entries.filter(pc.is_valid(death_row)) if death_row.null_count else entries
    return selected, micros(deaths, "at")[death_row.drop_null().to_numpy()]


def backed_votes(votes: pa.Table, causes: pa.Table, deaths: pa.Table) -> pa.Array:
    """Return the sorted ids of the death votes whose time equals the recorded death of their golem.

    causes: VOTE_CAUSE_SCHEMA, the owners' private tables. deaths: DEATH_SCHEMA of the recorded deaths. Death votes of
    living golems are left out.
    """
    votes, causes = votes.select(["vote_id", "is_death_vote", "at"]), causes.select(["vote_id", "golem_id"])
    backed = query_tables(BACKED, votes=votes, causes=causes, deaths=deaths.select(["golem_id", "at"]))
    return contiguous(backed.column("vote_id")).cast(pa.string())


def _claim_columns(claims: pa.Table, confidence: Int64Array, *more: str) -> pa.Table:
    columns = claims.select(["golem_id", "entry_id", "proposition_id", "question_id", "domain", "claim", *more])
    return columns.append_column("confidence_ppm", pa.array(confidence, pa.int64()))


def _ballots(chosen: pa.Table, owners: pa.Table) -> Ballots:
    """Compute the ids of each vote and separate its public columns from its private cause."""
    distinct_owners = owners.select(["golem_id", "owner_id"]).group_by(["golem_id", "owner_id"]).aggregate([])
    cast = query_tables(NAMED, chosen=chosen, owners=distinct_owners)
    orphans = cast.filter(pc.is_null(cast.column("owner_id"))).column("golem_id").to_pylist()
    if orphans:
        raise DerivationError(f"golem {min(orphans)}: no owner on record, so its votes cannot be recorded")
    public = cast.select(VOTE_SCHEMA.names).cast(VOTE_SCHEMA)
    return Ballots(public, cast.select(VOTE_CAUSE_SCHEMA.names).cast(VOTE_CAUSE_SCHEMA))
