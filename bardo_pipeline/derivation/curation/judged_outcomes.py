"""Judged decisions (one row per verified resolution) and judged outcomes (their mean by situation, golem and tick).

Evaluations compare a golem's memory with judged decisions, quality/calibration.py its beliefs with judged outcomes.
Source: X-3, X-5.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.state.evidence import EVIDENCE_COLUMNS, gather_evidence, judged_effects, trial_effects
from bardo_pipeline.curator.state.structures import Structures
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.retraction_tracking import without_retracted
from bardo_pipeline.events.record.arrow_columns import all_required, contiguous, required
from bardo_pipeline.grimoire.confidence import DAY_US
from bardo_pipeline.grimoire.entries import MOMENT
from bardo_pipeline.grimoire.entry_columns import int_column, micros, moments, with_columns
from bardo_pipeline.quality.calibration import (
    OUTCOME_SCHEMA,
    Calibration,
    beliefs_at_closes,
    calibration,
    judge_beliefs,
)
from bardo_pipeline.quality.foretold_confidence import (
    FORETOLD_COLUMNS,
    VOTE_OPERATIONS,
    Foretelling,
    chances_of,
    foretold_ppm,
)


def judged_outcomes(context: DerivationContext, golems: Sequence[str] | None = None) -> pa.Table:
    """Return the verified outcomes (OUTCOME_SCHEMA) of all golems or of these, without those of retracted records.

    Judgements of one situation in one tick become one outcome with their mean effect. The policy's bands define which
    situations are equal. Rows are sorted by golem and time.
    """
    records = without_retracted(context.log.read_cycles(EVIDENCE_COLUMNS, golems=golems), context.left_out())
    has_resolutions = pc.list_value_length(contiguous(records["resolutions"])).to_numpy(zero_copy_only=False) > 0
    records = records.filter(pa.array(has_resolutions))
    if not records.num_rows:
        return OUTCOME_SCHEMA.empty_table()
    golem_ids = records["golem_id"].unique()
    golem = pc.index_in(records["golem_id"], value_set=golem_ids).to_numpy().astype(np.int64)
    tick, structures = records["tick"].to_numpy().astype(np.int64), Structures()
    evidence = gather_evidence(records, golem=golem, cycle=tick, structures=structures, policy=context.policy.curator)
    is_pattern = np.array([row.source == "pattern" for row in structures.rows], bool)[evidence.structure]
    judged_golem, judged_tick = evidence.golem[is_pattern], evidence.cycle[is_pattern]
    order = np.argsort(golem << 40 | tick)
    record = order[np.searchsorted((golem << 40 | tick)[order], judged_golem << 40 | judged_tick)]
    keys = pa.array([row.key for row in structures.rows], pa.string())
    columns = [
        pa.array(golem_ids).take(pa.array(judged_golem)),
        keys.take(pa.array(evidence.structure[is_pattern])),
        moments(records["observed_at"].cast(pa.int64()).to_numpy()[record]),
        pa.array(evidence.total[is_pattern] // np.maximum(evidence.count[is_pattern], 1), pa.int64()),
    ]
    table = pa.table(columns, schema=OUTCOME_SCHEMA)
    return table.sort_by([("golem_id", "ascending"), ("at", "ascending"), ("structure", "ascending")])


_RECORD_COLUMNS = ("golem_id", "tick", "observed_at", "observation", "resolutions")

JUDGEMENT_SCHEMA = pa.schema(
    [
        *all_required(pa.string(), "golem_id", "structure", "regime", "anomaly_band", "gas_band"),
        required("at", MOMENT),
        required("effect_ppm", pa.int64()),
    ]
)
"""One row per judged decision, by golem and time of the verdict. structure: key of the situation. effect_ppm: of acting
compared with holding, in ppm of the position's value."""


def judgements(context: DerivationContext) -> pa.Table:
    """Return all verified judgements on record (JUDGEMENT_SCHEMA), without those of retracted records."""
    records = without_retracted(context.source.read_cycles(list(_RECORD_COLUMNS), None), context.left_out())
    structures = Structures()
    row, structure, effect_ppm, _, _ = judged_effects(records, structures, context.policy.curator)
    record, situation = pa.array(row), pa.array(structure)
    bands = {name: pa.array(structures.column(name), pa.string()) for name in ("regime", "anomaly_band", "gas_band")}
    columns = {
        "golem_id": records["golem_id"].take(record),
        "structure": pa.array([row.key for row in structures.rows], pa.string()).take(situation),
        **{name: words.take(situation) for name, words in bands.items()},
        "at": records["observed_at"].take(record),
        "effect_ppm": effect_ppm,
    }
    table = pa.table(columns).cast(JUDGEMENT_SCHEMA)
    return table.sort_by([("golem_id", "ascending"), ("at", "ascending"), ("structure", "ascending")])


def outcomes_on_record(context: DerivationContext, judged: pa.Table) -> pa.Table:
    """Return judged decisions and the verified trials of choices as outcomes (OUTCOME_SCHEMA), in any order.

    judged: JUDGEMENT_SCHEMA. A trial is an outcome of its choice in all regimes, and of its choice in the window's
    regime. Trials of retracted records are left out.
    """
    records = context.source.read_cycles(["golem_id", "tick", "observed_at", "observation", "trials"], None)
    records, structures = without_retracted(records, context.left_out()), Structures()
    row, structure, effect_ppm, _, _ = trial_effects(records, structures, context.policy.curator)
    record, about = pa.array(row), pa.array(structure)
    columns = {
        "golem_id": records["golem_id"].take(record),
        "structure": pa.array([row.key for row in structures.rows], pa.string()).take(about),
        "at": records["observed_at"].take(record),
        "effect_ppm": effect_ppm,
    }
    return pa.concat_tables([judged.select(OUTCOME_SCHEMA.names), pa.table(columns).cast(OUTCOME_SCHEMA)])


def foretold_decisions(
    context: DerivationContext, golems: Sequence[str] | None = None, *, at_us: int | None = None
) -> pa.Table:
    """Return the decisions from which foretold confidences of all golems or of these are made (FORETOLD_COLUMNS).

    at_us: limit them to those that count at this moment.
    """
    wanted = (pc.field("sign") != 0) | pc.field("operation").isin(VOTE_OPERATIONS)
    if at_us is not None:
        span_us = round(context.policy.foretelling.window_days * DAY_US)
        since, until = (pa.scalar(us, pa.int64()).cast(MOMENT) for us in (at_us - span_us, at_us))
        wanted &= (pc.field("at") > since) & (pc.field("at") <= until)
    return context.projections.growing("curation").read(list(FORETOLD_COLUMNS), golems=golems, only=wanted)


def calibration_of(
    context: DerivationContext, judged: pa.Table, *, golems: Sequence[str] | None = None, horizon_us: int = DAY_US
) -> Calibration:
    """Compare confidence at the close of each cycle with the share of judged outcomes that held afterwards.

    Parameters
    ----------
    judged : OUTCOME_SCHEMA or JUDGEMENT_SCHEMA
    horizon_us : horizon after a close in which outcomes count, microseconds
    """
    return calibration(judge_beliefs(_beliefs(context, golems), judged, horizon_us=horizon_us))


def foretold_calibration_of(context: DerivationContext, judged: pa.Table) -> Calibration:
    """Compare what confidences foretold at the close of each cycle with the judged outcomes that held afterwards.

    Each belief is corrected by the map of that moment, which knows no later outcome. judged: OUTCOME_SCHEMA
    or JUDGEMENT_SCHEMA.
    """
    beliefs = judge_beliefs(_beliefs(context, None), judged)
    known = Foretelling(foretold_decisions(context), context.policy)
    at_us, foretold = micros(beliefs, "at"), int_column(beliefs, "confidence_ppm").copy()
    is_judged = int_column(beliefs, "outcome_count") > 0
    subject, chance = chances_of(beliefs, context.policy)
    for moment in np.unique(at_us[is_judged]).tolist():
        now = np.flatnonzero((at_us == moment) & is_judged)
        foretold[now] = foretold_ppm(known.maps(moment), subject[now], chance[now], foretold[now])
    corrected = with_columns(beliefs, confidence_ppm=foretold)
    return calibration(corrected, band_count=FORETOLD_BANDS, belief_share_min=FORETOLD_SHARE_MIN)


FORETOLD_BANDS, FORETOLD_SHARE_MIN = 5, 0.02
"""Bands of the calibration of foretold confidence, and the least share of the judged beliefs in one of them."""


def _beliefs(context: DerivationContext, golems: Sequence[str] | None) -> pa.Table:
    decisions = context.projections.growing("curation").read(golems=golems)
    closes = context.projections.growing("cycles").read(["golem_id", "cycle", "closed_at"], golems=golems)
    return beliefs_at_closes(decisions, closes, context.policy.decay)
