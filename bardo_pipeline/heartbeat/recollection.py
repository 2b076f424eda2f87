"""Retrieval in a tick: the best entries for each deliberating golem, or none if it skips (step 2). Pure, over columns.

The rules are those of `bardo ask`: four factors, dormancy by regime, contrarian turns and skipping come from
`retrieval`. Here likeness is that of situations, where a question has the cosine of texts.
Source: MEM-9, MEM-11, INH-9, HB S3 (top five), KAT (adaptive retrieval), canon 21-24.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from bardo_pipeline.arrays import BoolArray, Float64Array, Int8Array, Int64Array
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.heartbeat.fleet import PRIORS, RECALL, Fleet
from bardo_pipeline.heartbeat.recall_table import Recall, likeness
from bardo_pipeline.market.tick_series import Tape
from bardo_pipeline.mortality.affect import pad_congruence
from bardo_pipeline.mortality.random_streams import rank_within
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.scoring import FACTORS, contributions, recency
from bardo_pipeline.retrieval.situation import contrarian_turns, regime_weights, retrieval_rules, skips

_PLACES = np.array([RECALL, PRIORS, PRIORS, PRIORS])
_FIRST = np.cumsum(_PLACES) - _PLACES
"""Number and first of the places of each shelf."""


@dataclass
class Moment:
    """The situations of deliberating golems, [golems].

    anomaly, gas: bands. regime_before: -1 without an earlier regime. regime_ticks: ticks since it ended. mood:
    [3, golems]. thought_tick: as in retrieval.situation. coverage: known share of the protocol's levels.
    """

    at_us: Int64Array
    regime: Int64Array
    anomaly: Int64Array
    gas: Int64Array
    regime_before: Int64Array
    regime_ticks: Int64Array
    tick: Int64Array
    thought_tick: Int64Array
    mood: Float64Array
    surprise: Float64Array
    coverage: Float64Array

    @classmethod
    def of(cls, fleet: Fleet, tape: Tape, t: int, golem: Int64Array, score: Float64Array, surprise: Float64Array,
           recall: Recall, policy: Policy) -> Self:  # fmt: skip
        """Return the situations of these golems in a tick."""
        rules, start, tick = policy.curator, int(tape.regime_start[t]), fleet.tick[golem]
        nothing, here = np.zeros(fleet.size), np.zeros(len(golem), np.int64)
        has_lived_before = (tick > t - start + 1) & (start > 0)
        return cls(
            at_us=here + tape.at_us[t], regime=here + tape.regime[t],
            anomaly=np.searchsorted(rules.anomaly_edges, score[golem], side="right"),
            gas=here + np.searchsorted(rules.gas_edges, tape.gas_hour_ratio[t], side="right"),
            regime_before=np.where(has_lived_before, tape.regime[start - 1], -1),
            regime_ticks=here + t - start, tick=tick, thought_tick=fleet.thought_tick[golem],
            mood=fleet.pad[:, golem], surprise=surprise[golem],
            coverage=recall.coverage.get(tape.market.protocol, nothing)[golem],
        )  # fmt: skip


@dataclass
class Recollection:
    """Entries that deliberating golems retrieved, with their factors [RECALL, thinkers], and the rule [thinkers].

    recalled: places in the recall's columns, best first, -1 fills. rule: a rule of retrieval.situation. contrarian:
    whether the mood counted reversed. awake, asleep: believed entries that could and could not be retrieved.
    before_weight: weight of the knowledge of the regime before. priors: places of PRIORS scars, PRIORS
    propositions and PRIORS lessons, -1 fills; prior_factors: as FACTORS and the score [5, 3 x PRIORS, thinkers].
    """

    golem: Int64Array
    rule: Int64Array
    contrarian: BoolArray
    coverage: Float64Array
    awake: Int64Array
    asleep: Int64Array
    regime_before: Int64Array
    before_weight: Float64Array
    recalled: Int64Array
    likeness: Float64Array
    recency: Float64Array
    importance: Float64Array
    affect: Float64Array
    score: Float64Array
    priors: Int64Array
    prior_factors: Float64Array


def recollect(
    fleet: Fleet, tape: Tape, t: int, score: Float64Array, tier: Int8Array, surprise: Float64Array, recall: Recall,
    policy: Policy,
) -> Recollection | None:  # fmt: skip
    """Retrieve for the golems at T1 and T2, and note that they thought; None if the gate passed no golem."""
    golem = np.flatnonzero((tier == 1) | (tier == 2))
    if not len(golem):
        return None
    moment = Moment.of(fleet, tape, t, golem, score, surprise, recall, policy)
    fleet.thought_tick[golem] = moment.tick
    return retrieved(golem, moment, recall, policy)


def retrieved(golem: Int64Array, moment: Moment, recall: Recall, policy: Policy) -> Recollection:
    """Return the best entries of each golem (its place in the recall) at a moment."""
    count = recall.count[golem]
    owner = np.repeat(np.arange(len(golem)), count)
    entry = np.arange(len(owner)) + np.repeat(recall.start[golem] - np.cumsum(count) + count, count)
    owner, entry = owner[recall.believed[entry]], entry[recall.believed[entry]]
    weights = regime_weights(moment.regime, moment.regime_before, moment.regime_ticks, policy.retrieval)
    awake = weights[recall.regime[entry], owner]
    is_awake = awake > 0.0
    believed, held = (np.bincount(places, minlength=len(golem)) for places in (owner, owner[is_awake]))
    contrarian = contrarian_turns(moment.tick, moment.thought_tick, policy.retrieval)
    rule = retrieval_rules(
        np.zeros(len(golem), bool), held, contrarian, moment.mood[1], moment.surprise, moment.coverage,
        policy.retrieval,
    )  # fmt: skip
    wanted = is_awake & ~skips(rule)[owner]
    owner, entry, awake = owner[wanted], entry[wanted], awake[wanted]
    factors = np.stack(
        [
            likeness(recall, entry, moment.regime[owner], moment.anomaly[owner], moment.gas[owner], policy),
            recency(moment.at_us[owner], recall.last_us[entry], recall.half_life_us[entry]),
            recall.importance[entry],
            pad_congruence(recall.pad[:, entry], (moment.mood * np.where(contrarian, -1.0, 1.0))[:, owner]),
        ]
    )
    score = contributions(factors, awake, policy.retrieval).sum(axis=0)
    group = owner * len(_PLACES) + recall.shelf[entry]
    order = np.lexsort((-score, group))
    rank = rank_within(group[order])
    kept = rank < _PLACES[recall.shelf[entry[order]]]
    order, rank = order[kept], rank[kept]
    rank += _FIRST[recall.shelf[entry[order]]]
    size = int(_PLACES.sum())
    places, columns = np.full((size, len(golem)), -1), np.zeros((len(FACTORS) + 1, size, len(golem)))
    places[rank, owner[order]] = entry[order]
    columns[:, rank, owner[order]] = np.vstack([factors, np.minimum(score / PPM, 1.0)])[:, order]
    like, fresh, worth, affect, total = columns[:, :RECALL]
    fading = np.where(moment.regime_before >= 0, weights[moment.regime_before, np.arange(len(golem))], 0.0)
    return Recollection(
        golem, rule, contrarian & ~skips(rule), moment.coverage, held, believed - held, moment.regime_before, fading,
        places[:RECALL], like, fresh, worth, affect, total, places[RECALL:], columns[:, RECALL:],
    )  # fmt: skip
