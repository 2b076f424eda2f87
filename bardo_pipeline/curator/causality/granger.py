"""Granger: which past moves a variable beyond its own, read off matrices of moments. Pure, over many golems at once.

An effect is explained by its own past and the time of day first; then, one by one, by the cause and lag that say most
beyond what is explained already, while that is further from chance than a false-discovery bound over every pair and
lag allows. What follows a common cause says nothing more once that cause is in. Last, each must hold given the others.

Elementwise sweeps instead of a library's solver: the same bytes on any machine and in any company.
Source: HB S4 (Pearl), issue 4; Granger (1969); Benjamini and Yekutieli (2001).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from bardo_pipeline.curator.causality.variables import (
    ALL_VARIABLES,
    COLUMNS,
    CONSTANT,
    CRASH,
    CRASH_LATELY,
    CRASH_SOON,
    GASES,
    HOUR,
    LATE,
    LIQUIDITIES,
    PRICE_MOVE,
    PRICE_RETURN,
    PRICE_SIZE,
    QUIET,
    SCALE,
    SOON,
    VOLUMES,
    WIDTH,
    Column,
)
from bardo_pipeline.grimoire.entries import CAUSAL_VARIABLES
from bardo_pipeline.policy import CausalPolicy

Floats = NDArray[np.float64]
Places = NDArray[np.int64]

EFFECTS = (PRICE_RETURN, VOLUMES, LIQUIDITIES, GASES)
"""Variables that are explained."""

_COLLINEAR = 0.02
"""A cause of which less than this share is its own, and not the others', is not tried (variance inflated 50 times)."""

_NOTHING = -1

_GAS_LAG_MAX = 5

_LEVELS = {("gas_level", GASES), ("liquidity_level", VOLUMES)}
"""What explains an effect beside its past: dear gas falls back, and a thin pool needs less volume to move. So does a
crash that goes on explain the price: what else happens in it moves nothing."""


@dataclass(frozen=True)
class Task:
    """Columns of one effect: where it stands, what always explains it, which may be causes, what these are called."""

    effect: int
    target: int
    base: tuple[int, ...]
    causes: tuple[int, ...]
    said: tuple[Column, ...]

    @cached_property
    def columns(self) -> tuple[int, ...]:
        """All columns that have a part in it."""
        return tuple(dict.fromkeys((*self.base, *self.causes, self.target)))

    def called(self, column: int) -> Column:
        """What a column is called as a cause of this effect."""
        return self.said[self.causes.index(column)]

    def column(self, said: Column) -> int:
        """The column of a cause and lag; -1 if none looks there."""
        return self.causes[self.said.index(said)] if said in self.said else _NOTHING


def cause_of(column: Column, effect: int) -> Column | None:
    """What a column is called as a cause of an effect; None if it is none.

    Volume follows the logarithm of a move, all else its size; both are called a move. What spreads a crash over the
    hour after it is called a crash an hour ago.
    """
    if column.variable == PRICE_SIZE:
        return Column(PRICE_MOVE, column.lag) if effect != VOLUMES else None
    if column.variable in (CRASH_SOON, CRASH_LATELY):
        return Column(CRASH, SOON if column.variable == CRASH_SOON else LATE)
    if column.variable >= len(CAUSAL_VARIABLES) or (column.variable == PRICE_MOVE and effect != VOLUMES):
        return None
    return column


def _asked(said: Column, effect: int) -> bool:
    """Whether a cause and lag may be tried for an effect.

    Within one tick the order is unseen, so lag 0 is asked only where there is but one direction: nothing moves the
    clock, and a pool's price only moves by being traded. What a price does while it crashes is the crash, and no effect
    of its beginning; the hour after it is asked of the price alone, since what fled or rose just comes back. A size has
    no direction to give. Gas answers within blocks: what is later is its own falling back.
    """
    if said.variable == effect or (said.variable in (PRICE_MOVE, VOLUMES) and effect == PRICE_RETURN):
        return False
    if effect == GASES and said.lag > _GAS_LAG_MAX:
        return False
    if said.variable == CRASH:
        return (said.lag > QUIET) == (effect == PRICE_RETURN)
    return said.lag > 0 or said.variable == HOUR or (said.variable, effect) == (PRICE_MOVE, VOLUMES)


@cache
def tasks() -> tuple[Task, ...]:
    """One task an effect, in the order of EFFECTS."""
    made = []
    for effect in EFFECTS:
        mine = [effect, *(ALL_VARIABLES.index(f"{CAUSAL_VARIABLES[effect]}_{when}") for when in ("soon", "late"))]
        target = COLUMNS.index(Column(effect, 0))
        mine = mine[:1] if effect == PRICE_RETURN else mine
        own = [i for i, c in enumerate(COLUMNS) if c.variable in mine and i != target]
        clock = [i for i, c in enumerate(COLUMNS) if ALL_VARIABLES[c.variable].startswith("day_")]
        falling = [i for i, c in enumerate(COLUMNS) if c.variable in (CRASH, CRASH_SOON) and effect == PRICE_RETURN]
        level = [i for i, c in enumerate(COLUMNS) if (ALL_VARIABLES[c.variable], effect) in _LEVELS]
        causes = {said: i for i, c in enumerate(COLUMNS) if (said := cause_of(c, effect)) and _asked(said, effect)}
        made.append(
            Task(effect, target, (CONSTANT, *clock, *own, *level, *falling), tuple(causes.values()), tuple(causes))
        )
    return tuple(made)


@cache
def critical(rules: CausalPolicy) -> tuple[float, ...]:
    """How far from chance, in sigmas, the k-th cause of an effect must be, k from 1.

    The step-up bound k q / (m c(m)) over all m pairs and lags, c(m) the harmonic sum that makes it hold whatever
    depends on what.
    """
    tried = sum(len(task.causes) for task in tasks())
    share = rules.false_discovery / (tried * sum(1.0 / i for i in range(1, tried + 1)))
    return tuple(-NormalDist().inv_cdf(share * k / 2.0) for k in range(1, rules.links_max + 1))


class Regression:
    """Moments of some golems, swept: what is left of every column beyond those that explain.

    moments: [golems, WIDTH, WIDTH], scaled to a diagonal of 1; a column that never varies stays out. scale: by what,
    [golems, WIDTH]. at: where each column stands, -1 and the last for none. spent: how many explain that are not looked
    at any more.
    """

    def __init__(self, moments: Floats) -> None:
        diagonal = np.einsum("gii->gi", moments)
        self.scale = np.sqrt(np.maximum(diagonal, 0.0))
        self.ticks = diagonal[:, CONSTANT] / SCALE**2
        divisor = np.where(self.scale > 0.0, self.scale, 1.0)
        self.row = np.arange(len(moments))
        self.left = moments / divisor[:, :, None] / divisor[:, None, :]
        self.explains = np.zeros(self.scale.shape, bool)
        self.at = np.append(np.arange(WIDTH), _NOTHING)
        self.spent = np.zeros(len(moments), np.int64)

    def copy(self, columns: tuple[int, ...]) -> Regression:
        """The same of these columns, to go on with alone: what is left of them needs no others."""
        twin = object.__new__(Regression)
        twin.scale, twin.ticks, twin.at, twin.spent, twin.row = self.scale, self.ticks, self.at, self.spent, self.row
        picked = self.at[list(columns)]
        twin.at = np.full(len(self.at), _NOTHING)
        twin.at[list(columns)] = np.arange(len(picked))
        twin.left = np.ascontiguousarray(self.left[:, picked[:, None], picked])
        twin.explains = self.explains[:, picked]
        twin.spent = self.spent + self.explains.sum(axis=1) - twin.explains.sum(axis=1)
        return twin

    def take(self, column: Places) -> None:
        """Let one column explain, its own of each golem; -1: none. What is all but explained is left out."""
        row, place = self.row, self.at[column]
        pivot = self.left[row, place, place]
        takes = (place >= 0) & (pivot > 1e-6) & ~self.explains[row, place]
        if takes.all():
            _sweep(self.left, row, place, pivot)
            self.explains[row, place] = True
            return
        who = takes.nonzero()[0]
        if len(who):
            some = self.left[who]
            _sweep(some, row[: len(who)], place[who], pivot[who])
            self.left[who] = some
            self.explains[who, place[who]] = True

    def sigmas(self, target: int, columns: tuple[int, ...]) -> Floats:
        """How far from chance each of these columns is as one more explanation, signed, [golems, columns]."""
        picked, target = self.at[list(columns)], self.at[target]
        own = np.einsum("gii->gi", self.left)[:, picked]
        rest = self.left[:, target, target]
        usable = (own > _COLLINEAR) & ~self.explains[:, picked] & (rest[:, None] > 1e-9)
        share = np.where(
            usable, self.left[:, picked, target] / np.sqrt(np.where(usable, own * rest[:, None], 1.0)), 0.0
        )
        share = np.clip(share, -0.999_999, 0.999_999)
        return np.asarray(share * np.sqrt(self._freedom()[:, None] / (1.0 - share * share)))

    def weight(self, target: int, column: Places) -> tuple[Floats, Floats]:
        """(weight, standard error) of a column that explains, in steps of the target a step of the column.

        NaN where the column does not explain.
        """
        row, place = self.row, self.at[column]
        known, scale = (place >= 0) & self.explains[row, place], self.scale[row, column]
        unit, target = self.scale[:, target] / np.where(scale > 0.0, scale, 1.0), self.at[target]
        rest = np.maximum(self.left[:, target, target], 0.0)
        error = np.sqrt(np.maximum(-self.left[row, place, place], 0.0) * rest / self._freedom())
        return (
            np.where(known, self.left[row, place, target] * unit, np.nan),
            np.where(known, error * unit, np.nan),
        )

    def _freedom(self) -> Floats:
        return np.maximum(self.ticks - (self.spent + self.explains.sum(axis=1)), 1.0)


def _sweep(left: Floats, row: Places, at: Places, pivot: Floats) -> None:
    """Let a column of every golem explain, in place. left: [golems, columns, columns]; row, at: the column of each."""
    down, across = left[row, :, at], left[row, at] / pivot[:, None]
    left -= down[:, :, None] * across[:, None, :]
    left[row, at] = across
    left[row, :, at] = across
    left[row, at, at] = -1.0 / pivot


def explained_by_base(moments: Floats) -> list[Regression]:
    """A regression an effect, in the order of EFFECTS, each explained by its own past and the time of day."""
    shared = Regression(moments)
    common = set(tasks()[0].base).intersection(*(task.base for task in tasks()))
    for column in sorted(common):
        shared.take(np.full(len(moments), column))
    made = []
    for task in tasks():
        mine = shared.copy(task.columns)
        for column in task.base:
            if column not in common:
                mine.take(np.full(len(moments), column))
        made.append(mine)
    return made


class Bases:
    """The regressions of the newest moments, explained by their bases: what a test ends with, the next begins with."""

    def __init__(self) -> None:
        self._known: tuple[Floats, list[Regression]] | None = None

    def of(self, moments: Floats) -> list[Regression]:
        """See `explained_by_base`. moments: not to be changed afterwards."""
        if self._known is None or not np.array_equal(self._known[0], moments):
            self._known = moments, explained_by_base(moments)
        return self._known[1]


@dataclass(frozen=True)
class Found:
    """Causes of one effect, [golems, links]: column (-1: none), weight in steps of the effect a step of the cause, its
    standard error, and how far from chance given all the others."""

    column: Places
    weight: Floats
    error: Floats
    sigmas: Floats


def find_causes(begun: Regression, task: Task, held: Places, rules: CausalPolicy) -> Found:
    """Find what moves an effect. begun: explained by its base. held: [golems, links_max], columns of links known
    already, -1 for none: they explain first, whatever they are worth now, and what is found comes after them.
    """
    work, limits = begun.copy((*task.causes, task.target)), critical(rules)
    columns = held.copy()
    for slot in range(columns.shape[1]):
        take_cause(work, task, columns[:, slot])
    variables = _variables(task)
    causes = np.array(task.causes)
    events = _events(begun, rules)
    for _ in range(rules.links_max):
        count = (columns >= 0).sum(axis=1)
        taken = np.where(columns >= 0, variables[columns], _NOTHING)
        blocked = (variables[causes][None, :, None] == taken[:, None, :]).any(axis=2)
        blocked |= (count >= rules.links_max)[:, None] | (~events[:, None] & (variables[causes] == CRASH)[None, :])
        far = np.where(blocked, 0.0, work.sigmas(task.target, task.causes))
        best = np.argmax(np.abs(far), axis=1)
        row = np.arange(len(far))
        enough = np.abs(far[row, best]) >= np.array([*limits, np.inf])[np.minimum(count, rules.links_max)]
        if not enough.any():
            break
        fresh = np.where(enough, causes[best], _NOTHING)
        take_cause(work, task, fresh)
        free = np.argmax(columns < 0, axis=1)
        columns[row[enough], free[enough]] = fresh[enough]
    weights, errors = (
        np.stack(parts, axis=1)
        for parts in zip(*(work.weight(task.target, columns[:, s]) for s in range(columns.shape[1])), strict=True)
    )
    far = np.divide(weights, errors, out=np.zeros_like(weights), where=np.nan_to_num(errors) > 0.0)
    return Found(columns, weights, errors, np.nan_to_num(far))


@cache
def _variables(task: Task) -> Places:
    """The variable that each column stands for as a cause of this effect; none for a column that is no cause."""
    return np.array([said.variable if (said := cause_of(c, task.effect)) else _NOTHING for c in COLUMNS] + [_NOTHING])


def take_cause(work: Regression, task: Task, column: Places) -> None:
    """Let a cause explain at all its lags, its own of each golem; what it does at another lag is nobody else's."""
    if (column >= 0).any():
        for turn in _turns(task)[:, column]:
            work.take(turn)


@cache
def _turns(task: Task) -> Places:
    """By column, the last for none: it, and then all lags of its variable, one after another. -1: no more."""
    variables = _variables(task)
    made = np.full((1 + len(task.causes), len(variables)), _NOTHING)
    for column, variable in enumerate(variables.tolist()[:-1]):
        lags = [cause for cause in sorted(task.causes) if variable == variables[cause]] if variable >= 0 else []
        made[: 1 + len(lags), column] = [column, *lags]
    return made[(made >= 0).any(axis=1)]


def _events(begun: Regression, rules: CausalPolicy) -> NDArray[np.bool_]:
    """Golems that lived through enough sharp falls to say something of them."""
    place = COLUMNS.index(Column(CRASH, 1))
    counted: NDArray[np.bool_] = (begun.scale[:, place] / SCALE) ** 2 >= rules.events_min
    return counted


@dataclass(frozen=True)
class Heard:
    """What a fresh stretch says of links, [golems, links]: the score (spreads of the effect times steps of the cause,
    which chance would make 0 give or take the root of info), and info (squared steps of the cause beyond what explains
    it)."""

    score: Floats
    info: Floats


def listen(begun: Regression, task: Task, held: Places, fresh: Floats) -> Heard:
    """Ask a stretch that was not among the moments what it says of links, by weights learned before it came.

    begun: explained by its base. fresh: moments of the stretch [golems, WIDTH, WIDTH].
    """
    picked, work = list(task.columns), begun.copy(task.columns)
    for slot in range(held.shape[1]):
        take_cause(work, task, held[:, slot])
    divisor = np.where(begun.scale > 0.0, begun.scale, np.inf)
    seen = fresh / divisor[:, :, None] / divisor[:, None, :]
    row, target = work.row, work.at[task.target]
    residual, alone = np.zeros(begun.scale.shape), np.zeros(begun.scale.shape)
    residual[:, picked] = np.where(work.explains, -work.left[:, :, target], 0.0)
    residual[:, task.target] = 1.0
    sure = np.maximum(work.left[:, target, target], 1e-12)
    spread = np.sqrt(sure / np.maximum(work.ticks, 1.0))
    against = (seen * residual[:, None, :]).sum(axis=2)
    score, info = np.zeros(held.shape), np.zeros(held.shape)
    for slot in np.flatnonzero((held >= 0).any(axis=0)).tolist():
        place = work.at[held[:, slot]]
        known = (place >= 0) & work.explains[row, place]
        pivot = np.where(known, work.left[row, place, place], -1.0)
        alone[:, picked] = np.where(work.explains & known[:, None], work.left[row, place] / pivot[:, None], 0.0)
        told = (alone * (seen * alone[:, None, :]).sum(axis=2)).sum(axis=1)
        said = (alone * against).sum(axis=1) + work.left[row, place, target] * told
        steps = work.scale[row, held[:, slot]] / SCALE
        score[:, slot] = np.where(known, said * steps / spread, 0.0)
        info[:, slot] = np.where(known, told * steps * steps, 0.0)
    return Heard(score, info)


def spread_of(begun: Regression, task: Task) -> Floats:
    """What is left of an effect beyond its base, as a spread a tick in steps of the effect. [golems]."""
    at = begun.at[task.target]
    rest = np.maximum(begun.left[:, at, at], 0.0)
    return np.asarray(np.sqrt(rest / np.maximum(begun.ticks, 1.0)) * begun.scale[:, task.target] / SCALE)
