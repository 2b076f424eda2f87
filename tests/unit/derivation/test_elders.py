"""An old golem pushes more from the cycle in which it becomes old, even if its knowledge is unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.grimoire_views import derive_grimoire_views, elders
from bardo_pipeline.events.life.events import life_event
from bardo_pipeline.heartbeat.fleet import Founding, born
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from tests.conftest import NOW
from tests.support.knowledge.handmade_grimoires import entry, grimoire, pattern


@pytest.mark.row("INH-20")
def test_crossings_are_derived_again_when_a_golem_becomes_old(tmp_path: Path) -> None:
    Home.create(tmp_path / "home", Policy(), NOW)
    stores = DerivationContext.open(tmp_path / "home")
    founding = Founding(owners=("a",), lifespan_ticks=(1_000, 1_000))
    golem_id, birth = born(lineage_id="l", generation=0, owner_id="a", founding=founding, market="m", market_hash="h",
                           derivation_id="d", policy=stores.policy)  # fmt: skip
    stores.log.record([life_event(golem_id, NOW, birth)], NOW)
    half_sure = entry(golem_id, pattern("uniswap_v3_rebalance"), kind="insight", confidence_ppm=500_000, own_count=12,
                      validations=4, effect_low_ppm=990, effect_high_ppm=1_010, effect_mean_ppm=1_000)  # fmt: skip
    table = stores.projections.replaceable("grimoire")

    def crosses(cycle: int) -> bool:
        table.replace(grimoire(half_sure), table.buckets([golem_id]), upto={golem_id: cycle})
        derive_grimoire_views(stores, "crossings")
        assert derive_grimoire_views(stores, "crossings") == [], "nothing changed since"
        (row,) = stores.projections.replaceable("crossings").read().to_pylist()
        return bool(row["crosses"])

    assert [crosses(cycle) for cycle in (1, 16, 17, 18, 19)] == [False, False, False, True, True]
    assert elders(stores) == {golem_id}
    assert elders(stores, {golem_id: 17}) == set()
