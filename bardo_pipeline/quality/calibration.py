"""Calibration: compare the confidence of entries with the outcomes that were judged later. Pure, set-based.

A belief is an active entry with a sign at the close of a cycle, with its confidence at that moment. It is compared
with the judged decisions of its situation within a horizon after the close. A decision agrees if its effect has the
entry's sign; the belief held if the sum of the effects has it. Sums are integers, so the order of addition is
irrelevant.
Source: X-3 ("of the insights at confidence c, how many held on the following day").
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.events.record.arrow_columns import all_required, codes_of, required
from bardo_pipeline.grimoire.confidence import DAY_US, PPM
from bardo_pipeline.grimoire.entries import MOMENT
from bardo_pipeline.grimoire.entry_columns import confidence_of, int_column, micros, query_tables
from bardo_pipeline.grimoire.gas_bands import split_by_band
from bardo_pipeline.policy import DecayPolicy
from bardo_pipeline.quality.foretold_confidence import subjects_of

BELIEF_SCHEMA = pa.schema(
    [
        *all_required(pa.string(), "golem_id", "entry_id", "structure", "source", "kind"),
        required("cycle", pa.int64()),
        required("at", MOMENT),
        *all_required(pa.int64(), "sign", "confidence_ppm", "own_count", "own_sum", "own_sumsq"),
        pa.field("regime", pa.string()),
    ]
)
"""One row per active entry with a sign and close of a cycle: the confidence at that moment, and the rule's own
evidence. A rule that covers several situations has a row for each."""

OUTCOME_SCHEMA = pa.schema(
    [*all_required(pa.string(), "golem_id", "structure"), required("at", MOMENT), required("effect_ppm", pa.int64())]
)
"""One row per judged decision: the structure of its situation, time of the verdict, effect of acting (ppm)."""

JUDGED_SCHEMA = pa.schema(
    [*BELIEF_SCHEMA, *all_required(pa.int64(), "outcome_count", "agreed_count", "effect_sum_ppm")]
)
"""A belief with the outcomes of its situation within the horizon. An effect of 0 agrees with no sign."""

BAND_SCHEMA = pa.schema(
    all_required(
        pa.int64(), "confidence_low_ppm", "confidence_high_ppm", "belief_count", "confidence_mean_ppm", "held_ppm",
        "outcome_count", "agreed_ppm",
    )
)  # fmt: skip
"""One row per confidence band with judged beliefs: their number, mean confidence, share that held, and the share of
decisions in their situations that agreed."""

SUBJECT_SCHEMA = pa.schema(
    [
        required("subject", pa.string()),
        *all_required(
            pa.int64(), "belief_count", "confidence_mean_ppm", "held_ppm", "brier_held_ppm", "brier_base_ppm"
        ),
    ]
)
"""One row per subject with judged beliefs (subjects_of), by name, with the columns of bands and of Calibration."""

_BELIEVED = """
    with states as (
        select *, lead(cycle) over (partition by golem_id, structure order by cycle, revision, seq) as until
        from decisions
    )
    select place, closes.cycle, closed_at from states join closes using (golem_id)
    where status = 'active' and sign <> 0 and states.cycle <= closes.cycle
        and (until is null or closes.cycle < until)
    order by golem_id, structure, states.cycle, revision, seq, closes.cycle
"""


@dataclass(frozen=True)
class Calibration:
    """Brier scores in ppm (0 is perfect, 250,000 is a coin toss) and the calibration table.

    Parameters
    ----------
    belief_count : beliefs with at least one outcome
    outcome_count : pairs of a belief and a judged decision
    brier_held_ppm, brier_agreed_ppm : over beliefs and over pairs; None without any
    brier_base_ppm : Brier score if each belief's confidence were the share of all beliefs that held
    bands : BAND_SCHEMA
    subjects : SUBJECT_SCHEMA
    """

    belief_count: int
    unjudged_count: int
    outcome_count: int
    brier_held_ppm: int | None
    brier_agreed_ppm: int | None
    bands: pa.Table
    brier_base_ppm: int | None = None
    subjects: pa.Table = field(default_factory=SUBJECT_SCHEMA.empty_table)

    @property
    def is_monotone(self) -> bool:
        """Whether the share of beliefs that held does not fall from band to band."""
        held = int_column(self.bands, "held_ppm")
        return bool((np.diff(held) >= 0).all())


def beliefs_at_closes(decisions: pa.Table, closes: pa.Table, policy: DecayPolicy) -> pa.Table:
    """Return the beliefs at the close of each cycle (BELIEF_SCHEMA) by golem, structure, cycle.

    An entry is a belief from the decision that made it active until the next decision about it.

    Parameters
    ----------
    decisions : DECISION_SCHEMA, valid decisions
    closes : golem_id, cycle, closed_at, one row per closed cycle
    """
    names = ["golem_id", "structure", "cycle", "revision", "seq", "status", "sign"]
    states = decisions.select(names).append_column("place", [np.arange(decisions.num_rows)])
    believed = query_tables(_BELIEVED, decisions=states, closes=closes.select(["golem_id", "cycle", "closed_at"]))
    held = decisions.take(believed["place"])
    columns = {
        **{name: held[name] for name in BELIEF_SCHEMA.names if name in held.column_names},
        "cycle": believed["cycle"],
        "at": believed["closed_at"],
        "confidence_ppm": confidence_of(held, micros(believed, "closed_at"), policy),
    }
    return split_by_band(pa.table({name: columns[name] for name in BELIEF_SCHEMA.names}).cast(BELIEF_SCHEMA))


def judge_beliefs(beliefs: pa.Table, outcomes: pa.Table, *, horizon_us: int = DAY_US) -> pa.Table:
    """Compare each belief with its golem's later outcomes (OUTCOME_SCHEMA) up to the horizon: JUDGED_SCHEMA."""
    situations, golems = outcomes["structure"].unique(), outcomes["golem_id"].unique()

    def key(table: pa.Table) -> Int64Array:
        place, owner = codes_of(table["structure"], situations), codes_of(table["golem_id"], golems)
        return np.where((place < 0) | (owner < 0), -1, owner * len(situations) + place)

    at_us, effect = micros(outcomes, "at"), int_column(outcomes, "effect_ppm")
    instants = np.unique(at_us)
    width = len(instants) + 1
    packed = key(outcomes) * width + np.searchsorted(instants, at_us, side="right")
    order = np.argsort(packed, kind="stable")
    packed, effect = packed[order], effect[order]
    sums = [np.r_[0, np.cumsum(x)] for x in (effect > 0, effect < 0, effect)]
    belief_key, close_us = key(beliefs), micros(beliefs, "at")
    low, high = (
        np.searchsorted(packed, belief_key * width + np.searchsorted(instants, t, side="right"), side="right")
        for t in (close_us, close_us + horizon_us)
    )
    has_outcomes = belief_key >= 0
    count = np.where(has_outcomes, high - low, 0)
    rose, fell, total = (np.where(has_outcomes, s[high] - s[low], 0) for s in sums)
    agreed = np.where(int_column(beliefs, "sign") > 0, rose, fell)
    parts = [*beliefs.columns, *(pa.array(x, pa.int64()) for x in (count, agreed, total))]
    return pa.table(parts, schema=JUDGED_SCHEMA)


def calibration(judged: pa.Table, *, band_count: int = 10, belief_share_min: float = 0.0) -> Calibration:
    """Return Brier scores and the calibration table of judged beliefs (JUDGED_SCHEMA) in equal confidence bands.

    A band with less than `belief_share_min` of the beliefs joins the next higher one, and the last band the one before.
    """
    with_outcome = judged.filter(pc.greater(judged["outcome_count"], 0))
    sure, count, agreed = (int_column(with_outcome, n) for n in ("confidence_ppm", "outcome_count", "agreed_count"))
    held = (int_column(with_outcome, "effect_sum_ppm") * int_column(with_outcome, "sign") > 0).astype(np.int64)
    if not with_outcome.num_rows:
        return Calibration(0, judged.num_rows, 0, None, None, BAND_SCHEMA.empty_table())
    missed, hit = sure * sure // PPM, (PPM - sure) * (PPM - sure) // PPM
    brier_held = int(np.where(held == 1, hit, missed).sum()) // len(sure)
    brier_agreed = int((hit * agreed + missed * (count - agreed)).sum()) // int(count.sum())
    edges = np.array([PPM * i // band_count for i in range(band_count + 1)], np.int64)
    band = np.minimum(np.searchsorted(edges, sure, side="right") - 1, band_count - 1)
    top = _joined_bands(np.bincount(band, minlength=band_count), belief_share_min * len(sure))
    edges, band = edges[np.r_[0, top + 1]], np.searchsorted(top, band)
    beliefs = pa.table({"band": band, "sure": sure, "held": held, "count": count, "agreed": agreed})
    sums = [(name, "sum") for name in ("sure", "held", "count", "agreed")]
    bands = beliefs.group_by("band").aggregate([("band", "count"), *sums]).sort_by("band")
    low, n, confidences, holding, outcomes, agreeing = (
        int_column(bands, name) for name in ("band", "band_count", "sure_sum", "held_sum", "count_sum", "agreed_sum")
    )
    shares = confidences // n, holding * PPM // n, outcomes, agreeing * PPM // outcomes
    bands = pa.table([pa.array(c, pa.int64()) for c in (edges[low], edges[low + 1], n, *shares)], schema=BAND_SCHEMA)
    unjudged, base = judged.num_rows - len(sure), int(held.sum()) * PPM // len(sure)
    brier_base = base * (PPM - base) // PPM
    subjects = _by_subject(subjects_of(with_outcome), sure, held, np.where(held == 1, hit, missed))
    return Calibration(len(sure), unjudged, int(count.sum()), brier_held, brier_agreed, bands, brier_base, subjects)


def _joined_bands(counts: Int64Array, least: float) -> Int64Array:
    """Return the last band of each run of bands that are joined, so that each run has `least` beliefs."""
    tops: list[int] = []
    waiting = 0
    for band, count in enumerate(counts.tolist()):
        waiting += count
        if waiting >= least:
            tops.append(band)
            waiting = 0
    return np.array([*tops[:-1], len(counts) - 1], np.int64)


def _by_subject(subject: pa.Array, sure: Int64Array, held: Int64Array, loss: Int64Array) -> pa.Table:
    """Return the beliefs by subject (SUBJECT_SCHEMA). loss: of each belief, ppm."""
    beliefs = pa.table({"subject": subject, "sure": sure, "held": held, "loss": loss})
    sums = [("sure", "count"), *((name, "sum") for name in ("sure", "held", "loss"))]
    rows = beliefs.group_by("subject", use_threads=False).aggregate(sums).sort_by("subject")
    n, confidence, holding, losses = (
        int_column(rows, name) for name in ("sure_count", "sure_sum", "held_sum", "loss_sum")
    )
    share = holding * PPM // n
    columns = n, confidence // n, share, losses // n, share * (PPM - share) // PPM
    return pa.table([rows["subject"], *(pa.array(c, pa.int64()) for c in columns)], schema=SUBJECT_SCHEMA)
