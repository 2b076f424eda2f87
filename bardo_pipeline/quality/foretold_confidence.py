"""Foretold confidence: the chance that an entry holds on the next day, corrected by a map of its confidence. Pure.

The chance comes from a rule's own evidence: an effect that is large beside the spread of its windows keeps its sign.
For facts and dreams it is the confidence of a new entry (canon 1).

A verdict compares a chance with what came after it. A rule about an act or a choice holds if its own evidence of
the next day, as far as it is known, has its sign. A level or a causal link holds if the curator's next vote reinforces
it. The correction of a subject comes from the verdicts known at a moment. It is the share that held less the mean
chance, by band of confidence, shrunk towards that over all bands and made monotone by pooling adjacent violators.
Verdicts about one subject on one market day are one witness, because one storm judges all golems and structures; the
structures of a day weigh the same. Old witnesses weigh less, because markets turn.
Source: X-3, canon 1; docs/adr/0075, 0085, 0094.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import BoolArray, Float64Array, Int64Array, StringArray
from bardo_pipeline.events.record.arrow_columns import contiguous
from bardo_pipeline.grimoire.confidence import DAY_US, PPM
from bardo_pipeline.grimoire.entries import TEXT
from bardo_pipeline.grimoire.entry_columns import confidence_of, int_column, micros
from bardo_pipeline.policy import Policy

AGREED, OPPOSED = "reinforced", "contradicted"
VOTE_OPERATIONS = (AGREED, OPPOSED)
"""Operations of decisions that compare a confidence with later outcomes."""

SUBJECTS = {"baseline": "level", "causal": "causal_link", "dream": "dream", "choice": "choice", TEXT: TEXT}
"""Subject of an entry by its source; the subject of a pattern is its kind."""

FACTS = SUBJECTS["baseline"], SUBJECTS["causal"]
"""Subjects whose new entries have the confidence of a fact (canon 1)."""

RULES = ("insight", "heuristic", "warning", SUBJECTS["choice"])
"""Subjects that foretell their chance before their first verdict. Others keep the stated confidence."""

_JUDGED_BY_EFFECT, _JUDGED_BY_VOTE = ("pattern", "choice"), ("baseline", "causal", "dream")
"""Sources whose own evidence is a sum of effects, and sources that votes judge. A strategy fragment follows its parts,
and outcomes never contradict it, so it has no verdicts."""

_REGROUPED = ("generalized", "folded", "parted")
"""Operations that give an entry the evidence of others, or take it away."""

FORETOLD_COLUMNS = (
    "golem_id", "revision", "cycle", "seq", "at", "operation", "confidence_before_ppm", "structure", "source", "kind",
    "status", "sign", "confidence_ppm", "decay_class", "provenance", "is_anti_knowledge", "is_bloodstain",
    "evidence_count", "pinned_ppm", "own_count", "own_sum", "own_sumsq", "regime", "anchor_at",
)  # fmt: skip
"""Columns of the curator's decisions from which verdicts are made."""


@dataclass(frozen=True)
class ForetoldMap:
    """A correction of chances (ppm) at the middle of each band of stated confidence.

    witnesses: weight of the verdicts. bounds_ppm: lowest and highest foretold confidence.
    """

    correction_ppm: tuple[int, ...]
    witnesses: float
    bounds_ppm: tuple[float, float]

    def of(self, confidence_ppm: Int64Array, chance_ppm: Int64Array) -> Int64Array:
        """Return the foretold confidence in ppm. The correction is linear between the bands' middles."""
        middles = (2 * np.arange(len(self.correction_ppm)) + 1) * PPM / (2 * len(self.correction_ppm))
        corrected = chance_ppm + np.interp(confidence_ppm, middles, self.correction_ppm)
        return np.rint(np.clip(corrected, *self.bounds_ppm)).astype(np.int64)


def subjects_of(entries: pa.Table) -> pa.Array:
    """Return the subject of each entry or decision (columns source and kind)."""
    source, kind = contiguous(entries["source"]), contiguous(entries["kind"])
    named = pc.index_in(source, value_set=pa.array(list(SUBJECTS)))
    return pc.coalesce(pa.array(list(SUBJECTS.values())).take(named), kind)


def chances_of(entries: pa.Table, policy: Policy) -> tuple[StringArray, Int64Array]:
    """Return subject and chance (ppm) of each entry, decision or belief. A rule without own evidence has one half.

    If windows are independent, the sum of the next w has the sign of the mean of the last n with the chance
    Phi(mean / sqrt(variance * (1/w + 1/n))). The logistic function stands for Phi, because its tails are heavier.
    """
    rules, curator, subject = policy.foretelling, policy.curator, subjects_of(entries)
    count, total, squares = (int_column(entries, name) for name in ("own_count", "own_sum", "own_sumsq"))
    weight, n = curator.variance_prior, np.maximum(count, 1)
    spread = weight * curator.effect_sigma_prior_ppm**2 + np.maximum(squares - total * (total / n), 0.0)
    of_choice = np.where(entries["regime"].is_null(), rules.choice_windows, rules.regime_windows)
    ahead = np.where(pc.equal(subject, SUBJECTS["choice"]), of_choice, rules.pattern_windows)
    lead = total / (weight + count) / np.sqrt(spread / (weight + n - 1) * (1 / ahead + 1 / n))
    by_evidence = 0.5 + 0.5 * np.tanh(_LOGISTIC / 2 * int_column(entries, "sign") * lead)
    new = np.where(pc.is_in(subject, pa.array(FACTS)), curator.confidence_fact, curator.confidence_insight)
    chance = np.where(pc.is_in(subject, pa.array(RULES)), by_evidence, new)
    return subject.to_numpy(zero_copy_only=False), np.rint(chance * PPM).astype(np.int64)


_LOGISTIC = 1.7
"""Slope at which the logistic function is nearest to the normal distribution's."""


def foretold_maps(decisions: pa.Table, at_us: int, policy: Policy) -> dict[str, ForetoldMap]:
    """Return the map of each subject at a moment. The order of decisions does not matter.

    decisions: FORETOLD_COLUMNS, valid decisions; further columns are ignored.
    """
    return Foretelling(decisions, policy).maps(at_us)


class Foretelling:
    """Decisions as columns in a fixed order, from which maps at several moments are made. It knows no later outcome."""

    def __init__(self, decisions: pa.Table, policy: Policy) -> None:
        self._rules = policy.foretelling
        by_effect, by_vote = (_of_sources(decisions, sources) for sources in (_JUDGED_BY_EFFECT, _JUDGED_BY_VOTE))
        by_vote = by_vote.filter(pc.is_in(by_vote["operation"], value_set=pa.array(VOTE_OPERATIONS)))
        self._evidence = _Evidence.of(by_effect)
        stated = np.concatenate(
            [confidence_of(by_effect, self._evidence.at_us, policy.decay), int_column(by_vote, "confidence_before_ppm")]
        )
        self._band = np.minimum(stated * self._rules.bands // PPM, self._rules.bands - 1)
        self._vote_us, self._agreed = micros(by_vote, "at"), pc.equal(by_vote["operation"], AGREED).to_numpy()
        judged = pa.concat_tables([by_effect, by_vote])
        names, chance = chances_of(judged, policy)
        self._chance, subject = chance / PPM, pa.array(names, pa.string()).dictionary_encode()
        self._subjects, self._subject = subject.dictionary.to_pylist(), subject.indices.to_numpy(zero_copy_only=False)
        structure = contiguous(judged["structure"]).dictionary_encode().indices.to_numpy(zero_copy_only=False)
        days, day = np.unique(np.concatenate([self._evidence.at_us, self._vote_us]) // DAY_US, return_inverse=True)
        self._witness = self._subject * len(days) + day
        situation = self._witness * (structure.max(initial=0) + 1) + structure
        self._situation = np.unique(situation, return_inverse=True)[1]

    def maps(self, at_us: int) -> dict[str, ForetoldMap]:
        """Return the map of each subject from the verdicts known at a moment."""
        since = at_us - round(self._rules.window_days * DAY_US)
        rows, held, until_us = self._evidence.verdicts(since, at_us)
        passed = (until_us - self._evidence.at_us[rows]) / DAY_US
        votes = np.flatnonzero((self._vote_us > since) & (self._vote_us <= at_us))
        rows = np.concatenate([rows, votes + len(self._evidence.at_us)])
        held = np.concatenate([held, self._agreed[votes]])
        passed = np.concatenate([passed, np.ones(len(votes))])
        age_days = (at_us - np.concatenate([until_us, self._vote_us[votes]])) / DAY_US
        witness, situation, subject = self._witness[rows], self._situation[rows], self._subject[rows]
        share = 1 / np.bincount(situation)[situation]
        weight = passed * np.exp2(-age_days / self._rules.half_life_days) * share / np.bincount(witness, share)[witness]
        known = {name: subject == code for code, name in enumerate(self._subjects)}
        nothing = np.zeros(len(rows), bool)
        return {
            name: self._map(name, self._band[rows[own]], weight[own], (held - self._chance[rows])[own])
            for name in sorted({*known, *RULES})
            if (own := known.get(name, nothing)).any() or name in RULES
        }

    def _map(self, subject: str, band: Int64Array, weight: Float64Array, surplus: Float64Array) -> ForetoldMap:
        """Return the correction of a subject. surplus: 1 for each verdict that held, else 0, less the chance."""
        rules, known = self._rules, math.fsum(weight)
        prior = rules.rule_witnesses if subject in RULES else rules.fact_witnesses
        of_all = math.fsum(weight * surplus) / (known + prior)
        heard: Float64Array = np.bincount(band, weight, rules.bands).astype(np.float64) + prior
        gained: Float64Array = np.bincount(band, weight * surplus, rules.bands).astype(np.float64) + prior * of_all
        correction = np.rint(monotone(gained / heard, heard) * PPM).astype(np.int64)
        return ForetoldMap(tuple(correction.tolist()), known, (rules.foretold_min * PPM, rules.foretold_max * PPM))


@dataclass(frozen=True)
class _Evidence:
    """Decisions about rules by golem, structure and time, with the rule's own evidence so far.

    span: number of the golem's structure; it rises where the rule takes over the evidence of others, or loses it.
    is_claim: whether the decision left a rule with a sign in force.
    """

    at_us: Int64Array
    span: Int64Array
    count: Int64Array
    total: Int64Array
    sign: Int64Array
    is_claim: BoolArray

    @classmethod
    def of(cls, rows: pa.Table) -> _Evidence:
        """Return the columns of decisions that are sorted by golem, structure and time."""
        golem, structure = (rows[name].to_numpy(zero_copy_only=False) for name in ("golem_id", "structure"))
        begins = np.ones(rows.num_rows, bool)
        begins[1:] = (golem[1:] != golem[:-1]) | (structure[1:] != structure[:-1])
        begins |= pc.is_in(rows["operation"], value_set=pa.array(_REGROUPED)).to_numpy()
        count, total, sign = (int_column(rows, name) for name in ("own_count", "own_sum", "sign"))
        is_claim = (sign != 0) & pc.equal(rows["status"], "active").to_numpy()
        return cls(micros(rows, "at"), np.cumsum(begins), count, total, sign, is_claim)

    def verdicts(self, since_us: int, at_us: int) -> tuple[Int64Array, BoolArray, Int64Array]:
        """Return rows of claims with later evidence of their day, whether they held, and when that was known."""
        rows = np.flatnonzero(self.is_claim & (self.at_us > since_us) & (self.at_us < at_us))
        until = np.minimum(self.at_us[rows] + DAY_US, at_us)
        first = int(self.at_us.min(initial=0))
        reach = int(self.at_us.max(initial=0)) - first + 2 * DAY_US
        packed = self.span * reach + (self.at_us - first)
        ends = self.span[rows] * reach + np.minimum(until - first, reach - 1)
        last = np.searchsorted(packed, ends, side="right") - 1
        judged = self.count[last] > self.count[rows]
        rows, last = rows[judged], last[judged]
        return rows, (self.total[last] - self.total[rows]) * self.sign[rows] > 0, until[judged]


def _of_sources(decisions: pa.Table, sources: tuple[str, ...]) -> pa.Table:
    """Return the decisions about entries of these sources by golem, structure and time."""
    rows = decisions.select(FORETOLD_COLUMNS).filter(pc.is_in(decisions["source"], value_set=pa.array(sources)))
    keys = [(name, "ascending") for name in ("golem_id", "structure", "cycle", "revision", "seq")]
    return rows.take(pc.sort_indices(rows, sort_keys=keys))


def foretold_ppm(
    maps: Mapping[str, ForetoldMap], subject: StringArray, chance_ppm: Int64Array, confidence_ppm: Int64Array
) -> Int64Array:
    """Return the foretold confidence of entries (chances_of); an unmeasured subject keeps its confidence."""
    foretold = confidence_ppm.copy()
    for name, known in maps.items():
        if not (own := subject == name).any():
            continue
        foretold[own] = known.of(confidence_ppm[own], chance_ppm[own])
    return foretold


def monotone(values: Float64Array, weights: Float64Array) -> Float64Array:
    """Return the non-decreasing values with the least weighted squares from these (pool adjacent violators)."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, number
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        pools.append((value, weight, 1))
        while len(pools) > 1 and pools[-2][0] >= pools[-1][0]:
            (low, w, n), (high, v, m) = pools[-2:]
            pools[-2:] = [((low * w + high * v) / (w + v), w + v, n + m)]
    return np.repeat([mean for mean, _, _ in pools], [number for _, _, number in pools])
