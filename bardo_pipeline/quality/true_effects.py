"""Yardstick: what acting is truly worth in each situation, measured on markets that the graded memory never saw. Pure.

A situation is a cell (regime, anomaly band, gas band). Decisions of one market window are one look, however many golems
took them; looks of one day are not independent either, so the error of a mean is that between days.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.entries import ANOMALY_BANDS, GAS_BANDS
from bardo_pipeline.policy import CuratorPolicy, WorthPolicy

CELLS = len(REGIMES) * len(ANOMALY_BANDS) * len(GAS_BANDS)
_MINUTE_US = 60_000_000
_DAY_US = 1_440 * _MINUTE_US
_MARKET_SPAN = 10**9  # more windows than any market has


@dataclass(frozen=True, eq=False)
class Judged:
    """Judged decisions, one element each.

    market: number of the market. golem: position in its fleet. at_us: moment of the decision (UTC microseconds).
    regime: code in REGIMES. score: anomaly score in [0, 1]. gas_ratio: gas over its hour. effect_ppm: acting less
    holding, of the position's value.
    """

    market: np.ndarray
    golem: np.ndarray
    at_us: np.ndarray
    regime: np.ndarray
    score: np.ndarray
    gas_ratio: np.ndarray
    effect_ppm: np.ndarray

    @property
    def count(self) -> int:
        """How many decisions were judged."""
        return len(self.golem)

    @classmethod
    def together(cls, parts: list[Judged]) -> Judged:
        """Decisions of several markets as one."""
        return cls(**{f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(cls)})


@dataclass(frozen=True, eq=False)
class Yardstick:
    """What acting is worth beside holding, [CELLS]; NaN where a situation never came up.

    effect, error: mean of the windows' means and its standard error between days, in ppm. sigma: spread of a window's
    mean. windows, days: how many. sure: +1 pays, -1 loses, 0 too close to nothing, or too seldom met, to say.
    """

    effect: np.ndarray
    error: np.ndarray
    sigma: np.ndarray
    windows: np.ndarray
    days: np.ndarray
    sure: np.ndarray

    @property
    def strength(self) -> np.ndarray:
        """Effects in sigmas of a single window, >= 0; 0 where nothing is sure."""
        ratio = np.abs(self.effect) / np.maximum(np.where(np.isnan(self.sigma), 1.0, self.sigma), 1.0)
        return np.where(self.sure == 0, 0.0, ratio)


def cell_name(cell: int) -> tuple[str, str, str]:
    """Regime, anomaly band and gas band of a cell."""
    return REGIMES[cell // 15], ANOMALY_BANDS[cell // 3 % 5], GAS_BANDS[cell % 3]


def cells_of(entries: pa.Table) -> np.ndarray:
    """The cell of each entry (ENTRY_SCHEMA), -1 for what names none. int64."""
    parts = (("regime", REGIMES), ("anomaly_band", ANOMALY_BANDS), ("gas_band", GAS_BANDS))
    regime, band, gas = (
        pc.fill_null(pc.index_in(entries[name], value_set=pa.array(words)), -1).to_numpy().astype(np.int64)
        for name, words in parts
    )
    return np.where((regime < 0) | (band < 0) | (gas < 0), -1, (regime * 5 + band) * 3 + gas)


def measure(judged: Judged, curator: CuratorPolicy, worth: WorthPolicy) -> Yardstick:
    """The yardstick that these decisions give. No decision at all gives one that says nothing."""
    band = np.searchsorted(curator.anomaly_edges, judged.score, side="right")
    gas = np.searchsorted(curator.gas_edges, judged.gas_ratio, side="right")
    cell = (judged.regime.astype(np.int64) * 5 + band) * 3 + gas
    look = judged.market * _MARKET_SPAN + judged.at_us // (worth.window_minutes * _MINUTE_US)
    pairs, first, place = np.unique(np.stack([cell, look], 1), axis=0, return_index=True, return_inverse=True)
    place = place.reshape(-1)
    seen = np.bincount(place, minlength=len(pairs)).astype(np.float64)
    mean = np.bincount(place, judged.effect_ppm.astype(np.float64), minlength=len(pairs)) / seen
    day = judged.market[first] * _MARKET_SPAN + judged.at_us[first] // _DAY_US
    windows = np.bincount(pairs[:, 0], minlength=CELLS) if len(pairs) else np.zeros(CELLS, np.int64)
    with np.errstate(invalid="ignore", divide="ignore"):
        effect = np.bincount(pairs[:, 0], mean, minlength=CELLS) / windows
        days, error = _error_between_days(pairs[:, 0], day, mean - effect[pairs[:, 0]], windows)
        sigma = np.sqrt(np.bincount(pairs[:, 0], (mean - effect[pairs[:, 0]]) ** 2, minlength=CELLS) / windows)
        enough = (days >= worth.yardstick_days_min) & (np.abs(effect) >= worth.yardstick_z * error)
    sure = np.where(enough, np.sign(effect), 0.0)
    return Yardstick(effect, error, sigma, windows, days, np.nan_to_num(sure).astype(np.int64))


def _error_between_days(
    cell: np.ndarray, day: np.ndarray, off: np.ndarray, windows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Days of each cell, and the standard error of its mean when whole days are drawn."""
    groups, place = np.unique(np.stack([cell, day], 1), axis=0, return_inverse=True)
    total = np.bincount(place.reshape(-1), off, minlength=len(groups))
    of = groups[:, 0] if len(groups) else np.zeros(0, np.int64)
    days = np.bincount(of, minlength=CELLS)
    squares = np.bincount(of, total**2, minlength=CELLS)
    return days, np.sqrt(squares * days / np.maximum(days - 1, 1)) / np.maximum(windows, 1)


def windows_met(judgements: pa.Table, at_us: int, worth: WorthPolicy) -> pa.Table:
    """In how many market windows each golem had decisions judged, by cell: golem_id, cell, windows.

    judgements: golem_id, regime, anomaly_band, gas_band, at; those after at_us do not count.
    """
    told = judgements.filter(pc.less_equal(judgements["at"].cast(pa.int64()), at_us))
    window = told["at"].cast(pa.int64()).to_numpy() // (worth.window_minutes * _MINUTE_US)
    looks = pa.table({"golem_id": told["golem_id"], "cell": cells_of(told), "window": window})
    once = looks.group_by(["golem_id", "cell", "window"]).aggregate([])
    return (
        once.group_by(["golem_id", "cell"]).aggregate([("window", "count")]).rename_columns({"window_count": "windows"})
    )
