"""Seventeen days of a golem that dreams: failures are simulated with changes, and hypotheses are tested on later
outcomes.
"""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pyarrow.compute as pc
import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.derivation.curation.grimoire_views import derive_grimoire_views
from bardo_pipeline.derivation.dreams.derive_dreams import derive_dreams
from bardo_pipeline.derivation.event_stream.sources import Place
from bardo_pipeline.derivation.event_stream.watch import Fabric
from bardo_pipeline.policy import Policy
from tests.property.derivation.test_laws import stores_at
from tests.support.homes.dreaming_homes import PAYING, home_of, long_lives
from tests.support.processes.bardo_command import bardo

pytestmark = [pytest.mark.row("MEM-16"), pytest.mark.full]

RULES = Policy().dreams


@pytest.fixture(scope="module")
def dreamt_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which one golem lived through seventeen days and dreamt. Only for reading."""
    stores = home_of(long_lives(25_000, spec=PAYING), tmp_path_factory.mktemp("dreams") / "home")
    derive_curation(stores)
    derive_dreams(stores)
    derive_grimoire_views(stores, "crossings")
    stores.log.close()
    return stores.home.root


@pytest.fixture
def stores(dreamt_home: Path) -> DerivationContext:
    return stores_at(dreamt_home, Policy())


def hypothesis_rows(stores: DerivationContext, *operations: str) -> list[dict]:
    rows = stores.projections.read("hypotheses").sort_by("at").to_pylist()
    return [row for row in rows if row["operation"] in operations]


@pytest.mark.full
@pytest.mark.row("MEM-23")
def test_dreams_are_at_least_four_hours_apart_and_mostly_below_5_5(stores: DerivationContext) -> None:
    at = stores.projections.read("dreams").sort_by("cycle")["at"].to_pylist()
    apart = [later - earlier for earlier, later in pairwise(at)]
    assert len(at) > 60
    assert min(apart) >= timedelta(hours=RULES.every_hours)
    assert sum(gap < timedelta(hours=5.5) for gap in apart) > len(apart) / 2, "a cycle takes up to an hour and a half"


def test_every_judged_decision_is_reproduced_by_simulation(stores: DerivationContext) -> None:
    dreams = stores.projections.read("dreams")
    assert pc.sum(dreams["unlike_count"]).as_py() == 0
    assert pc.sum(dreams["branch_count"]).as_py() > 300
    assert pc.max(dreams["branch_count"]).as_py() <= 40


def test_a_counterfactual_is_staged_from_failures_and_names_their_ticks(stores: DerivationContext) -> None:
    failed = {}
    for row in stores.log.read_cycles(["tick", "resolutions"]).to_pylist():
        for item in row["resolutions"]:
            failed[item["decision_tick"]] = (item["effect_ppm"] > 0) == (item["chosen"] == "hold")
    staged = hypothesis_rows(stores, "staged")
    assert len(staged) > 10
    for row in staged:
        assert 200_000 <= row["confidence_ppm"] < 300_000
        decided = [tick for tick in row["cause_ticks"] if tick in failed]
        assert decided
        assert any(failed[tick] for tick in decided)


def test_hypotheses_are_confirmed_in_seven_days_or_expire_after_fourteen(stores: DerivationContext) -> None:
    confirmed, expired = hypothesis_rows(stores, "confirmed"), hypothesis_rows(stores, "expired")
    assert confirmed
    for row in confirmed:
        assert row["at"] - row["staged_at"] <= timedelta(days=RULES.confirm_days) + timedelta(hours=12)
        assert row["confidence_ppm"] >= 300_000
        assert row["live_count"] >= 3
        assert row["sign"] * row["live_low_ppm" if row["sign"] > 0 else "live_high_ppm"] > 0, "zero is left out"
        assert min(row["cause_ticks"]) > row["staged_tick"]
    assert expired
    for row in expired:
        assert row["state"] == "gone"
        assert timedelta(days=14) <= row["at"] - row["staged_at"] < timedelta(days=15)
    newest = stores.projections.read("dreams")["at"].to_pylist()[-1]
    rows = stores.projections.read("hypotheses").sort_by([("cycle", "ascending"), ("seq", "ascending")]).to_pylist()
    standing = {row["hypothesis_id"]: row for row in rows}
    assert all(r["expires_at"] > newest for r in standing.values() if r["state"] == "staged")


def test_pushed_hypotheses_have_50_percent_confidence_and_twice_the_half_life(stores: DerivationContext) -> None:
    pushed = hypothesis_rows(stores, "pushed")
    assert pushed
    for row in pushed:
        assert row["state"] == "confirmed"
        assert row["confidence_ppm"] >= 500_000
        assert row["half_life_days"] in (28.0, 14.0), "twice those of its class"


def test_confirmed_hypotheses_become_lessons_and_cross_from_50_percent(stores: DerivationContext) -> None:
    lessons = stores.projections.read("lessons").to_pylist()
    made = {(r["regime"], r["anomaly_band"], r["gas_band"], r["change"]) for r in hypothesis_rows(stores, "confirmed")}
    assert {(r["regime"], r["anomaly_band"], r["gas_band"], r["cause"]) for r in lessons} == made
    active = {row["entry_id"]: row["confidence_ppm"] for row in lessons if row["status"] == "active"}
    assert active
    gates = {row["entry_id"]: row for row in stores.projections.read("crossings").to_pylist()}
    assert {gates[entry]["gate"] for entry in active} == {"validation"}
    assert (
        {entry for entry in active if gates[entry]["crosses"]}
        == {e for e, c in active.items() if c >= 500_000}
        != set()
    )


@pytest.mark.row("EV-7")
def test_each_dream_and_each_change_of_a_hypothesis_is_an_event(stores: DerivationContext) -> None:
    events = list(Fabric(stores, {"dream"}).behind(Place()))
    dreams = stores.projections.read("dreams").to_pylist()
    counts = Counter(event.name for event in events)
    assert counts["dream:cycle_start"] == counts["dream:cycle_end"] == len(dreams)
    assert counts["dream:fragment"] == sum(len(dream["replayed"]) for dream in dreams) > 0
    integrated = {event.payload.model_dump()["hypothesis_id"] for event in events if event.name == "dream:integration"}
    assert integrated == {row["hypothesis_id"] for row in stores.projections.read("hypotheses").to_pylist()} != set()


def test_the_dreams_command_shows_dreams_and_states_of_hypotheses(dreamt_home: Path, stores: DerivationContext) -> None:
    (golem,) = stores.life("GolemBorn")["golem_id"].to_pylist()
    page = bardo("dreams", golem, home=dreamt_home)
    assert "confirmed, " in page
    assert "known as entry " in page
    assert ", offered to the clade" in page
    assert "gone" in page
    assert "in later decisions n=" in page
    printed = json.loads(bardo("dreams", golem, "--json", home=dreamt_home))
    assert len(printed["dreams"]) == stores.projections.digest("dreams").rows
    assert {h["fate"] for h in printed["hypotheses"]} >= {"confirmed", "staged", "expired", "imagined"}
    surest = printed["hypotheses"][0]
    assert surest["confidence_now_ppm"] <= surest["confidence_ppm"]
    assert surest["cause_ticks"]
