"""Worth: whether a grimoire is right, by what its market is known to hold. Pure, set-based over entries.

Each living entry gets a verdict; looks at several moments show how soon truths are learned, and how soon what has
expired fades. Source: X-5, issue 4 ("Proof of worth").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.grimoire.entry_columns import confidence_of, int_column, micros
from bardo_pipeline.grimoire.gas_bands import split_by_band
from bardo_pipeline.policy import Policy, WorthPolicy
from bardo_pipeline.quality.market_truths import PlantedTruth
from bardo_pipeline.quality.true_effects import Yardstick, cell_name, cells_of

VERDICTS = ("right", "wrong", "unsupported", "expired", "decoy")
RIGHT, WRONG, UNSUPPORTED, EXPIRED, DECOY = range(5)
SUBJECTS = ("rule", "link", "level")
"""What an entry states: what acting is worth, what moves what, or how high something usually is."""

VERDICT_SCHEMA = pa.schema(
    [
        pa.field("golem_id", pa.string(), nullable=False),
        pa.field("entry_id", pa.string(), nullable=False),
        pa.field("structure", pa.string(), nullable=False),
        pa.field("subject", pa.string(), nullable=False),
        pa.field("sign", pa.int64(), nullable=False),
        pa.field("verdict", pa.string(), nullable=False),
        pa.field("truth", pa.string()),
        pa.field("confidence_ppm", pa.int64(), nullable=False),
    ]
)
"""One row per living entry at a moment: what is true of it, by which truth, and how sure its golem is. A rule that
stands for several has one row for each, since it may be right about one and wrong about another. "expired": it was made
before the market's turn, was true then, and is given time to fade; "unsupported": no outcome shows it."""


@dataclass(frozen=True, eq=False)
class Ground:
    """What a market holds.

    before, after: what acting is worth up to the market's turn (turn_us, UTC microseconds; None: it never turns) and
    from then on. truths: what was planted. levels: the least and the highest that each metric usually is.
    """

    before: Yardstick
    after: Yardstick
    truths: tuple[PlantedTruth, ...]
    start_us: int
    turn_us: int | None
    levels: Mapping[str, tuple[float, float]]

    def turned(self, at_us: int) -> bool:
        """Whether the market turned before a moment."""
        return self.turn_us is not None and at_us > self.turn_us

    def outlived(self, entries: pa.Table, at_us: int) -> np.ndarray:
        """Which entries were made before a turn that has come: what is made later has no better days behind it."""
        if self.turn_us is None or not self.turned(at_us):
            return np.zeros(entries.num_rows, bool)
        return micros(entries, "created_at") <= self.turn_us

    def changed(self, policy: WorthPolicy) -> np.ndarray:
        """Situations in which the turn surely changed what acting is worth, and the sign no longer stands. [CELLS]."""
        spread = np.hypot(self.before.error, self.after.error)
        moved = np.abs(self.after.effect - self.before.effect) >= policy.yardstick_z * spread
        enough = (self.before.sure != 0) & (self.after.days >= policy.yardstick_days_min)
        return np.nan_to_num(moved) & enough & (self.after.sure != self.before.sure)

    def worth(self, at_us: int, policy: WorthPolicy) -> np.ndarray:
        """+1 where acting pays at a moment, -1 where it loses, 0 where neither is sure. [CELLS].

        What the turn did not surely change holds on.
        """
        if not self.turned(at_us):
            return self.before.sure
        kept = np.where(self.after.sure != 0, self.after.sure, self.before.sure)
        return np.where(self.changed(policy), self.after.sure, kept)


class Recalled(NamedTuple):
    """One truth that has to be learned: how many golems met it often enough, and how many of those hold it."""

    name: str
    kind: str
    strength: float
    met: int
    held: int

    @property
    def share(self) -> float:
        """Share of those who met it that hold it."""
        return self.held / self.met if self.met else 0.0


@dataclass(frozen=True)
class Look:
    """A grimoire at one moment. verdicts: VERDICT_SCHEMA. recalled: the truths that had to be known by then."""

    at_us: int
    day: float
    verdicts: pa.Table
    recalled: tuple[Recalled, ...]

    def count(self, *verdicts: int, subjects: tuple[str, ...] = SUBJECTS) -> int:
        """How many living entries about these subjects have one of these verdicts."""
        words = pa.array([VERDICTS[v] for v in verdicts])
        mine = pc.is_in(self.verdicts["subject"], value_set=pa.array(subjects))
        return pc.sum(pc.and_(mine, pc.is_in(self.verdicts["verdict"], value_set=words))).as_py() or 0

    @property
    def precision(self) -> float | None:
        """Share of rules and links that are right, of all that were not true once and have expired since."""
        told = self.count(RIGHT, WRONG, UNSUPPORTED, DECOY, subjects=("rule", "link"))
        return self.count(RIGHT, subjects=("rule", "link")) / told if told else None

    @property
    def junk(self) -> float | None:
        """Share of living entries that no outcome supports."""
        entries = self.verdicts.num_rows
        return self.count(WRONG, UNSUPPORTED, DECOY) / entries if entries else None

    @property
    def recall(self) -> float | None:
        """Mean over the truths that were met of the share of golems that hold them."""
        shares = [one.share for one in self.recalled if one.met]
        return sum(shares) / len(shares) if shares else None

    @property
    def decoy_confidence(self) -> float:
        """The highest confidence of a decoy as a causal link, 0 without one."""
        decoys = self.verdicts.filter(pc.equal(self.verdicts["verdict"], VERDICTS[DECOY]))
        return (pc.max(decoys["confidence_ppm"]).as_py() or 0) / PPM


def look(grimoire: pa.Table, met: pa.Table, at_us: int, ground: Ground, policy: Policy) -> Look:
    """Judge every living entry of a grimoire at a moment.

    grimoire: ENTRY_SCHEMA, as it stood then. met: golem_id, cell and windows: in how many market windows decisions of
    each golem had been judged there by then.
    """
    living = split_by_band(grimoire.filter(pc.equal(grimoire["status"], "active")))
    judged = _verdicts(living, at_us, ground, policy)
    golems = len({*grimoire["golem_id"].to_pylist(), *met["golem_id"].to_pylist()})
    day = (at_us - ground.start_us) / 86_400_000_000
    return Look(at_us, day, judged, (*_cells_known(judged, met, at_us, ground, policy.worth),
                                     *_truths_known(judged, golems, at_us, ground, policy.worth)))  # fmt: skip


def _verdicts(living: pa.Table, at_us: int, ground: Ground, policy: Policy) -> pa.Table:
    count = living.num_rows
    verdict, truth = np.full(count, UNSUPPORTED), np.full(count, "", dtype=object)
    source = living["source"].to_numpy(zero_copy_only=False)
    subject = np.where(source == "pattern", 0, np.where(source == "causal", 1, 2))
    sign = int_column(living, "sign")
    rules, links, levels = (np.flatnonzero(subject == s) for s in range(3))
    verdict[rules], truth[rules] = _rules(living.take(pa.array(rules)), sign[rules], at_us, ground, policy.worth)
    verdict[links], truth[links] = _links(living.take(pa.array(links)), sign[links], at_us, ground)
    verdict[levels] = _levels(living.take(pa.array(levels)), ground)
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
    rules: pa.Table, sign: np.ndarray, at_us: int, ground: Ground, policy: WorthPolicy
) -> tuple[np.ndarray, np.ndarray]:
    """Verdict and truth of what entries say of acting. Only re-centring is ever on trial."""
    cell = cells_of(rules)
    tried = (cell >= 0) & (rules["action_type"].to_numpy(zero_copy_only=False) == "rebalance")
    now, once = ground.worth(at_us, policy)[cell], ground.before.sure[cell]
    gone = ground.changed(policy)[cell] & ground.outlived(rules, at_us) & (sign == once)
    known = np.select([now == 0, now == sign], [UNSUPPORTED, RIGHT], WRONG)
    verdict = np.where(tried & (sign != 0), np.where(gone & (known != RIGHT), EXPIRED, known), UNSUPPORTED)
    names = np.array([cell_truth(c) if c >= 0 else "" for c in cell], dtype=object)
    return verdict, names


def cell_truth(cell: int) -> str:
    """The name of what acting is worth in a situation, as a truth."""
    regime, band, gas = cell_name(cell)
    return f"acting in {regime}, {band}, gas {gas}"


def _links(links: pa.Table, sign: np.ndarray, at_us: int, ground: Ground) -> tuple[np.ndarray, np.ndarray]:
    """Verdict and truth of causal links; equal links are judged once."""
    if not links.num_rows:
        return np.zeros(0, np.int64), np.zeros(0, dtype=object)
    parts = [links[name].to_pylist() for name in ("cause", "effect", "lag_ticks")]
    old = ground.outlived(links, at_us)
    keys = list(zip(*parts, sign.tolist(), old.tolist(), strict=True))
    turned, truths = ground.turned(at_us), ground.truths
    known = {key: judge_link(*key[:4], turned=turned, old=key[4], truths=truths) for key in set(keys)}
    return np.array([known[k][0] for k in keys]), np.array([known[k][1] for k in keys], dtype=object)


def judge_link(
    cause: str, effect: str, lag: int | None, sign: int, *, turned: bool, old: bool, truths: tuple[PlantedTruth, ...]
) -> tuple[int, str]:
    """The verdict about a causal link, and the truth or decoy that gives it.

    lag: in ticks, of a minute or two. turned: whether what expires has expired; old: whether the link was there then.
    """
    about = [t for t in truths if (t.cause, t.effect) == (cause, effect)]
    found = EXPIRED, ""
    for truth in (t for t in about if t.kind != "decoy"):
        near = lag is None or abs(lag - truth.lag_bars) <= max(truth.span_bars, 1)
        if truth.sign == sign and near:
            if (truth.valid_until_bar if turned else truth.valid_from_bar) is None:
                return RIGHT, truth.name
            found = EXPIRED if turned and old else WRONG, truth.name
    if found[1]:
        return found
    decoys = [t for t in about if t.kind == "decoy"]
    if decoys:
        return DECOY, decoys[0].name
    return (WRONG, about[0].name) if about else (UNSUPPORTED, "")


def _levels(levels: pa.Table, ground: Ground) -> np.ndarray:
    """Whether what entries call usual is: within the metric's usual range."""
    metric, mean = levels["metric"].to_pylist(), int_column(levels, "effect_mean_ppm")
    low, high = (np.array([ground.levels.get(m, (1, 0))[side] for m in metric], float) for side in (0, 1))
    return np.where((mean >= low) & (mean <= high), RIGHT, WRONG)


def _cells_known(judged: pa.Table, met: pa.Table, at_us: int, ground: Ground, policy: WorthPolicy) -> list[Recalled]:
    """Situations in which acting matters by more than a sigma: who met them often enough to know, and who knows.

    Often enough: in so many windows that one plain test, at the end, would see the effect four times in five.
    """
    yard = ground.after if ground.turned(at_us) else ground.before
    strong = np.flatnonzero((yard.strength >= policy.strong_sigma) & (ground.worth(at_us, policy) == yard.sure))
    right = judged.filter(pc.equal(judged["verdict"], VERDICTS[RIGHT]))
    out = []
    for cell in strong:
        name = cell_truth(int(cell))
        enough = max(policy.windows_min, policy.learnable / float(yard.strength[cell]) ** 2)
        here = met.filter(pc.and_(pc.equal(met["cell"], int(cell)), pc.greater_equal(met["windows"], enough)))
        here = here["golem_id"].unique()
        holders = right.filter(pc.equal(right["truth"], name))["golem_id"].unique()
        held = pc.sum(pc.is_in(here, value_set=holders)).as_py() or 0
        out.append(Recalled(name, "rule", float(yard.strength[cell]), len(here), held))
    return out


def _truths_known(judged: pa.Table, golems: int, at_us: int, ground: Ground, policy: WorthPolicy) -> list[Recalled]:
    """Planted causes above a sigma: who holds them, as a link or, where they say what acting is worth, as a rule.

    A link without a regime is the truth of each regime in which it holds; one that restates a truth counts for it.
    """
    right = judged.filter(pc.equal(judged["verdict"], VERDICTS[RIGHT]))
    out = []
    for truth in ground.truths:
        gone = ground.turned(at_us) and truth.valid_until_bar is not None
        if truth.kind != "causal" or truth.strength < policy.strong_sigma or gone:
            continue
        same = [t.name for t in ground.truths if _says(t) == _says(truth) or t.restates == truth.name]
        mine = pc.is_in(right["truth"], value_set=pa.array(same))
        if truth.rule_sign:
            told = pc.match_substring(right["truth"], f"acting in {truth.regime},")
            mine = pc.or_(mine, pc.and_(told, pc.equal(right["sign"], truth.rule_sign)))
        held = len(right.filter(pc.fill_null(mine, False))["golem_id"].unique())
        out.append(Recalled(truth.name, "cause", truth.strength, golems, held))
    return out


def _says(truth: PlantedTruth) -> tuple[str, str, int, int, str]:
    """What a truth says, wherever it holds."""
    return truth.cause, truth.effect, truth.lag_bars, truth.sign, truth.kind
