"""Counts the anonymous votes of public posts, and makes the consensus into priors of a golem. Pure.

Source: KAT (Vote Weighting and Consensus, Retrieval in Heartbeat); canon 4, 22, 48.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime

import numpy as np
import pyarrow as pa

from bardo_pipeline.events.record.arrow_columns import contiguous, required
from bardo_pipeline.grimoire.confidence import DAY_US, PPM, confidence_at
from bardo_pipeline.grimoire.entry_columns import int_column, micros, query_tables
from bardo_pipeline.katabasis.priors import PRIOR_SCHEMA, modifiers
from bardo_pipeline.katabasis.public_posts import Belief, Post, votes_of
from bardo_pipeline.katabasis.weighted_consensus import consensus
from bardo_pipeline.policy import Policy

_SCENE_SCHEMA = pa.schema(
    [pa.field(name, pa.string()) for name in ("proposition_id", "action_type", "regime", "anomaly_band", "gas_band")]
    + [pa.field("sign", pa.int64())]
)

BELIEF_SCHEMA = PRIOR_SCHEMA.append(required("claim", pa.string()))
"""Priors with the claim that a golem would read."""

_PRIORS = """
    select '' as golem_id, proposition_id as prior_id, 'proposition' as kind,
        if(contradicted, 'contradicted', 'quorum') as origin, action_type, regime, anomaly_band, gas_band, sign,
        confidence_ppm, last_vote_at as confirmed_at, false as is_bloodstain, $half_life as half_life_days,
        0.0 as pleasure, 0.0 as arousal, 0.0 as dominance, claim
    from counted join scenes using (proposition_id) where quorum_met and regime = $regime order by prior_id
"""


def public_consensus(posts: Iterable[Post], policy: Policy) -> pa.Table:
    """Count the votes among posts. Returns CONSENSUS_SCHEMA sorted by proposition_id.

    Every death vote counts: the quota of a relay bounds those of one author.
    """
    votes = votes_of(posts, policy)
    deaths = votes.filter(votes["is_death_vote"])["vote_id"]
    return consensus(votes, contiguous(deaths), policy.katabasis)


def beliefs_as_priors(
    posts: Iterable[Post], counted: pa.Table, market: Sequence[str], regime: str, now: datetime, policy: Policy
) -> pa.Table:
    """Return the consensus on acts at a market in a regime as priors, the one that weighs most first.

    Parameters
    ----------
    counted : pa.Table, `public_consensus` of the posts
    market : chain, protocol and pair

    Returns
    -------
    pa.Table, PRIOR_SCHEMA with an empty golem_id, and the claim
    """
    scenes = {
        facts.proposition_id: {
            "proposition_id": facts.proposition_id, "action_type": facts.action_type, "regime": facts.regime,
            "anomaly_band": facts.anomaly_band, "gas_band": facts.gas_band, "sign": facts.sign,
        }
        for facts in (post.facts for post in posts)
        if isinstance(facts, Belief)
        and facts.source == "pattern"
        and (facts.chain, facts.protocol, facts.pair) == tuple(market)
    }  # fmt: skip
    rules = policy.katabasis
    table = pa.Table.from_pylist(list(scenes.values()), _SCENE_SCHEMA)
    values = {"regime": regime, "half_life": rules.scar_half_life_days}
    priors = query_tables(_PRIORS, values, counted=counted, scenes=table).cast(BELIEF_SCHEMA)
    half = np.full(priors.num_rows, round(rules.scar_half_life_days * DAY_US), np.int64)
    decayed = confidence_at(
        int_column(priors, "confidence_ppm"), micros(priors, "confirmed_at"), round(now.timestamp() * 1e6), half,
        np.zeros(len(half), np.int64),
    )  # fmt: skip
    weight = decayed * modifiers(priors["origin"], policy.retrieval)
    return priors.take(pa.array(np.argsort(-weight, kind="stable")))


def held_beliefs(
    priors: pa.Table, golem_id: str, known: Collection[str], *, confidence_min: float, tokens_max: int, top: int
) -> pa.Table:
    """Return the first priors that a golem holds (PRIOR_SCHEMA): the top ones that are sure enough and fit its context.

    Parameters
    ----------
    priors : pa.Table, of `beliefs_as_priors`
    known : ids of the propositions that the golem holds of its line
    tokens_max : tokens of all claims, 4 characters each
    """
    rows = list[int]()
    columns = (priors[name].to_pylist() for name in ("prior_id", "confidence_ppm", "claim"))
    for row, (prior_id, confidence, claim) in enumerate(zip(*columns, strict=True)):
        tokens = -(-len(claim) // 4)
        if len(rows) < top and prior_id not in known and confidence >= confidence_min * PPM and tokens <= tokens_max:
            rows.append(row)
            tokens_max -= tokens
    place = PRIOR_SCHEMA.get_field_index("golem_id")
    held = priors.take(pa.array(rows, pa.int64())).select(PRIOR_SCHEMA.names)
    return held.set_column(place, PRIOR_SCHEMA.field(place), pa.array([golem_id] * len(rows), pa.string()))
