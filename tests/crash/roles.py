"""Roles: what the processes that are killed do. Each says what it sent, and what it was told is on record."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bardo_pipeline.derivation.curation import derive_curation
from bardo_pipeline.derivation.stores import Stores
from bardo_pipeline.events.digest import digest_column, row_digests
from bardo_pipeline.events.life import Born, Traits, life_event
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.log import EventLog
from tests.records import records

NOW = datetime(2026, 11, 1, tzinfo=UTC)
BATCHES, BATCH_TICKS = 12, 25


@dataclass(frozen=True)
class Stage:
    """Where a role is played: the home, the player's name, its chance, and how it speaks."""

    root: Path
    name: str
    rng: random.Random
    say: Callable[[str], None]


def golem_of(name: str) -> str:
    """The golem that a writer of this name writes in batches."""
    return f"{name}-0000"


def furnish(root: Path, writers: int) -> None:
    """A home in which the writers' golems are born."""
    home = Home.create(root, Policy(), NOW)
    with EventLog(home) as log:
        born = Born(
            owner_id="owner",
            generation=0,
            lineage_id="lineage",
            predecessor_id=None,
            bundle_hash=None,
            credits_micros=1,
            reserve_micros=1,
            capital_micros=1,
            lifespan_ticks=10**6,
            market="none",
            market_hash="none",
            policy_hash=Policy().hash,
            derivation_id="none",
            traits=Traits(rebalance_threshold=0.7, range_half_width_ticks=160, forecast_memory=0.95),
        )
        log.record([life_event(golem_of(f"w{k}"), NOW, born) for k in range(writers)], NOW)


def batch(stage: Stage) -> None:
    """Append whole batches to the log, one after another, from where the golem's stream ends."""
    with EventLog(Home.open(stage.root)) as log:
        first = log.head_of(golem_of(stage.name)).highest
        assert first % BATCH_TICKS == 0, "a batch is on record in whole or not at all"
        for number in range(first // BATCH_TICKS, first // BATCH_TICKS + BATCHES):
            rows = records(BATCH_TICKS, golems=1, tick=number * BATCH_TICKS + 1, seed=number, prefix=stage.name)
            said = list(zip(rows["golem_id"].to_pylist(), rows["tick"].to_pylist(), _digests(rows), strict=True))
            for golem, tick, digest in said:
                stage.say(f"sent {golem} {tick} {digest}")
            log.append(rows, writer=f"batch-{stage.name}", segment=number, recorded_at=NOW)
            for golem, tick, digest in said:
                stage.say(f"kept {golem} {tick} {digest}")


def _digests(rows) -> list[str]:
    return [digest.hex() for digest in digest_column(row_digests(rows)).to_pylist()]


def curator(stage: Stage) -> None:
    """Curate what closes, again and again."""
    stores = Stores.open(stage.root)
    for _ in range(6):
        derive_curation(stores)


ROLES: dict[str, Callable[[Stage], None]] = {"batch": batch, "curator": curator}
"""Every role by name."""
