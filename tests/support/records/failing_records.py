"""Handmade records of golems whose actions fail, and queries for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from bardo_pipeline.derivation.incremental.record_queries import cycle_of
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA
from bardo_pipeline.katabasis.action_outcomes import ENDED_SCHEMA, failures_among, outcomes_of
from bardo_pipeline.katabasis.scar_rules import RULE_COLUMNS, failures_of
from bardo_pipeline.policy import Policy
from tests.support.records.handmade_records import START, STORM, Situation, action, full, judged, outcome, record

POLICY = Policy()
VALUE = 48_000_000
KINDS = (pa.string(), pa.string(), pa.int64(), pa.int64(), pa.int64(), pa.int64(), pa.string(), pa.int64())
NO_RULES = pa.table({n: pa.array([], kind) for n, kind in zip(RULE_COLUMNS, KINDS, strict=True)})


def act(
    golem_id: str, tick: int, *, pnl_ppm: int | None = -580, status: str = "executed", slippage_ppm: int | None = 700,
    gas_micros: int = 9_000, verified: bool = True, when: Situation = STORM, cause: str | None = None,
    action_type: str = "rebalance", pad: tuple[float, float, float] = (-0.2, 0.3, -0.1), **seen: Any,
) -> dict[str, Any]:  # fmt: skip
    """Return a tick with an action. pnl_ppm: immediate cost per moved value; None: no outcome is recorded."""
    sent = action(status, slippage_ppm=slippage_ppm, gas_cost_micros=gas_micros) | {"action_type": action_type}
    came = None if pnl_ppm is None else outcome(verified=verified, pnl_impact_micros=pnl_ppm * VALUE // 10**6)
    if came is not None:
        came["cause_variable"] = cause
    observed = {"anomaly_score": when.score, "gas_hour_ratio": when.gas} | seen
    fields = {"actions": [sent], "outcome": came, "regime": when.regime, "tier": "T2"}
    return record(golem_id, tick, observation=observed, pad=pad, **fields)


def check(golem_id: str, tick: int, decided: int, effect_ppm: int, **fields: Any) -> dict[str, Any]:
    """A tick that judges an act."""
    return record(golem_id, tick, resolutions=[judged(STORM, effect_ppm, decided=decided) | fields])


def table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Whole records."""
    return full(rows) if rows else RECORD_SCHEMA.empty_table()


def ended(golem_id: str, tick: int) -> pa.Table:
    """A death on record."""
    return pa.table({"golem_id": [golem_id], "tick": [tick], "at": [moment(tick)]}, schema=ENDED_SCHEMA)


ALIVE = ENDED_SCHEMA.empty_table()


def moment(tick: int) -> datetime:
    """Return the time of a handmade golem's tick."""
    return START + tick * timedelta(minutes=1)


def failures(
    rows: Sequence[Mapping[str, Any]], dead: pa.Table = ALIVE, *, rules: pa.Table = NO_RULES,
    owners: Mapping[str, str] | None = None, known: Mapping[str, int] | None = None, policy: Policy = POLICY,
) -> pa.Table:  # fmt: skip
    """Return the failures of these records."""
    records = table(rows)
    result = failures_among(outcomes_of(records, dead, policy))
    cycle = cycle_of(result["confirmed_tick"].to_numpy(), policy.curator.cycle_ticks)
    owned = owners or dict.fromkeys(records["golem_id"].unique().to_pylist(), "owner-1")
    before = [{"golem_id": g, "known": count} for g, count in (known or {}).items()]
    counted = pa.schema([("golem_id", pa.string()), ("known", pa.int64())])
    return failures_of(
        result.append_column("cycle", pa.array(cycle, pa.int64())),
        records,
        rules,
        pa.table({"golem_id": list(owned), "owner_id": list(owned.values())}),
        pa.Table.from_pylist(before, schema=counted),
        policy,
    )


def rule(golem_id: str, structure: str, cycle: int, sign: int, confidence_ppm: int, **fields: Any) -> pa.Table:
    """One decision of the curator about a situation."""
    row = {
        "golem_id": golem_id, "structure": structure, "cycle": cycle, "revision": 0, "seq": 1, "sign": sign,
        "status": "active", "confidence_ppm": confidence_ppm,
    } | fields  # fmt: skip
    return pa.Table.from_pylist([row], schema=NO_RULES.schema)


def deaths(*dead: tuple[str, int]) -> pa.Table:
    """golem_id, cycle and tick of deaths."""
    span = POLICY.curator.cycle_ticks
    rows = [{"golem_id": g, "cycle": (tick - 1) // span + 1, "tick": tick} for g, tick in dead]
    kinds = [("golem_id", pa.string()), ("cycle", pa.int64()), ("tick", pa.int64())]
    return pa.Table.from_pylist(rows, schema=pa.schema(kinds))
