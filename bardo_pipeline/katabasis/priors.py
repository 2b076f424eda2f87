"""Makes scars and propositions into priors: what a golem knows of failures and of collective belief. Pure.

A scar speaks against its action in its situation; a proposition, or a lesson of the golem's own dreams, for or against
it. A golem holds its own scars, the failures of the golems that it descends from, and the consensus of their last
votes. The consensus of strangers needs layer L2, which is off by default (MEM).
Source: KAT (Retrieval in Heartbeat), canon 4, 7, 22, 32, 48.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Float64Array
from bardo_pipeline.events.record.arrow_columns import all_required, contiguous, required
from bardo_pipeline.grimoire.entries import MOMENT
from bardo_pipeline.grimoire.entry_columns import query_tables
from bardo_pipeline.katabasis.anonymous_votes import VOTE_SCHEMA, death_votes
from bardo_pipeline.katabasis.propositions import with_claims
from bardo_pipeline.katabasis.scar_rules import scars_of
from bardo_pipeline.katabasis.weighted_consensus import consensus
from bardo_pipeline.policy import Policy, RetrievalPolicy

PRIOR_KINDS = ("scar", "proposition", "lesson")

ORIGINS = ("own", "sibling", "bloodstain", "quorum", "contradicted")
"""Sources of KAT's table: own scar, another golem's, one that a death published; a proposition by its consensus."""

PRIOR_SCHEMA = pa.schema(
    [
        *all_required(pa.string(), "golem_id", "prior_id", "kind", "origin"),
        *all_required(pa.string(), "action_type", "regime", "anomaly_band", "gas_band"),
        *all_required(pa.int64(), "sign", "confidence_ppm"),
        required("confirmed_at", MOMENT),
        required("is_bloodstain", pa.bool_()),
        required("half_life_days", pa.float64()),
        *all_required(pa.float64(), "pleasure", "arousal", "dominance"),
    ]
)
"""One row per golem that holds it and prior. prior_id: scar id, proposition id, or entry id of the lesson. sign: 1 the
action pays, -1 it harms. confidence_ppm: at `confirmed_at`, the time of confirmation or of the last vote; it halves
every half_life_days. gas_band: a band or a span of bands. The mood is that of the failure, else zero."""


def modifiers(origin: pa.Array | pa.ChunkedArray, rules: RetrievalPolicy) -> Float64Array:
    """Return KAT's factor on the importance of each prior; the boost of bloodstains is that of entries."""
    factors = np.array([1.0, rules.scar_sibling, 1.0, 1.0, rules.proposition_contradicted])
    places = pc.index_in(contiguous(origin), value_set=pa.array(ORIGINS)).to_numpy(zero_copy_only=False)
    return factors[places]


_SCARS = """
    select owner_id as golem_id, scar_id as prior_id, 'scar' as kind,
        if(golem_id = owner_id, 'own', if(is_bloodstain, 'bloodstain', 'sibling')) as origin,
        action_type, regime, anomaly_band, gas_band, -1 as sign, confidence_ppm, confirmed_at,
        is_bloodstain and golem_id <> owner_id as is_bloodstain,
        half_life_days * if(is_bloodstain and golem_id <> owner_id, stained, 1.0) as half_life_days,
        pleasure, arousal, dominance
    from scars, half_lives order by all
"""


def scars_as_priors(failures: pa.Table, deaths: pa.Table, policy: Policy) -> pa.Table:
    """Return the scars of these failures as priors (PRIOR_SCHEMA); a repeated failure is one scar.

    Parameters
    ----------
    failures : pa.Table, FAILURE_SCHEMA, own and of ancestors; owner_id is the golem that holds them
    deaths : pa.Table, golem_id, cycle and tick of the ancestors' deaths
    """
    scars = scars_of(failures, deaths, policy)
    return query_tables(_SCARS, scars=scars, half_lives=_half_lives(policy)).cast(PRIOR_SCHEMA)


def _half_lives(policy: Policy) -> pa.Table:
    """Return one row: the half-life of scars and propositions in days, and its factor for bloodstains."""
    return pa.table(
        {"half_life_days": [policy.katabasis.scar_half_life_days], "stained": [policy.decay.bloodstain_multiplier]}
    )


_LINE_VOTES = """
    select holder || chr(31) || vote_id as vote_id, holder || chr(31) || proposition_id as proposition_id,
        holder || chr(31) || question_id as question_id, domain, claim, voter_id, confidence_ppm, is_death_vote,
        weight_tenths, "at"
    from votes join causes using (vote_id) join lines using (golem_id) order by vote_id
"""
"""Votes of a line under ids of the heir that holds them, so that one count serves all heirs."""

_PROPOSITIONS = """
    with scenes as (
        select proposition_id, any_value(action_type) as action_type, any_value(regime) as regime,
            any_value(anomaly_band) as anomaly_band, any_value(gas_band) as gas_band, any_value(sign) as sign
        from claims where source = 'pattern' group by all
    ),
    held as (
        select *, split_part(proposition_id, chr(31), 1) as holder, split_part(proposition_id, chr(31), 2) as prior_id
        from counted where quorum_met
    )
    select holder as golem_id, prior_id, 'proposition' as kind, if(contradicted, 'contradicted', 'quorum') as origin,
        action_type, regime, anomaly_band, gas_band, sign, confidence_ppm, last_vote_at as confirmed_at,
        false as is_bloodstain, half_life_days, 0.0 as pleasure, 0.0 as arousal, 0.0 as dominance
    from held join scenes on prior_id = scenes.proposition_id, half_lives order by golem_id, prior_id
"""


def propositions_as_priors(lines: pa.Table, entries: pa.Table, deaths: pa.Table, policy: Policy) -> pa.Table:
    """Return the consensus of dead golems' last votes on acts as priors of their heirs (PRIOR_SCHEMA).

    Parameters
    ----------
    lines : pa.Table, columns holder and golem_id: each heir with each of its ancestors
    entries : pa.Table, ENTRY_SCHEMA of the ancestors at their deaths
    deaths : pa.Table, DEATH_SCHEMA; all of them are on record, so their votes count
    """
    ballots = death_votes(entries, deaths, policy)
    votes = query_tables(_LINE_VOTES, votes=ballots.votes, causes=ballots.causes, lines=lines).cast(VOTE_SCHEMA)
    counted = consensus(votes, contiguous(votes["vote_id"]), policy.katabasis)
    names = ["proposition_id", "source", "action_type", "regime", "anomaly_band", "gas_band", "sign"]
    tables: dict[str, Any] = {
        "counted": counted,
        "claims": with_claims(entries).select(names),
        "half_lives": _half_lives(policy),
    }
    return query_tables(_PROPOSITIONS, **tables).cast(PRIOR_SCHEMA)
