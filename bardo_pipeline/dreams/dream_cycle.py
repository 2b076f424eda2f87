"""Dreaming: NREM replay, REM, counterfactuals, integration; the k-th dream of every golem at once. Pure.

A dream belongs to a closed cycle and is a function of its golem's records up to there, of what the curator had decided
by then, and of the golem's dreams before. Source: KAT (Dreams and Katabasis Material), TOOLS, MEM, HB S12.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.state.evidence import is_episode
from bardo_pipeline.dreams.counterfactuals import IMAGINED_COLUMNS, Decisions, decisions_of, imagine
from bardo_pipeline.dreams.hypotheses import (
    OP_CONFIRMED,
    OP_EXPIRED,
    OP_FADED,
    OP_REFUTED,
    OP_STAGED,
    Dreamers,
    Evidence,
    Hypotheses,
    independent,
    judge,
    situation,
    stage,
)
from bardo_pipeline.dreams.hypothesis_table import to_table
from bardo_pipeline.dreams.recorded_market import RATES, Walk, charges, rates_of, walk_of
from bardo_pipeline.dreams.replay_selection import BEGAN_BY, Due, chosen, depotentiated, salience, scar_salience
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.grimoire.entries import ANOMALY_BANDS, GAS_BANDS, MOMENT
from bardo_pipeline.grimoire.entry_columns import contiguous
from bardo_pipeline.grimoire.gas_bands import COVERS, GAS_SPANS
from bardo_pipeline.heartbeat.fleet import CELLS
from bardo_pipeline.heartbeat.recall_table import CELL_ANOMALY, CELL_GAS, CELL_REGIME
from bardo_pipeline.mortality.random_streams import rank_within, seed_of
from bardo_pipeline.policy import Policy

DREAM_COLUMNS = (
    *IMAGINED_COLUMNS, "regime", "tier", "anomalies", "prediction_error_sources", "pad_after", "vitality", "dream_tag",
)  # fmt: skip
"""Columns of a record that dreams are made of."""

KNOWN_COLUMNS = (
    "golem_id", "cycle", "seq", "structure", "status", "entry_id", "kind", "is_bloodstain", "provenance", "regime",
    "anomaly_band", "gas_band",
)  # fmt: skip
"""Columns of the curator's decisions that say what a golem knew at a cycle."""

_REPLAYED = pa.struct(
    [
        pa.field("tick", pa.int64(), nullable=False),
        pa.field("salience_ppm", pa.int64(), nullable=False),
        pa.field("arousal_before_ppm", pa.int64(), nullable=False),
        pa.field("arousal_after_ppm", pa.int64(), nullable=False),
    ]
)
_COUNTS = (
    "episode_count", "failure_count", "branch_count", "unlike_count", "staged_count", "confirmed_count", "gone_count",
)  # fmt: skip

DREAM_SCHEMA = pa.schema(
    [
        pa.field("golem_id", pa.string(), nullable=False),
        pa.field("cycle", pa.int64(), nullable=False),
        pa.field("tick", pa.int64(), nullable=False),
        pa.field("at", MOMENT, nullable=False),
        pa.field("began_by", pa.string(), nullable=False),
        pa.field("mortality_pressure_ppm", pa.int64(), nullable=False),
        pa.field("replay_budget", pa.int64(), nullable=False),
        pa.field("counterfactual_budget", pa.int64(), nullable=False),
        pa.field("replayed", pa.list_(pa.field("element", _REPLAYED, nullable=False)), nullable=False),
        pa.field("scars", pa.list_(pa.field("element", pa.string(), nullable=False)), nullable=False),
        *[pa.field(name, pa.int64(), nullable=False) for name in (*_COUNTS, *RATES)],
        pa.field("policy_hash", pa.string(), nullable=False),
    ]
)
"""One row per dream; key (golem_id, cycle). replayed: episodes by tick, with what REM left of their arousal; scars:
inherited bloodstains that were replayed beside them, by entry. episode_count: to choose from; failure_count, and
branch_count: failures imagined otherwise and branches simulated; unlike_count: judged decisions since the last dream
whose re-simulation did not give their verdict. RATES: what the golem had paid and earned up to here, by which it knows
the market's charges."""

DREAM_KEY = ("golem_id", "cycle")


@dataclass(frozen=True)
class Asleep:
    """What golems bring to their dreams, by code (their place in golems): widths of their ranges, the tick of their
    last dream (0: none), RATES up to there [4, golems], and how often each (golem, tick) was replayed already."""

    golems: Sequence[str]
    half_width: np.ndarray
    last_tick: np.ndarray
    rates: np.ndarray
    replayed: Mapping[tuple[int, int], int]


def dream(
    records: pa.Table, golem: np.ndarray, known: pa.Table, asleep: Asleep, due: Due, state: Hypotheses, policy: Policy
) -> tuple[pa.Table, pa.Table]:
    """Dream all that is due: (DREAM_SCHEMA, HYPOTHESIS_SCHEMA), each in the order of its key.

    records: DREAM_COLUMNS, sorted by golem and tick, reaching back from each dream over the policy's lookback and over
    a trial's length before the last dream; golem: their codes. known: the curator's decisions about these golems
    (KNOWN_COLUMNS). state: their hypotheses before; it is advanced in place.
    """
    night = _night(records, golem, known, asleep, due, state, policy)
    wave = rank_within(due.golem)
    told = [
        _wave(night, np.flatnonzero(wave == number), state, policy) for number in range(int(wave.max(initial=-1)) + 1)
    ]
    rows = [row for part in told for row in part]
    dreams = pa.Table.from_pylist(rows, schema=DREAM_SCHEMA)
    return dreams.sort_by([(n, "ascending") for n in DREAM_KEY]), to_table(state, policy, policy.hash)


@dataclass
class _Night:
    """Everything that waves look up, laid out once. times: how often each episode was replayed, advanced by waves."""

    asleep: Asleep
    due: Due
    since: np.ndarray
    pressure: np.ndarray
    episodes: dict[str, np.ndarray]
    times: np.ndarray
    novelty: np.ndarray
    scars: dict[str, np.ndarray]
    failed: np.ndarray
    decisions: Decisions
    imagined: Evidence
    imagined_of: np.ndarray
    dream_of: np.ndarray
    rates: np.ndarray
    unlike: np.ndarray


def _night(
    records: pa.Table, golem: np.ndarray, known: pa.Table, asleep: Asleep, due: Due, state: Hypotheses, policy: Policy
) -> _Night:
    walk = walk_of(records, golem, policy)
    ends = (due.golem << 40) | due.tick
    since = np.where(rank_within(due.golem) == 0, asleep.last_tick[due.golem], np.r_[0, due.tick[:-1]][: len(due.tick)])
    dream_of = _dream_of(walk.golem, walk.tick, due, since)
    rates = _rates(walk, dream_of, asleep, due)
    decisions = decisions_of(records, walk, policy)
    of = dream_of[decisions.judged_row]
    fee, native = rates_of(rates[:, np.maximum(of, 0)])
    fee = np.where(of >= 0, fee, 0.0)
    half = asleep.half_width[walk.golem[decisions.row]]
    found = imagine(walk, decisions, half_width=half, fee_ppm=fee, native=native, policy=policy)
    evidence, order = _evidence(walk, decisions, found.decision, found.change, found.effect_ppm, state)
    rows = np.searchsorted((walk.golem << 40) | walk.tick, ends)
    vitality = pc.struct_field(contiguous(records["vitality"]), "composite").to_numpy(zero_copy_only=False)
    episodes = _episodes(records, walk, policy)
    packed = (episodes["golem"] << 40) | episodes["tick"]
    times = np.array([asleep.replayed.get((p >> 40, p & (2**40 - 1)), 0) for p in packed.tolist()], np.int64)
    novelty, scars = _known(known, asleep, due, policy)
    failed = np.where(decisions.acted, decisions.effect_ppm < 0, decisions.effect_ppm > 0)
    return _Night(
        asleep, due, since, 1.0 - vitality[rows], episodes, times, novelty, scars, failed, decisions, evidence,
        found.decision[order], of, rates, np.bincount(of[found.unlike][of[found.unlike] >= 0], minlength=len(due.tick)),
    )  # fmt: skip


def _dream_of(golem: np.ndarray, tick: np.ndarray, due: Due, since: np.ndarray) -> np.ndarray:
    """Which dream each (golem, tick) comes before, after the one before that; -1 for none."""
    where = np.searchsorted((due.golem << 40) | due.tick, (golem << 40) | tick)
    inside = np.minimum(where, len(due.tick) - 1)
    return np.where((where < len(due.tick)) & (due.golem[inside] == golem) & (tick > since[inside]), inside, -1)


def _rates(walk: Walk, dream_of: np.ndarray, asleep: Asleep, due: Due) -> np.ndarray:
    """RATES at each dream, [4, dreams]: what was paid and earned since the last, added to what was before."""
    mine = dream_of >= 0
    out = np.zeros((len(RATES), len(due.tick)), np.int64)
    for place, values in enumerate(charges(walk)):
        np.add.at(out[place], dream_of[mine], values[mine])
        total = np.cumsum(out[place])
        first = np.flatnonzero(rank_within(due.golem) == 0)
        before = (total - out[place])[first]
        lengths = np.diff(np.r_[first, len(due.tick)])
        out[place] = total - np.repeat(before, lengths) + asleep.rates[place][due.golem]
    return out


def _evidence(
    walk: Walk, decisions: Decisions, decision: np.ndarray, change: np.ndarray, effect: np.ndarray, state: Hypotheses
) -> tuple[Evidence, np.ndarray]:
    """Imagined effects under the codes of the hypotheses that they concern, and the order that they were put in."""
    pairs, inverse = np.unique(np.stack([decisions.situation[decision], change], axis=1), axis=0, return_inverse=True)
    structures = [situation(*s) for s in decisions.situations]
    codes = np.array([state.code(structures[s], int(c)) for s, c in pairs], np.int64)
    key = codes[inverse.reshape(-1)] if len(codes) else np.zeros(0, np.int64)
    row, judged = decisions.row[decision], decisions.judged_row[decision]
    order = np.lexsort((walk.tick[row], key, walk.golem[row]))
    found = Evidence(walk.golem[row], key, effect, walk.tick[row], walk.tick[judged], walk.at_us[judged])
    return found.take(order), order


def _episodes(records: pa.Table, walk: Walk, policy: Policy) -> dict[str, np.ndarray]:
    """Golem, tick, arousal, valence and cell of the episodes among these records."""
    where = np.flatnonzero(is_episode(records))
    pad = contiguous(records["pad_after"])
    feel = {n: pc.struct_field(pad, n).to_numpy(zero_copy_only=False)[where] for n in ("arousal", "pleasure")}
    score = pc.struct_field(contiguous(records["observation"]), "anomaly_score").to_numpy(zero_copy_only=False)[where]
    regime = pc.index_in(records["regime"], value_set=pa.array(REGIMES)).to_numpy()[where].astype(np.int64)
    rules = policy.curator
    band = np.searchsorted(rules.anomaly_edges, score, side="right")
    gas = np.searchsorted(rules.gas_edges, walk.gas_ratio[where], side="right")
    cell = (regime * len(ANOMALY_BANDS) + band) * len(GAS_BANDS) + gas
    return {"golem": walk.golem[where], "tick": walk.tick[where], "cell": cell, **feel}


def _known(known: pa.Table, asleep: Asleep, due: Due, policy: Policy) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Novelty of each cell in each dream, 1 - likeness to the likest thing known [dreams, CELLS]; inherited scars."""
    code = {g: i for i, g in enumerate(asleep.golems)}
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
    seen, told = np.zeros((len(due.tick), CELLS), bool), np.zeros(len(due.tick), bool)
    told[dream_at[(cell[row] < 0).all(axis=1)]] = True
    for one in cell.T:
        placed = one[row] >= 0
        seen[dream_at[placed], one[row][placed]] = True
    cell = cell.max(axis=1)
    likeness = _alike(policy)
    best = (
        np.stack([likeness[:, cells].max(axis=1, initial=0.0) for cells in seen]) if len(seen) else np.zeros((0, CELLS))
    )
    best = np.maximum(best, np.where(told, policy.retrieval.like_baseline, 0.0)[:, None])
    scar = known["is_bloodstain"].to_numpy() & pc.equal(known["kind"], "warning").to_numpy()
    scar &= pc.not_equal(known["provenance"], "self").to_numpy() & (cell >= 0)
    mine = scar[row]
    scars = {"dream": dream_at[mine], "cell": cell[row][mine], "entry": known["entry_id"].to_numpy()[row][mine]}
    return 1.0 - best, scars


def known_then(known: pa.Table, cycle: Mapping[str, int]) -> pa.Table:
    """What of these decisions (KNOWN_COLUMNS) matters to dreams after a golem's cycle.

    Of those up to there the newest about each thing, if it was known; and all that came later.
    """
    known = known.sort_by([(n, "ascending") for n in ("golem_id", "structure", "cycle", "seq")])
    golem, structure = (known[n].to_numpy() for n in ("golem_id", "structure"))
    ends = np.array([cycle.get(g, 0) for g in golem.tolist()], np.int64)
    later = known["cycle"].to_numpy() > ends
    last = np.r_[(golem[1:] != golem[:-1]) | (structure[1:] != structure[:-1]) | later[1:], True][: len(golem)]
    active = pc.equal(known["status"], "active").to_numpy()
    return known.filter(pa.array(later | (last & active), pa.bool_()))


def _cells(known: pa.Table) -> np.ndarray:
    """The cell of each entry's situation under each gas band, -1 where it is about none. int64 [entries, bands]."""
    regime, anomaly, span = (
        pc.fill_null(pc.index_in(known[n], value_set=pa.array(words)), -1).to_numpy().astype(np.int64)
        for n, words in (("regime", REGIMES), ("anomaly_band", ANOMALY_BANDS), ("gas_band", GAS_SPANS))
    )
    cell = (regime * len(ANOMALY_BANDS) + anomaly)[:, None] * len(GAS_BANDS) + np.arange(len(GAS_BANDS))
    placed = (np.minimum(np.minimum(regime, anomaly), span) >= 0)[:, None] & COVERS[span]
    return np.where(placed, cell, -1)


def _alike(policy: Policy) -> np.ndarray:
    """How alike two cells are, [CELLS, CELLS] in [0, 1], as retrieval has it."""
    rules = policy.retrieval
    regime = CELL_REGIME[:, None] == CELL_REGIME
    band = 1.0 - np.abs(CELL_ANOMALY[:, None] - CELL_ANOMALY) / (len(ANOMALY_BANDS) - 1)
    gas = CELL_GAS[:, None] == CELL_GAS
    return rules.like_regime * regime + rules.like_anomaly * band + rules.like_gas * gas


def _wave(night: _Night, pick: np.ndarray, state: Hypotheses, policy: Policy) -> list[dict[str, object]]:
    """One dream of each of some golems: replay, ease, imagine, integrate. Rows of DREAM_SCHEMA."""
    due, rules = night.due, policy.dreams
    branches = round(rules.budget * rules.counterfactual_share)
    replays = _replay(night, pick, rules.budget - branches, policy)
    dreamers = Dreamers(due.golem[pick], due.cycle[pick], due.tick[pick], due.at_us[pick])
    here = np.isin(night.dream_of[night.imagined_of], pick)
    lived = night.imagined.take(np.flatnonzero(here))
    told = len(state.log)
    judge(state, dreamers, independent(lived, policy.prediction.check_ticks), policy)
    taken = _imagined(night, pick, branches)
    dreamt = night.imagined.take(np.flatnonzero(taken))
    stage(state, dreamers, independent(dreamt, policy.prediction.check_ticks), policy)
    fate = _fates(state.log[told:], due.golem[pick])
    return [
        {
            "golem_id": night.asleep.golems[due.golem[d]],
            "cycle": int(due.cycle[d]),
            "tick": int(due.tick[d]),
            "at": int(due.at_us[d]),
            "began_by": BEGAN_BY[due.began_by[d]],
            "mortality_pressure_ppm": round(float(night.pressure[d]) * PPM),
            "replay_budget": rules.budget - branches,
            "counterfactual_budget": branches,
            **replays[place],
            "failure_count": len(np.unique(night.imagined_of[taken & (night.dream_of[night.imagined_of] == d)])),
            "branch_count": int((taken & (night.dream_of[night.imagined_of] == d)).sum()),
            "unlike_count": int(night.unlike[d]),
            **{name: counts[place] for name, counts in fate.items()},
            **{name: int(night.rates[i, d]) for i, name in enumerate(RATES)},
            "policy_hash": policy.hash,
        }
        for place, d in enumerate(pick.tolist())
    ]


def _imagined(night: _Night, pick: np.ndarray, branches: int) -> np.ndarray:
    """Which imagined effects these dreams can afford: of failures, the dearest first, whole decisions at a time."""
    decision = night.imagined_of
    of = night.dream_of[decision]
    mine = np.flatnonzero(np.isin(of, pick) & night.failed[decision])
    cost = np.abs(night.decisions.effect_ppm[decision[mine]])
    order = mine[np.lexsort((night.imagined.key[mine], decision[mine], -cost, of[mine]))]
    taken = np.zeros(len(decision), bool)
    if len(order):
        begun = rank_within(of[order])
        size = np.bincount(decision[order], minlength=night.decisions.count)[decision[order]]
        inside = rank_within(decision[order])
        taken[order[begun - inside + size <= branches]] = True
    return taken


def _replay(night: _Night, pick: np.ndarray, places: int, policy: Policy) -> list[dict[str, object]]:
    """NREM and REM: draw episodes and scars by salience, and ease what was drawn."""
    due, rules, episodes = night.due, policy.dreams, night.episodes
    packed = (episodes["golem"] << 40) | episodes["tick"]
    ends = (due.golem[pick] << 40) | due.tick[pick]
    floor = (due.golem[pick] << 40) | np.maximum(due.tick[pick] - rules.lookback_ticks, 0)
    first, stop = (np.searchsorted(packed, edge, side="right") for edge in (floor, ends))
    place = np.repeat(np.arange(len(pick)), stop - first)
    row = first[place] + rank_within(place)
    arousal = depotentiated(episodes["arousal"][row], night.times[row], rules)
    age = due.tick[pick][place] - episodes["tick"][row]
    novelty = night.novelty[pick[place], episodes["cell"][row]]
    weight = salience(arousal, episodes["pleasure"][row], age, novelty, rules)
    scar = np.flatnonzero(np.isin(night.scars["dream"], pick))
    scar_at = np.searchsorted(pick, night.scars["dream"][scar])
    scar_weight = scar_salience(
        due.tick[pick][scar_at],
        night.novelty[pick[scar_at], night.scars["cell"][scar]],
        night.pressure[pick][scar_at],
        rules,
    )
    seeds = np.array([seed_of(f"{night.asleep.golems[due.golem[d]]}/{due.cycle[d]}") for d in pick], np.uint64)
    names = [seed_of(entry) for entry in night.scars["entry"][scar]]
    at = np.r_[place, scar_at].astype(np.int64)
    name = np.r_[episodes["tick"][row].astype(np.uint64), np.array(names, np.uint64)]
    drawn = chosen(at, seeds[at], name, np.r_[weight, scar_weight], places)
    kept, scarred = np.sort(drawn[drawn < len(row)]), drawn[drawn >= len(row)] - len(row)
    eased = depotentiated(episodes["arousal"][row], night.times[row] + 1, rules)
    np.add.at(night.times, row[kept], 1)
    out: list[dict[str, object]] = []
    for number in range(len(pick)):  # a row a dream is written here, not a record
        mine = kept[place[kept] == number]
        columns = (
            episodes["tick"][row[mine]],
            *(np.rint(v[mine] * PPM).astype(np.int64) for v in (weight, arousal, eased)),
        )
        out.append(
            {
                "replayed": [dict(zip(_REPLAYED.names, v, strict=True)) for v in np.stack(columns, axis=1).tolist()],
                "scars": sorted(night.scars["entry"][scar[scarred[scar_at[scarred] == number]]].tolist()),
                "episode_count": int(stop[number] - first[number]),
            }
        )
    return out


def _fates(told: Sequence[Mapping[str, np.ndarray]], golem: np.ndarray) -> dict[str, list[int]]:
    """How many hypotheses of each of these golems were staged, confirmed and are gone by what was told."""
    groups = {
        "staged_count": (OP_STAGED,),
        "confirmed_count": (OP_CONFIRMED,),
        "gone_count": (OP_REFUTED, OP_EXPIRED, OP_FADED),
    }
    out = {}
    for name, operations in groups.items():
        counts = np.zeros(len(golem), np.int64)
        for part in told:
            mine = np.isin(part["operation"], operations)
            np.add.at(counts, np.searchsorted(golem, part["golem"][mine]), 1)
        out[name] = counts.tolist()
    return out
