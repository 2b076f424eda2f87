"""Granger tests: find the lagged variables that predict an effect beyond its own past, from moment matrices. Pure.

A regression of the effect starts with its own past and the time of day (the base). Then it adds, one at a time, the
cause and lag with the largest partial correlation, while its sigmas exceed a false-discovery bound over all pairs and
lags. Variables that only share a cause with the effect drop out once that cause is in. Finally each cause is tested
given all others. Many golems are solved at once.

Sweeps are elementwise instead of a library's solver, so results do not depend on the machine or the batch of golems.
Source: HB S4 (Pearl); docs/adr/0031; Granger (1969); Benjamini and Yekutieli (2001).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from statistics import NormalDist

import numpy as np

from bardo_pipeline.arrays import BoolArray, Float64Array, Int64Array
from bardo_pipeline.curator.causality import variables as var
from bardo_pipeline.grimoire.entries import CAUSAL_VARIABLES
from bardo_pipeline.policy import CausalPolicy

EFFECTS = (var.PRICE_RETURN, var.VOLUMES, var.LIQUIDITIES, var.GASES)
"""Variables that can be effects."""

_COLLINEAR = 0.02
"""Causes with a smaller share of variance unexplained by the other columns are not tried (variance inflation 50)."""

_NONE = -1

_GAS_LAG_MAX = 5

_LEVELS = {("gas_level", var.GASES), ("liquidity_level", var.VOLUMES)}
"""(variable, effect): levels in an effect's base, because gas reverts to its mean and a thin pool moves on less volume.
The base of the price also has the running crash."""


@dataclass(frozen=True)
class Task:
    """Columns of one effect: target, base, possible causes, and the (variable, lag) that each cause is reported as."""

    effect: int
    target: int
    base: tuple[int, ...]
    causes: tuple[int, ...]
    reported: tuple[var.Column, ...]

    @cached_property
    def columns(self) -> tuple[int, ...]:
        """All columns of the task."""
        return tuple(dict.fromkeys((*self.base, *self.causes, self.target)))

    def cause(self, column: int) -> var.Column:
        """Return the (variable, lag) that a column is reported as."""
        return self.reported[self.causes.index(column)]

    def column(self, cause: var.Column) -> int:
        """Return the column of a reported (variable, lag), -1 for none."""
        return self.causes[self.reported.index(cause)] if cause in self.reported else _NONE


def cause_of(column: var.Column, effect: int) -> var.Column | None:
    """Return the (variable, lag) that a column is reported as for an effect; None if it cannot be a cause.

    Volume depends on the logarithm of a price move, other effects on its size; both are reported as price_move. The
    columns that spread a crash over time are reported as a crash 10 or 60 ticks ago.
    """
    if column.variable == var.PRICE_SIZE:
        return var.Column(var.PRICE_MOVE, column.lag) if effect != var.VOLUMES else None
    if column.variable in (var.CRASH_SOON, var.CRASH_LATELY):
        return var.Column(var.CRASH, var.SOON if column.variable == var.CRASH_SOON else var.LATE)
    if column.variable >= len(CAUSAL_VARIABLES) or (column.variable == var.PRICE_MOVE and effect != var.VOLUMES):
        return None
    return column


def _is_possible(cause: var.Column, effect: int) -> bool:
    """Return whether a (variable, lag) is tried as a cause of an effect.

    - Lag 0 is tried only if the direction is certain: the time of day, and price moves, which come from trades.
    - Sizes (price moves, volume) are not tried for the signed price return.
    - A crash is tried for the price only after more than QUIET ticks, because until then the price is the crash itself.
      For other effects it is tried only within QUIET ticks, because later they just revert.
    - Gas reacts within blocks; at later lags it just reverts.
    """
    if cause.variable == effect or (cause.variable in (var.PRICE_MOVE, var.VOLUMES) and effect == var.PRICE_RETURN):
        return False
    if effect == var.GASES and cause.lag > _GAS_LAG_MAX:
        return False
    if cause.variable == var.CRASH:
        return (cause.lag > var.QUIET) == (effect == var.PRICE_RETURN)
    return cause.lag > 0 or cause.variable == var.HOUR or (cause.variable, effect) == (var.PRICE_MOVE, var.VOLUMES)


@cache
def tasks() -> tuple[Task, ...]:
    """Return one task per effect, in the order of EFFECTS."""
    effect_tasks = []
    for effect in EFFECTS:
        target, name = var.COLUMNS.index(var.Column(effect, 0)), CAUSAL_VARIABLES[effect]
        means = () if effect == var.PRICE_RETURN else (f"{name}_soon", f"{name}_late")
        own_variables = [effect, *(var.ALL_VARIABLES.index(mean) for mean in means)]
        own = [i for i, c in enumerate(var.COLUMNS) if c.variable in own_variables and i != target]
        clock = [i for i, c in enumerate(var.COLUMNS) if var.ALL_VARIABLES[c.variable].startswith("day_")]
        crashes = (var.CRASH, var.CRASH_SOON) if effect == var.PRICE_RETURN else ()
        falling = [i for i, c in enumerate(var.COLUMNS) if c.variable in crashes]
        level = [i for i, c in enumerate(var.COLUMNS) if (var.ALL_VARIABLES[c.variable], effect) in _LEVELS]
        reported = ((cause_of(c, effect), i) for i, c in enumerate(var.COLUMNS))
        causes = {cause: i for cause, i in reported if cause and _is_possible(cause, effect)}
        base = (var.CONSTANT, *clock, *own, *level, *falling)
        effect_tasks.append(Task(effect, target, base, tuple(causes.values()), tuple(causes)))
    return tuple(effect_tasks)


@cache
def critical_sigmas(rules: CausalPolicy) -> tuple[float, ...]:
    """Return the minimum sigmas of the k-th cause of an effect, k from 1.

    This is the step-up bound k q / (m c(m)) over all m pairs and lags; the harmonic sum c(m) makes it valid under any
    dependence.
    """
    tried = sum(len(task.causes) for task in tasks())
    share = rules.false_discovery / (tried * sum(1.0 / i for i in range(1, tried + 1)))
    return tuple(-NormalDist().inv_cdf(share * k / 2.0) for k in range(1, rules.links_max + 1))


@cache
def reported_sigmas(task: Task, rules: CausalPolicy) -> Float64Array:
    """Return the minimum sigmas of each possible cause of an effect that outcomes report as one.

    The pair is given, so the step-up bound runs over the lags of the cause alone.
    """
    variables = _variables(task)[list(task.causes)].tolist()
    lags = [variables.count(variable) for variable in variables]
    shares = [rules.false_discovery / (n * sum(1.0 / i for i in range(1, n + 1))) for n in lags]
    return np.array([-NormalDist().inv_cdf(share / 2.0) for share in shares])


class Regression:
    """Regressions of some golems by the sweep operator on their moments [golems, WIDTH, WIDTH].

    residual: swept moments, scaled to a diagonal of 1 before the first sweep [golems, columns, columns].
    scale: square root of the moments' diagonal [golems, WIDTH]; 0 for a constant column.
    at: position of each column in `residual`, -1 for a dropped one; the last element serves column -1.
    explains: which columns are regressors. dropped_regressors: number of regressors without a column in `residual`.
    """

    def __init__(self, moments: Float64Array) -> None:
        diagonal = np.einsum("gii->gi", moments)
        self.scale = np.sqrt(np.maximum(diagonal, 0.0))
        self.ticks = diagonal[:, var.CONSTANT] / var.SCALE**2
        divisor = np.where(self.scale > 0.0, self.scale, 1.0)
        self.row = np.arange(len(moments))
        self.residual = moments / divisor[:, :, None] / divisor[:, None, :]
        self.explains = np.zeros(self.scale.shape, bool)
        self.at = np.append(np.arange(var.WIDTH), _NONE)
        self.dropped_regressors = np.zeros(len(moments), np.int64)

    def copy(self, columns: tuple[int, ...]) -> Regression:
        """Copy these columns; further sweeps of them need no others."""
        twin = object.__new__(Regression)
        twin.scale, twin.ticks, twin.row = self.scale, self.ticks, self.row
        picked = self.at[list(columns)]
        twin.at = np.full(len(self.at), _NONE)
        twin.at[list(columns)] = np.arange(len(picked))
        twin.residual = np.ascontiguousarray(self.residual[:, picked[:, None], picked])
        twin.explains = self.explains[:, picked]
        dropped = self.explains.sum(axis=1) - twin.explains.sum(axis=1)
        twin.dropped_regressors = self.dropped_regressors + dropped
        return twin

    def take(self, column: Int64Array) -> None:
        """Add one column per golem (-1 for none) as a regressor, unless it is nearly collinear."""
        row, place = self.row, self.at[column]
        pivot = self.residual[row, place, place]
        takes = (place >= 0) & (pivot > 1e-6) & ~self.explains[row, place]
        if takes.all():
            _sweep(self.residual, row, place, pivot)
            self.explains[row, place] = True
            return
        golems = takes.nonzero()[0]
        if len(golems):
            swept = self.residual[golems]
            _sweep(swept, row[: len(golems)], place[golems], pivot[golems])
            self.residual[golems] = swept
            self.explains[golems, place[golems]] = True

    def sigmas(self, target: int, columns: tuple[int, ...]) -> Float64Array:
        """Return the signed sigmas of each column as an additional regressor. [golems, columns]."""
        picked, target = self.at[list(columns)], self.at[target]
        own = np.einsum("gii->gi", self.residual)[:, picked]
        rest = self.residual[:, target, target]
        usable = (own > _COLLINEAR) & ~self.explains[:, picked] & (rest[:, None] > 1e-9)
        share = np.where(
            usable, self.residual[:, picked, target] / np.sqrt(np.where(usable, own * rest[:, None], 1.0)), 0.0
        )
        share = np.clip(share, -0.999_999, 0.999_999)
        return np.asarray(share * np.sqrt(self._freedom()[:, None] / (1.0 - share * share)))

    def weight(self, target: int, column: Int64Array) -> tuple[Float64Array, Float64Array]:
        """Return (weight, standard error) of a regressor, in target steps per column step; NaN if it is none."""
        row, place = self.row, self.at[column]
        is_regressor, scale = (place >= 0) & self.explains[row, place], self.scale[row, column]
        unit, target = self.scale[:, target] / np.where(scale > 0.0, scale, 1.0), self.at[target]
        rest = np.maximum(self.residual[:, target, target], 0.0)
        error = np.sqrt(np.maximum(-self.residual[row, place, place], 0.0) * rest / self._freedom())
        weight = self.residual[row, place, target] * unit
        return np.where(is_regressor, weight, np.nan), np.where(is_regressor, error * unit, np.nan)

    def _freedom(self) -> Float64Array:
        return np.maximum(self.ticks - (self.dropped_regressors + self.explains.sum(axis=1)), 1.0)


def _sweep(residual: Float64Array, row: Int64Array, at: Int64Array, pivot: Float64Array) -> None:
    """Sweep one column of every golem in place. residual: [golems, columns, columns]; at: column of each golem."""
    down, across = residual[row, :, at], residual[row, at] / pivot[:, None]
    residual -= down[:, :, None] * across[:, None, :]
    residual[row, at] = across
    residual[row, :, at] = across
    residual[row, at, at] = -1.0 / pivot


def regress_on_base(moments: Float64Array) -> list[Regression]:
    """Return one regression per effect, in the order of EFFECTS, with its base as regressors."""
    shared = Regression(moments)
    common = set(tasks()[0].base).intersection(*(task.base for task in tasks()))
    for column in sorted(common):
        shared.take(np.full(len(moments), column))
    regressions = []
    for task in tasks():
        regression = shared.copy(task.columns)
        for column in task.base:
            if column not in common:
                regression.take(np.full(len(moments), column))
        regressions.append(regression)
    return regressions


class Bases:
    """Cache of `regress_on_base` for the newest moments; each test starts with those that the last one ended with."""

    def __init__(self) -> None:
        self._cached: tuple[Float64Array, list[Regression]] | None = None

    def of(self, moments: Float64Array) -> list[Regression]:
        """Return `regress_on_base(moments)`. The caller must not change moments afterwards."""
        if self._cached is None or not np.array_equal(self._cached[0], moments):
            self._cached = moments, regress_on_base(moments)
        return self._cached[1]


@dataclass(frozen=True)
class Causes:
    """Causes of one effect, each field [golems, links].

    column: -1 for none. weight, error: in effect steps per cause step. sigmas: given all other causes.
    """

    column: Int64Array
    weight: Float64Array
    error: Float64Array
    sigmas: Float64Array


def find_causes(
    base: Regression, task: Task, active: Int64Array, rules: CausalPolicy, reported: BoolArray | None = None
) -> Causes:
    """Find the causes of an effect. A cause that outcomes report needs fewer sigmas (`reported_sigmas`).

    Parameters
    ----------
    base : Regression, from `regress_on_base`
    active : int64 [golems, links_max], columns of active links, -1 for none; they are kept and come first
    reported : bool [golems, CAUSAL_VARIABLES], variables that outcomes report as causes of the effect; None: none
    """
    work, limits = base.copy((*task.causes, task.target)), critical_sigmas(rules)
    columns = active.copy()
    for slot in range(columns.shape[1]):
        take_cause(work, task, columns[:, slot])
    variables = _variables(task)
    causes = np.array(task.causes)
    is_reported = np.zeros((len(columns), len(causes)), bool) if reported is None else reported[:, variables[causes]]
    few_crashes = (base.scale[:, var.COLUMNS.index(var.Column(var.CRASH, 1))] / var.SCALE) ** 2 < rules.events_min
    for _ in range(rules.links_max):
        count = (columns >= 0).sum(axis=1)
        taken = np.where(columns >= 0, variables[columns], _NONE)
        blocked = (variables[causes][None, :, None] == taken[:, None, :]).any(axis=2)
        blocked |= (count >= rules.links_max)[:, None] | (few_crashes[:, None] & (variables[causes] == var.CRASH))
        sigmas = np.where(blocked, 0.0, work.sigmas(task.target, task.causes))
        limit = np.array([*limits, np.inf])[np.minimum(count, rules.links_max)][:, None]
        limit = np.where(is_reported, np.minimum(limit, reported_sigmas(task, rules)), limit)
        strength = np.where(np.abs(sigmas) >= limit, np.abs(sigmas), 0.0)
        best, row = np.argmax(strength, axis=1), np.arange(len(sigmas))
        enough = strength[row, best] > 0.0
        if not enough.any():
            break
        added = np.where(enough, causes[best], _NONE)
        take_cause(work, task, added)
        free = np.argmax(columns < 0, axis=1)
        columns[row[enough], free[enough]] = added[enough]
    weights, errors = (
        np.stack(parts, axis=1)
        for parts in zip(*(work.weight(task.target, columns[:, s]) for s in range(columns.shape[1])), strict=True)
    )
    sigmas = np.divide(weights, errors, out=np.zeros_like(weights), where=np.nan_to_num(errors) > 0.0)
    return Causes(columns, weights, errors, np.nan_to_num(sigmas))


@cache
def _variables(task: Task) -> Int64Array:
    """Return the variable that each column is reported as, -1 for none; the last element serves column -1."""
    causes = [cause_of(column, task.effect) for column in var.COLUMNS]
    return np.array([*(cause.variable if cause else _NONE for cause in causes), _NONE])


def take_cause(work: Regression, task: Task, column: Int64Array) -> None:
    """Add each golem's cause at all its lags, so that no other variable is credited with its effect."""
    if (column >= 0).any():
        for lag in _lags(task)[:, column]:
            work.take(lag)


@cache
def _lags(task: Task) -> Int64Array:
    """Return by column: the column, then all lags of its variable, padded with -1. [lags, columns + 1]."""
    variables = _variables(task)
    all_lags = np.full((1 + len(task.causes), len(variables)), _NONE)
    for column, variable in enumerate(variables.tolist()[:-1]):
        lags = [cause for cause in sorted(task.causes) if variable == variables[cause]] if variable >= 0 else []
        all_lags[: 1 + len(lags), column] = [column, *lags]
    return all_lags[(all_lags >= 0).any(axis=1)]


def score_links(
    base: Regression, task: Task, links: Int64Array, fresh: Float64Array
) -> tuple[Float64Array, Float64Array]:
    """Return (score, info) of links on a stretch that is not part of the moments. Each [golems, links].

    score: in (spreads of the effect x steps of the cause); by chance it has mean 0 and variance `info`.
    info: in squared steps of the cause beyond the other regressors.

    Parameters
    ----------
    base : Regression, from `regress_on_base`
    links : int64 [golems, links], columns of the causes, -1 for none
    fresh : float64 [golems, WIDTH, WIDTH], moments of the stretch
    """
    picked, work = list(task.columns), base.copy(task.columns)
    for slot in range(links.shape[1]):
        take_cause(work, task, links[:, slot])
    divisor = np.where(base.scale > 0.0, base.scale, np.inf)
    scaled = fresh / divisor[:, :, None] / divisor[:, None, :]
    row, target = work.row, work.at[task.target]
    effect, cause = np.zeros(base.scale.shape), np.zeros(base.scale.shape)  # coefficients of residuals
    effect[:, picked] = np.where(work.explains, -work.residual[:, :, target], 0.0)
    effect[:, task.target] = 1.0
    variance = np.maximum(work.residual[:, target, target], 1e-12)
    spread = np.sqrt(variance / np.maximum(work.ticks, 1.0))
    effect_moments = (scaled * effect[:, None, :]).sum(axis=2)
    score, info = np.zeros(links.shape), np.zeros(links.shape)
    for slot in np.flatnonzero((links >= 0).any(axis=0)).tolist():
        place = work.at[links[:, slot]]
        usable = (place >= 0) & work.explains[row, place]
        pivot = np.where(usable, work.residual[row, place, place], -1.0)
        cause[:, picked] = np.where(work.explains & usable[:, None], work.residual[row, place] / pivot[:, None], 0.0)
        squares = (cause * (scaled * cause[:, None, :]).sum(axis=2)).sum(axis=1)
        products = (cause * effect_moments).sum(axis=1) + work.residual[row, place, target] * squares
        steps = work.scale[row, links[:, slot]] / var.SCALE
        score[:, slot] = np.where(usable, products * steps / spread, 0.0)
        info[:, slot] = np.where(usable, squares * steps * steps, 0.0)
    return score, info


def spread_of(base: Regression, task: Task) -> Float64Array:
    """Return the spread per tick of an effect beyond its base, in steps of the effect."""
    at = base.at[task.target]
    rest = np.maximum(base.residual[:, at, at], 0.0)
    return np.asarray(np.sqrt(rest / np.maximum(base.ticks, 1.0)) * base.scale[:, task.target] / var.SCALE)
