"""Measures what survives if a budget limits the entries that pass a death.

Fleets learn in markets with planted truths, one market per pair; their entries become one pooled grimoire with one
entry per structure. For each budget, entries are chosen by the bottleneck, by confidence, and at random. The measures
are: planted truths still stated, questions still answered, and worth of heirs in the following days.
Source: X-5 ("size against loss at the bottleneck"); docs/adr/0030.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA, MOMENT
from bardo_pipeline.grimoire.entry_columns import confidence_of, with_columns
from bardo_pipeline.heartbeat.fleet import Founding, born
from bardo_pipeline.inheritance.bottleneck import bottleneck
from bardo_pipeline.inheritance.heir_entries import as_inherited
from bardo_pipeline.inheritance.weismann import attenuate, leave_bloodstains, shed
from bardo_pipeline.market.synthetic import synthetic_market
from bardo_pipeline.market.synthetic_spec import DAY_BARS, START, graded_spec, planted_truths
from bardo_pipeline.market.tick_series import Tape, tape_of
from bardo_pipeline.mortality.random_streams import seed_of
from bardo_pipeline.policy import Policy
from bardo_pipeline.quality.grimoire_precision import RIGHT, VERDICTS, Ground, look
from bardo_pipeline.quality.known_questions import questions
from bardo_pipeline.retrieval.retrieve import Grimoire
from bardo_pipeline.retrieval.situation import Situation
from bardo_pipeline.runtime.in_memory_fleet import InMemoryFleet, Start
from bardo_pipeline.runtime.memory_evaluation import OnProgress, lasting
from bardo_pipeline.runtime.truth_measurement import Other, market_of, measuring, readings_on
from bardo_pipeline.storage.home import Home

BUDGETS = tuple(16 << doubling for doubling in range(10))
"""Maximum numbers of entries that pass: 16 to 8,192."""

WAYS = ("bottleneck", "confidence", "random")
"""Methods of choosing the entries that pass."""

POOL = "g-pool"
_APART = 1_000_003

Question = tuple[str, str | None, tuple[str, int]]
"""A question: its words, its regime, and the expected answer (structure, sign)."""


@dataclass(frozen=True)
class Squeeze:
    """Settings: seed of the first market, learning golems and their days, days of the heirs, heirs per choice.

    markets: markets on which the true effects are measured. pairs: traded pairs, one market each, shared by the golems.
    """

    seed: int
    golems: int = 32
    days: int = 5
    heir_days: int = 2
    heirs: int = 2
    markets: int = 8
    pairs: int = 8

    def __post_init__(self) -> None:
        for name in ("golems", "days", "heir_days", "heirs", "pairs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"a squeeze needs {name.replace('_', '-')} from 1 up, not {getattr(self, name)}")
        if self.golems < self.pairs:
            raise ConfigError(
                f"{self.golems} golems cannot trade {self.pairs} pairs; give --golems {self.pairs} or more"
            )


class Kept(NamedTuple):
    """Result of one choice: entries, shares of truths stated and questions answered, and relative worth of heirs.

    worth: 1 for heirs of the bottleneck's choice at the largest budget.
    """

    budget: int
    way: str
    entries: int
    truths: float
    answers: float
    worth: float


@dataclass(frozen=True)
class Squeezed:
    """The pooled grimoire: its entries, correct truths, answered questions; and the results by budget and way."""

    entries: int
    truths: int
    answered: int
    kept: tuple[Kept, ...]


def squeeze(
    root: Path, settings: Squeeze, *, policy: Policy, on_progress: OnProgress, clock: Callable[[], datetime]
) -> Squeezed:
    """Run the evaluation in `root`, an empty folder for a home. Deterministic in seed and policy."""
    spec, tape = graded_spec(None), _tape(settings, 0, policy)
    stop = _stop(tape, settings)
    others = [
        Other(settings.seed + _APART * (1 + n), spec, settings.days * DAY_BARS, START, n)
        for n in range(settings.markets)
    ]
    with measuring([others], lasting(tape.market.bars), policy) as measured:
        pool = _pool(settings, policy, on_progress)
        (yardstick,) = measured(partial(on_progress, "yardstick"))
    at_us = int(tape.at_us[stop])
    levels = readings_on([market_of(other) for other in others], policy)
    ground = Ground(yardstick, yardstick, planted_truths(spec), int(tape.at_us[0]), None, levels)
    windows = pa.schema([("golem_id", pa.string()), ("cell", pa.int64()), ("windows", pa.int64())]).empty_table()
    verdicts = look(pool, windows, at_us, ground, policy).verdicts
    deaths = pa.table({"golem_id": [POOL], "at": pa.array([at_us]).cast(MOMENT)})
    left = leave_bloodstains(pool, deaths, policy)
    choices = {
        (budget, way): chosen(left, deaths, budget, way, at_us, settings.seed, policy)
        for budget in BUDGETS
        for way in WAYS
    }
    on_progress("asking", 0.0)
    Home.create(root, policy, clock())
    context = DerivationContext.open(root, policy=policy)
    answers = _answers(context, pool, verdicts, choices, at_us)
    context.log.close()
    on_progress("heirs", 0.0)
    worth = _heirs(tape, stop, choices, settings.heirs, policy)
    right = verdicts.filter(pc.equal(verdicts["verdict"], VERDICTS[RIGHT]))
    columns = right.select(["entry_id", "structure", "subject", "sign"]).to_pylist()
    truths = {row["entry_id"]: (row["structure"], row["subject"], row["sign"]) for row in columns}
    whole = len(set(truths.values()))
    kept = []
    for (budget, way), rows in choices.items():
        ids = rows["entry_id"].to_pylist()
        held = len({truths[i] for i in ids if i in truths})
        kept.append(
            Kept(
                budget, way, rows.num_rows, held / max(whole, 1),
                answers[budget, way] / max(answers[0, "all"], 1), worth[budget, way] / worth[BUDGETS[-1], WAYS[0]],
            )
        )  # fmt: skip
    return Squeezed(pool.num_rows, whole, answers[0, "all"], tuple(kept))


def _tape(settings: Squeeze, number: int, policy: Policy) -> Tape:
    """Build the market of a pair, each with its own seed; pair 0 is the first market."""
    bars = (settings.days + settings.heir_days) * DAY_BARS
    market = synthetic_market(seed=settings.seed + number, bars=bars, start=START, spec=graded_spec(None))
    return tape_of(replace(market, pair=f"T{number}/USDC") if number else market, policy)


def _stop(tape: Tape, settings: Squeeze) -> int:
    """Return the position on a tape at which the days of learning end."""
    return int(np.searchsorted(tape.at_us, int(tape.at_us[0]) + settings.days * DAY_BARS * 60_000_000))


def _pool(settings: Squeeze, policy: Policy, on_progress: OnProgress) -> pa.Table:
    """Let all golems learn and return their entries as one golem's: ENTRY_SCHEMA, all active."""
    grimoires = []
    for number, golems in enumerate(np.array_split(np.arange(settings.golems), settings.pairs)):
        on_progress("living", number / settings.pairs)
        tape = _tape(settings, number, policy)
        births = [_born(tape, f"squeeze/{i}", lasting(tape.market.bars), policy) for i in golems.tolist()]
        fleet = InMemoryFleet(tape, 0, births, policy)
        fleet.begin(ENTRY_SCHEMA.empty_table())
        fleet.live(_stop(tape, settings))
        grimoires.append(fleet.grimoire())
    return merged_grimoire(pa.concat_tables(grimoires))


def merged_grimoire(grimoires: pa.Table) -> pa.Table:
    """Merge the active entries of several golems into one golem's: ENTRY_SCHEMA, sorted by entry.

    Of several entries about one structure, the surest remains, because a golem holds one (canon 17).
    """
    living = grimoires.filter(pc.equal(grimoires["status"], "active"))
    entries = with_columns(living, golem_id=pa.array([POOL] * living.num_rows, pa.string())).sort_by("entry_id")
    order = np.argsort(-entries["confidence_ppm"].to_numpy(), kind="stable")
    keys = entries["structure"].take(pa.array(order)).combine_chunks().dictionary_encode().indices.to_numpy()
    _, first = np.unique(keys, return_index=True)
    return entries.take(pa.array(np.sort(order[first])))


def _born(tape: Tape, lineage: str, founding: Founding, policy: Policy) -> Start:
    market = tape.market
    golem_id, birth = born(
        lineage_id=f"{market.name}/{lineage}", generation=0, owner_id="owner-1", founding=founding, market=market.name,
        market_hash=market.content_hash, derivation_id="-", policy=policy,
    )  # fmt: skip
    return Start(golem_id, birth, seed_of(golem_id))


def chosen(pool: pa.Table, deaths: pa.Table, budget: int, way: str, at_us: int, seed: int, policy: Policy) -> pa.Table:
    """Choose the entries that pass: ENTRY_SCHEMA, at most `budget` rows."""
    if way == "bottleneck":
        rules = policy.model_copy(update={"inheritance": policy.inheritance.model_copy(update={"budget": budget})})
        return bottleneck(pool, deaths, rules).select(ENTRY_SCHEMA.names)
    confidence = confidence_of(pool, np.full(pool.num_rows, at_us), policy.decay)
    luck = np.random.default_rng([seed, budget]).permutation(pool.num_rows)
    order = luck if way == "random" else np.lexsort((np.arange(pool.num_rows), -confidence))
    return pool.take(pa.array(np.sort(order[:budget])))


def _answers(
    context: DerivationContext, pool: pa.Table, verdicts: pa.Table, choices: dict[tuple[int, str], pa.Table], at_us: int
) -> dict[tuple[int, str], int]:
    """Count the questions that each choice still answers, of those that the whole grimoire answers.

    An answer is an entry with the expected structure and sign among the first results. Key (0, "all"): the whole.
    """
    first = context.policy.worth.questions_in_first
    entry_columns = pool.select(["entry_id", "structure", "sign"]).to_pylist()
    statements = {row["entry_id"]: (row["structure"], row["sign"]) for row in entry_columns}
    answerable = {(q.words, q.regime, statements[q.entry_id]) for q in questions(pool, verdicts)}
    texts = sorted({*pool["text"].to_pylist(), *(words for words, _, _ in answerable)})
    vectors = dict(zip(texts, np.asarray(context.embedder.embed(texts), np.float32), strict=True))

    def answered(entries: pa.Table, candidates: set[Question]) -> set[Question]:
        """Return the questions whose answer is among the first results from these entries."""
        if not entries.num_rows:
            return set()
        distinct, rows = np.unique(entries["text"].to_pylist(), return_inverse=True)
        entry_vectors = np.stack([vectors[text] for text in distinct.tolist()])
        grimoire = Grimoire(entries.combine_chunks(), entry_vectors, rows, context.policy)
        out: set[Question] = set()
        for words, regime, answer in candidates:
            hits = grimoire.retrieve(vectors[words], Situation(at_us, regime=regime), first, may_skip=False).hits
            if answer in {statements[entry] for entry in hits["entry_id"].to_pylist()}:
                out.add((words, regime, answer))
        return out

    whole = answered(pool, answerable)
    return {(0, "all"): len(whole)} | {key: len(answered(rows, whole)) for key, rows in choices.items()}


def _heirs(
    tape: Tape, start: int, choices: dict[tuple[int, str], pa.Table], heirs: int, policy: Policy
) -> dict[tuple[int, str], float]:
    """Return the mean final worth (net asset value plus credits, micro-dollars) of the heirs of each choice.

    Heirs with the same number have the same traits and luck in all choices.
    """
    founding = Founding(lifespan_ticks=(2 * tape.ticks, 2 * tape.ticks))
    starts, given = [], []
    for (budget, way), rows in choices.items():
        crossed = shed(attenuate(rows, policy), policy) if rows.num_rows else rows
        for number in range(heirs):
            heir = _born(tape, f"heir/{number}", founding, policy)
            name = f"{heir.golem_id}-{budget}-{way}"
            starts.append(heir._replace(golem_id=name))
            given.append(as_inherited(with_columns(crossed, golem_id=pa.array([name] * crossed.num_rows)), policy))
    fleet = InMemoryFleet(tape, start, starts, policy)
    fleet.begin(pa.concat_tables(given))
    worth = fleet.live(tape.ticks).worth.reshape(len(choices), heirs).mean(axis=1)
    return dict(zip(choices, worth.tolist(), strict=True))
