"""Waivers: a warning may be waived with a reason; a critical finding never, even with a recorded waiver."""

from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest

from assets.checks import every_warning_is_waived
from assets.resources import LazyStores
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.legacy.bundle_store import published_bundles
from bardo_pipeline.derivation.legacy.warning_waivers import bundle_failures, record_waiver
from bardo_pipeline.derivation.reports.home_health import health_of
from bardo_pipeline.errors import QueryError, WaiverError
from bardo_pipeline.events.life.bundle_events import BundleWaived
from bardo_pipeline.events.life.events import FailedExpectation, Judged, life_event
from tests.conftest import NOW, copy_home

CRITICAL = FailedExpectation(expectation="hashes_match", severity="critical", observed="1 failed: 1")


@pytest.fixture
def stores(brief_home: Path, tmp_path: Path) -> DerivationContext:
    return DerivationContext.open(copy_home(brief_home, tmp_path / "home"))


@pytest.mark.row("P-5")
def test_a_waiver_is_visible_in_bundle_failures_and_health(stores: DerivationContext) -> None:
    selected = [failure for failure in bundle_failures(stores) if failure.severity == "warning"]
    assert len(selected) > 2, "bundles of short lives have several warnings"
    assert {failure.bundle_hash for failure in selected} <= set(published_bundles(stores).values())
    failure = selected[0]
    before = health_of(stores, NOW).judgements
    assert (before.warnings, before.waived) == (len(selected), 0)
    record_waiver(stores, failure.bundle_hash[:20], failure.expectation, "it lived for two hours", now=NOW)
    assert [w.why for w in bundle_failures(stores) if not w.open] == ["it lived for two hours"]
    after = health_of(stores, NOW).judgements
    assert (after.warnings, after.waived) == (len(selected), 1)
    record_waiver(stores, failure.golem_id, failure.expectation, "looked again", now=NOW + timedelta(hours=1))
    assert [w.why for w in bundle_failures(stores) if not w.open] == ["looked again"]
    assert stores.life("BundleWaived").num_rows == 2
    verdicts = stores.life("BundleJudged")["judged"].to_pylist()
    assert all(v["passed"] for v in verdicts), "a waiver changes no verdict"


@pytest.mark.row("P-5")
def test_the_asset_check_passes_after_every_warning_is_waived(stores: DerivationContext) -> None:
    home = LazyStores(stores.home.root)
    check = every_warning_is_waived(home)
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
    result = bundle_failures(stores)
    assert check.metadata["open_count"].value == check.metadata["warning_count"].value == len(result)
    for item in result:
        record_waiver(stores, item.bundle_hash, item.expectation, "a short life", now=NOW)
    again = every_warning_is_waived(LazyStores(stores.home.root))
    assert again.passed
    assert (again.metadata["open_count"].value, again.metadata["waived_count"].value) == (0, len(result))
    assert "a short life" in again.metadata["warnings"].value


@pytest.mark.row("P-5")
def test_a_critical_finding_cannot_be_waived_by_command_or_event(stores: DerivationContext) -> None:
    golem_id, left = next(iter(published_bundles(stores).items()))
    at = stores.life("BundleJudged")["observed_at"][0].as_py()
    refused = Judged(bundle_hash="e" * 64, passed=False, expectations=28, failed=(CRITICAL,))
    stores.log.record([life_event(golem_id, at, refused)], NOW + timedelta(days=1))
    with pytest.raises(WaiverError, match="critical and cannot be waived"):
        record_waiver(stores, "e" * 10, "hashes_match", "I know better", now=NOW)
    forged = BundleWaived(bundle_hash="e" * 64, expectation="hashes_match", why="I know better")
    stores.log.record([life_event(golem_id, at, forged)], NOW)
    assert all(failure.bundle_hash != "e" * 64 for failure in bundle_failures(stores)), (
        "its published bundle still counts"
    )
    other = Judged(bundle_hash="f" * 64, passed=False, expectations=28, failed=(CRITICAL,))
    stranger = life_event("g-stranger", at, other)
    forged = BundleWaived(bundle_hash="f" * 64, expectation="hashes_match", why="I know better")
    stores.log.record([stranger, life_event("g-stranger", at, forged)], NOW)
    (failure,) = (failure for failure in bundle_failures(stores) if failure.golem_id == "g-stranger")
    assert (failure.severity, failure.open) == ("critical", True)
    assert left


@pytest.mark.row("P-5")
def test_a_waiver_of_a_passed_expectation_or_unknown_bundle_is_refused(stores: DerivationContext) -> None:
    item = bundle_failures(stores)[0]
    with pytest.raises(WaiverError, match=f"did not fail 'hashes_match'; it failed .*{item.expectation}"):
        record_waiver(stores, item.bundle_hash, "hashes_match", "why not", now=NOW)
    with pytest.raises(WaiverError, match="--why"):
        record_waiver(stores, item.bundle_hash, item.expectation, "  ", now=NOW)
    for target in ("g-nobody", "", "zz"):
        with pytest.raises(QueryError, match="bardo bundle checks"):
            record_waiver(stores, target, item.expectation, "why not", now=NOW)
    assert stores.life("BundleWaived").num_rows == 0
