"""Grades day by day what a fleet learns in a market with planted truths.

The fleet uses the real pipeline: log, curation, grimoire. Only the grader knows the planted truths.
Source: X-5; docs/adr/0027.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.state.decision_log import fold
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.judged_outcomes import (
    calibration_of,
    foretold_calibration_of,
    judgements,
    outcomes_on_record,
)
from bardo_pipeline.derivation.memory.ask import text_vectors
from bardo_pipeline.heartbeat.fleet import Founding
from bardo_pipeline.market.market import Market
from bardo_pipeline.market.regime import DAY_US
from bardo_pipeline.market.synthetic import null_market, synthetic_market
from bardo_pipeline.market.synthetic_spec import DAY_BARS, START, graded_spec, planted_truths
from bardo_pipeline.policy import Policy
from bardo_pipeline.quality.calibration import Calibration
from bardo_pipeline.quality.grimoire_precision import Ground, Look, look
from bardo_pipeline.quality.known_questions import Question, QuestionScore, questions, score_answers
from bardo_pipeline.quality.memory_targets import Bound, Discoveries, Fade, bounds, fades
from bardo_pipeline.quality.true_effects import windows_met
from bardo_pipeline.retrieval.retrieve import Grimoire
from bardo_pipeline.retrieval.situation import Situation
from bardo_pipeline.runtime.fleet_run import FleetRun
from bardo_pipeline.runtime.run_settings import Run
from bardo_pipeline.runtime.truth_measurement import Other, costs_of, measuring, readings_on
from bardo_pipeline.storage.home import Home

_APART = 1_000_003
"""Distance between the seeds of the graded market, the yardstick markets and the null market."""

OnProgress = Callable[[str, float], None]
"""Progress callback: name of the step, share done."""


@dataclass(frozen=True)
class Grading:
    """Settings: seed, number of golems, number of days.

    markets: independent markets for the yardstick of either half; None: the policy's number.
    """

    seed: int
    golems: int = 64
    days: int = 14
    markets: int | None = None

    @property
    def turn_bar(self) -> int:
        """The bar at which the market changes: half-way."""
        return self.days * DAY_BARS // 2


@dataclass(frozen=True)
class Report:
    """Results: daily looks, fade times, discoveries in the null market, answers, calibration, bounds.

    calibration: of the foretold confidence. stated_calibration: of the confidence before its correction.
    """

    grading: Grading
    records: int
    looks: tuple[Look, ...]
    faded: tuple[Fade, ...]
    nothing: Discoveries
    asked: QuestionScore
    calibration: Calibration
    stated_calibration: Calibration
    bounds: tuple[Bound, ...]

    @property
    def kept(self) -> bool:
        """Whether every bound is kept."""
        return all(bound.kept for bound in self.bounds)


def lasting(bars: int) -> Founding:
    """Return founding terms under which golems survive the market, because learning is graded, not dying.

    The capital is the default, so that gas has its usual weight.
    """
    plain = Founding()
    credits = plain.capital_micros // 4
    budget = plain.capital_micros + credits
    return Founding(
        owners=("owner-1",), budget_micros=budget, credit_share=credits / budget, lifespan_ticks=(4 * bars, 4 * bars)
    )


def grade_memory(
    root: Path, grading: Grading, *, policy: Policy, clock: Callable[[], datetime], on_progress: OnProgress
) -> Report:
    """Run the graded and the null market in `root` (an empty folder) and grade the memory. Deterministic."""
    bars, spec = grading.days * DAY_BARS, graded_spec(grading.turn_bar)
    market = synthetic_market(seed=grading.seed, bars=bars, start=START, spec=spec)
    others = _others(grading, policy)
    with measuring(others, lasting(bars), policy) as measured:
        context = lived(root / "graded", market, grading.golems, policy, clock, partial(on_progress, "living"))
        nothing = _nothing(root / "null", grading, policy, clock, on_progress)
        before, after = measured(partial(on_progress, "yardstick"))
    on_progress("grading", 0.0)
    start_us = int(market.at_us[0])
    turn_us = start_us + grading.turn_bar * 60_000_000
    records = context.source.read_cycles(["golem_id", "tick", "observed_at", "actions", "outcome"], None)
    levels = readings_on([market], policy, costs_of(records))
    ground = Ground(before, after, planted_truths(spec), start_us, turn_us, levels)
    judged = judgements(context)
    looks, last = looks_of(context, ground, judged, grading.days)
    faded = tuple(fades(looks, last, ground, policy))
    record_count = int(context.log.heads()["contiguous"].to_numpy().sum())
    on_progress("asking", 0.0)
    answers = questioned(context, last, looks[-1], clock())
    outcomes = outcomes_on_record(context, judged)
    foretold, stated = foretold_calibration_of(context, outcomes), calibration_of(context, outcomes)
    context.log.close()
    kept = bounds(looks, faded, nothing, policy.worth, foretold)
    return Report(grading, record_count, looks, faded, nothing, answers, foretold, stated, kept)


def lived(
    root: Path,
    market: Market,
    golems: int,
    policy: Policy,
    clock: Callable[[], datetime],
    on_progress: Callable[[float], None],
) -> DerivationContext:
    """Create a home, run a fleet through a market in it, and return its context."""
    Home.create(root, policy, clock())
    context = DerivationContext.open(root, policy=policy)
    life = FleetRun(context, Run(f"worth-{market.name}", market, golems, 1, lasting(market.bars)), clock)
    life.live(lambda progress: on_progress(progress.ticks_done / progress.ticks_total))
    return context


def looks_of(
    context: DerivationContext, ground: Ground, judged: pa.Table, days: int
) -> tuple[tuple[Look, ...], pa.Table]:
    """Judge the grimoire at each day's end; return the looks and the last grimoire. judged: JUDGEMENT_SCHEMA."""
    decisions = context.projections.growing("curation").read()
    at_us = decisions["at"].cast(pa.int64()).to_numpy()
    looks, grimoire = [], decisions.slice(0, 0)
    for day in range(1, days + 1):
        now = ground.start_us + day * DAY_US
        grimoire = fold(decisions.filter(pa.array(at_us <= now)))
        looks.append(look(grimoire, windows_met(judged, now, context.policy.worth), now, ground, context.policy))
    return tuple(looks), grimoire


@dataclass(frozen=True)
class RecordedCalibration:
    """Calibration on a recorded market."""

    market: str
    golems: int
    records: int
    calibration: Calibration
    stated_calibration: Calibration


def foretell(
    root: Path, market: Market, golems: int, *, policy: Policy, clock: Callable[[], datetime], on_progress: OnProgress
) -> RecordedCalibration:
    """Run a fleet through a recorded market in `root` (an empty folder) and measure its calibration."""
    context = lived(root / "recorded", market, golems, policy, clock, partial(on_progress, "living"))
    outcomes = outcomes_on_record(context, judgements(context))
    foretold, stated = foretold_calibration_of(context, outcomes), calibration_of(context, outcomes)
    records = int(context.log.heads()["contiguous"].to_numpy().sum())
    context.log.close()
    return RecordedCalibration(market.name, golems, records, foretold, stated)


def _others(grading: Grading, policy: Policy) -> list[list[Other]]:
    """List the yardstick markets before and after the change; the graded fleet does not live in them."""
    count = grading.markets or policy.worth.yardstick_markets
    return [
        [
            Other(grading.seed + _APART * (1 + side * count + number), spec, grading.days * DAY_BARS, START, number)
            for number in range(count)
        ]
        for side, spec in enumerate((graded_spec(None), graded_spec(0)))
    ]


def _nothing(
    root: Path, grading: Grading, policy: Policy, clock: Callable[[], datetime], on_progress: OnProgress
) -> Discoveries:
    """Run a quarter of the golems (at least four) in a market without effects, and count their discoveries."""
    golems = max(grading.golems // 4, min(grading.golems, 4))
    market = null_market(seed=grading.seed + _APART * 1_000, bars=grading.days * DAY_BARS, start=START)
    context = lived(root, market, golems, policy, clock, partial(on_progress, "null market"))
    decisions = context.projections.growing("curation").read()
    context.log.close()
    return discoveries_in(decisions, golems)


def discoveries_in(decisions: pa.Table, golems: int) -> Discoveries:
    """Count tested rules and links, those active at the end, and those active at any time."""
    learned = decisions.filter(pc.not_equal(decisions["source"], "baseline"))
    living, ever = _held(fold(learned)), _held(learned)
    tested, ever_held = (rows.group_by(["golem_id", "entry_id"]).aggregate([]).num_rows for rows in (learned, ever))
    return Discoveries(tested, living.num_rows, ever_held, golems, len(living["golem_id"].unique()))


def _held(rows: pa.Table) -> pa.Table:
    return rows.filter(pc.and_(pc.equal(rows["status"], "active"), pc.not_equal(rows["sign"], 0)))


def questioned(context: DerivationContext, grimoire: pa.Table, last: Look, now: datetime) -> QuestionScore:
    """Ask each golem about its correct entries: in the entry's situation, but in words that the entry does not use.

    grimoire: ENTRY_SCHEMA at the last look. now: recording time of new vectors.
    """
    first = context.policy.worth.questions_in_first
    living = grimoire.filter(pc.equal(grimoire["status"], "active"))
    asked_questions = questions(living, last.verdicts)
    if not asked_questions:
        return score_answers([], first)
    words = sorted({question.words for question in asked_questions})
    vectors = dict(zip(words, np.asarray(context.embedder.embed(words), np.float32), strict=True))
    by_golem: dict[str, list[Question]] = {}
    for question in asked_questions:
        by_golem.setdefault(question.golem_id, []).append(question)
    ranks: list[int | None] = []
    for golem_id, own_questions in sorted(by_golem.items()):
        entries = living.filter(pc.equal(living["golem_id"], golem_id)).combine_chunks()
        index = Grimoire(entries, *text_vectors(context, entries["text"], now), context.policy)
        for question in own_questions:
            situation = Situation(last.at_us, regime=question.regime)
            hits = index.retrieve(vectors[question.words], situation, first, may_skip=False).hits
            ids = hits["entry_id"].to_pylist()
            ranks.append(ids.index(question.entry_id) + 1 if question.entry_id in ids else None)
    return score_answers(ranks, first)
