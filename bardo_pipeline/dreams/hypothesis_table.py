"""Hypotheses as table rows: write logged changes, and load the live hypotheses again. Pure, set-based.

Source: KAT (Loop 3), law 6 (each row names its causes).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.state.grimoire_state import entry_id
from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.dreams.counterfactual_simulation import CHANGES
from bardo_pipeline.dreams.hypothesis_staging import GONE, OPERATIONS, STATES, SUMS, Hypotheses, interval
from bardo_pipeline.events.record.arrow_columns import all_nullable, all_required, listed, required
from bardo_pipeline.grimoire.confidence import DAY_US
from bardo_pipeline.grimoire.entries import DECAY_CLASSES, DREAMT, MOMENT
from bardo_pipeline.grimoire.entry_columns import moments
from bardo_pipeline.grimoire.entry_text import counterfactual_text
from bardo_pipeline.mortality.random_streams import rank_within
from bardo_pipeline.policy import Policy

SITUATED = ("chain", "protocol", "pair", "tool", "action_type", "regime", "anomaly_band", "gas_band")
"""Fields of a structure that a hypothesis has."""

_FIGURES = ("count", "total", "squares", "mean_ppm", "low_ppm", "high_ppm")

HYPOTHESIS_SCHEMA = pa.schema(
    [
        *all_required(pa.string(), "golem_id", "hypothesis_id"),
        *all_required(pa.int64(), "cycle", "seq"),
        required("at", MOMENT),
        *all_required(pa.string(), "operation", "state", "text", "structure", *SITUATED),
        *all_required(pa.string(), "change", "provenance", "decay_class"),
        required("half_life_days", pa.float64()),
        *all_required(pa.int64(), "sign", "confidence_before_ppm", "confidence_ppm"),
        required("anchor_at", MOMENT),
        required("begun_cycle", pa.int64()),
        required("begun_at", MOMENT),
        pa.field("staged_tick", pa.int64()),
        *all_nullable(MOMENT, "staged_at", "confirm_by", "expires_at"),
        *all_required(pa.int64(), *_FIGURES, *(f"live_{name}" for name in _FIGURES)),
        required("pushed", pa.bool_()),
        listed("cause_ticks", pa.int64()),
        required("policy_hash", pa.string()),
    ]
)
"""One row per change of a hypothesis in a dream; key (golem_id, hypothesis_id, cycle, seq). The newest row holds
its state.

mean, low, high: effect of the change relative to the recorded decision, in ppm of the position's value, simulated for
failures; with the prefix live_ measured for all decisions since staging. confidence_ppm: as of anchor_at.
half_life_days: twice the half-life of its class. cause_ticks: ticks of the decisions and verdicts behind this row."""

HYPOTHESIS_KEY = ("golem_id", "hypothesis_id", "cycle", "seq")


def hypothesis_id(golem_id: str, structure_key: str, change: str, begun_cycle: int) -> str:
    """Return the id from golem, situation, change and first cycle: 24 hex characters."""
    return hashlib.sha256(f"{golem_id}|{structure_key}|{change}|{begun_cycle}".encode()).hexdigest()[:24]


def lesson_of(situation: Structure, change: str) -> Structure:
    """Return the structure of a lesson: the situation and the change."""
    return situation._replace(source="dream", cause=change)


def lesson_entry_id(golem_id: str, situation: Structure, change: str) -> str:
    """Return the entry id of the lesson that a hypothesis becomes."""
    return entry_id(golem_id, lesson_of(situation, change).key)


def text_of(situation: Structure, change: str, sign: int, mean_ppm: int) -> str:
    """Return a sentence about a situation and a change, with the effect's size in bands."""
    defaults = {"regime": "unknown", "anomaly_band": "calm", "gas_band": "normal"}
    scene = {name: getattr(situation, name) or default for name, default in defaults.items()}
    place = {"protocol": situation.protocol, "pair": situation.pair}
    return counterfactual_text(change=change, **place, **scene, sign=sign, mean_ppm=mean_ppm)


def to_table(state: Hypotheses, policy: Policy, policy_hash: str) -> pa.Table:
    """Return the logged changes as HYPOTHESIS_SCHEMA, sorted by golem, cycle and seq."""
    if not state.log:
        return HYPOTHESIS_SCHEMA.empty_table()
    rows = {n: np.concatenate([part[n] for part in state.log]) for n in state.log[0]}
    count, key = len(rows["golem"]), rows["key"]
    structures = [state.structures[k] for k in key.tolist()]
    changes = [CHANGES[state.changes[k]] for k in key.tolist()]
    golems = [state.golems[g] for g in rows["golem"].tolist()]
    half = Hypotheses(state.golems, state.structures, columns=rows).half_life_us(np.arange(count), policy)
    unstaged = rows["staged_us"] == 0
    sides: dict[str, pa.Array] = {}
    for side in ("", "live_"):
        sums = [rows[f"{side}{n}"] for n in ("count", "total", "squares")]
        named = zip(_FIGURES, [*sums, *interval(sums, policy)], strict=True)
        sides |= {f"{side}{n}": pa.array(v) for n, v in named}
    keys = [s.key for s in structures]
    ids = zip(golems, keys, changes, rows["begun_cycle"].tolist(), strict=True)
    texts = zip(structures, changes, rows["sign"].tolist(), sides["mean_ppm"].to_pylist(), strict=True)
    columns = {
        "golem_id": golems, "hypothesis_id": [hypothesis_id(*parts) for parts in ids],
        "cycle": rows["cycle"], "at": moments(rows["at_us"]),
        "operation": pa.array(OPERATIONS).take(pa.array(rows["operation"])),
        "state": pa.array(STATES).take(pa.array(rows["state"])),
        "text": [text_of(*parts) for parts in texts], "structure": keys, "change": changes,
        **{n: [getattr(s, n) for s in structures] for n in SITUATED},
        "provenance": [DREAMT] * count,
        "decay_class": [DECAY_CLASSES[s.decay_class] for s in structures],
        "half_life_days": half / DAY_US, "sign": rows["sign"], "confidence_before_ppm": rows["before"],
        "confidence_ppm": rows["confidence_ppm"], "anchor_at": moments(rows["anchor_us"]),
        "begun_cycle": rows["begun_cycle"], "begun_at": moments(rows["begun_us"]),
        "staged_tick": pa.array(rows["staged_tick"], mask=unstaged), "staged_at": moments(rows["staged_us"], unstaged),
        "confirm_by": moments(rows["staged_us"] + round(policy.dreams.confirm_days * DAY_US), unstaged),
        "expires_at": moments(rows["staged_us"] + round(policy.dreams.expire_days * DAY_US), unstaged),
        **sides, "pushed": rows["pushed"] == 1,
        "cause_ticks": pa.ListArray.from_arrays(np.r_[0, np.cumsum(rows["cause_count"])], np.concatenate(state.causes)),
        "policy_hash": [policy_hash] * count,
        "order": np.repeat(np.arange(len(state.log)), [len(part["golem"]) for part in state.log]),
    }  # fmt: skip
    table = pa.table(columns).sort_by([(k, "ascending") for k in ("golem_id", "cycle", "order", "structure", "change")])
    golem = table["golem_id"].combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)
    table = table.append_column("seq", pa.array(rank_within((golem << 32) | table["cycle"].to_numpy())))
    return table.select(HYPOTHESIS_SCHEMA.names).cast(HYPOTHESIS_SCHEMA)


def newest_rows(rows: pa.Table) -> pa.Table:
    """Return the newest row of each hypothesis (HYPOTHESIS_SCHEMA), sorted by golem and hypothesis."""
    return _last_by(rows, ("golem_id", "hypothesis_id"), ("cycle", "seq"))


def live_hypotheses(rows: pa.Table) -> pa.Table:
    """Return the newest rows of hypotheses that are neither gone nor replaced by a later one with the same key."""
    newest = _last_by(newest_rows(rows), ("golem_id", "structure", "change"), ("begun_cycle",))
    return newest.filter(pc.not_equal(newest["state"], STATES[GONE]))


def _last_by(rows: pa.Table, key: tuple[str, ...], order: tuple[str, ...]) -> pa.Table:
    """Return the last row of each key by these order columns, sorted by key."""
    rows = rows.sort_by([(n, "ascending") for n in (*key, *order)])
    parts = [rows[n].to_numpy(zero_copy_only=False) for n in key]
    last = np.r_[np.any([part[1:] != part[:-1] for part in parts], axis=0), True][: rows.num_rows]
    return rows.filter(pa.array(last, pa.bool_()))


def load_hypotheses(rows: pa.Table, golems: Sequence[str]) -> Hypotheses:
    """Load the live hypotheses from rows (HYPOTHESIS_SCHEMA); golem codes are indices into `golems`."""
    state, live = Hypotheses(list(golems)), live_hypotheses(rows)
    if not live.num_rows:
        return state
    code = {g: i for i, g in enumerate(golems)}
    keys = [
        state.code(Structure("pattern", **{n: row[n] for n in SITUATED}), CHANGES.index(row["change"]))
        for row in live.select([*SITUATED, "change"]).to_pylist()
    ]
    times = {"begun_us": "begun_at", "staged_us": "staged_at", "anchor_us": "anchor_at"}
    columns = {n: live[n].to_numpy() for n in ("sign", "confidence_ppm", "begun_cycle", *SUMS)}
    columns |= {n: live[c].cast(pa.int64()).fill_null(0).to_numpy() for n, c in times.items()}
    columns |= {
        "golem": np.array([code[g] for g in live["golem_id"].to_pylist()]), "key": np.array(keys),
        "state": np.array([STATES.index(s) for s in live["state"].to_pylist()]),
        "staged_tick": live["staged_tick"].fill_null(0).to_numpy(),
        "pushed": live["pushed"].to_numpy().astype(np.int64),
    }  # fmt: skip
    state.add(columns)
    return state
