"""The story of g-9b2d (KAT), recorded tick by tick: three generations, two deaths, one playbook line.

The golems' observations, actions and costs are written here, as a runtime would record them. Learned rows are not:
the pipeline derives insights, playbooks, scars, votes, testaments and bundles from these events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from bardo_pipeline.curator.state.grimoire_state import entry_id
from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.derive_home import complete_deaths
from bardo_pipeline.derivation.legacy.bundle_store import load_bundle, published_bundles
from bardo_pipeline.derivation.versions.rebuild import derive_everything
from bardo_pipeline.events.life.events import Died, Received, life_event
from bardo_pipeline.events.record.model import Vitality
from bardo_pipeline.heartbeat.fleet import Founding, born
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from tests.conftest import NOW
from tests.support.records.handmade_records import START, full, outcome, record

FIRST, SECOND, THIRD = "g-7f3a", "g-9b2d", "g-3k9p"
OWNER, LINEAGE = "owner-1", "the line of g-7f3a"
FOUNDING = Founding(owners=(OWNER,), budget_micros=12_400_000_000, credit_share=0.01, lifespan_ticks=(2_000, 2_000))
PLACE = ("base", "uniswap_v3", "WETH/USDC")
MARKET = dict(zip(("chain", "protocol", "pair"), PLACE, strict=True)) | {"market": "base by hand", "pool": "0xba5e"}
TOOL = "uniswap_v3_rebalance"
POSITION = 9_300_000_000
"""The value in the pool, in micro-dollars; the rest of 12,400 dollars is lent."""

STRAINED, STRETCHED, BROKEN = 0.71, 0.85, 0.95
Ticks = Mapping[int, Mapping[str, Any]]


def at(golem_id: str, tick: int) -> datetime:
    """Return the time of a golem's tick; each golem is born where its predecessor died."""
    return START + timedelta(minutes={FIRST: 0, SECOND: 900, THIRD: 1_300}[golem_id] + tick)


def rule_of(golem_id: str, band: str) -> str:
    """The id of a golem's rule about re-centring in a volatile market, at usual gas, in this band."""
    return entry_id(golem_id, Structure("pattern", *PLACE, TOOL, "rebalance", "volatile", band, "normal").key)


def verdict(
    decided: int, score: float, effect_ppm: int, *, chosen: str = "hold", regime: str = "volatile",
    retrieved: Iterable[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """Gain of re-centring over holding, thirty ticks later."""
    return {
        "decision_tick": decided, "action_type": "rebalance", "tool_name": TOOL, "chosen": chosen, "regime": regime,
        "anomaly_score": score, "gas_ratio": 1.0, "value_micros": POSITION, "effect_ppm": effect_ppm, "verified": True,
        "ground_truth_source": "trace", "retrieved_entry_ids": list(retrieved),
    }  # fmt: skip


def acted(
    score: float, *, slippage_ppm: int, gas_micros: int, pnl_micros: int, retrieved: Iterable[str] = (), **fields: Any
) -> dict[str, Any]:
    """Return an executed re-centring in a volatile market, with its cost."""
    sent = {
        "action_type": "rebalance", "tool_name": TOOL, "permit_id": "permit", "tx_hash": None, "status": "executed",
        "block_reason": None, "gas_cost_micros": gas_micros, "slippage_ppm": slippage_ppm, "value_micros": POSITION,
    }  # fmt: skip
    return {
        "actions": [sent], "outcome": outcome(pnl_impact_micros=pnl_micros), "tier": "T2", "regime": "volatile",
        "seen": {"anomaly_score": score}, "retrieved_entries": [_retrieved(entry) for entry in retrieved], **fields,
    }  # fmt: skip


def _retrieved(entry_id: str) -> dict[str, Any]:
    factors = {"score": 0.8, "semantic": 1.0, "recency": 0.9, "importance": 0.5, "affect": 0.5}
    return {"entry_id": entry_id, "kind": "insight", **factors}


def lived(golem_id: str, ticks: int, result: Ticks) -> list[dict[str, Any]]:
    """Return a life: quiet ticks, and the given ones. `seen`: observations that differ."""
    rows = []
    for tick in range(1, ticks + 1):
        answer = dict(result.get(tick, {}))
        seen = MARKET | {"gas_gwei": 30.0 + tick % 3, "volume_micros": 5_000_000_000 + tick % 7 * 40_000_000}
        seen |= answer.pop("seen", {})
        plain = {"observed_at": at(golem_id, tick), "regime": "range_bound", "odd": tick % 40 == 0, "phase": "thriving"}
        rows.append(record(golem_id, tick, observation=seen, **(plain | answer)))
    return rows


LOST, WON = -7_000, 8_000
FIRST_TICKS: Ticks = {
    tick: {
        "resolutions": [
            verdict(tick - 30, STRAINED, LOST), verdict(tick - 30, STRETCHED, LOST), verdict(tick - 30, BROKEN, WON),
            verdict(tick - 30, STRETCHED, WON, regime="range_bound"),
            verdict(tick - 30, BROKEN, WON, regime="trending_up"),
        ]
    }
    for tick in (740, 790, 840)
}  # fmt: skip
"""Three outcomes of its last hours: in volatile markets only a position far outside its range is worth re-centring. It
dies at tick 847, while this is still an insight.
"""

ADVICE = rule_of(FIRST, "strained")
"""The advice of the first golem: at the edge of the range, do not re-centre."""

SECOND_TICKS: Ticks = {
    63: acted(0.71, slippage_ppm=4_100, gas_micros=3_900_000, pnl_micros=-29_000_000),
    93: {"resolutions": [verdict(63, 0.71, -9_000, chosen="act")]},
    287: acted(
        0.76, slippage_ppm=7_100, gas_micros=4_200_000, pnl_micros=-37_000_000, retrieved=[ADVICE],
        pad=(-0.5, 0.6, -0.2),
    ),
    289: acted(0.78, slippage_ppm=6_800, gas_micros=4_600_000, pnl_micros=-36_000_000, phase="conservation"),
    292: {"resolutions": [verdict(262, 0.72, LOST), verdict(262, 0.86, LOST)]},
    296: acted(0.86, slippage_ppm=8_000, gas_micros=5_100_000, pnl_micros=-42_000_000, phase="conservation"),
    304: {"resolutions": [verdict(274, 0.73, LOST), verdict(274, 0.84, LOST)], "phase": "declining"},
    309: {
        "actions": [
            {
                "action_type": "withdraw", "tool_name": "morpho_withdraw", "permit_id": "permit", "tx_hash": None,
                "status": "executed", "block_reason": None, "gas_cost_micros": 2_000_000, "slippage_ppm": None,
                "value_micros": 12_400_000_000,
            }
        ],
        "outcome": outcome(pnl_impact_micros=-3_100_000_000)
        | {"cause_variable": "utilization", "effect_variable": "withdrawable liquidity"},
        "tier": "T2", "regime": "volatile", "phase": "declining",
        "seen": {"protocol": "morpho_blue", "pair": "USDC", "pool": "0x304f"},
    },
    312: {"phase": "terminal", "regime": "volatile"},
}  # fmt: skip

THIRD_TICKS: Ticks = {
    47: {
        "tier": "T1", "regime": "volatile", "seen": {"anomaly_score": 0.71}, "odd": True,
        "retrieved_entries": [_retrieved(ADVICE)],
    },
    77: {"resolutions": [verdict(47, 0.71, -6_500, retrieved=[ADVICE])]},
}  # fmt: skip

STORY = {FIRST: (847, FIRST_TICKS), SECOND: (312, SECOND_TICKS), THIRD: (100, THIRD_TICKS)}


def record_life(stores: DerivationContext, golem_id: str, generation: int, predecessor: str | None) -> None:
    """Record a birth, with the bundle of the predecessor, and a life."""
    left = published_bundles(stores)[predecessor] if predecessor else None
    _, birth = born(
        lineage_id=LINEAGE, generation=generation, owner_id=OWNER, founding=FOUNDING, market=MARKET["market"],
        market_hash="0", derivation_id=stores.derivation_id, policy=stores.policy, predecessor_id=predecessor,
        bundle_hash=left,
    )  # fmt: skip
    traits = birth.traits.model_copy(update={"rebalance_threshold": stores.policy.playbook.rebalance_threshold})
    events = [life_event(golem_id, at(golem_id, 0), birth.model_copy(update={"traits": traits}))]
    if left is not None:
        bundle = load_bundle(stores.home, left)
        received = Received(
            source="succession", from_golem_id=bundle.golem_id, content_hash=left, entry_count=bundle.entries().num_rows
        )
        events.append(life_event(golem_id, at(golem_id, 0), received))
    stores.log.record(events, NOW)
    stores.log.append(full(lived(golem_id, *STORY[golem_id])), writer=golem_id, segment=1, recorded_at=NOW)


def record_death(stores: DerivationContext, golem_id: str) -> None:
    """Record a death, and publish its bundle."""
    tick = STORY[golem_id][0]
    ended = Died(
        cause="economic", tick=tick, phase="terminal",
        vitality=Vitality(economic=0.0, epistemic=0.6, stochastic=0.9, composite=0.0), credits_micros=0,
        capital_micros=9_000_000_000, earned_micros=0,
    )  # fmt: skip
    stores.log.record([life_event(golem_id, at(golem_id, tick), ended)], NOW)
    derive_everything(stores, now=NOW)
    complete_deaths(stores, now=NOW)


def story_home(root: Path) -> DerivationContext:
    """Return a home with the story's records and every table derived."""
    Home.create(root, Policy(), NOW)
    stores = DerivationContext.open(root)
    record_life(stores, FIRST, 0, None)
    record_death(stores, FIRST)
    record_life(stores, SECOND, 1, FIRST)
    record_death(stores, SECOND)
    record_life(stores, THIRD, 2, SECOND)
    derive_everything(stores, now=NOW)
    return stores
