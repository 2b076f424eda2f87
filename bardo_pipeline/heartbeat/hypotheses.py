"""Hypotheses: what dreams suggest, and what becomes of it when life goes on. Pure, set-based.

Failures that would have gone better with one thing changed are witnesses; enough of them stage a hypothesis, below the
confidence of knowledge. Only decisions taken after that dream, failures or not, can confirm it: within seven days, or
it is gone by fourteen. Confirmed, it is knowledge that fades at half the rate, and from 0.5 on is offered to the clade.
Source: KAT (Loop 3, demurrage), MEM (shared constants), canon 1, 4, 5, 17, 50.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from bardo_pipeline.curator.structure import Structure
from bardo_pipeline.grimoire import confidence as conf
from bardo_pipeline.grimoire.confidence import DAY_US, FOREVER_US, ppm
from bardo_pipeline.grimoire.entries import ANOMALY_BANDS, DECAY_CLASSES, GAS_BANDS, MOMENT
from bardo_pipeline.grimoire.wording import ANOMALY_WORDS, GAS_WORDS, REGIME_WORDS, size_word
from bardo_pipeline.heartbeat.imagination import CHANGES
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
PROVENANCE = "dream_counterfactual"

SUMS = ("count", "total", "squares", "live_count", "live_total", "live_squares")
COLUMNS = (
    "golem", "key", "state", "begun_cycle", "begun_us", "staged_tick", "staged_us", "sign", "confidence_ppm",
    "anchor_us", "pushed", *SUMS,
)  # fmt: skip

SITUATED = ("chain", "protocol", "pair", "tool", "action_type", "regime", "anomaly_band", "gas_band")
"""What of a structure a hypothesis has."""

HYPOTHESIS_SCHEMA = pa.schema(
    [
        pa.field("golem_id", pa.string(), nullable=False),
        pa.field("hypothesis_id", pa.string(), nullable=False),
        pa.field("cycle", pa.int64(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("at", MOMENT, nullable=False),
        pa.field("operation", pa.string(), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("structure", pa.string(), nullable=False),
        *[pa.field(name, pa.string(), nullable=False) for name in SITUATED],
        pa.field("change", pa.string(), nullable=False),
        pa.field("provenance", pa.string(), nullable=False),
        pa.field("decay_class", pa.string(), nullable=False),
        pa.field("half_life_days", pa.float64(), nullable=False),
        pa.field("sign", pa.int64(), nullable=False),
        pa.field("confidence_before_ppm", pa.int64(), nullable=False),
        pa.field("confidence_ppm", pa.int64(), nullable=False),
        pa.field("anchor_at", MOMENT, nullable=False),
        pa.field("begun_cycle", pa.int64(), nullable=False),
        pa.field("begun_at", MOMENT, nullable=False),
        pa.field("staged_tick", pa.int64()),
        pa.field("staged_at", MOMENT),
        pa.field("confirm_by", MOMENT),
        pa.field("expires_at", MOMENT),
        *[
            pa.field(f"{side}{name}", pa.int64(), nullable=False)
            for side in ("", "live_")
            for name in ("count", "total", "squares", "mean_ppm", "low_ppm", "high_ppm")
        ],
        pa.field("pushed", pa.bool_(), nullable=False),
        pa.field("cause_ticks", pa.list_(pa.field("element", pa.int64(), nullable=False)), nullable=False),
        pa.field("policy_hash", pa.string(), nullable=False),
    ]
)
"""One row per change of a hypothesis in a dream; key (golem_id, hypothesis_id, cycle, seq), the newest says how it
stands. mean, low and high: what the change would be worth beside what was done, in ppm of the position's value, as
imagined (of failures alone), and live (of all decisions since). confidence_ppm is that at anchor_at, and halves every
half_life_days, which are twice those of its class; cause_ticks: decisions and verdicts behind this row."""

HYPOTHESIS_KEY = ("golem_id", "hypothesis_id", "cycle", "seq")


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
        twice = np.rint(np.minimum(plain, FOREVER_US >> 3) * policy.dreams.half_life_multiplier).astype(np.int64)
        return np.where(plain >= FOREVER_US, FOREVER_US, twice)

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
    _settle(state, sleepers, mine, news[mine], np.sign(own[mine]), _Ticks.between(row, fresh), policy)


def _settle(
    state: Hypotheses,
    sleepers: Sleepers,
    rows: np.ndarray,
    news: np.ndarray,
    own: np.ndarray,
    ticks: _Ticks,
    policy: Policy,
) -> None:
    """Decide about what is staged and confirmed of those who dream. news, own: count and sign of what is new."""
    rules = policy.dreams
    at = sleepers.at_us[sleepers.place(state["golem"][rows])]
    staged = state["state"][rows] == STAGED
    mean, low, high = interval([state[f"live_{n}"][rows] for n in ("count", "total", "squares")], policy)
    sure = (state["live_count"][rows] >= rules.witnesses_min) & (np.abs(mean) >= rules.effect_min_ppm)
    verdict = np.where(sure & ((low > 0) | (high < 0)), np.sign(mean), 0) * state["sign"][rows]
    told = (news > 0) & (own * state["sign"][rows] == verdict)  # only news that points the same way is a vote
    before = state.confidence_at(rows, at, policy)

    expires = state["staged_us"][rows] + round(rules.expire_days * DAY_US)
    confirmed, refuted = staged & (verdict > 0), staged & (verdict < 0)
    expired = staged & (verdict == 0) & (at >= expires)
    agrees, opposes = ~staged & told & (verdict > 0), ~staged & told & (verdict < 0)
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


def hypothesis_id(golem_id: str, structure_key: str, change: str, begun_cycle: int) -> str:
    """Whose, of what, since which dream: 24 hex characters."""
    return hashlib.sha256(f"{golem_id}|{structure_key}|{change}|{begun_cycle}".encode()).hexdigest()[:24]


def hypothesis_text(structure: Structure, change: str, sign: int, mean_ppm: int) -> str:
    """One sentence from the structure, in banded words."""
    scene = (
        f"In {REGIME_WORDS[structure.regime or 'unknown']}, with a {structure.pair} position on {structure.protocol} "
        f"{ANOMALY_WORDS[structure.anomaly_band or 'calm']} and {GAS_WORDS[structure.gas_band or 'normal']}"
    )
    what = CHANGE_WORDS[change]
    if sign == 0:
        return f"{scene}, it is open what {what} would change."
    return f"{scene}, {what} would have been {size_word(mean_ppm)} {'better' if sign > 0 else 'worse'}."


CHANGE_WORDS = {
    "threshold_higher": "a re-centring threshold one band higher",
    "threshold_lower": "a re-centring threshold one band lower",
    "range_narrower": "a narrower new range",
    "range_wider": "a wider new range",
    "wait_for_gas": "waiting for cheaper gas",
}


def to_table(state: Hypotheses, policy: Policy, policy_hash: str) -> pa.Table:
    """All that was told, as HYPOTHESIS_SCHEMA, in the order of its key."""
    if not state.told:
        return HYPOTHESIS_SCHEMA.empty_table()
    rows = {n: np.concatenate([part[n] for part in state.told]) for n in state.told[0]}
    count, key = len(rows["golem"]), rows["key"]
    structures = [state.structures[k] for k in key.tolist()]
    changes = [CHANGES[state.changes[k]] for k in key.tolist()]
    golems = [state.golems[g] for g in rows["golem"].tolist()]
    half = Hypotheses(state.golems, state.structures, columns=rows).half_life_us(np.arange(count), policy)
    never = rows["staged_us"] == 0
    sides: dict[str, pa.Array] = {}
    for side in ("", "live_"):
        sums = [rows[f"{side}{n}"] for n in ("count", "total", "squares")]
        names = ("count", "total", "squares", "mean_ppm", "low_ppm", "high_ppm")
        named = zip(names, [*sums, *interval(sums, policy)], strict=True)
        sides |= {f"{side}{n}": pa.array(v) for n, v in named}
    columns = {
        "golem_id": golems,
        "hypothesis_id": [
            hypothesis_id(g, s.key, c, b)
            for g, s, c, b in zip(golems, structures, changes, rows["begun_cycle"].tolist(), strict=True)
        ],
        "cycle": rows["cycle"], "at": _moments(rows["at_us"]),
        "operation": pa.array(OPERATIONS).take(pa.array(rows["operation"])),
        "state": pa.array(STATES).take(pa.array(rows["state"])),
        "text": [
            hypothesis_text(s, c, i, m)
            for s, c, i, m in zip(
                structures, changes, rows["sign"].tolist(), sides["mean_ppm"].to_pylist(), strict=True
            )
        ],
        "structure": [s.key for s in structures], "change": changes,
        **{n: [getattr(s, n) for s in structures] for n in SITUATED},
        "provenance": [PROVENANCE] * count,
        "decay_class": [DECAY_CLASSES[s.decay_class] for s in structures],
        "half_life_days": half / DAY_US, "sign": rows["sign"], "confidence_before_ppm": rows["before"],
        "confidence_ppm": rows["confidence_ppm"], "anchor_at": _moments(rows["anchor_us"]),
        "begun_cycle": rows["begun_cycle"], "begun_at": _moments(rows["begun_us"]),
        "staged_tick": pa.array(rows["staged_tick"], mask=never), "staged_at": _moments(rows["staged_us"], never),
        "confirm_by": _moments(rows["staged_us"] + round(policy.dreams.confirm_days * DAY_US), never),
        "expires_at": _moments(rows["staged_us"] + round(policy.dreams.expire_days * DAY_US), never),
        **sides, "pushed": rows["pushed"] == 1,
        "cause_ticks": _lists(rows["cause_first"], rows["cause_stop"], np.concatenate(state.causes)),
        "policy_hash": [policy_hash] * count,
        "order": np.repeat(np.arange(len(state.told)), [len(part["golem"]) for part in state.told]),
    }  # fmt: skip
    table = pa.table(columns).sort_by([(k, "ascending") for k in ("golem_id", "cycle", "order", "structure", "change")])
    table = table.append_column("seq", pa.array(_sequence(table)))
    return table.select(HYPOTHESIS_SCHEMA.names).cast(HYPOTHESIS_SCHEMA)


def _sequence(table: pa.Table) -> np.ndarray:
    golem = table["golem_id"].combine_chunks().dictionary_encode().indices.to_numpy()
    cycle = table["cycle"].to_numpy()
    start = np.flatnonzero(np.r_[True, (golem[1:] != golem[:-1]) | (cycle[1:] != cycle[:-1])])
    return np.arange(len(golem)) - np.repeat(start, np.diff(np.r_[start, len(golem)]))


def _moments(us: np.ndarray, null: np.ndarray | None = None) -> pa.Array:
    return pa.array(us, pa.int64(), mask=null).cast(MOMENT)


def _lists(first: np.ndarray, stop: np.ndarray, flat: np.ndarray) -> pa.Array:
    lengths = stop - first
    offsets = np.r_[0, np.cumsum(lengths)]
    values = flat[np.repeat(first - offsets[:-1], lengths) + np.arange(offsets[-1])]
    kind = HYPOTHESIS_SCHEMA.field("cause_ticks").type
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values, pa.int64())).cast(kind)


def standing(rows: pa.Table) -> pa.Table:
    """The newest row of each hypothesis (HYPOTHESIS_SCHEMA), sorted by golem and hypothesis."""
    order = rows.sort_by([(n, "ascending") for n in HYPOTHESIS_KEY])
    ids = (order["golem_id"].to_numpy(), order["hypothesis_id"].to_numpy())
    last = np.r_[(ids[0][1:] != ids[0][:-1]) | (ids[1][1:] != ids[1][:-1]), True][: order.num_rows]
    return order.filter(pa.array(last, pa.bool_()))


def recalled(rows: pa.Table, golems: Sequence[str]) -> Hypotheses:
    """The hypotheses that their rows (HYPOTHESIS_SCHEMA) leave alive, in working form; codes are places in golems."""
    state = Hypotheses(list(golems))
    alive = standing(rows)
    alive = alive.filter(pa.array([s != STATES[GONE] for s in alive["state"].to_pylist()], pa.bool_()))
    if not alive.num_rows:
        return state
    code = {g: i for i, g in enumerate(golems)}
    keys = [
        state.code(Structure("pattern", **{n: row[n] for n in SITUATED}), CHANGES.index(row["change"]))
        for row in alive.select([*SITUATED, "change"]).to_pylist()
    ]
    plain = {n: alive[n].to_numpy() for n in ("sign", "confidence_ppm", "begun_cycle", *SUMS)}
    moments = {"begun_us": "begun_at", "staged_us": "staged_at", "anchor_us": "anchor_at"}
    read = {n: alive[c].cast(pa.int64()).fill_null(0).to_numpy() for n, c in moments.items()}
    state.add(
        plain
        | read
        | {
            "golem": np.array([code[g] for g in alive["golem_id"].to_pylist()]), "key": np.array(keys),
            "state": np.array([STATES.index(s) for s in alive["state"].to_pylist()]),
            "staged_tick": alive["staged_tick"].fill_null(0).to_numpy(),
            "pushed": alive["pushed"].to_numpy().astype(np.int64),
        }
    )  # fmt: skip
    return state


def situation(chain: str, protocol: str, pair: str, tool: str, regime: str, anomaly: int, gas: int) -> Structure:
    """The structure of a situation in which re-centring was decided on."""
    return Structure(
        "pattern", chain, protocol, pair, tool, "rebalance", regime, ANOMALY_BANDS[anomaly], GAS_BANDS[gas]
    )
