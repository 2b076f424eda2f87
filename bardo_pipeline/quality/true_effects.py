"""Yardstick: true worth of acting by situation, measured on other markets than those of the graded memory. Pure.

A situation is a cell (regime, anomaly band, gas band). All decisions in one market window count as one observation.
Observations of one day are not independent, so the error of a mean is computed between days.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import product

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Float64Array, Int64Array
from bardo_pipeline.events.record.arrow_columns import codes_of
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.entries import ANOMALY_BANDS, GAS_BANDS
from bardo_pipeline.policy import CuratorPolicy, WorthPolicy

CELLS = len(REGIMES) * len(ANOMALY_BANDS) * len(GAS_BANDS)
_MINUTE_US = 60_000_000
_DAY_US = 1_440 * _MINUTE_US
_MARKET_SPAN = 10**9  # more windows than any market has


@dataclass(frozen=True)
class PlantedTruth:
    """A regularity planted in a synthetic market, against which learning is graded.

    Parameters
    ----------
    cause, effect : names of observed variables
    lag_bars : minutes from cause to effect (for a decay, its half-life), >= 0
    regime : "calm", "trending_up", "trending_down", "volatile" or "any"
    sign : +1 if the effect moves with the cause, -1 if against it
    span_bars : minutes around the lag in which the effect is visible
    size, sigma : mean of the effect and standard deviation of one observation without it, in one unit
    kind : "causal"; "entailed" (follows from causal ones; right if known, not required); "decoy" (a correlation only)
    restates : name of the causal truth that an entailed one expresses in another variable
    rule_sign : +1 if the truth makes acting pay in its regime, -1 if it makes acting lose, 0 without influence
    valid_until_bar, valid_from_bar : first bar without and with the truth; None: no such bar
    """

    name: str
    statement: str
    cause: str
    effect: str
    lag_bars: int
    regime: str
    sign: int
    span_bars: int = 0
    size: float = 0.0
    sigma: float = 1.0
    kind: str = "causal"
    restates: str | None = None
    rule_sign: int = 0
    valid_until_bar: int | None = None
    valid_from_bar: int | None = None

    @property
    def strength(self) -> float:
        """Effect in standard deviations of one observation, >= 0."""
        return abs(self.size) / self.sigma


@dataclass(frozen=True, eq=False)
class Judged:
    """Judged decisions, one array element each.

    Parameters
    ----------
    market : number of the market
    golem : index in the fleet
    at_us : time of the decision, UTC microseconds
    regime : index in REGIMES
    score : anomaly score in [0, 1]
    gas_ratio : gas price over its hourly mean
    effect_ppm : acting less holding, share of the position's value
    """

    market: Int64Array
    golem: Int64Array
    at_us: Int64Array
    regime: Int64Array
    score: Float64Array
    gas_ratio: Float64Array
    effect_ppm: Int64Array

    @property
    def count(self) -> int:
        """Number of decisions."""
        return len(self.golem)

    @classmethod
    def together(cls, parts: Sequence[Judged]) -> Judged:
        """Concatenate the decisions of several markets."""
        return cls(**{f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(cls)})


@dataclass(frozen=True, eq=False)
class JudgedChoices:
    """Closed windows of trials, one array element for each golem, window and alternative.

    Parameters
    ----------
    market : number of the market
    at_us : time of the verdict, UTC microseconds
    act : index in the action types of choices
    regime : index in REGIMES, of the window's first tick
    effect_ppm : the alternative less its rival, share of the position's value
    """

    market: Int64Array
    at_us: Int64Array
    act: Int64Array
    regime: Int64Array
    effect_ppm: Int64Array

    @classmethod
    def together(cls, parts: Sequence[JudgedChoices]) -> JudgedChoices:
        """Concatenate the windows of several markets."""
        return cls(**{f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(cls)})


ChoiceSigns = Mapping[tuple[str, str | None], int]
"""+1 the choice pays, -1 it loses, 0 undecided, by action type and regime, None for all regimes."""


@dataclass(frozen=True, eq=False)
class Yardstick:
    """Worth of acting less holding by cell, arrays of CELLS elements; NaN for a situation that never occurred.

    Parameters
    ----------
    effect, error : mean over windows and its standard error between days, ppm
    sigma : standard deviation of a window's mean
    windows, days : counts
    sure : +1 acting pays, -1 it loses, 0 undecided
    choices : the same sign of each choice (measure_choices)
    """

    effect: Float64Array
    error: Float64Array
    sigma: Float64Array
    windows: Int64Array
    days: Int64Array
    sure: Int64Array
    choices: ChoiceSigns = field(default_factory=dict)

    @property
    def strength(self) -> Float64Array:
        """Effects in standard deviations of one window, >= 0; 0 for undecided cells."""
        ratio = np.abs(self.effect) / np.maximum(np.where(np.isnan(self.sigma), 1.0, self.sigma), 1.0)
        return np.where(self.sure == 0, 0.0, ratio)


def cell_name(cell: int) -> tuple[str, str, str]:
    """Return regime, anomaly band and gas band of a cell."""
    return REGIMES[cell // 15], ANOMALY_BANDS[cell // 3 % 5], GAS_BANDS[cell % 3]


def cells_of(entries: pa.Table) -> Int64Array:
    """Return the cell of each entry (ENTRY_SCHEMA), -1 for an entry without one."""
    parts = (("regime", REGIMES), ("anomaly_band", ANOMALY_BANDS), ("gas_band", GAS_BANDS))
    regime, band, gas = (codes_of(entries[name], words) for name, words in parts)
    return np.where((regime < 0) | (band < 0) | (gas < 0), -1, (regime * 5 + band) * 3 + gas)


def measure(judged: Judged, curator: CuratorPolicy, worth: WorthPolicy) -> Yardstick:
    """Compute the yardstick of these decisions; without any, every cell is undecided."""
    band = np.searchsorted(curator.anomaly_edges, judged.score, side="right")
    gas = np.searchsorted(curator.gas_edges, judged.gas_ratio, side="right")
    cell = (judged.regime.astype(np.int64) * 5 + band) * 3 + gas
    look = judged.market * _MARKET_SPAN + judged.at_us // (worth.window_minutes * _MINUTE_US)
    day = judged.market * _MARKET_SPAN + judged.at_us // _DAY_US
    return _measured(cell, look, day, judged.effect_ppm, CELLS, worth)


def measure_choices(judged: JudgedChoices, acts: Sequence[str], worth: WorthPolicy) -> ChoiceSigns:
    """Return the sign of each choice, in each regime and over all. All golems' windows of one moment count once.

    acts: the action types of choices.
    """
    places = (*REGIMES, None)
    twice = {f.name: np.tile(getattr(judged, f.name), 2) for f in fields(judged)}
    regime = np.concatenate([judged.regime, np.full(len(judged.regime), len(REGIMES))])
    cell = twice["act"].astype(np.int64) * len(places) + regime
    look = twice["market"] * _MARKET_SPAN + twice["at_us"] // _MINUTE_US
    day = twice["market"] * _MARKET_SPAN + twice["at_us"] // _DAY_US
    sure = _measured(cell, look, day, twice["effect_ppm"], len(acts) * len(places), worth).sure
    return dict(zip(product(acts, places), sure.tolist(), strict=True))


def _measured(
    cell: Int64Array, look: Int64Array, day: Int64Array, effect_ppm: Int64Array, cells: int, worth: WorthPolicy
) -> Yardstick:
    """Return the yardstick of effects. look, day: window and day of each; effects of a window count once, as a mean."""
    pairs, first, place = np.unique(np.stack([cell, look], 1), axis=0, return_index=True, return_inverse=True)
    place = place.reshape(-1)
    seen = np.bincount(place, minlength=len(pairs)).astype(np.float64)
    mean = np.bincount(place, effect_ppm.astype(np.float64), minlength=len(pairs)) / seen
    windows = np.bincount(pairs[:, 0], minlength=cells) if len(pairs) else np.zeros(cells, np.int64)
    with np.errstate(invalid="ignore", divide="ignore"):
        effect = np.bincount(pairs[:, 0], mean, minlength=cells) / windows
        days, error = _error_between_days(pairs[:, 0], day[first], mean - effect[pairs[:, 0]], windows)
        sigma = np.sqrt(np.bincount(pairs[:, 0], (mean - effect[pairs[:, 0]]) ** 2, minlength=cells) / windows)
        enough = (days >= worth.yardstick_days_min) & (np.abs(effect) >= worth.yardstick_z * error)
    sure = np.where(enough, np.sign(effect), 0.0)
    return Yardstick(effect, error, sigma, windows, days, np.nan_to_num(sure).astype(np.int64))


def _error_between_days(
    cell: Int64Array, day: Int64Array, deviation: Float64Array, windows: Int64Array
) -> tuple[Int64Array, Float64Array]:
    """Return the number of days of each cell and the standard error of its mean with days as clusters."""
    groups, place = np.unique(np.stack([cell, day], 1), axis=0, return_inverse=True)
    total = np.bincount(place.reshape(-1), deviation, minlength=len(groups))
    group_cell = groups[:, 0] if len(groups) else np.zeros(0, np.int64)
    days = np.bincount(group_cell, minlength=len(windows))
    squares = np.bincount(group_cell, total**2, minlength=len(windows))
    return days, np.sqrt(squares * days / np.maximum(days - 1, 1)) / np.maximum(windows, 1)


def windows_met(judgements: pa.Table, at_us: int, worth: WorthPolicy) -> pa.Table:
    """Count the market windows with judged decisions by golem and cell: golem_id, cell, windows.

    Parameters
    ----------
    judgements : golem_id, regime, anomaly_band, gas_band, at; rows after at_us are left out
    """
    judged = judgements.filter(pc.less_equal(judgements["at"].cast(pa.int64()), at_us))
    window = judged["at"].cast(pa.int64()).to_numpy() // (worth.window_minutes * _MINUTE_US)
    looks = pa.table({"golem_id": judged["golem_id"], "cell": cells_of(judged), "window": window})
    once = looks.group_by(["golem_id", "cell", "window"]).aggregate([])
    return (
        once.group_by(["golem_id", "cell"]).aggregate([("window", "count")]).rename_columns({"window_count": "windows"})
    )
