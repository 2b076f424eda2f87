"""Forecasts the next price from the causal graph, prepared once a cycle so that a tick only sums it up. Pure.

Each confirmed link into the price adds its weight times its cause's past change, in standard deviations of the price.
A link is invalidated if the price moves far in the opposite direction.
Source: HB S4 (forward propagation through the graph), HB S9 (causal graph probe).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bardo_pipeline.arrays import BoolArray, Float64Array, Int64Array
from bardo_pipeline.curator.causality.granger import EFFECTS, Task, tasks
from bardo_pipeline.curator.causality.variables import COLUMNS, PRICE_RETURN, SCALE, Column
from bardo_pipeline.curator.state.grimoire_state import ACTIVE, CANDIDATE, GrimoireState, is_quarantined
from bardo_pipeline.grimoire.confidence import PPM, ppm
from bardo_pipeline.grimoire.entries import CAUSAL_VARIABLES
from bardo_pipeline.heartbeat.probes import LINK_CANDIDATE, LINK_INVALIDATED
from bardo_pipeline.market.tick_series import Tape
from bardo_pipeline.policy import Policy

_LIMIT_SPREADS = 4.0


@dataclass(frozen=True)
class Foresight:
    """Links into the price of all golems.

    variable, lag: a link's cause and its distance in ticks before the predicted tick, [links]. weight: effect per
    standard deviation of the cause, 0 for golems without the link, [links, golems]. knows: golems with a link.
    candidate: golems with an untested candidate link.
    """

    variable: Int64Array
    lag: Int64Array
    weight: Float64Array
    knows: BoolArray
    candidate: BoolArray

    def shift(self, tape: Tape, t: int) -> Float64Array:
        """Return the expected move of the price by the tick after t, in standard deviations; 0 without a graph."""
        shift = np.zeros(len(self.knows))
        for variable, lag, weight in zip(self.variable.tolist(), self.lag.tolist(), self.weight, strict=True):
            shift += weight * (tape.readings[max(t + 1 - lag, 0), variable] / SCALE)
        return np.clip(shift, -_LIMIT_SPREADS, _LIMIT_SPREADS)

    def look(self, tape: Tape, t: int, foreseen: Float64Array, policy: Policy) -> Float64Array:
        """Return the value of the causal probe at tick t, [golems]: NaN without a graph, 0 if it holds.

        foreseen: the shift that was forecast for this tick.
        """
        if not (self.knows.any() or self.candidate.any()):
            return np.full(len(self.knows), np.nan)
        moved = tape.price_return[t] * 1e6 / tape.spread_ppm[max(t - 1, 0)]
        rules = policy.causal
        broken = (np.abs(foreseen) >= rules.probe_shift) & (np.abs(moved - foreseen) >= rules.probe_sigma)
        broken &= np.sign(foreseen) == -np.sign(moved)
        values = np.where(broken & self.knows, LINK_INVALIDATED, np.where(self.candidate, LINK_CANDIDATE, 0.0))
        return np.where(self.knows | self.candidate, values, np.nan)


def nothing_foreseen(size: int) -> Foresight:
    """Return the forecast of golems without a graph."""
    none = np.zeros(0, np.int64)
    return Foresight(none, none, np.zeros((0, size)), np.zeros(size, bool), np.zeros(size, bool))


def foresight_of(state: GrimoireState, golem_ids: list[str], at_us: int, policy: Policy) -> Foresight:
    """Collect the links into the price that these golems trust at `at_us`."""
    place = {golem_id: i for i, golem_id in enumerate(golem_ids)}
    links = {code: s for code, s in enumerate(state.structures.rows) if s.source == "causal"}
    empty = nothing_foreseen(len(golem_ids))
    rows = np.zeros(0, int)
    if links:
        rows = np.flatnonzero(np.isin(state["structure"], list(links)) & (state["sign"] != 0))
    rows = np.array([r for r in rows.tolist() if state.golems[state["golem"][r]] in place], np.int64)
    if not len(rows):
        return empty
    task = tasks()[EFFECTS.index(PRICE_RETURN)]
    confidence = state.confidence_at(rows, np.full(len(rows), at_us), policy.decay)
    trusted_rows = confidence >= ppm(policy.causal.predict_confidence)
    weights: dict[tuple[int, int], Float64Array] = {}
    for row, trusted in zip(rows.tolist(), trusted_rows.tolist(), strict=True):
        link, golem = links[int(state["structure"][row])], place[state.golems[state["golem"][row]]]
        status = int(state["status"][row])
        if status == CANDIDATE and state["own_sumsq"][row] == 0 and not is_quarantined(state, np.array([row]))[0]:
            empty.candidate[golem] = True
        column = (
            _graph_column(link.cause, link.lag_ticks, task) if link.effect == CAUSAL_VARIABLES[PRICE_RETURN] else None
        )
        if status == ACTIVE and trusted and column is not None:
            weights.setdefault(column, np.zeros(len(golem_ids)))[golem] = state["effect_mean_ppm"][row] / PPM
    if not weights:
        return empty
    ordered = sorted(weights)
    weight = np.stack([weights[key] for key in ordered])
    variable, lag = (np.array(part, np.int64) for part in zip(*ordered, strict=True))
    return Foresight(variable, lag, weight, (weight != 0.0).any(axis=0), empty.candidate)


def _graph_column(cause: str | None, lag_ticks: int | None, task: Task) -> tuple[int, int] | None:
    """Return (variable, ticks before the predicted tick) of a link into the price; None if no column matches."""
    if cause not in CAUSAL_VARIABLES or lag_ticks is None:
        return None
    column = task.column(Column(CAUSAL_VARIABLES.index(cause), lag_ticks))
    return None if column < 0 else (COLUMNS[column].variable, max(COLUMNS[column].lag, 1))
