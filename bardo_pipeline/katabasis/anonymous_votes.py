"""Votes: what a golem believes of a proposition, without its name. Pure.

A vote's ids are made from what is public (voter, moment, whether it is a death vote), so that they give nothing away;
which golem and which entry stand behind it is in the owner's private causes, by vote id.
Source: KAT (Lethe: votes, write paths), canon 48; architecture ("lineage must not undo anonymity").
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bardo_pipeline.errors import DerivationError
from bardo_pipeline.grimoire.confidence import ppm
from bardo_pipeline.grimoire.entries import MOMENT
from bardo_pipeline.grimoire.entry_columns import confidence_of, contiguous, micros, query_tables
from bardo_pipeline.katabasis.propositions import with_claims
from bardo_pipeline.policy import Policy

LIVING_WEIGHT_TENTHS = 10
"""Weight of a living golem's vote: 1.0."""

VOTE_SCHEMA = pa.schema(
    [
        pa.field("vote_id", pa.string(), nullable=False),
        pa.field("proposition_id", pa.string(), nullable=False),
        pa.field("domain", pa.string(), nullable=False),
        pa.field("claim", pa.string(), nullable=False),
        pa.field("voter_id", pa.string(), nullable=False),
        pa.field("confidence_ppm", pa.int64(), nullable=False),
        pa.field("is_death_vote", pa.bool_(), nullable=False),
        pa.field("weight_tenths", pa.int64(), nullable=False),
        pa.field("at", MOMENT, nullable=False),
    ]
)
"""One row per vote, public; key vote_id. The confidence is in the claim, in parts per million."""

VOTE_CAUSE_SCHEMA = pa.schema(
    [
        pa.field("vote_id", pa.string(), nullable=False),
        pa.field("owner_id", pa.string(), nullable=False),
        pa.field("golem_id", pa.string(), nullable=False),
        pa.field("cycle", pa.int64(), nullable=False),
        pa.field("entry_id", pa.string(), nullable=False),
    ]
)
"""One row per vote, private to the owner; key vote_id. A death vote's cycle is the one that death closed."""

DEATH_SCHEMA = pa.schema(
    [
        pa.field("golem_id", pa.string(), nullable=False),
        pa.field("owner_id", pa.string(), nullable=False),
        pa.field("cycle", pa.int64(), nullable=False),
        pa.field("at", MOMENT, nullable=False),
    ]
)
"""Columns of a recorded death that votes need: the cycle that it closed and its moment. More columns do no harm."""

ROUTINE = """
    with surviving as (
        select *, max(revision) over (partition by golem_id, cycle) as revision_last from said
    ),
    last_word as (
        select * from surviving where revision = revision_last
        qualify rank() over (partition by golem_id, cycle, entry_id order by seq desc) = 1
    )
    select golem_id, cycle, entry_id, proposition_id, domain, claim, confidence_ppm, at_us, false as is_death_vote,
        $weight as weight_tenths
    from last_word
    where operation in ('created', 'reinforced', 'promoted', 'generalized')
        and kind in ('insight', 'heuristic', 'warning') and status = 'active' and confidence_ppm >= $gate
    qualify row_number() over (partition by golem_id, cycle, proposition_id order by confidence_ppm desc, entry_id) = 1
"""

LAST = """
    select golem_id, cycle, entry_id, proposition_id, domain, claim, confidence_ppm, at_us, true as is_death_vote,
        $weight as weight_tenths
    from said join deaths using (golem_id)
    qualify row_number() over (partition by golem_id, proposition_id order by confidence_ppm desc, entry_id) = 1
"""

NAMED = """
    with named as (
        select chosen.*, owner_id, left(sha256(golem_id || owner_id || proposition_id), 12) as voter_id
        from chosen left join owners using (golem_id)
    )
    select *, left(sha256(concat_ws('|', voter_id, proposition_id, at_us, is_death_vote)), 24) as vote_id
    from named order by vote_id
"""

BACKED = """
    select distinct vote_id from votes join causes using (vote_id) join deaths using (golem_id)
    where is_death_vote and votes.at_us = deaths.at_us order by vote_id
"""


class Ballots(NamedTuple):
    """Votes (VOTE_SCHEMA) and their private causes (VOTE_CAUSE_SCHEMA), each sorted by vote_id."""

    votes: pa.Table
    causes: pa.Table


def routine_votes(decisions: pa.Table, owners: pa.Table, policy: Policy) -> Ballots:
    """The sweep at each closed cycle: what the cycle made or confirmed, and the golem holds surely enough.

    decisions: DECISION_SCHEMA of whole cycles. owners: golem_id, owner_id. An entry votes if the cycle's last decision
    about it created, reinforced, promoted or generalized it, and its confidence then is at least the gate; what was
    merely received does not vote. Of entries that make the same claim in a cycle the surest speaks, ties by entry id.
    DerivationError if a voter's owner is not known.
    """
    said = with_claims(decisions)
    numbers = {"gate": ppm(policy.katabasis.vote_confidence_min), "weight": LIVING_WEIGHT_TENTHS}
    spoken = _spoken(said, confidence_of(said, micros(said, "at"), policy.decay), "revision", "cycle", "seq", "at")
    kinds = said.select(["operation", "kind", "status"])
    for name in kinds.column_names:
        spoken = spoken.append_column(name, kinds.column(name))
    return _ballots(query_tables(ROUTINE, numbers, said=spoken), owners)


def death_votes(entries: pa.Table, deaths: pa.Table, policy: Policy) -> Ballots:
    """The last word: every active entry of the dead votes, whatever its confidence, with a death vote's weight.

    entries: ENTRY_SCHEMA as folded at death; entries of the living are ignored. deaths: DEATH_SCHEMA.
    The confidence is that of the moment of death.
    """
    said, at_us = of_the_dead(with_claims(entries), deaths)
    weight = round(policy.katabasis.death_vote_weight * LIVING_WEIGHT_TENTHS)
    spoken = _spoken(said, confidence_of(said, at_us, policy.decay))
    ended = _in_micros(deaths.select(["golem_id", "cycle", "at"]))
    return _ballots(query_tables(LAST, {"weight": weight}, said=spoken, deaths=ended), deaths)


def of_the_dead(entries: pa.Table, deaths: pa.Table) -> tuple[pa.Table, NDArray[np.int64]]:
    """The entries of those golems that died, and for each row the moment of its golem's death (microseconds)."""
    place = pc.index_in(entries.column("golem_id"), value_set=contiguous(deaths.column("golem_id")))
    theirs = entries.filter(pc.is_valid(place)) if place.null_count else entries
    return theirs, micros(deaths, "at")[place.drop_null().to_numpy()]


def backed_votes(votes: pa.Table, causes: pa.Table, deaths: pa.Table) -> pa.Array:
    """Ids of the death votes whose golem's death is on record at the vote's own moment, sorted.

    causes: the owners' private sidecars; deaths: DEATH_SCHEMA of the recorded deaths. A death vote that a living golem
    cast, or cast for another moment than the one on record, is not among them.
    """
    answer = query_tables(
        BACKED,
        votes=_in_micros(votes.select(["vote_id", "is_death_vote", "at"])),
        causes=causes.select(["vote_id", "golem_id"]),
        deaths=_in_micros(deaths.select(["golem_id", "at"])),
    )
    return contiguous(answer.column("vote_id")).cast(pa.string())


def _spoken(said: pa.Table, confidence: NDArray[np.int64], *more: str) -> pa.Table:
    columns = said.select(["golem_id", "entry_id", "proposition_id", "domain", "claim", *more])
    columns = columns.append_column("confidence_ppm", pa.array(confidence, pa.int64()))
    return _in_micros(columns) if "at" in more else columns


def _ballots(chosen: pa.Table, owners: pa.Table) -> Ballots:
    """Give each vote its ids (hex, cut as KAT says) and part what is public from what is not."""
    known = owners.select(["golem_id", "owner_id"]).group_by(["golem_id", "owner_id"]).aggregate([])
    cast = query_tables(NAMED, chosen=chosen, owners=known)
    orphans = cast.filter(pc.is_null(cast.column("owner_id"))).column("golem_id").to_pylist()
    if orphans:
        raise DerivationError(f"golem {min(orphans)}: no owner on record, so its votes cannot be signed for")
    public = cast.rename_columns({"at_us": "at"}).select(VOTE_SCHEMA.names).cast(VOTE_SCHEMA)
    return Ballots(public, cast.select(VOTE_CAUSE_SCHEMA.names).cast(VOTE_CAUSE_SCHEMA))


def _in_micros(table: pa.Table) -> pa.Table:
    return table.set_column(table.schema.get_field_index("at"), "at_us", pa.array(micros(table, "at")))
