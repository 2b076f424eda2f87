"""Handmade grimoires: an entry is a dictionary with the test's values, and defaults for the rest."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from bardo_pipeline.curator.state.decision_log import DECISION_SCHEMA, REASONS
from bardo_pipeline.curator.state.grimoire_state import entry_id
from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.grimoire.entries import COUNTED_FIELDS, DECAY_CLASSES, ENTRY_SCHEMA, MOMENT
from bardo_pipeline.grimoire.entry_columns import confidence_of
from bardo_pipeline.grimoire.entry_text import baseline_text, pattern_text
from bardo_pipeline.inheritance.weismann import with_fade_time
from bardo_pipeline.policy import Policy

POLICY = Policy()
DIED = datetime(2024, 3, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def pattern(tool: str, **parts: Any) -> Structure:
    """A pattern's structure; the tool makes it unique."""
    named = {"action_type": "rebalance", "regime": "volatile", "anomaly_band": "strained", "gas_band": "normal"} | parts
    return Structure("pattern", "ethereum", "uniswap_v3", "USDC/WETH", tool=tool, **named)


def baseline(metric: str, pair: str = "USDC/WETH") -> Structure:
    """A baseline's structure."""
    return Structure("baseline", "ethereum", "uniswap_v3", pair, metric=metric)


def causal(cause: str, effect: str, *, lag_ticks: int = 3, regime: str | None = None) -> Structure:
    """A causal link's structure."""
    named = {"cause": cause, "effect": effect, "lag_ticks": lag_ticks, "regime": regime}
    return Structure("causal", "ethereum", "uniswap_v3", "USDC/WETH", **named)


def dreamt(change: str, **parts: Any) -> Structure:
    """Return a dream's lesson about a situation with one change."""
    return pattern("uniswap_v3_rebalance", **parts)._replace(source="dream", cause=change)


def entry(golem_id: str = "g-1", about: Structure | str = "uniswap_rebalance", **fields: Any) -> dict[str, Any]:
    """One active insight of the golem's own, at 0.6 since ten days before DIED; `fields` changes any column."""
    structure = pattern(about) if isinstance(about, str) else about
    origin, sign = (
        fields.get("origin_golem_id", golem_id),
        fields.get("sign", 1 if structure.source == "pattern" else 0),
    )
    row: dict[str, Any] = {field.name: 0 for field in COUNTED_FIELDS}
    row |= {
        **structure._asdict(), "structure": structure.key, "category": structure.category, "domain": structure.domain,
        "golem_id": golem_id, "entry_id": entry_id(origin, structure.key), "origin_golem_id": origin, "kind": "insight",
        "status": "active", "provenance": "self", "decay_class": DECAY_CLASSES[structure.decay_class],
        "is_anti_knowledge": False, "is_bloodstain": False, "sign": sign, "confidence_ppm": 600_000,
        "confidence_origin_ppm": 600_000, "effect_mean_ppm": 300 * (sign or 1), "effect_low_ppm": 200,
        "effect_high_ppm": 400, "evidence_count": 5, "anchor_at": DIED - 10 * DAY, "created_at": DIED - 20 * DAY,
        "validated_at": DIED - 10 * DAY, "fades_at": None,
    }  # fmt: skip
    row |= fields
    return row | {"text": fields.get("text", _text(structure, row))}


def _text(structure: Structure, row: dict[str, Any]) -> str:
    if structure.source == "baseline":
        figures = {n: row[f"effect_{n}_ppm"] for n in ("mean", "low", "high")}
        named = {"protocol": structure.protocol, "pair": structure.pair, "metric": structure.metric or ""}
        return baseline_text(**named, **figures)
    named = {
        n: getattr(structure, n) or ""
        for n in ("action_type", "protocol", "pair", "regime", "anomaly_band", "gas_band")
    }
    return pattern_text(kind=row["kind"], sign=row["sign"], mean_ppm=row["effect_mean_ppm"], **named)


def grimoire(*rows: dict[str, Any], policy: Policy = POLICY) -> pa.Table:
    """Entries as a table of ENTRY_SCHEMA, with `fades_at` computed."""
    return with_fade_time(pa.Table.from_pylist(list(rows), schema=ENTRY_SCHEMA), policy)


def deaths(*golem_ids: str, at: datetime = DIED, **fields: Any) -> pa.Table:
    """Return recorded deaths with the columns of votes, bottleneck and testament."""
    plain = {"owner_id": "owner-1", "cycle": 3, "at": at, "cause": "economic", "tick": 150, "generation": 0} | fields
    schema = {
        "golem_id": pa.string(), "owner_id": pa.string(), "cycle": pa.int64(), "at": MOMENT, "cause": pa.string(),
        "tick": pa.int64(), "generation": pa.int64(),
    }  # fmt: skip
    return pa.Table.from_pylist([{"golem_id": g, **plain} for g in golem_ids], schema=pa.schema(schema))


def decisions(*rows: dict[str, Any]) -> pa.Table:
    """Decisions: entries with operation, cycle and at (DECISION_SCHEMA); seq is the order of the rows."""
    plain = {
        "revision": 0,
        "confidence_before_ppm": 0,
        "cause_ticks": [],
        "cause_bundle": None,
        "cause_event": None,
        "policy_hash": POLICY.hash,
    }
    full = [{**plain, "reason": REASONS[0], "seq": i, **row} for i, row in enumerate(rows)]
    return pa.Table.from_pylist(full, schema=DECISION_SCHEMA)


def decided(operation: str, cycle: int, **fields: Any) -> dict[str, Any]:
    """Return a decision's row: the entry after an operation, at the close of a cycle (one per day)."""
    at = DIED - (30 - cycle) * DAY
    return {"operation": operation, "cycle": cycle, "at": at, **entry(**{"anchor_at": at, "validated_at": at} | fields)}


def shuffled(table: pa.Table, seed: int) -> pa.Table:
    """The same rows in another order."""
    return table.take(pa.array(np.random.default_rng(seed).permutation(table.num_rows)))


def confidence_at(table: pa.Table, at: datetime, policy: Policy = POLICY) -> list[int]:
    """Confidence of each row in ppm at a moment."""
    micros = pa.array([at], MOMENT).cast(pa.int64())[0].as_py()
    return confidence_of(table, micros, policy.decay).tolist()
