"""Evidence: effects and metric levels that records contribute to structures. Pure, set-based over columns.

Sources are judged decisions (resolutions), trials of choices, reports of a runtime (reports.py) and readings of
metrics. Decisions, slippage and gas costs come from verified outcomes only (MEM's quality gate). The gas price and the
volume of every tick count, whether or not the golem deliberated at it. Judged decisions of one market window count as
one witness with their mean effect, because one storm affects them all; readings of one market day count as one witness
for the same reason. All sums are integers, so results do not depend on the order of addition.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import BoolArray, Int64Array
from bardo_pipeline.curator.state.level_readings import LEVEL_MAX
from bardo_pipeline.curator.state.reports import reported_effects
from bardo_pipeline.curator.state.structures import Structure, Structures, choice_act
from bardo_pipeline.events.record.arrow_columns import contiguous
from bardo_pipeline.events.record.market_codes import MarketCodes, has_market, market_codes
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.confidence import DAY_US
from bardo_pipeline.grimoire.entries import ANOMALY_BANDS, BASELINE_METRICS, GAS_BANDS
from bardo_pipeline.policy import CuratorPolicy

EVIDENCE_COLUMNS = (
    "golem_id", "tick", "observed_at", "observation", "actions", "outcome", "pad_after", "resolutions", "trials",
    "experiences",
)  # fmt: skip
"""Columns of a record that the curator reads."""

_LIMIT_PPM = 1_000_000

Findings = tuple[Int64Array, Int64Array, Int64Array, Int64Array, Int64Array]
"""Row of the record, structure, value, decision tick, judgement tick; one element per finding."""


@dataclass(frozen=True)
class Evidence:
    """Evidence grouped and sorted by (golem, cycle, structure), one element per group.

    golem, cycle, structure: codes. count: witnesses (of a level: market days). total, squares: exact sums over them
    (effect in ppm, or the metric's unit). mood: [groups, 3], sums of their mood in thousandths. first, stop: range of
    the group's rows in cause_tick. reading, day: a level's value and market day (days since 1970), one per cause.
    """

    golem: Int64Array
    cycle: Int64Array
    structure: Int64Array
    count: Int64Array
    total: Int64Array
    squares: Int64Array
    mood: Int64Array
    first: Int64Array
    stop: Int64Array
    cause_tick: Int64Array
    reading: Int64Array
    day: Int64Array


def flatten_lists(lists: pa.Array) -> tuple[Int64Array, pa.Array]:
    """Return (row of each element, elements) of a list column."""
    offsets = lists.offsets.to_numpy().astype(np.int64)
    rows = np.repeat(np.arange(len(lists)), np.diff(offsets))
    return rows, lists.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0])) if len(offsets) else lists.values


def is_episode(records: pa.Table) -> BoolArray:
    """Return which records are episodes (canon 13).

    An episode has an action, an anomaly, a regime change, tier T1 or above, or a tag stored by a tool.
    """
    acted = pc.list_value_length(contiguous(records.column("actions"))).to_numpy(zero_copy_only=False) > 0
    anomalous = pc.list_value_length(contiguous(records.column("anomalies"))).to_numpy(zero_copy_only=False) > 0
    sources = contiguous(records.column("prediction_error_sources"))
    turned = pc.struct_field(sources, "regime").to_numpy(zero_copy_only=False) > 0
    deliberated = pc.is_in(records.column("tier"), value_set=pa.array(["T1", "T2"])).to_numpy()
    tagged = records.column("dream_tag").is_valid().to_numpy()
    return acted | anomalous | turned | deliberated | tagged


def is_verified(records: pa.Table) -> BoolArray:
    """Return which records have their ground truth: no executed action, or a verified outcome."""
    outcome = contiguous(records.column("outcome"))
    acted, actions = flatten_lists(contiguous(records.column("actions")))
    executed = np.zeros(len(outcome), bool)
    executed[acted[_is_executed(actions)]] = True
    verified = pc.fill_null(pc.struct_field(outcome, "verified"), False).to_numpy(zero_copy_only=False)
    return np.where(outcome.is_null().to_numpy(zero_copy_only=False), ~executed, verified)


def _is_executed(actions: pa.Array) -> BoolArray:
    return pc.equal(pc.struct_field(actions, "status"), "executed").to_numpy(zero_copy_only=False)


def gather_evidence(
    records: pa.Table, *, golem: Int64Array, cycle: Int64Array, structures: Structures, policy: CuratorPolicy
) -> Evidence:
    """Group the evidence of records (EVIDENCE_COLUMNS, any order).

    golem, cycle: codes by row. New structures enter the registry.
    """
    markets, mood = market_codes(records), _mood(records)
    parts = [
        _judged(records, markets, structures, policy),
        _chosen(records, markets, structures, policy),
        reported_effects(
            records, golem=golem, cycle=cycle, market=markets[0], markets=markets[1], structures=structures,
            policy=policy,
        ),
        _levels(records, markets, structures),
    ]  # fmt: skip
    row, structure, value, cause, second = (np.concatenate([p[i] for p in parts]) for i in range(5))
    judged, reported = len(parts[0][0]) + len(parts[1][0]), len(parts[2][0])
    value[:judged] = capped(value[:judged])
    judged += reported
    window = (second - 1) // policy.witness_ticks
    day = records.column("observed_at").cast(pa.int64()).to_numpy()[row] // DAY_US
    window[judged:] = day[judged:]
    if not len(row):
        none = np.zeros(0, np.int64)
        mood_sums, causes = np.zeros((0, 3), np.int64), np.zeros((0, 2), np.int64)
        return Evidence(none, none, none, none, none, none, mood_sums, none, none, causes, none, none)
    group = _packed(_packed(golem, cycle)[row], structure)  # fewer keys to sort by
    order = order_of(group, window, cause)
    row, value, group, window = row[order], value[order], group[order], window[order]
    witness = np.flatnonzero(np.r_[True, (group[1:] != group[:-1]) | (window[1:] != window[:-1])])
    findings = np.diff(np.r_[witness, len(row)])
    effect = _mean(np.add.reduceat(value, witness), findings)
    witness_mood = _mean(np.add.reduceat(mood[row], witness, axis=0), findings[:, None])
    groups = np.flatnonzero(np.diff(group[witness], prepend=-1))
    starts = witness[groups]
    return Evidence(
        golem=golem[row[starts]],
        cycle=cycle[row[starts]],
        structure=structure[order[starts]],
        count=np.diff(np.r_[groups, len(witness)]),
        total=np.add.reduceat(effect, groups),
        squares=np.add.reduceat(effect * effect, groups),
        mood=np.add.reduceat(witness_mood, groups, axis=0),
        first=starts,
        stop=np.r_[starts[1:], len(row)],
        cause_tick=np.stack([cause[order], second[order]], axis=1),
        reading=value,
        day=day[order],
    )


def _packed(first: Int64Array, second: Int64Array) -> Int64Array:
    """Return one number for each pair of codes, in the order of the pairs."""
    return np.asarray(first * (int(second.max(initial=0)) + 1) + second)


def order_of(*keys: Int64Array) -> Int64Array:
    """Return the positions in ascending order of the keys, the first of which decides first. Equal ones stay in order.

    Keys that fit into one number are sorted as one, which takes a sixth of the time.
    """
    sizes = [int(key.max(initial=0)) + 1 for key in keys]
    if math.prod(sizes) < 2**63 and min(int(key.min(initial=0)) for key in keys) >= 0:
        keys = (np.ravel_multi_index(keys, sizes),)
    return np.lexsort(keys[::-1])


def _mean(total: Int64Array, count: Int64Array) -> Int64Array:
    """Return the mean as an integer, halves rounded up, so that no floating point enters results."""
    return (2 * total + count) // (2 * count)


def judged_effects(records: pa.Table, structures: Structures, policy: CuratorPolicy) -> Findings:
    """Return the effects in ppm of single verified decisions in records (EVIDENCE_COLUMNS), as recorded."""
    return _judged(records, market_codes(records), structures, policy)


def trial_effects(records: pa.Table, structures: Structures, policy: CuratorPolicy) -> Findings:
    """Return the effects in ppm of single verified trials in records (EVIDENCE_COLUMNS), as recorded."""
    return _chosen(records, market_codes(records), structures, policy)


def capped(effect_ppm: Int64Array) -> Int64Array:
    """Return effects as evidence counts them: at most the whole value of the position."""
    return np.clip(effect_ppm, -_LIMIT_PPM, _LIMIT_PPM)


def _mood(records: pa.Table) -> Int64Array:
    pad = contiguous(records.column("pad_after"))
    parts = [pc.struct_field(pad, n).to_numpy(zero_copy_only=False) for n in ("pleasure", "arousal", "dominance")]
    return np.rint(np.stack(parts, axis=1) * 1000).astype(np.int64)


def _judged(records: pa.Table, markets: MarketCodes, structures: Structures, policy: CuratorPolicy) -> Findings:
    """Return resolutions of verified decisions, each with the structure of its situation."""
    tick, (market, market_rows) = records.column("tick").to_numpy(), markets
    row, parts = flatten_lists(contiguous(records.column("resolutions")))
    keep = pc.struct_field(parts, "verified").to_numpy(zero_copy_only=False).astype(bool)
    row, parts = row[keep], parts.filter(pa.array(keep))
    anomaly, gas = (
        np.searchsorted(edges, pc.struct_field(parts, name).to_numpy(zero_copy_only=False), side="right")
        for edges, name in ((policy.anomaly_edges, "anomaly_score"), (policy.gas_edges, "gas_ratio"))
    )
    regime = pc.index_in(pc.struct_field(parts, "regime"), value_set=pa.array(REGIMES)).to_numpy(zero_copy_only=False)
    names = [pc.struct_field(parts, n).dictionary_encode() for n in ("tool_name", "action_type")]
    tool, action = (n.indices.to_numpy(zero_copy_only=False).astype(np.int64) for n in names)
    tools, actions = (n.dictionary.to_pylist() for n in names)
    kinds = (market_rows, tools, actions, REGIMES, ANOMALY_BANDS, GAS_BANDS)
    shape = tuple(max(len(kind), 1) for kind in kinds)
    about = (market[row].astype(np.int64), tool, action, regime.astype(np.int64), anomaly, gas)
    packed, inverse = np.unique(np.ravel_multi_index(about, shape), return_inverse=True)
    unique = zip(*(part.tolist() for part in np.unravel_index(packed, shape)), strict=True)
    codes = np.zeros(len(packed), np.int64)
    for i, (m, t, a, r, b, g) in enumerate(unique):
        chain, protocol, pair = market_rows[m]
        bands = REGIMES[r], ANOMALY_BANDS[b], GAS_BANDS[g]
        codes[i] = structures.code(Structure("pattern", chain, protocol, pair, tools[t], actions[a], *bands))
    effect, decided = (
        pc.struct_field(parts, name).to_numpy(zero_copy_only=False) for name in ("effect_ppm", "decision_tick")
    )
    return row, codes[inverse], effect.astype(np.int64), decided.astype(np.int64), tick[row].astype(np.int64)


EVIDENCE_HORIZONS = {
    "width": ("30_ticks",),
    "presence": ("4_hours",),
    "recentring": ("4_hours", "24_hours"),
    "loan": ("4_hours", "24_hours"),
}
"""Horizons of each choice's evidence, ascending. Longer windows contain the shorter ones, so one horizon decides.

A width costs nothing, so its short windows suffice and are many. The cost of entering or leaving needs hours to pay.
Re-centring has a structure for each horizon, beside its judged decisions at 30 ticks, and so have loans; the longest
horizon that decides counts. The costs of a loan exceed 30 ticks of any interest.
"""

RECENTRING, LOAN = "recentring", "loan"


def acts_of_choice(choice: str, alternative: str, beside: str) -> list[tuple[str, str | None, str]]:
    """Return (horizon, anomaly band, action type) of each structure of an alternative; band None for any band."""
    bands = ANOMALY_BANDS if choice == RECENTRING else (None,)
    return [
        (horizon, band, choice_act(alternative, beside, horizon, band or "")[1])
        for horizon in EVIDENCE_HORIZONS[choice]
        for band in bands
    ]


def _chosen(records: pa.Table, markets: MarketCodes, structures: Structures, policy: CuratorPolicy) -> Findings:
    """Return trials of choices, each with two structures: the choice in all regimes, and in the window's regime."""
    tick, (market, market_rows) = records.column("tick").to_numpy(), markets
    row, parts = flatten_lists(contiguous(records.column("trials")))
    choice, horizon, alternative, beside, regime = (
        pc.struct_field(parts, name) for name in ("choice", "horizon", "alternative", "beside", "regime")
    )
    counts = pc.struct_field(parts, "verified").to_numpy(zero_copy_only=False).astype(bool)
    counts &= pc.is_in(
        pc.binary_join_element_wise(choice, horizon, "|"),
        value_set=pa.array([f"{c}|{h}" for c, horizons in EVIDENCE_HORIZONS.items() for h in horizons]),
    ).to_numpy(zero_copy_only=False)
    at = np.flatnonzero(counts)
    score = pc.struct_field(parts, "anomaly_score").to_numpy(zero_copy_only=False)
    band = pa.array(ANOMALY_BANDS).take(pa.array(np.searchsorted(policy.anomaly_edges, score, side="right")))
    of_horizon = pc.if_else(pc.is_in(choice, value_set=pa.array([RECENTRING, LOAN])), horizon, "")
    of_band = pc.binary_join_element_wise(of_horizon, pc.if_else(pc.equal(choice, RECENTRING), band, ""), "|")
    acts = pc.binary_join_element_wise(alternative, beside, regime, of_band, "|").take(pa.array(at)).dictionary_encode()
    place = market[row[at]].astype(np.int64) * max(len(acts.dictionary), 1) + acts.indices.to_numpy().astype(np.int64)
    distinct, inverse = np.unique(place, return_inverse=True)
    words = [text.split("|") for text in acts.dictionary.to_pylist()]
    codes = np.zeros((2, len(distinct)), np.int64)
    for i, (m, w) in enumerate(zip(*np.divmod(distinct, max(len(words), 1)), strict=True)):
        chain, protocol, pair = market_rows[m]
        general = Structure("choice", chain, protocol, pair, *choice_act(words[w][0], words[w][1], *words[w][3:]))
        codes[:, i] = structures.code(general), structures.code(general._replace(regime=words[w][2]))
    effect, decided = (
        pc.struct_field(parts, name).to_numpy(zero_copy_only=False)[at] for name in ("effect_ppm", "decision_tick")
    )
    twice = np.concatenate([row[at]] * 2)
    return (
        twice, codes[:, inverse].reshape(-1), np.concatenate([effect.astype(np.int64)] * 2),
        np.concatenate([decided.astype(np.int64)] * 2), tick[twice].astype(np.int64),
    )  # fmt: skip


def _levels(records: pa.Table, markets: MarketCodes, structures: Structures) -> Findings:
    """Return the market metrics of every record and the costs of verified actions, in the units of METRIC_UNIT."""
    tick, (market, market_rows) = records.column("tick").to_numpy(), markets
    verified = is_verified(records)
    observation = contiguous(records.column("observation"))
    every = np.flatnonzero(has_market(records))
    gas = np.rint(np.minimum(pc.struct_field(observation, "gas_gwei").to_numpy(zero_copy_only=False), 1e9) * 1000)
    volume = pc.struct_field(observation, "volume_micros").to_numpy(zero_copy_only=False) // 1_000_000
    acted, actions = flatten_lists(contiguous(records.column("actions")))
    done = _is_executed(actions) & verified[acted]
    acted, actions = acted[done], actions.filter(pa.array(done))
    slips = pc.struct_field(actions, "slippage_ppm")
    slipped = np.asarray(slips.is_valid())
    columns = {
        "gas_price": (every, gas[every]),
        "pool_volume": (every, volume[every]),
        "slippage": (acted[slipped], slips.drop_null().to_numpy(zero_copy_only=False)),
        "gas_cost": (acted, pc.struct_field(actions, "gas_cost_micros").to_numpy(zero_copy_only=False)),
    }
    rows, codes, values = [], [], []
    for metric in BASELINE_METRICS:
        row, value = columns[metric]
        by_market = [structures.code(Structure("baseline", *m)._replace(metric=metric)) for m in market_rows]
        rows.append(row)
        codes.append(np.array(by_market, np.int64)[market[row]] if len(row) else np.zeros(0, np.int64))
        values.append(np.clip(value, 0, LEVEL_MAX).astype(np.int64))
    row = np.concatenate(rows)
    ticks = tick[row].astype(np.int64)
    return row, np.concatenate(codes), np.concatenate(values), ticks, ticks
