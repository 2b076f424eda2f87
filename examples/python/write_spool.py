"""A minimal runtime of a golem: it writes one life into the spool. It needs only Python's standard library.

    python write_spool.py SPOOL_FOLDER GOLEM_ID TICKS

The operator records the golem's birth before: bardo golem birth GOLEM_ID --owner OWNER --at 2026-01-01
docs/writing.md describes the protocol: write the file under a name that begins with a dot, sync it, rename it.
"""

from __future__ import annotations

import json
import os
import random
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

START = datetime(2026, 1, 1, tzinfo=UTC)
PROBES = (
    "price_delta", "tvl_change", "position_health", "gas_price", "credit_balance", "rsi_macd",
    "circuit_breaker", "kill_switch", "pheromone_threat", "homeostatic_deviation", "world_model_drift", "causal_graph",
)  # fmt: skip
TICKS_PER_FILE = 100


def drop(spool: Path, name: str, lines: list[str]) -> None:
    """Put a whole file into the spool. The file is synced before its rename, and the folder after it."""
    draft = spool / f".{name}"
    with draft.open("w", encoding="utf-8", newline="\n") as out:
        out.writelines(line + "\n" for line in lines)
        out.flush()
        os.fsync(out.fileno())
    draft.rename(spool / name)
    folder = os.open(spool, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def moment(tick: int) -> str:
    """Return the moment of a tick in UTC, with its offset."""
    return (START + timedelta(minutes=tick)).isoformat()


def record(golem_id: str, tick: int, price: float, before: float) -> dict:
    """Return the record of a tick on which the golem observed a price and did nothing."""
    calm = {"pleasure": 0.0, "arousal": 0.0, "dominance": 0.0}
    moved = price / before - 1.0
    probes = [
        {"probe": name, "severity": None, "value": None, "threshold": None, "detail": "no source"} for name in PROBES
    ]
    probes[0] = {"probe": "price_delta", "severity": "none", "value": moved, "threshold": 0.005, "detail": None}
    return {
        "schema_version": 2, "golem_id": golem_id, "tick": tick, "observed_at": moment(tick),
        "cycle_seen": 0, "derivation_id": None, "playbook_version": 0,
        "observation": {
            "market": "example", "chain": "polygon", "protocol": "uniswap_v3", "pair": "WETH/USDC", "pool": "0xpool",
            "block_number": None, "price": price, "price_low": min(price, before), "price_high": max(price, before),
            "price_return": moved, "sma": None, "sigma_ratio": None, "rsi": None, "macd": None, "liquidity": 1e18,
            "volume_micros": 0, "gas_gwei": 30.0, "gas_hour_ratio": 1.0, "idle_micros": 0,
            "net_asset_value_micros": 50_000_000, "anomaly_score": 0.0, "positions": [],
        },
        "regime": "unknown", "tick_interval_seconds": 60, "probe_results": probes, "anomalies": [], "predictions": [],
        "pad_before": calm, "pad_after": calm, "somatic_markers_fired": [], "primary_emotion": "trust",
        "prediction_error": 0.0,
        "prediction_error_sources": {
            "price": None, "regime": 0.0, "health": None, "threat": None, "interventions": 0.0, "anomalies": 0.0,
        },
        "deliberation_threshold": 0.3, "tier": "T0", "forced_by": None, "gating_reason": "no anomaly",
        "context_bundle_summary": None, "retrieved_entries": [], "active_interventions": [], "deliberation": None,
        "actions": [], "outcome": None, "resolutions": [], "episodes_written": [], "grimoire_mutations": [],
        "vitality": {"economic": 1.0, "epistemic": 1.0, "stochastic": 1.0, "composite": 1.0}, "phase": "thriving",
        "credits_micros": 50_000_000, "credit_consumed_micros": 0,
        "cost": {"inference_micros": 0, "gas_micros": 0, "total_micros": 0},
        "pipeline": None, "sealed": None,
    }  # fmt: skip


def main() -> None:
    """Write the records of a golem along a random walk of the price."""
    spool, golem_id, ticks = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    chance = random.Random(golem_id)  # noqa: S311 - no secret depends on it
    price, lines = 2_000.0, []
    for tick in range(1, ticks + 1):
        before, price = price, price * (1.0 + chance.gauss(0.0, 0.001))
        lines.append(json.dumps(record(golem_id, tick, price, before), separators=(",", ":")))
        if len(lines) == TICKS_PER_FILE or tick == ticks:
            drop(spool, f"{golem_id}-{tick:08}.jsonl", lines)
            lines = []


if __name__ == "__main__":
    main()
