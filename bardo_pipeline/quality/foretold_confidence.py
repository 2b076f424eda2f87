"""Foretold confidence: the share of judged decisions that agreed after a stated confidence, as a monotone map. Pure.

Every vote of a cycle compares the confidence before it with decisions that were judged since: the entry was reinforced
or contradicted. The share of reinforced votes by confidence band, made monotone by pooling adjacent violators, is the
map of a subject. Votes about one structure on one market day are one witness, because one storm judges all siblings.
Old witnesses weigh less, because markets turn. A prior keeps the map near the confidence of a new entry (canon 1) until
there are witnesses.
Source: X-3, canon 1; docs/adr/0075 (votes measure what a confidence foretells).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Float64Array, Int64Array
from bardo_pipeline.events.record.arrow_columns import all_required, contiguous, required
from bardo_pipeline.grimoire.confidence import DAY_US, PPM
from bardo_pipeline.grimoire.entries import MOMENT
from bardo_pipeline.grimoire.entry_columns import int_column, micros
from bardo_pipeline.policy import CuratorPolicy, ForetellingPolicy

AGREED, OPPOSED = "reinforced", "contradicted"
VOTE_OPERATIONS = (AGREED, OPPOSED)
"""Operations of decisions that compare a confidence with later outcomes."""

SUBJECTS = {"baseline": "level", "causal": "causal_link", "dream": "dream", "choice": "choice"}
"""Subject of an entry by its source; the subject of a pattern is its kind."""

FACTS = SUBJECTS["baseline"], SUBJECTS["causal"]
"""Subjects whose new entries have the confidence of a fact (canon 1)."""

JUDGED_VOTE_SCHEMA = pa.schema(
    [
        *all_required(pa.string(), "structure", "source", "kind", "operation"),
        required("at", MOMENT),
        required("confidence_before_ppm", pa.int64()),
    ]
)
"""Columns of the decisions that a map is made from; operation: one of VOTE_OPERATIONS."""


@dataclass(frozen=True)
class ForetoldMap:
    """The foretold confidence (ppm) at the middle of each band of stated confidence, and the weight of its votes."""

    foretold_ppm: tuple[int, ...]
    witnesses: float

    def of(self, confidence_ppm: Int64Array) -> Int64Array:
        """Return the foretold confidence in ppm, linear between the bands' middles."""
        middles = (2 * np.arange(len(self.foretold_ppm)) + 1) * PPM / (2 * len(self.foretold_ppm))
        return np.rint(np.interp(confidence_ppm, middles, self.foretold_ppm)).astype(np.int64)


def subjects_of(entries: pa.Table) -> pa.Array:
    """Return the subject of each entry or decision (columns source and kind)."""
    source, kind = contiguous(entries["source"]), contiguous(entries["kind"])
    named = pc.index_in(source, value_set=pa.array(list(SUBJECTS)))
    return pc.coalesce(pa.array(list(SUBJECTS.values())).take(named), kind)


def foretold_maps(
    votes: pa.Table, at_us: int, policy: ForetellingPolicy, curator: CuratorPolicy
) -> dict[str, ForetoldMap]:
    """Return the map of each subject that was judged up to a moment. The order of votes does not matter.

    votes: JUDGED_VOTE_SCHEMA, further columns are ignored.
    """
    return Foretelling(votes, policy, curator).maps(at_us)


class Foretelling:
    """Votes as columns in a fixed order, from which maps at several moments are made.

    Confirmations of a strategy fragment follow from its parts, and outcomes never contradict it, so they do not count.
    """

    def __init__(self, votes: pa.Table, policy: ForetellingPolicy, curator: CuratorPolicy) -> None:
        self._policy, self._curator = policy, curator
        votes = votes.filter(pc.not_equal(votes["source"], "strategy"))
        subject, structure = subjects_of(votes).dictionary_encode(), contiguous(votes["structure"]).dictionary_encode()
        self._subjects = subject.dictionary.to_pylist()
        agreed = pc.equal(votes["operation"], AGREED).to_numpy().astype(np.int64)
        columns = (
            micros(votes, "at"),
            subject.indices.to_numpy(zero_copy_only=False).astype(np.int64),
            _ranks(structure)[structure.indices.to_numpy(zero_copy_only=False)],
            int_column(votes, "confidence_before_ppm"),
            agreed,
        )
        order = np.lexsort((agreed, columns[3], columns[2], columns[1], columns[0]))
        self._at_us, self._subject, named, self._before, self._agreed = np.stack(columns)[:, order]
        witnesses = np.stack([self._subject, named, self._at_us // DAY_US])
        self._witness = np.unique(witnesses, axis=1, return_inverse=True)[1].reshape(-1)

    def maps(self, at_us: int) -> dict[str, ForetoldMap]:
        """Return the map of each subject from the votes up to a moment."""
        stop = int(np.searchsorted(self._at_us, at_us, side="right"))
        start = int(np.searchsorted(self._at_us, at_us - round(self._policy.window_days * DAY_US), side="right"))
        chosen = slice(start, stop)
        subject, witness = self._subject[chosen], self._witness[chosen]
        age_days = (at_us - self._at_us[chosen]) / DAY_US
        weight = np.exp2(-age_days / self._policy.half_life_days) / np.bincount(witness)[witness]
        bands = self._policy.bands
        band = np.minimum(self._before[chosen] * bands // PPM, bands - 1)
        return {
            self._subjects[code]: self._map(self._subjects[code], band[own], weight[own], self._agreed[chosen][own])
            for code in np.unique(subject).tolist()
            for own in [subject == code]
        }

    def _map(self, subject: str, band: Int64Array, weight: Float64Array, agreed: Int64Array) -> ForetoldMap:
        rules, curator = self._policy, self._curator
        prior = curator.confidence_fact if subject in FACTS else curator.confidence_insight
        share = rules.prior_witnesses / rules.bands
        heard: Float64Array = np.bincount(band, weight, rules.bands).astype(np.float64) + share
        held: Float64Array = np.bincount(band, weight * agreed, rules.bands).astype(np.float64) + share * prior
        foretold = np.clip(monotone(held / heard, heard), rules.foretold_min, rules.foretold_max)
        return ForetoldMap(tuple(np.rint(foretold * PPM).astype(np.int64).tolist()), float(weight.sum()))


def foretold_ppm(maps: Mapping[str, ForetoldMap], entries: pa.Table, confidence_ppm: Int64Array) -> Int64Array:
    """Return the foretold confidence of entries (columns source, kind); an unmeasured subject keeps its confidence."""
    foretold = confidence_ppm.copy()
    subject = subjects_of(entries).to_numpy(zero_copy_only=False)
    for name, known in maps.items():
        own = subject == name
        foretold[own] = known.of(confidence_ppm[own])
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


def _ranks(structure: pa.DictionaryArray) -> Int64Array:
    """Return the rank by name of each word, so that codes do not depend on the order of rows."""
    names = structure.dictionary.to_pylist()
    return np.argsort(np.array(sorted(range(len(names)), key=names.__getitem__), np.int64))
