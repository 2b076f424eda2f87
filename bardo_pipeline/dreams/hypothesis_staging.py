"""Hypotheses: changes that dreams suggest, staged by simulated effects and confirmed by later outcomes. Pure.

A failed decision whose simulation does better with one change is a witness. Enough witnesses stage a hypothesis, below
the confidence of knowledge. Only decisions after that dream can confirm it, judged within 7 days; it expires after 14
days. A confirmed hypothesis decays at half the usual rate, and is offered to the clade from a confidence of 0.5.
Source: KAT (Loop 3, demurrage), MEM (shared constants), canon 1, 4, 5, 17, 50.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.grimoire import confidence as conf
from bardo_pipeline.grimoire.confidence import DAY_US, ppm
from bardo_pipeline.grimoire.entry_columns import index_of
from bardo_pipeline.mortality.random_streams import rank_within
from bardo_pipeline.policy import Policy

IMAGINED, STAGED, CONFIRMED, GONE = range(4)
STATES = ("imagined", "staged", "confirmed", "gone")
OPERATIONS = (
    "imagined", "staged", "gathered", "confirmed", "reinforced", "contradicted", "pushed", "refuted", "expired",
    "faded",
)  # fmt: skip
(
    OP_IMAGINED, OP_STAGED, OP_GATHERED, OP_CONFIRMED, OP_REINFORCED, OP_CONTRADICTED, OP_PUSHED, OP_REFUTED,
    OP_EXPIRED, OP_FADED,
) = range(10)  # fmt: skip

SUMS = ("count", "total", "squares", "live_count", "live_total", "live_squares")
COLUMNS = (
    "golem", "key", "state", "begun_cycle", "begun_us", "staged_tick", "staged_us", "sign", "confidence_ppm",
    "anchor_us", "pushed", *SUMS,
)  # fmt: skip


@dataclass(frozen=True)
class Evidence:
    """Simulated effects in ppm, sorted by (golem, key, decided).

    key: code of (situation, change). decided, judged: ticks of decision and verdict. judged_us: time of the verdict.
    """

    golem: Int64Array
    key: Int64Array
    effect: Int64Array
    decided: Int64Array
    judged: Int64Array
    judged_us: Int64Array

    def take(self, pick: Int64Array) -> Evidence:
        """Return the effects at these indices."""
        return Evidence(*(getattr(self, n)[pick] for n in self.__dataclass_fields__))


@dataclass(frozen=True)
class Dreamers:
    """The golems of one wave of dreams, sorted by golem, with cycle, tick and time of each dream."""

    golem: Int64Array
    cycle: Int64Array
    tick: Int64Array
    at_us: Int64Array

    def place(self, golem: Int64Array) -> Int64Array:
        """Return the index of each golem, -1 if it does not dream."""
        return index_of(self.golem, golem)


@dataclass
class Hypotheses:
    """The live hypotheses of some golems as columns sorted by (golem, key), and a log of their changes.

    structures, changes: situation and change of each key. log: rows by column; causes: ticks behind each logged batch.
    """

    golems: list[str]
    structures: list[Structure] = field(default_factory=list)
    changes: list[int] = field(default_factory=list)
    columns: dict[str, Int64Array] = field(default_factory=lambda: {n: np.zeros(0, np.int64) for n in COLUMNS})
    log: list[dict[str, Int64Array]] = field(default_factory=list)
    causes: list[Int64Array] = field(default_factory=list)
    _codes: dict[tuple[Structure, int], int] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Int64Array:
        return self.columns[name]

    def code(self, structure: Structure, change: int) -> int:
        """Return the code of a situation and a change, registering it if new."""
        code = self._codes.setdefault((structure, change), len(self.structures))
        if code == len(self.structures):
            self.structures.append(structure)
            self.changes.append(change)
        return code

    def find(self, golem: Int64Array, key: Int64Array) -> Int64Array:
        """Return the row of each (golem, key), -1 for none."""
        return index_of((self["golem"] << 32) | self["key"], (golem << 32) | key)

    def add(self, rows: dict[str, Int64Array]) -> None:
        """Add rows with new keys, and restore the order."""
        merged = {n: np.concatenate([self.columns[n], rows[n].astype(np.int64)]) for n in COLUMNS}
        order = np.argsort((merged["golem"] << 32) | merged["key"], kind="stable")
        self.columns = {n: v[order] for n, v in merged.items()}

    def half_life_us(self, rows: Int64Array, policy: Policy) -> Int64Array:
        """Return the half-life in microseconds: twice that of the structure's decay class (canon 5)."""
        decay = np.array([s.decay_class for s in self.structures], np.int64)[self["key"][rows]]
        zeros = np.zeros(len(rows), np.int64)
        plain = conf.half_life_us(decay, zeros, zeros == 1, policy.decay)
        return conf.dreamt_half_life_us(plain, policy.decay)

    def confidence_at(self, rows: Int64Array, at_us: Int64Array, policy: Policy) -> Int64Array:
        """Return the confidence in ppm at `at_us`. A staged hypothesis does not decay; it expires."""
        held, zeros = self["confidence_ppm"][rows], np.zeros(len(rows), np.int64)
        faded = conf.confidence_at(held, self["anchor_us"][rows], at_us, self.half_life_us(rows, policy), zeros)
        return np.where(self["state"][rows] == CONFIRMED, faded, held)

    def note(self, operation: int, rows: Int64Array, dreamers: Dreamers, before: Int64Array, ticks: _Ticks) -> None:
        """Log an operation on each row with its state after it. before: confidence before it in ppm."""
        if not len(rows):
            return
        place = dreamers.place(self["golem"][rows])
        cause_count, causes = ticks.of(rows)
        self.log.append(
            {n: self[n][rows] for n in COLUMNS}
            | {
                "operation": np.full(len(rows), operation), "before": before, "cycle": dreamers.cycle[place],
                "at_us": dreamers.at_us[place], "cause_count": cause_count,
            }
        )  # fmt: skip
        self.causes.append(causes)


@dataclass(frozen=True)
class _Ticks:
    """Distinct (state row, tick of its evidence) pairs, sorted."""

    row: Int64Array
    tick: Int64Array

    @classmethod
    def between(cls, row: Int64Array, evidence: Evidence) -> _Ticks:
        """Return the decision and verdict ticks of evidence. row: state row of each effect."""
        pairs = np.stack([np.r_[row, row], np.r_[evidence.decided, evidence.judged]], axis=1)
        unique = np.unique(pairs, axis=0) if len(pairs) else pairs.astype(np.int64)
        return cls(unique[:, 0], unique[:, 1])

    def of(self, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return (number of ticks of each row, ticks) of these rows."""
        first, stop = np.searchsorted(self.row, rows), np.searchsorted(self.row, rows, side="right")
        row = np.repeat(np.arange(len(rows)), stop - first)
        return stop - first, self.tick[first[row] + rank_within(row)]


def interval(sums: Sequence[Int64Array], policy: Policy) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return (mean, low, high) in ppm from (count, sum, sum of squares); the variance is shrunk towards a prior."""
    count, total, squares = sums
    rules, n = policy.dreams, np.maximum(count, 1)
    mean = total / n
    prior = rules.variance_prior * rules.effect_sigma_prior_ppm**2
    variance = (prior + np.maximum(squares - total * mean, 0.0)) / (rules.variance_prior + n - 1)
    half = np.where(count > 0, rules.interval_z * np.sqrt(variance / n), 0.0)
    low, middle, high = (np.rint(x).astype(np.int64) for x in (mean - half, mean, mean + half))
    return middle, low, high


def independent(evidence: Evidence, window_ticks: int) -> Evidence:
    """Keep the first effect by golem, key and window of decisions, because trials within a window overlap."""
    window = evidence.decided // window_ticks
    same = (evidence.golem[1:] == evidence.golem[:-1]) & (evidence.key[1:] == evidence.key[:-1])
    same &= window[1:] == window[:-1]
    return evidence.take(np.flatnonzero(np.r_[True, ~same][: len(window)]))


def judge(state: Hypotheses, dreamers: Dreamers, evidence: Evidence, policy: Policy) -> None:
    """Confirm, refute, vote on, drop or expire staged and confirmed hypotheses by outcomes.

    evidence: effects of all decisions judged since each golem's last dream.
    """
    judged = np.flatnonzero((dreamers.place(state["golem"]) >= 0) & (state["state"] != IMAGINED))
    if not len(judged):
        return
    row = state.find(evidence.golem, evidence.key)
    until = state["staged_us"][row] + round(policy.dreams.confirm_days * DAY_US)
    counts = (row >= 0) & (state["state"][row] != IMAGINED) & (evidence.decided > state["staged_tick"][row])
    counts &= (state["state"][row] == CONFIRMED) | (evidence.judged_us <= until)
    row, fresh = row[counts], evidence.take(np.flatnonzero(counts))
    count, total = (np.zeros(len(state["golem"]), np.int64) for _ in range(2))
    for column, values in (
        (count, 1), (total, fresh.effect), (state["live_count"], 1), (state["live_total"], fresh.effect),
        (state["live_squares"], fresh.effect**2),
    ):  # fmt: skip
        np.add.at(column, row, values)
    _decide(state, dreamers, judged, count[judged], total[judged], _Ticks.between(row, fresh), policy)


def _decide(
    state: Hypotheses,
    dreamers: Dreamers,
    rows: Int64Array,
    new_count: Int64Array,
    new_total: Int64Array,
    ticks: _Ticks,
    policy: Policy,
) -> None:
    """Decide about staged and confirmed rows. new_count, new_total: number and sum of effects since the last dream.

    A staged hypothesis is judged by all outcomes since it was staged. A confirmed one gets a vote by the new outcomes
    only, like the curator's entries, so that a hypothesis that stops holding loses confidence quickly.
    """
    rules = policy.dreams
    at = dreamers.at_us[dreamers.place(state["golem"][rows])]
    staged = state["state"][rows] == STAGED
    mean, low, high = interval([state[f"live_{n}"][rows] for n in ("count", "total", "squares")], policy)
    sure = (state["live_count"][rows] >= rules.witnesses_min) & (np.abs(mean) >= rules.effect_min_ppm)
    verdict = np.where(sure & ((low > 0) | (high < 0)), np.sign(mean), 0) * state["sign"][rows]
    large = (new_count > 0) & (np.abs(new_total) >= rules.effect_min_ppm * new_count)
    vote = np.where(large, np.sign(new_total), 0) * state["sign"][rows]
    before = state.confidence_at(rows, at, policy)

    expires = state["staged_us"][rows] + round(rules.expire_days * DAY_US)
    confirmed, refuted = staged & (verdict > 0), staged & (verdict < 0)
    expired = staged & (verdict == 0) & (at >= expires)
    agrees, opposes = ~staged & (vote > 0), ~staged & (vote < 0)
    after = before + ppm(policy.curator.upvote) * agrees - ppm(policy.curator.downvote) * opposes
    after = np.where(confirmed, np.maximum(before, ppm(rules.admitted_confidence)), np.clip(after, 0, conf.PPM))
    faded = ~staged & (after < ppm(policy.curator.prune_confidence))
    anchored = confirmed | agrees | opposes
    state["state"][rows[confirmed]] = CONFIRMED
    state["confidence_ppm"][rows[anchored]] = after[anchored]
    state["anchor_us"][rows[anchored]] = at[anchored]
    gathered = (new_count > 0) & ~(anchored | refuted | expired)
    for operation, chosen in (
        (OP_GATHERED, gathered), (OP_CONFIRMED, confirmed), (OP_REINFORCED, agrees), (OP_CONTRADICTED, opposes),
    ):  # fmt: skip
        state.note(operation, rows[chosen], dreamers, before[chosen], ticks)
    offered = (state["state"][rows] == CONFIRMED) & ~faded & (after >= ppm(rules.clade_confidence))
    offered &= state["pushed"][rows] == 0
    state["pushed"][rows[offered]] = 1
    state.note(OP_PUSHED, rows[offered], dreamers, after[offered], ticks)
    state["state"][rows[refuted | expired | faded]] = GONE
    for operation, chosen in ((OP_REFUTED, refuted), (OP_EXPIRED, expired), (OP_FADED, faded)):
        state.note(operation, rows[chosen], dreamers, before[chosen], ticks)
    live = state["state"] != GONE
    state.columns = {name: values[live] for name, values in state.columns.items()}


def stage(state: Hypotheses, dreamers: Dreamers, evidence: Evidence, policy: Policy) -> None:
    """Add the simulated effects of failures as witnesses, and stage the hypotheses that have enough.

    A hypothesis needs three witnesses with a mean of at least `effect_min_ppm` and at least its standard error. Their
    ratio sets the staged confidence. Hypotheses that are already staged or confirmed get no witnesses.
    """
    row = state.find(evidence.golem, evidence.key)
    staged = state["state"][row] != IMAGINED if len(state["state"]) else np.zeros(len(row), bool)
    evidence = evidence.take(np.flatnonzero((row < 0) | ~staged))
    if not len(evidence.golem):
        return
    _begin(state, dreamers, np.unique((evidence.golem << 32) | evidence.key), policy)
    row = state.find(evidence.golem, evidence.key)
    for name, values in (("count", 1), ("total", evidence.effect), ("squares", evidence.effect**2)):
        np.add.at(state[name], row, values)
    rows, ticks = np.unique(row), _Ticks.between(row, evidence)
    rules = policy.dreams
    mean, _, high = interval([state[n][rows] for n in ("count", "total", "squares")], policy)
    error, size = (high - mean) / rules.interval_z, np.abs(mean)
    ripe = state["count"][rows] >= rules.witnesses_min
    ripe &= (size >= rules.effect_min_ppm) & (size >= error)
    sign, new = np.sign(mean), rows[ripe]
    sureness = np.clip(1.0 - error / np.maximum(size, 1), 0.0, 1.0)
    least, most = ppm(rules.staged_confidence_min), ppm(rules.staged_confidence_max)
    place = dreamers.place(state["golem"][new])
    for name, values in (
        ("state", np.full(len(new), STAGED)), ("sign", sign[ripe]), ("staged_tick", dreamers.tick[place]),
        ("staged_us", dreamers.at_us[place]), ("anchor_us", dreamers.at_us[place]),
        ("confidence_ppm", np.minimum(least + np.floor((most - least) * sureness[ripe]).astype(np.int64), most - 1)),
    ):  # fmt: skip
        state[name][new] = values
    no_confidence = np.zeros(len(rows), np.int64)
    state.note(OP_IMAGINED, rows[~ripe], dreamers, no_confidence[~ripe], ticks)
    state.note(OP_STAGED, new, dreamers, no_confidence[ripe], ticks)


def _begin(state: Hypotheses, dreamers: Dreamers, keys: Int64Array, policy: Policy) -> None:
    """Begin new hypotheses, and restart those whose first witness is stale. keys: golem << 32 | key."""
    golem, key = keys >> 32, keys & 0xFFFFFFFF
    row, place = state.find(golem, key), dreamers.place(golem)
    exists = row >= 0
    age = dreamers.at_us[place[exists]] - state["begun_us"][row[exists]]
    stale = age > round(policy.dreams.expire_days * DAY_US)
    restarted = row[exists][stale]
    for name in SUMS:
        state[name][restarted] = 0
    for name, values in (("begun_cycle", dreamers.cycle), ("begun_us", dreamers.at_us), ("anchor_us", dreamers.at_us)):
        state[name][restarted] = values[place[exists][stale]]
    new = place[~exists]
    blank = {n: np.zeros(len(new), np.int64) for n in COLUMNS}
    times = dict.fromkeys(("begun_us", "anchor_us"), dreamers.at_us[new])
    state.add(blank | {"golem": golem[~exists], "key": key[~exists], "begun_cycle": dreamers.cycle[new]} | times)
