"""Precision: grade the entries of a grimoire against the known truths of a synthetic market. Pure, set-based.

Each active entry gets a verdict. Looks at several moments show when truths are learned and when expired ones fade.
Source: X-5; docs/adr/0027.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import BoolArray, Float64Array, Int64Array
from bardo_pipeline.events.record.arrow_columns import all_required, required
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.grimoire.entry_columns import confidence_of, int_column, micros
from bardo_pipeline.grimoire.gas_bands import split_by_band
from bardo_pipeline.policy import Policy, WorthPolicy
from bardo_pipeline.quality.true_effects import PlantedTruth, Yardstick, cell_name, cells_of

VERDICTS = ("right", "wrong", "unsupported", "expired", "decoy")
RIGHT, WRONG, UNSUPPORTED, EXPIRED, DECOY = range(5)
SUBJECTS = ("rule", "link", "level", "choice")
"""Kinds of statement: worth of acting, causal link, usual level of a metric, worth of a half-width or of presence."""

_ABOUT_TRUTHS = SUBJECTS[:3]
"""Subjects that count as junk if nothing supports them; choices have a share of their own."""

VERDICT_SCHEMA = pa.schema(
    [
        *all_required(pa.string(), "golem_id", "entry_id", "structure", "subject"),
        required("sign", pa.int64()),
        required("verdict", pa.string()),
        pa.field("truth", pa.string()),
        required("confidence_ppm", pa.int64()),
    ]
)
"""One row per active entry at a moment: its verdict, the truth that decided it, and its confidence. A rule that covers
several situations has a row for each. "expired": made before the market's turn and true then; "unsupported": no outcome
shows it."""


@dataclass(frozen=True, eq=False)
class TrueReadings:
    """Readings of every tick and of every verified action of a market.

    Parameters
    ----------
    at_us, market : time of each tick, and the market's metrics at it by name, in the metric's unit
    usual : lowest and highest usual cost by metric, for golems without records
    costs : golem_id, metric, at_us and value of each verified action
    """

    at_us: Int64Array
    market: Mapping[str, Float64Array]
    usual: Mapping[str, tuple[float, float]]
    costs: pa.Table

    def quartiles(self, golem_id: str, metric: str, at_us: int) -> tuple[float, float] | None:
        """Return the true quartiles of a metric up to a moment; None without a reading."""
        if metric in self.market:
            return _quartiles(self.market[metric][self.at_us <= at_us])
        own = pc.and_(pc.equal(self.costs["golem_id"], golem_id), pc.equal(self.costs["metric"], metric))
        values = self.costs.filter(pc.and_(own, pc.less_equal(self.costs["at_us"], at_us)))["value"]
        return _quartiles(values.to_numpy())

    def is_right(self, golem_id: str, metric: str, at_us: int, stated: tuple[int, int, int]) -> bool:
        """Return whether the stated quartiles (low, median, high) overlap the true ones by half of the wider range.

        A level of costs without any record of a cost is right if its median is usual.
        """
        low, median, high = stated
        true = self.quartiles(golem_id, metric, at_us)
        if true is None:
            least, most = self.usual.get(metric, (1.0, 0.0))
            return self.costs.num_rows == 0 and least <= median <= most
        ranges = np.array([true, (low, high)])
        ranges += np.array([-1, 1]) * (0.5 + _BIN_SHARE * ranges)
        shared = ranges[:, 1].min() - ranges[:, 0].max()
        return bool(2 * shared >= np.diff(ranges, axis=1).max())


_BIN_SHARE = 0.016
"""Share of a value by which a stated quantile may differ from it, because histograms have bins (level_readings.py)."""

NO_COSTS = pa.table(
    {
        "golem_id": pa.array([], pa.string()), "metric": pa.array([], pa.string()), "at_us": pa.array([], pa.int64()),
        "value": pa.array([], pa.int64()),
    }
)  # fmt: skip


def _quartiles(values: Float64Array | Int64Array) -> tuple[float, float] | None:
    if not len(values):
        return None
    low, high = np.percentile(values, (25, 75))
    return float(low), float(high)


@dataclass(frozen=True, eq=False)
class Ground:
    """Known truths of a market.

    Parameters
    ----------
    before, after : worth of acting before and after the market's turn
    turn_us : UTC microseconds; None without a turn
    levels : readings of each metric
    """

    before: Yardstick
    after: Yardstick
    truths: tuple[PlantedTruth, ...]
    start_us: int
    turn_us: int | None
    levels: TrueReadings

    def turned(self, at_us: int) -> bool:
        """Whether the market turned before a moment."""
        return self.turn_us is not None and at_us > self.turn_us

    def outlived(self, entries: pa.Table, at_us: int) -> BoolArray:
        """Return a mask of the entries made before a turn that lies in the past."""
        if self.turn_us is None or not self.turned(at_us):
            return np.zeros(entries.num_rows, bool)
        return micros(entries, "created_at") <= self.turn_us

    def changed(self, policy: WorthPolicy) -> BoolArray:
        """Return a mask [CELLS] of the situations in which the turn significantly changed the sign of acting."""
        spread = np.hypot(self.before.error, self.after.error)
        moved = np.abs(self.after.effect - self.before.effect) >= policy.yardstick_z * spread
        enough = (self.before.sure != 0) & (self.after.days >= policy.yardstick_days_min)
        return np.nan_to_num(moved) & enough & (self.after.sure != self.before.sure)

    def worth(self, at_us: int, policy: WorthPolicy) -> Int64Array:
        """Return the sign of acting at a moment [CELLS]: +1 it pays, -1 it loses, 0 undecided.

        Without a significant change at the turn, the sign from before stays valid.
        """
        if not self.turned(at_us):
            return self.before.sure
        kept = np.where(self.after.sure != 0, self.after.sure, self.before.sure)
        return np.where(self.changed(policy), self.after.sure, kept)


class Recalled(NamedTuple):
    """One truth to be learned: the golems that met it often enough, and how many of them hold it."""

    name: str
    kind: str
    strength: float
    met: int
    held: int

    @property
    def share(self) -> float:
        """Share of the golems that met the truth and hold it."""
        return self.held / self.met if self.met else 0.0


@dataclass(frozen=True)
class Look:
    """Grades of a grimoire at one moment: verdicts (VERDICT_SCHEMA) and recall of the truths to be learned by then."""

    at_us: int
    day: float
    verdicts: pa.Table
    recalled: tuple[Recalled, ...]

    def count(self, *verdicts: int, subjects: tuple[str, ...] = SUBJECTS) -> int:
        """Count the active entries about these subjects with one of these verdicts."""
        words = pa.array([VERDICTS[v] for v in verdicts])
        is_subject = pc.is_in(self.verdicts["subject"], value_set=pa.array(subjects))
        return pc.sum(pc.and_(is_subject, pc.is_in(self.verdicts["verdict"], value_set=words))).as_py() or 0

    @property
    def precision(self) -> float | None:
        """Share of right rules and links, expired ones left out."""
        graded = self.count(RIGHT, WRONG, UNSUPPORTED, DECOY, subjects=("rule", "link"))
        return self.count(RIGHT, subjects=("rule", "link")) / graded if graded else None

    @property
    def junk(self) -> float | None:
        """Share of active entries without support by outcomes, choices left out."""
        entries = self.count(*range(len(VERDICTS)), subjects=_ABOUT_TRUTHS)
        return self.count(WRONG, UNSUPPORTED, DECOY, subjects=_ABOUT_TRUTHS) / entries if entries else None

    @property
    def choice_precision(self) -> float | None:
        """Share of right choices among those that the yardstick decides, expired ones left out."""
        graded = self.count(RIGHT, WRONG, subjects=("choice",))
        return self.count(RIGHT, subjects=("choice",)) / graded if graded else None

    @property
    def recall(self) -> float | None:
        """Mean share of golems that hold a truth, over the truths that were met."""
        shares = [truth.share for truth in self.recalled if truth.met]
        return sum(shares) / len(shares) if shares else None

    @property
    def decoy_confidence(self) -> float:
        """Highest confidence of a decoy as a causal link, 0 without one."""
        return (pc.max(with_verdict(self.verdicts, DECOY)["confidence_ppm"]).as_py() or 0) / PPM


def with_verdict(verdicts: pa.Table, verdict: int) -> pa.Table:
    """Return the rows (VERDICT_SCHEMA) with one verdict."""
    return verdicts.filter(pc.equal(verdicts["verdict"], VERDICTS[verdict]))


def look(grimoire: pa.Table, met: pa.Table, at_us: int, ground: Ground, policy: Policy) -> Look:
    """Grade every active entry of a grimoire at a moment, without strategy fragments, which follow their parts.

    Parameters
    ----------
    grimoire : ENTRY_SCHEMA at that moment
    met : golem_id, cell, windows: market windows in which decisions of the golem were judged in that cell
    """
    is_fragment = pc.equal(grimoire["source"], "strategy")
    living = split_by_band(grimoire.filter(pc.and_(pc.equal(grimoire["status"], "active"), pc.invert(is_fragment))))
    judged = _verdicts(living, at_us, ground, policy)
    golems = len({*grimoire["golem_id"].to_pylist(), *met["golem_id"].to_pylist()})
    day = (at_us - ground.start_us) / 86_400_000_000
    return Look(at_us, day, judged, (*_cells_known(judged, met, at_us, ground, policy.worth),
                                     *_truths_known(judged, golems, at_us, ground, policy.worth)))  # fmt: skip


def _verdicts(living: pa.Table, at_us: int, ground: Ground, policy: Policy) -> pa.Table:
    count = living.num_rows
    verdict, truth = np.full(count, UNSUPPORTED), np.full(count, "", dtype=object)
    source = living["source"].to_numpy(zero_copy_only=False)
    subject = np.select([source == "pattern", source == "causal", source == "choice"], [0, 1, 3], 2)
    sign = int_column(living, "sign")
    rules, links, levels, choices = (np.flatnonzero(subject == s) for s in range(len(SUBJECTS)))
    verdict[rules], truth[rules] = _rules(living.take(pa.array(rules)), sign[rules], at_us, ground, policy.worth)
    verdict[links], truth[links] = _links(living.take(pa.array(links)), sign[links], at_us, ground)
    verdict[levels] = _levels(living.take(pa.array(levels)), at_us, ground)
    verdict[choices] = _choices(living.take(pa.array(choices)), sign[choices], at_us, ground)
    columns = {
        **{name: living[name] for name in ("golem_id", "entry_id", "structure")},
        "subject": pa.array(SUBJECTS).take(pa.array(subject)),
        "sign": pa.array(sign),
        "verdict": pa.array(VERDICTS).take(pa.array(verdict)),
        "truth": pa.array([word or None for word in truth], pa.string()),
        "confidence_ppm": pa.array(confidence_of(living, at_us, policy.decay)),
    }
    return pa.table(columns).cast(VERDICT_SCHEMA)


def _rules(
    rules: pa.Table, sign: Int64Array, at_us: int, ground: Ground, policy: WorthPolicy
) -> tuple[Int64Array, np.ndarray]:
    """Return verdicts and truths of rules. Only re-centring (rebalance) is measured."""
    cell = cells_of(rules)
    is_measured = (cell >= 0) & (rules["action_type"].to_numpy(zero_copy_only=False) == "rebalance")
    sign_now, sign_before = ground.worth(at_us, policy)[cell], ground.before.sure[cell]
    is_expired = ground.changed(policy)[cell] & ground.outlived(rules, at_us) & (sign == sign_before)
    current = np.select([sign_now == 0, sign_now == sign], [UNSUPPORTED, RIGHT], WRONG)
    graded = np.where(is_expired & (current != RIGHT), EXPIRED, current)
    verdict = np.where(is_measured & (sign != 0), graded, UNSUPPORTED)
    names = np.array([cell_truth(c) if c >= 0 else "" for c in cell], dtype=object)
    return verdict, names


def cell_truth(cell: int) -> str:
    """Return the name of the truth about acting in a situation."""
    regime, band, gas = cell_name(cell)
    return f"acting in {regime}, {band}, gas {gas}"


def _links(links: pa.Table, sign: Int64Array, at_us: int, ground: Ground) -> tuple[Int64Array, np.ndarray]:
    """Return verdicts and truths of causal links."""
    parts = [links[name].to_pylist() for name in ("cause", "effect", "lag_ticks")]
    turned, truths = ground.turned(at_us), ground.truths
    judged = [
        judge_link(cause, effect, lag, link_sign, turned=turned, old=old, truths=truths)
        for cause, effect, lag, link_sign, old in zip(
            *parts, sign.tolist(), ground.outlived(links, at_us).tolist(), strict=True
        )
    ]
    return np.array([verdict for verdict, _ in judged], np.int64), np.array([name for _, name in judged], dtype=object)


def judge_link(
    cause: str, effect: str, lag: int | None, sign: int, *, turned: bool, old: bool, truths: tuple[PlantedTruth, ...]
) -> tuple[int, str]:
    """Return the verdict about a causal link and the truth or decoy that decides it.

    Parameters
    ----------
    lag : ticks of one or two minutes
    turned : whether the market's turn lies in the past
    old : whether the link was made before the turn
    """
    candidates = [t for t in truths if (t.cause, t.effect) == (cause, effect)]
    verdict = EXPIRED, ""
    for truth in (t for t in candidates if t.kind != "decoy"):
        near = lag is None or abs(lag - truth.lag_bars) <= max(truth.span_bars, 1)
        if truth.sign == sign and near:
            if (truth.valid_until_bar if turned else truth.valid_from_bar) is None:
                return RIGHT, truth.name
            verdict = EXPIRED if turned and old else WRONG, truth.name
    if verdict[1]:
        return verdict
    decoys = [t for t in candidates if t.kind == "decoy"]
    if decoys:
        return DECOY, decoys[0].name
    return (WRONG, candidates[0].name) if candidates else (UNSUPPORTED, "")


def _levels(levels: pa.Table, at_us: int, ground: Ground) -> Int64Array:
    """Return verdicts of baselines: right if the stated quartiles overlap the true ones by half."""
    stated = zip(*(int_column(levels, f"effect_{name}_ppm").tolist() for name in ("low", "mean", "high")), strict=True)
    named = zip(levels["golem_id"].to_pylist(), levels["metric"].to_pylist(), stated, strict=True)
    right = [ground.levels.is_right(golem_id, metric, at_us, about) for golem_id, metric, about in named]
    return np.where(np.array(right, bool), RIGHT, WRONG)


def _choices(choices: pa.Table, sign: Int64Array, at_us: int, ground: Ground) -> Int64Array:
    """Return verdicts of rules about choices: their sign beside the yardstick's.

    After the turn a choice that its markets leave undecided keeps the sign from before.
    """
    about = list(zip(choices["action_type"].to_pylist(), choices["regime"].to_pylist(), strict=True))
    before, after = (np.array([y.choices.get(a, 0) for a in about], np.int64) for y in (ground.before, ground.after))
    now = np.where(after != 0, after, before) if ground.turned(at_us) else before
    expired = (now != sign) & (sign == before) & (before != 0) & ground.outlived(choices, at_us)
    return np.select([sign == 0, expired, now == 0, now == sign], [UNSUPPORTED, EXPIRED, UNSUPPORTED, RIGHT], WRONG)


def _cells_known(judged: pa.Table, met: pa.Table, at_us: int, ground: Ground, policy: WorthPolicy) -> list[Recalled]:
    """Return recall of the situations whose effect exceeds the strong-effect limit in sigmas.

    A golem met one often enough if a single test over its windows has a power of 80 %.
    """
    yard = ground.after if ground.turned(at_us) else ground.before
    strong = np.flatnonzero((yard.strength >= policy.strong_sigma) & (ground.worth(at_us, policy) == yard.sure))
    right = with_verdict(judged, RIGHT)
    recalled = []
    for cell in strong:
        name = cell_truth(int(cell))
        enough = max(policy.windows_min, policy.learnable / float(yard.strength[cell]) ** 2)
        here = met.filter(pc.and_(pc.equal(met["cell"], int(cell)), pc.greater_equal(met["windows"], enough)))
        golems = here["golem_id"].unique()
        holders = right.filter(pc.equal(right["truth"], name))["golem_id"].unique()
        held = pc.sum(pc.is_in(golems, value_set=holders)).as_py() or 0
        recalled.append(Recalled(name, "rule", float(yard.strength[cell]), len(golems), held))
    return recalled


def _truths_known(judged: pa.Table, golems: int, at_us: int, ground: Ground, policy: WorthPolicy) -> list[Recalled]:
    """Return recall of the strong planted causes, known as a link or, if they decide the worth of acting, as a rule.

    A link without a regime counts for each regime in which it holds; one that restates a truth counts for that truth.
    """
    right = with_verdict(judged, RIGHT)
    recalled = []
    for truth in ground.truths:
        is_expired = ground.turned(at_us) and truth.valid_until_bar is not None
        if truth.kind != "causal" or truth.strength < policy.strong_sigma or is_expired:
            continue
        same = [t.name for t in ground.truths if _statement(t) == _statement(truth) or t.restates == truth.name]
        is_known = pc.is_in(right["truth"], value_set=pa.array(same))
        if truth.rule_sign:
            is_rule = pc.match_substring(right["truth"], f"acting in {truth.regime},")
            is_known = pc.or_(is_known, pc.and_(is_rule, pc.equal(right["sign"], truth.rule_sign)))
        held = len(right.filter(pc.fill_null(is_known, False))["golem_id"].unique())
        recalled.append(Recalled(truth.name, "cause", truth.strength, golems, held))
    return recalled


def _statement(truth: PlantedTruth) -> tuple[str, str, int, int, str]:
    """Return the content of a truth without its regime."""
    return truth.cause, truth.effect, truth.lag_bars, truth.sign, truth.kind
