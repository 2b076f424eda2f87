"""A home of many golems with few ticks each."""

from __future__ import annotations

from pathlib import Path

from bardo_pipeline.events.life.events import life_event
from bardo_pipeline.heartbeat.fleet import Founding, born
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.log.event_log import EventLog
from tests.conftest import NOW
from tests.support.records.drawn_records import records

GOLEMS, TICKS = 10_000, 10


def large_home(root: Path) -> Home:
    """Make a home of GOLEMS golems with TICKS drawn records each; nothing is derived."""
    home = Home.create(root, Policy(), NOW)
    _, birth = born(
        lineage_id="large", generation=0, owner_id="owner-1", founding=Founding(), market="m", market_hash="-",
        derivation_id="-", policy=Policy(),
    )  # fmt: skip
    lived = records(GOLEMS * TICKS, golems=GOLEMS)
    golems = lived["golem_id"].unique().to_pylist()
    with EventLog(home) as log:
        log.record([life_event(golem, NOW, birth) for golem in golems], NOW)
        log.append(lived, writer="bench", segment=1, recorded_at=NOW)
    return home
