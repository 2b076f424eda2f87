"""Hypotheses: what dreams suggest, and what becomes of it when life goes on. Pure, set-based.

Failures that would have gone better with one thing changed are witnesses; enough of them stage a hypothesis, below the
confidence of knowledge. Only decisions taken after that dream, failures or not, can confirm it: within seven days, or
it is gone by fourteen. Confirmed, it is knowledge that fades at half the rate, and from 0.5 on is offered to the clade.
Source: KAT (Loop 3, demurrage), MEM (shared constants), canon 1, 4, 5, 17, 50.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.grimoire import confidence as conf
from bardo_pipeline.grimoire.confidence import DAY_US, ppm
from bardo_pipeline.grimoire.entries import ANOMALY_BANDS, GAS_BANDS
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
    """Imagined effects, [effects], sorted by (golem, key, decided): whose, of what change in which situation, how much.

    key: code of (situation, change). decided, judged: ticks; judged_us: when the verdict was known.
    """

    golem: np.ndarray
    key: np.ndarray
    effect: np.ndarray
    decided: np.ndarray
    judged: np.ndarray
    judged_us: np.ndarray

    def take(self, pick: np.ndarray) -> Evidence:
        """These effects, in their order."""
        return Evidence(*(getattr(self, n)[pick] for n in self.__dataclass_fields__))


@dataclass(frozen=True)
class Sleepers:
    """The golems that dream in one wave, sorted by golem: the cycle, tick and moment of each one's dream."""

    golem: np.ndarray
    cycle: np.ndarray
    tick: np.ndarray
    at_us: np.ndarray

    def place(self, golem: np.ndarray) -> np.ndarray:
        """Position of each golem, -1 where it does not dream."""
        where = np.minimum(np.searchsorted(self.golem, golem), len(self.golem) - 1)
        return np.where(self.golem[where] == golem, where, -1)


@dataclass
class Hypotheses:
    """The hypotheses of some golems that are not gone, columns sorted by (golem, key), and the rows told of them.

    structures, changes: what a key's code means.
    """

    golems: list[str]
    structures: list[Structure] = field(default_factory=list)
    changes: list[int] = field(default_factory=list)
    columns: dict[str, np.ndarray] = field(default_factory=lambda: {n: np.zeros(0, np.int64) for n in COLUMNS})
    told: list[dict[str, np.ndarray]] = field(default_factory=list)
    causes: list[np.ndarray] = field(default_factory=list)
    _codes: dict[tuple[Structure, int], int] = field(default_factory=dict)
    _cause_count: int = 0

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    def code(self, structure: Structure, change: int) -> int:
        """The code of a situation and a change, given out on first sight."""
        known = self._codes.get((structure, change))
        if known is None:
            known = self._codes[structure, change] = len(self.structures)
            self.structures.append(structure)
            self.changes.append(change)
        return known

    def find(self, golem: np.ndarray, key: np.ndarray) -> np.ndarray:
        """Row of each (golem, key), -1 where there is none."""
        packed, wanted = (self["golem"] << 32) | self["key"], (golem << 32) | key
        if not len(packed):
            return np.full(len(wanted), -1)
        where = np.minimum(np.searchsorted(packed, wanted), len(packed) - 1)
        return np.where(packed[where] == wanted, where, -1)

    def add(self, rows: dict[str, np.ndarray]) -> None:
        """Take in rows of keys that are not there, and restore the order."""
        merged = {n: np.concatenate([self.columns[n], rows[n].astype(np.int64)]) for n in COLUMNS}
        order = np.argsort((merged["golem"] << 32) | merged["key"], kind="stable")
        self.columns = {n: v[order] for n, v in merged.items()}

    def forget(self) -> None:
        """Let go of what is gone."""
        stays = self["state"] != GONE
        self.columns = {n: v[stays] for n, v in self.columns.items()}

    def half_life_us(self, rows: np.ndarray, policy: Policy) -> np.ndarray:
        """Half-life in microseconds: that of the structure's class, doubled (canon 5)."""
        decay = np.array([s.decay_class for s in self.structures], np.int64)[self["key"][rows]]
        zeros = np.zeros(len(rows), np.int64)
        plain = conf.half_life_us(decay, zeros, zeros == 1, policy.decay)
        return conf.dreamt_half_life_us(plain, policy.decay)

    def confidence_at(self, rows: np.ndarray, at_us: np.ndarray, policy: Policy) -> np.ndarray:
        """Confidence in ppm at a moment. A staged hypothesis does not fade, it expires."""
        held, zeros = self["confidence_ppm"][rows], np.zeros(len(rows), np.int64)
        faded = conf.confidence_at(held, self["anchor_us"][rows], at_us, self.half_life_us(rows, policy), zeros)
        return np.where(self["state"][rows] == CONFIRMED, faded, held)

    def tell(self, operation: int, rows: np.ndarray, sleepers: Sleepers, before: np.ndarray, ticks: _Ticks) -> None:
        """Keep what happened to each of these rows, as they stand now."""
        if not len(rows):
            return
        place = sleepers.place(self["golem"][rows])
        bounds, flat = ticks.of(rows)
        self.told.append(
            {n: self[n][rows] for n in COLUMNS}
            | {
                "operation": np.full(len(rows), operation), "before": before, "cycle": sleepers.cycle[place],
                "at_us": sleepers.at_us[place], "cause_first": bounds[:-1] + self._cause_count,
                "cause_stop": bounds[1:] + self._cause_count,
            }
        )  # fmt: skip
        self.causes.append(flat)
        self._cause_count += len(flat)


@dataclass(frozen=True)
class _Ticks:
    """Which ticks are behind which row of the state: distinct pairs, sorted."""

    row: np.ndarray
    tick: np.ndarray

    @classmethod
    def between(cls, row: np.ndarray, evidence: Evidence) -> _Ticks:
        """Of evidence whose rows are known: the ticks of its decisions and of their verdicts."""
        pairs = np.stack([np.r_[row, row], np.r_[evidence.decided, evidence.judged]], axis=1)
        unique = np.unique(pairs, axis=0) if len(pairs) else pairs.astype(np.int64)
        return cls(unique[:, 0], unique[:, 1])

    def of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(bounds [rows + 1], ticks) of these rows."""
        first, stop = np.searchsorted(self.row, rows), np.searchsorted(self.row, rows, side="right")
        lengths = stop - first
        bounds = np.r_[0, np.cumsum(lengths)]
        return bounds, self.tick[np.repeat(first - bounds[:-1], lengths) + np.arange(bounds[-1])]


def interval(sums: Sequence[np.ndarray], policy: Policy) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(mean, low, high) of effects in whole ppm, the variance shrunk towards a prior's; zeros where there is none.

    sums: count, total, and total of squares, int64 each.
    """
    count, total, squares = sums
    rules, n = policy.dreams, np.maximum(count, 1)
    mean = total / n
    prior = rules.variance_prior * rules.effect_sigma_prior_ppm**2
    variance = (prior + np.maximum(squares - total * mean, 0.0)) / (rules.variance_prior + n - 1)
    half = np.where(count > 0, rules.interval_z * np.sqrt(variance / n), 0.0)
    low, middle, high = (np.rint(x).astype(np.int64) for x in (mean - half, mean, mean + half))
    return middle, low, high


def independent(evidence: Evidence, window_ticks: int) -> Evidence:
    """Of a golem's decisions in one stretch of a trial's length the first alone, of each key: their windows overlap."""
    stretch = evidence.decided // window_ticks
    same = (evidence.golem[1:] == evidence.golem[:-1]) & (evidence.key[1:] == evidence.key[:-1])
    same &= stretch[1:] == stretch[:-1]
    return evidence.take(np.flatnonzero(np.r_[True, ~same][: len(stretch)]))


def live_on(state: Hypotheses, sleepers: Sleepers, evidence: Evidence, policy: Policy) -> None:
    """Meet what is staged and confirmed with what was lived since: confirm, refute, let fade, let expire.

    evidence: of all decisions judged since each golem's last dream.
    """
    mine = np.flatnonzero((sleepers.place(state["golem"]) >= 0) & (state["state"] != IMAGINED))
    if not len(mine):
        return
    row = state.find(evidence.golem, evidence.key)
    until = state["staged_us"][row] + round(policy.dreams.confirm_days * DAY_US)
    counts = (row >= 0) & (state["state"][row] != IMAGINED) & (evidence.decided > state["staged_tick"][row])
    counts &= (state["state"][row] == CONFIRMED) | (evidence.judged_us <= until)
    row, fresh = row[counts], evidence.take(np.flatnonzero(counts))
    news, own = (np.zeros(len(state["golem"]), np.int64) for _ in range(2))
    for column, values in (
        (news, 1), (own, fresh.effect), (state["live_count"], 1), (state["live_total"], fresh.effect),
        (state["live_squares"], fresh.effect**2),
    ):  # fmt: skip
        np.add.at(column, row, values)
    _settle(state, sleepers, mine, news[mine], own[mine], _Ticks.between(row, fresh), policy)


def _settle(
    state: Hypotheses,
    sleepers: Sleepers,
    rows: np.ndarray,
    news: np.ndarray,
    own: np.ndarray,
    ticks: _Ticks,
    policy: Policy,
) -> None:
    """Decide about what is staged and confirmed of those who dream. news, own: count and sum of the effects since then.

    What is staged is weighed by all that was lived since; what is confirmed is voted on by each dream's news alone, as
    the curator's entries are by each cycle's, so that what no longer holds loses faster than luck can keep it up.
    """
    rules = policy.dreams
    at = sleepers.at_us[sleepers.place(state["golem"][rows])]
    staged = state["state"][rows] == STAGED
    mean, low, high = interval([state[f"live_{n}"][rows] for n in ("count", "total", "squares")], policy)
    sure = (state["live_count"][rows] >= rules.witnesses_min) & (np.abs(mean) >= rules.effect_min_ppm)
    verdict = np.where(sure & ((low > 0) | (high < 0)), np.sign(mean), 0) * state["sign"][rows]
    told = (news > 0) & (np.abs(own) >= rules.effect_min_ppm * news)
    says = np.where(told, np.sign(own), 0) * state["sign"][rows]
    before = state.confidence_at(rows, at, policy)

    expires = state["staged_us"][rows] + round(rules.expire_days * DAY_US)
    confirmed, refuted = staged & (verdict > 0), staged & (verdict < 0)
    expired = staged & (verdict == 0) & (at >= expires)
    agrees, opposes = ~staged & (says > 0), ~staged & (says < 0)
    after = (
        before + np.where(agrees, ppm(policy.curator.upvote), 0) - np.where(opposes, ppm(policy.curator.downvote), 0)
    )
    after = np.where(confirmed, np.maximum(before, ppm(rules.admitted_confidence)), np.clip(after, 0, conf.PPM))
    faded = ~staged & (after < ppm(policy.curator.prune_confidence))
    anchored = confirmed | agrees | opposes
    state["state"][rows[confirmed]] = CONFIRMED
    state["confidence_ppm"][rows[anchored]] = after[anchored]
    state["anchor_us"][rows[anchored]] = at[anchored]
    gathered = (news > 0) & ~(anchored | refuted | expired)
    for operation, chosen in (
        (OP_GATHERED, gathered), (OP_CONFIRMED, confirmed), (OP_REINFORCED, agrees), (OP_CONTRADICTED, opposes),
    ):  # fmt: skip
        state.tell(operation, rows[chosen], sleepers, before[chosen], ticks)
    offered = (state["state"][rows] == CONFIRMED) & ~faded & (after >= ppm(rules.clade_confidence))
    offered &= state["pushed"][rows] == 0
    state["pushed"][rows[offered]] = 1
    state.tell(OP_PUSHED, rows[offered], sleepers, after[offered], ticks)
    state["state"][rows[refuted | expired | faded]] = GONE
    for operation, chosen in ((OP_REFUTED, refuted), (OP_EXPIRED, expired), (OP_FADED, faded)):
        state.tell(operation, rows[chosen], sleepers, before[chosen], ticks)
    state.forget()


def stage(state: Hypotheses, sleepers: Sleepers, evidence: Evidence, policy: Policy) -> None:
    """Gather what failures would have been worth with one thing changed; stage what has witnesses enough.

    Enough are three whose mean is worth a rule and beyond its own standard error; how far beyond decides the confidence
    within its band.
    evidence: of failures chosen in these dreams. What is staged or confirmed already is not imagined again.
    """
    row = state.find(evidence.golem, evidence.key)
    alive = state["state"][row] != IMAGINED if len(state["state"]) else np.zeros(len(row), bool)
    evidence = evidence.take(np.flatnonzero((row < 0) | ~alive))
    if not len(evidence.golem):
        return
    _make_room(state, sleepers, np.unique((evidence.golem << 32) | evidence.key), policy)
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
    place = sleepers.place(state["golem"][new])
    for name, values in (
        ("state", np.full(len(new), STAGED)), ("sign", sign[ripe]), ("staged_tick", sleepers.tick[place]),
        ("staged_us", sleepers.at_us[place]), ("anchor_us", sleepers.at_us[place]),
        ("confidence_ppm", np.minimum(least + np.floor((most - least) * sureness[ripe]).astype(np.int64), most - 1)),
    ):  # fmt: skip
        state[name][new] = values
    nothing = np.zeros(len(rows), np.int64)
    state.tell(OP_IMAGINED, rows[~ripe], sleepers, nothing[~ripe], ticks)
    state.tell(OP_STAGED, new, sleepers, nothing[ripe], ticks)


def _make_room(state: Hypotheses, sleepers: Sleepers, keys: np.ndarray, policy: Policy) -> None:
    """Begin these (golem << 32 | key) that are not there, and begin anew those whose first witness is too old."""
    golem, key = keys >> 32, keys & 0xFFFFFFFF
    row, place = state.find(golem, key), sleepers.place(golem)
    there = row >= 0
    age = sleepers.at_us[place[there]] - state["begun_us"][row[there]]
    stale = age > round(policy.dreams.expire_days * DAY_US)
    again = row[there][stale]
    for name in SUMS:
        state[name][again] = 0
    for name, values in (("begun_cycle", sleepers.cycle), ("begun_us", sleepers.at_us), ("anchor_us", sleepers.at_us)):
        state[name][again] = values[place[there][stale]]
    new = place[~there]
    blank = {n: np.zeros(len(new), np.int64) for n in COLUMNS}
    moments = dict.fromkeys(("begun_us", "anchor_us"), sleepers.at_us[new])
    state.add(blank | {"golem": golem[~there], "key": key[~there], "begun_cycle": sleepers.cycle[new]} | moments)


def situation(chain: str, protocol: str, pair: str, tool: str, regime: str, anomaly: int, gas: int) -> Structure:
    """The structure of a situation in which re-centring was decided on."""
    return Structure(
        "pattern", chain, protocol, pair, tool, "rebalance", regime, ANOMALY_BANDS[anomaly], GAS_BANDS[gas]
    )
