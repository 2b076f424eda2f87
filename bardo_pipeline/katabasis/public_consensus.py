"""Counts the anonymous votes of public posts, and makes the consensus into priors of a golem. Pure.

Source: KAT (Vote Weighting and Consensus, Retrieval in Heartbeat); canon 4, 22, 48.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

import numpy as np
import pyarrow as pa

from bardo_pipeline.events.record.arrow_columns import contiguous
from bardo_pipeline.grimoire.confidence import DAY_US, confidence_at
from bardo_pipeline.grimoire.entry_columns import int_column, micros, query_tables
from bardo_pipeline.katabasis.priors import PRIOR_SCHEMA, modifiers
from bardo_pipeline.katabasis.public_posts import Belief, Post, votes_of
from bardo_pipeline.katabasis.weighted_consensus import consensus
from bardo_pipeline.policy import Policy

_SCENE_SCHEMA = pa.schema(
    [pa.field(name, pa.string()) for name in ("proposition_id", "action_type", "regime", "anomaly_band", "gas_band")]
    + [pa.field("sign", pa.int64())]
)

_PRIORS = """
    select $golem as golem_id, proposition_id as prior_id, 'proposition' as kind,
        if(contradicted, 'contradicted', 'quorum') as origin, action_type, regime, anomaly_band, gas_band, sign,
        confidence_ppm, last_vote_at as confirmed_at, false as is_bloodstain, $half_life as half_life_days,
        0.0 as pleasure, 0.0 as arousal, 0.0 as dominance
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
    posts: Iterable[Post],
    counted: pa.Table,
    golem_id: str,
    market: Sequence[str],
    regime: str,
    now: datetime,
    policy: Policy,
) -> pa.Table:
    """Return the consensus on acts at a market in a regime as priors (PRIOR_SCHEMA), the one that weighs most first.

    Parameters
    ----------
    counted : pa.Table, `public_consensus` of the posts
    market : chain, protocol and pair
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
    values = {"golem": golem_id, "regime": regime, "half_life": rules.scar_half_life_days}
    table = pa.Table.from_pylist(list(scenes.values()), _SCENE_SCHEMA)
    priors = query_tables(_PRIORS, values, counted=counted, scenes=table).cast(PRIOR_SCHEMA)
    at_us = round(now.timestamp() * 1e6)
    half = np.full(priors.num_rows, round(rules.scar_half_life_days * DAY_US), np.int64)
    decayed = confidence_at(
        int_column(priors, "confidence_ppm"), micros(priors, "confirmed_at"), at_us, half, np.zeros(len(half), np.int64)
    )
    weight = decayed * modifiers(priors["origin"], policy.retrieval)
    return priors.take(pa.array(np.argsort(-weight, kind="stable")))
