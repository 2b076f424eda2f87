"""The mart of verdicts on tiers, beside the row-at-a-time judgement of the same records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.derive_home import derive_home
from bardo_pipeline.derivation.strikes_and_reorgs import strike
from bardo_pipeline.storage.warehouse.build import build_warehouse, query
from tests.conftest import NOW
from tests.reference.learning.gating import Past, verdicts
from tests.support.fleets.routed_fleets import ROUTED, lives, routed
from tests.support.fleets.tier_rows import past_ticks
from tests.support.homes.dreaming_homes import home_of

pytestmark = [pytest.mark.full, pytest.mark.row("HB-9")]
RULES = ROUTED.gating


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DerivationContext]:
    """A home of golems with the learned gate and the router, derived, with its warehouse."""
    root = tmp_path_factory.mktemp("verdicts") / "home"
    home_of(routed(), root, ROUTED).log.close()
    stores = DerivationContext.open(root, policy=ROUTED)
    derive_home(stores, clock=lambda: NOW, marts=False)
    build_warehouse(stores.home, stores.derivation_id, stores.policy)
    yield stores
    stores.log.close()


def rows_of(stores: DerivationContext, columns: str, where: str = "true") -> list[tuple[Any, ...]]:
    return query(stores.home, f"select {columns} from fct_tier_verdicts where {where} order by golem_id, tick")[1]


def judged() -> dict[tuple[str, int], tuple[Past, str, int, int | None]]:
    """Return each judged tick: its figures, last verdict, tick of the first, and tick of a second one."""
    out: dict[tuple[str, int], tuple[Past, str, int, int | None]] = {}
    for golem_id, rows in lives().items():
        past = past_ticks(rows)
        for now in range(RULES.delta_ticks, max(rows) + 1, RULES.delta_ticks):
            for row, verdict in verdicts(past, now, RULES):
                first = out.get((golem_id, row.tick), (row, verdict, now))[2]
                out[golem_id, row.tick] = row, verdict, first, now if now > first else None
    return out


def test_the_mart_judges_every_tick_as_the_fold_of_its_records_does(stores: DerivationContext) -> None:
    columns = "golem_id, tick, tier, is_decided, is_explored, has_found, verdict, judged_tick, rescored_tick"
    assert rows_of(stores, columns) == [
        (golem_id, tick, row.tier, row.decided, row.explored, row.found, verdict, first, again)
        for (golem_id, tick), (row, verdict, first, again) in sorted(judged().items())
    ]


def test_each_remedy_and_each_verdict_has_rows_with_its_reason(stores: DerivationContext) -> None:
    counted = Counter(rows_of(stores, "verdict, verdict_reason, tier in ('T1', 'T2'), is_explored and has_found"))
    reasons = {(verdict, reason) for verdict, reason, *_ in counted}
    assert reasons >= {
        ("right", "quiet"), ("missed", "event"), ("missed", "exploration"), ("missed", "gain"), ("right", "found"),
        ("needless", "nothing"),
    }, reasons  # fmt: skip
    for verdict, reason, thinks, has_explored in counted:
        assert thinks == (reason in ("found", "nothing", "harm"))
        assert (verdict == "right") == (reason in ("quiet", "found"))
        assert has_explored or reason != "exploration"
    late = rows_of(stores, "verdict, verdict_reason, rescored_tick - judged_tick", "rescored_tick is not null")
    assert late
    assert {(reason, ticks) for _, reason, ticks in late} <= {("gain", RULES.delta_ticks), ("harm", RULES.delta_ticks)}
    ((figures,),) = query(
        stores.home,
        "select count(*) from fct_tier_verdicts as v join fct_ticks as t using (golem_id, tick) "
        "where v.inference_micros <> t.inference_micros or v.observed_at <> t.observed_at or v.regime <> t.regime",
    )[1]
    assert figures == 0


def test_a_struck_tick_leaves_the_mart_with_the_verdicts_whose_window_holds_it(stores: DerivationContext) -> None:
    golem_id, tick = rows_of(stores, "golem_id, tick", "tick = 70")[0]
    others = rows_of(stores, "golem_id, tick, verdict", f"golem_id <> '{golem_id}'")
    before = set(rows_of(stores, "tick", f"golem_id = '{golem_id}'"))
    strike(stores, golem_id, tick, "a wrong observation", now=NOW)
    derive_home(DerivationContext.open(stores.home.root, policy=ROUTED), clock=lambda: NOW, marts=False)
    build_warehouse(stores.home, stores.derivation_id, stores.policy)
    after = set(rows_of(stores, "tick", f"golem_id = '{golem_id}'"))
    assert before - after == {(t,) for t in range(tick - RULES.window_ticks, tick + 1)}
    assert after < before
    assert rows_of(stores, "golem_id, tick, verdict", f"golem_id <> '{golem_id}'") == others, "their rows are kept"
