"""Dreams: NREM replay, REM, counterfactuals and integration. Pure.

A dream follows a closed cycle. It depends only on its golem's records and the curator's decisions up to that cycle, and
on the golem's earlier dreams. The k-th dreams of all golems are computed together.
Source: KAT (Dreams and Katabasis Material), TOOLS, MEM, HB S12.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import BoolArray, Float64Array, Int64Array
from bardo_pipeline.curator.state.evidence import is_episode
from bardo_pipeline.dreams import hypothesis_staging as hypotheses
from bardo_pipeline.dreams.counterfactual_simulation import (
    SIMULATION_COLUMNS,
    Decisions,
    SimulatedEffects,
    decisions_of,
    simulate_changes,
)
from bardo_pipeline.dreams.hypothesis_staging import Dreamers, Evidence, Hypotheses
from bardo_pipeline.dreams.hypothesis_table import to_table
from bardo_pipeline.dreams.recorded_market import RATES, RecordedMarket, prices_of, rate_increments, recorded_market
from bardo_pipeline.dreams.replay_selection import BEGAN_BY, Due, depotentiated, salience, scar_salience
from bardo_pipeline.events.record.arrow_columns import all_required, contiguous, listed, required
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.grimoire.entries import ANOMALY_BANDS, GAS_BANDS, MOMENT
from bardo_pipeline.grimoire.gas_bands import COVERS, GAS_SPANS
from bardo_pipeline.heartbeat.fleet import CELLS
from bardo_pipeline.heartbeat.recall_table import CELL_ANOMALY, CELL_GAS, CELL_REGIME
from bardo_pipeline.mortality.random_streams import STREAM_REPLAY, rank_within, seed_of, weighted_sample
from bardo_pipeline.policy import Policy

DREAM_COLUMNS = (
    *SIMULATION_COLUMNS, "regime", "tier", "anomalies", "prediction_error_sources", "pad_after", "vitality",
    "dream_tag",
)  # fmt: skip
"""Columns of a record that dreams read."""

KNOWN_COLUMNS = (
    "golem_id", "cycle", "seq", "structure", "status", "entry_id", "kind", "is_bloodstain", "provenance", "regime",
    "anomaly_band", "gas_band",
)  # fmt: skip
"""Columns of the curator's decisions that dreams read."""

_REPLAYED = pa.struct(all_required(pa.int64(), "tick", "salience_ppm", "arousal_before_ppm", "arousal_after_ppm"))
_COUNTS = (
    "episode_count", "failure_count", "branch_count", "unlike_count", "staged_count", "confirmed_count", "gone_count",
)  # fmt: skip

DREAM_SCHEMA = pa.schema(
    [
        required("golem_id", pa.string()),
        *all_required(pa.int64(), "cycle", "tick"),
        required("at", MOMENT),
        required("began_by", pa.string()),
        *all_required(pa.int64(), "mortality_pressure_ppm", "replay_budget", "counterfactual_budget"),
        listed("replayed", _REPLAYED),
        listed("scars", pa.string()),
        *all_required(pa.int64(), *_COUNTS, *RATES),
        required("policy_hash", pa.string()),
    ]
)
"""One row per dream; key (golem_id, cycle).

replayed: episodes by tick, with their arousal before and after REM. scars: entry ids of replayed inherited bloodstains.
episode_count: candidates for replay. failure_count, branch_count: failures simulated with a change, and the branches.
unlike_count: judged decisions since the last dream whose simulation did not reproduce the verdict. RATES: sums over the
golem's life up to this dream."""

DREAM_KEY = ("golem_id", "cycle")


@dataclass(frozen=True)
class DreamInputs:
    """Inputs of dreams by golem code, the index into `golems`.

    half_width: of the golem's ranges, in pool ticks. last_tick: of its last dream, 0 for none. rates: RATES up to that
    dream [RATES, golems]. replayed: (golem, tick) to number of earlier replays.
    """

    golems: Sequence[str]
    half_width: Int64Array
    last_tick: Int64Array
    rates: Int64Array
    replayed: Mapping[tuple[int, int], int]


def dream(
    records: pa.Table, golem: Int64Array, known: pa.Table, inputs: DreamInputs, due: Due, state: Hypotheses,
    policy: Policy,
) -> tuple[pa.Table, pa.Table]:  # fmt: skip
    """Compute the due dreams. Return them as DREAM_SCHEMA and the changes of hypotheses as HYPOTHESIS_SCHEMA.

    Parameters
    ----------
    records : pa.Table, DREAM_COLUMNS, by golem and tick, over the lookback and trials judged since the last dream
    golem : int64 [records], golem codes
    known : pa.Table, KNOWN_COLUMNS, the curator's decisions about these golems
    state : hypotheses before the dreams; updated in place
    """
    batch = _batch(records, golem, known, inputs, due, state, policy)
    rows = [row for pick in _waves(due) for row in _dream_wave(batch, pick, state, policy)]
    dreams = pa.Table.from_pylist(rows, schema=DREAM_SCHEMA)
    return dreams.sort_by([(n, "ascending") for n in DREAM_KEY]), to_table(state, policy, policy.hash)


@dataclass
class _Trials:
    """Judged decisions of all due dreams, and the simulated effects of changes to them.

    failed: which decisions did worse than their opposite. effects, decision: simulated effects and the decision of
    each. dream_of: dream of each decision, -1 for none. rates: RATES up to each dream [RATES, dreams]. unlike: number
    of decisions of each dream whose simulation did not reproduce the verdict.
    """

    failed: BoolArray
    decisions: Decisions
    effects: Evidence
    decision: Int64Array
    dream_of: Int64Array
    rates: Int64Array
    unlike: Int64Array

    @classmethod
    def of(cls, market: RecordedMarket, decisions: Decisions, inputs: DreamInputs, due: Due, state: Hypotheses,
           policy: Policy) -> Self:  # fmt: skip
        """Simulate the changes to the decisions that the due dreams cover."""
        earlier = np.r_[0, due.tick[:-1]][: len(due.tick)]
        since = np.where(rank_within(due.golem) == 0, inputs.last_tick[due.golem], earlier)
        dream_of_row = _dream_of(market.golem, market.tick, due, since)
        rates = _rates(market, dream_of_row, inputs, due)
        dream_of = dream_of_row[decisions.judged_row]
        fee, native = prices_of(rates[:, np.maximum(dream_of, 0)])
        fee = np.where(dream_of >= 0, fee, 0.0)
        half = inputs.half_width[market.golem[decisions.row]]
        simulated = simulate_changes(market, decisions, half_width=half, fee_ppm=fee, native=native, policy=policy)
        effects, order = _evidence(market, decisions, simulated, state)
        failed = np.where(decisions.acted, decisions.effect_ppm < 0, decisions.effect_ppm > 0)
        unlike = dream_of[simulated.unlike]
        unlike_count = np.bincount(unlike[unlike >= 0], minlength=len(due.tick))
        return cls(failed, decisions, effects, simulated.decision[order], dream_of, rates, unlike_count)


def update_hypotheses(
    market: RecordedMarket, decisions: Decisions, inputs: DreamInputs, due: Due, state: Hypotheses, policy: Policy
) -> Int64Array:
    """Judge and stage the hypotheses of the due dreams, which do not depend on replay. `state` is updated in place.

    Return RATES up to each dream [RATES, dreams].

    Parameters
    ----------
    market, decisions : records, and the decisions judged among them, since the last dream of each golem
    inputs : replayed is not read
    """
    trials = _Trials.of(market, decisions, inputs, due, state, policy)
    for pick in _waves(due):
        _judge_and_stage(trials, due, pick, state, policy)
    return trials.rates


def _waves(due: Due) -> Iterator[Int64Array]:
    """Yield the first due dreams of all golems, then the second ones, and so on."""
    wave = rank_within(due.golem)
    for number in range(int(wave.max(initial=-1)) + 1):
        yield np.flatnonzero(wave == number)


def _judge_and_stage(trials: _Trials, due: Due, pick: Int64Array, state: Hypotheses, policy: Policy) -> BoolArray:
    """Judge and stage the hypotheses of these dreams (one per golem at most). Return the selected failures."""
    dreamers = Dreamers(due.golem[pick], due.cycle[pick], due.tick[pick], due.at_us[pick])
    live = trials.effects.take(np.flatnonzero(np.isin(trials.dream_of[trials.decision], pick)))
    hypotheses.judge(state, dreamers, hypotheses.independent(live, policy.prediction.check_ticks), policy)
    selected = _select_branches(trials, pick, _branch_count(policy))
    failures = trials.effects.take(np.flatnonzero(selected))
    hypotheses.stage(state, dreamers, hypotheses.independent(failures, policy.prediction.check_ticks), policy)
    return selected


def _branch_count(policy: Policy) -> int:
    return round(policy.dreams.budget * policy.dreams.counterfactual_share)


@dataclass
class _Batch:
    """Data of all due dreams that waves look up. times: number of replays of each episode, updated by waves."""

    inputs: DreamInputs
    due: Due
    pressure: Float64Array
    episodes: dict[str, Any]
    times: Int64Array
    novelty: Float64Array
    scars: dict[str, Any]
    trials: _Trials


def _batch(
    records: pa.Table, golem: Int64Array, known: pa.Table, inputs: DreamInputs, due: Due, state: Hypotheses,
    policy: Policy,
) -> _Batch:  # fmt: skip
    market = recorded_market(records, golem, policy)
    trials = _Trials.of(market, decisions_of(records, market, policy), inputs, due, state, policy)
    rows = np.searchsorted((market.golem << 40) | market.tick, (due.golem << 40) | due.tick)
    vitality = pc.struct_field(contiguous(records["vitality"]), "composite").to_numpy(zero_copy_only=False)
    episodes = _episodes(records, market, policy)
    packed = (episodes["golem"] << 40) | episodes["tick"]
    times = np.array([inputs.replayed.get((p >> 40, p & (2**40 - 1)), 0) for p in packed.tolist()], np.int64)
    novelty, scars = _novelty_and_scars(known, inputs, due, policy)
    return _Batch(inputs, due, 1.0 - vitality[rows], episodes, times, novelty, scars, trials)


def _dream_of(golem: Int64Array, tick: Int64Array, due: Due, since: Int64Array) -> Int64Array:
    """Return the first dream at or after each (golem, tick), -1 for none or if an earlier dream covers it."""
    where = np.searchsorted((due.golem << 40) | due.tick, (golem << 40) | tick)
    inside = np.minimum(where, len(due.tick) - 1)
    return np.where((where < len(due.tick)) & (due.golem[inside] == golem) & (tick > since[inside]), inside, -1)


def _rates(market: RecordedMarket, dream_of_row: Int64Array, inputs: DreamInputs, due: Due) -> Int64Array:
    """Return RATES up to each dream. [RATES, dreams]."""
    covered = dream_of_row >= 0
    rates = np.zeros((len(RATES), len(due.tick)), np.int64)
    first = np.flatnonzero(rank_within(due.golem) == 0)
    lengths = np.diff(np.r_[first, len(due.tick)])
    for place, values in enumerate(rate_increments(market)):
        np.add.at(rates[place], dream_of_row[covered], values[covered])
        total = np.cumsum(rates[place])
        before = (total - rates[place])[first]
        rates[place] = total - np.repeat(before, lengths) + inputs.rates[place][due.golem]
    return rates


def _evidence(
    market: RecordedMarket, decisions: Decisions, simulated: SimulatedEffects, state: Hypotheses
) -> tuple[Evidence, Int64Array]:
    """Return the simulated effects with the codes of their hypotheses, and the order of their branches."""
    decision, change = simulated.decision, simulated.change
    pairs, inverse = np.unique(np.stack([decisions.situation[decision], change], axis=1), axis=0, return_inverse=True)
    codes = np.array([state.code(decisions.situations[s], int(c)) for s, c in pairs], np.int64)
    key = codes[inverse.reshape(-1)] if len(codes) else np.zeros(0, np.int64)
    row, judged = decisions.row[decision], decisions.judged_row[decision]
    order = np.lexsort((market.tick[row], key, market.golem[row]))
    ticks = market.tick[row], market.tick[judged], market.at_us[judged]
    return Evidence(market.golem[row], key, simulated.effect_ppm, *ticks).take(order), order


def _episodes(records: pa.Table, market: RecordedMarket, policy: Policy) -> dict[str, Any]:
    """Return golem, tick, cell, arousal and pleasure of the episodes among these records."""
    where = np.flatnonzero(is_episode(records))
    pad = contiguous(records["pad_after"])
    mood = {n: pc.struct_field(pad, n).to_numpy(zero_copy_only=False)[where] for n in ("arousal", "pleasure")}
    score = pc.struct_field(contiguous(records["observation"]), "anomaly_score").to_numpy(zero_copy_only=False)[where]
    regime = pc.index_in(records["regime"], value_set=pa.array(REGIMES)).to_numpy()[where].astype(np.int64)
    rules = policy.curator
    band = np.searchsorted(rules.anomaly_edges, score, side="right")
    gas = np.searchsorted(rules.gas_edges, market.gas_ratio[where], side="right")
    cell = (regime * len(ANOMALY_BANDS) + band) * len(GAS_BANDS) + gas
    return {"golem": market.golem[where], "tick": market.tick[where], "cell": cell, **mood}


def _novelty_and_scars(
    known: pa.Table, inputs: DreamInputs, due: Due, policy: Policy
) -> tuple[Float64Array, dict[str, Any]]:
    """Return novelty [dreams, CELLS], 1 - likeness to the most similar active entry, and the inherited scars."""
    code = {g: i for i, g in enumerate(inputs.golems)}
    known = known.sort_by([(n, "ascending") for n in ("golem_id", "structure", "cycle", "seq")])
    golem = np.array([code[g] for g in known["golem_id"].to_pylist()], np.int64)
    structure = known["structure"].to_numpy()
    same = (golem[1:] == golem[:-1]) & (structure[1:] == structure[:-1])
    start = known["cycle"].to_numpy()
    stop = np.r_[np.where(same, start[1:], 2**31), np.full(min(1, len(start)), 2**31)]
    active = pc.equal(known["status"], "active").to_numpy()
    ends = (due.golem << 32) | due.cycle
    first, last = np.searchsorted(ends, (golem << 32) | start), np.searchsorted(ends, (golem << 32) | stop)
    row = np.repeat(np.arange(len(golem)), np.where(active, last - first, 0))
    dream_at = first[row] + rank_within(row)
    cell = _cells(known)
    covered, has_baseline = np.zeros((len(due.tick), CELLS), bool), np.zeros(len(due.tick), bool)
    has_baseline[dream_at[(cell[row] < 0).all(axis=1)]] = True
    for band_cell in cell.T:
        placed = band_cell[row] >= 0
        covered[dream_at[placed], band_cell[row][placed]] = True
    cell = cell.max(axis=1)
    likeness = _likeness(policy)
    best = np.zeros((len(covered), CELLS))
    for place, cells in enumerate(covered):
        best[place] = likeness[:, cells].max(axis=1, initial=0.0)
    best = np.maximum(best, np.where(has_baseline, policy.retrieval.like_baseline, 0.0)[:, None])
    scar = known["is_bloodstain"].to_numpy() & pc.equal(known["kind"], "warning").to_numpy()
    scar &= pc.not_equal(known["provenance"], "self").to_numpy() & (cell >= 0)
    scarred = scar[row]
    scars = {"dream": dream_at[scarred], "cell": cell[row][scarred]}
    scars["entry"] = known["entry_id"].to_numpy()[row][scarred]
    return 1.0 - best, scars


def decisions_for_later_dreams(known: pa.Table, cycle: Mapping[str, int]) -> pa.Table:
    """Return the decisions (KNOWN_COLUMNS) that dreams after a golem's cycle need.

    These are the newest decision about each active entry up to that cycle, and all later ones.
    """
    known = known.sort_by([(n, "ascending") for n in ("golem_id", "structure", "cycle", "seq")])
    golem, structure = (known[n].to_numpy() for n in ("golem_id", "structure"))
    ends = np.array([cycle.get(g, 0) for g in golem.tolist()], np.int64)
    later = known["cycle"].to_numpy() > ends
    last = np.r_[(golem[1:] != golem[:-1]) | (structure[1:] != structure[:-1]) | later[1:], True][: len(golem)]
    active = pc.equal(known["status"], "active").to_numpy()
    return known.filter(pa.array(later | (last & active), pa.bool_()))


def _cells(known: pa.Table) -> Int64Array:
    """Return the cell of each entry's situation by gas band, -1 if the entry does not cover it. [entries, bands]."""
    regime, anomaly, span = (
        pc.fill_null(pc.index_in(known[n], value_set=pa.array(words)), -1).to_numpy().astype(np.int64)
        for n, words in (("regime", REGIMES), ("anomaly_band", ANOMALY_BANDS), ("gas_band", GAS_SPANS))
    )
    cell = (regime * len(ANOMALY_BANDS) + anomaly)[:, None] * len(GAS_BANDS) + np.arange(len(GAS_BANDS))
    placed = (np.minimum(np.minimum(regime, anomaly), span) >= 0)[:, None] & COVERS[span]
    return np.where(placed, cell, -1)


def _likeness(policy: Policy) -> Float64Array:
    """Return the likeness of each two cells in [0, 1], with the weights of retrieval. [CELLS, CELLS]."""
    rules = policy.retrieval
    regime = CELL_REGIME[:, None] == CELL_REGIME
    band = 1.0 - np.abs(CELL_ANOMALY[:, None] - CELL_ANOMALY) / (len(ANOMALY_BANDS) - 1)
    gas = CELL_GAS[:, None] == CELL_GAS
    return rules.like_regime * regime + rules.like_anomaly * band + rules.like_gas * gas


def _dream_wave(batch: _Batch, pick: Int64Array, state: Hypotheses, policy: Policy) -> list[dict[str, object]]:
    """Compute these dreams, at most one per golem: replay, judge hypotheses, simulate, stage. Rows of DREAM_SCHEMA."""
    due, trials, branches = batch.due, batch.trials, _branch_count(policy)
    budget = policy.dreams.budget - branches
    replays = _replay(batch, pick, budget, policy)
    logged = len(state.log)
    selected, dream_of = _judge_and_stage(trials, due, pick, state, policy), trials.dream_of[trials.decision]
    changes = _count_changes(state.log[logged:], due.golem[pick])
    return [
        {
            "golem_id": batch.inputs.golems[due.golem[d]],
            "cycle": int(due.cycle[d]),
            "tick": int(due.tick[d]),
            "at": int(due.at_us[d]),
            "began_by": BEGAN_BY[due.began_by[d]],
            "mortality_pressure_ppm": round(float(batch.pressure[d]) * PPM),
            "replay_budget": budget,
            "counterfactual_budget": branches,
            **replays[place],
            "failure_count": len(np.unique(trials.decision[selected & (dream_of == d)])),
            "branch_count": int((selected & (dream_of == d)).sum()),
            "unlike_count": int(trials.unlike[d]),
            **{name: counts[place] for name, counts in changes.items()},
            **{name: int(trials.rates[i, d]) for i, name in enumerate(RATES)},
            "policy_hash": policy.hash,
        }
        for place, d in enumerate(pick.tolist())
    ]


def _select_branches(trials: _Trials, pick: Int64Array, branches: int) -> BoolArray:
    """Select up to `branches` simulated effects of failures per dream: most costly first, whole decisions only."""
    decision = trials.decision
    dream_of = trials.dream_of[decision]
    failures = np.flatnonzero(np.isin(dream_of, pick) & trials.failed[decision])
    cost = np.abs(trials.decisions.effect_ppm[decision[failures]])
    order = failures[np.lexsort((trials.effects.key[failures], decision[failures], -cost, dream_of[failures]))]
    selected = np.zeros(len(decision), bool)
    if len(order):
        rank = rank_within(dream_of[order])
        size = np.bincount(decision[order], minlength=trials.decisions.count)[decision[order]]
        selected[order[rank - rank_within(decision[order]) + size <= branches]] = True
    return selected


def _replay(batch: _Batch, pick: Int64Array, places: int, policy: Policy) -> list[dict[str, object]]:
    """Draw episodes and scars by salience (NREM), and reduce the arousal of the drawn episodes (REM)."""
    due, rules, episodes = batch.due, policy.dreams, batch.episodes
    packed = (episodes["golem"] << 40) | episodes["tick"]
    ends = (due.golem[pick] << 40) | due.tick[pick]
    floor = (due.golem[pick] << 40) | np.maximum(due.tick[pick] - rules.lookback_ticks, 0)
    first, stop = (np.searchsorted(packed, edge, side="right") for edge in (floor, ends))
    place = np.repeat(np.arange(len(pick)), stop - first)
    row = first[place] + rank_within(place)
    arousal = depotentiated(episodes["arousal"][row], batch.times[row], rules)
    age = due.tick[pick][place] - episodes["tick"][row]
    novelty = batch.novelty[pick[place], episodes["cell"][row]]
    weight = salience(arousal, episodes["pleasure"][row], age, novelty, rules)
    scar = np.flatnonzero(np.isin(batch.scars["dream"], pick))
    scar_at = np.searchsorted(pick, batch.scars["dream"][scar])
    scar_novelty = batch.novelty[pick[scar_at], batch.scars["cell"][scar]]
    scar_weight = scar_salience(due.tick[pick][scar_at], scar_novelty, batch.pressure[pick][scar_at], rules)
    seeds = np.array([seed_of(f"{batch.inputs.golems[due.golem[d]]}/{due.cycle[d]}") for d in pick], np.uint64)
    names = [seed_of(entry) for entry in batch.scars["entry"][scar]]
    at = np.r_[place, scar_at].astype(np.int64)
    name = np.r_[episodes["tick"][row].astype(np.uint64), np.array(names, np.uint64)]
    drawn = weighted_sample(at, seeds[at], name, np.r_[weight, scar_weight], places, STREAM_REPLAY)
    kept, drawn_scars = np.sort(drawn[drawn < len(row)]), drawn[drawn >= len(row)] - len(row)
    reduced = depotentiated(episodes["arousal"][row], batch.times[row] + 1, rules)
    np.add.at(batch.times, row[kept], 1)
    replays: list[dict[str, object]] = []
    for number in range(len(pick)):
        replayed = kept[place[kept] == number]
        columns = [np.rint(v[replayed] * PPM).astype(np.int64) for v in (weight, arousal, reduced)]
        rows = np.stack([episodes["tick"][row[replayed]], *columns], axis=1).tolist()
        replays.append(
            {
                "replayed": [dict(zip(_REPLAYED.names, values, strict=True)) for values in rows],
                "scars": sorted(batch.scars["entry"][scar[drawn_scars[scar_at[drawn_scars] == number]]].tolist()),
                "episode_count": int(stop[number] - first[number]),
            }
        )
    return replays


def _count_changes(log: Sequence[Mapping[str, Int64Array]], golem: Int64Array) -> dict[str, list[int]]:
    """Return how many hypotheses of each golem the logged changes staged, confirmed and removed."""
    counts = np.zeros((len(hypotheses.OPERATIONS), len(golem)), np.int64)
    for part in log:
        np.add.at(counts, (part["operation"], np.searchsorted(golem, part["golem"])), 1)
    return {
        "staged_count": counts[hypotheses.OP_STAGED].tolist(),
        "confirmed_count": counts[hypotheses.OP_CONFIRMED].tolist(),
        "gone_count": counts[[hypotheses.OP_REFUTED, hypotheses.OP_EXPIRED, hypotheses.OP_FADED]].sum(axis=0).tolist(),
    }
