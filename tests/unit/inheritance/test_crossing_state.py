"""State that crosses a death with the entries: forecast errors, playbook rules, and links among entries."""

import numpy as np
import orjson
import pyarrow as pa
import pytest

from bardo_pipeline.heartbeat.fleet import Fleet, Founding, born
from bardo_pipeline.inheritance.bundle_files import ENTRIES, LEARNING, LINKS, PROCEDURES, read_bundle, seal
from bardo_pipeline.inheritance.learning_state import PLACES, UNIT, Attention, forecast_variances, learned
from tests.support.knowledge.handmade_bundles import bundle_of
from tests.support.knowledge.handmade_grimoires import POLICY, entry, pattern

Z = POLICY.prediction.interval_z


def records(*rows: tuple[str, int, str, float, float, float]) -> pa.Table:
    """Predictions (golem, tick, quantity, expected, sigma in its unit, actual), one record each."""
    expected_rows = [
        {
            "golem_id": golem, "tick": tick,
            "predictions": [
                {"quantity": quantity, "expected": expected, "low": expected - Z * sigma, "high": expected + Z * sigma,
                 "actual": actual}
            ],
            "gating": None,
            "triage": None,
        }
        for golem, tick, quantity, expected, sigma, actual in rows
    ]  # fmt: skip
    return pa.Table.from_pylist(expected_rows)


@pytest.mark.row("INH-8")
def test_forecast_variance_is_updated_with_the_last_prediction_error() -> None:
    rows = records(
        ("g-1", 8, "price", 2000.0, 90.0, 2000.0),
        ("g-1", 9, "price", 2000.0, 4.0, 2010.0),
        ("g-1", 9, "health", 1.5, 0.2, 1.4),
        ("g-2", 3, "gas", 10.0, 1.0, 10.0),
    )
    none = Attention(thoughts=[0] * PLACES, vain=[0] * PLACES)
    learned_rows = learned(
        rows, {"g-1": 0.9, "g-2": 0.5, "g-3": 0.9}, dict.fromkeys(("g-1", "g-2", "g-3"), none), POLICY
    )
    price = 0.9 * (4.0 / 2000.0) ** 2 + 0.1 * (10.0 / 2000.0) ** 2
    assert learned_rows["g-1"]["forecast_variance"]["price"] == pytest.approx(price / UNIT, abs=1)
    assert learned_rows["g-1"]["forecast_variance"]["health"] == pytest.approx((0.9 * 0.04 + 0.1 * 0.01) / UNIT, abs=1)
    assert learned_rows["g-1"]["forecast_variance"]["gas"] is None
    assert learned_rows["g-2"]["forecast_variance"] == {"price": None, "gas": 5_000_000_000, "health": None}
    assert learned_rows["g-3"]["forecast_variance"] == {"price": None, "gas": None, "health": None}


@pytest.mark.row("INH-8")
def test_an_heir_starts_with_the_forecast_variance_of_its_predecessor() -> None:
    golem, birth = born(
        lineage_id="l", generation=1, owner_id="o", founding=Founding(), market="m", market_hash="h",
        derivation_id="d", policy=POLICY,
    )  # fmt: skip
    fleet = Fleet(["g-0", golem], [birth, birth], POLICY)
    before = fleet.forecast_var.copy()
    fleet.begin_with(1, forecast_variances(bundle_of().learning))
    np.testing.assert_allclose(fleet.forecast_var[:2, 1], [40 * UNIT, 900 * UNIT])
    assert fleet.forecast_var[2, 1] == before[2, 1], "an unpredicted quantity starts with the default variance"
    np.testing.assert_array_equal(fleet.forecast_var[:, 0], before[:, 0])


@pytest.mark.parametrize(
    "value", [None, [], {"forecast_variance": 3}, {"forecast_variance": {"price": -1, "gas": True}}]
)
def test_an_invalid_learning_state_gives_no_variances(value: object) -> None:
    assert forecast_variances(value) == (None, None, None)


@pytest.mark.row("INH-8")
def test_playbook_rules_cross_with_their_in_force_and_acts_flags() -> None:
    rows = (
        entry(about="w", kind="warning", sign=-1, is_anti_knowledge=True),
        entry(about="h", kind="heuristic", confidence_ppm=900_000),
        entry(about="i", kind="insight"),
    )
    table = bundle_of(*rows).rows(PROCEDURES)
    assert [(r["entry_id"], r["in_force"], r["acts"]) for r in table] == [
        (rows[0]["entry_id"], True, False),
        (rows[1]["entry_id"], False, True),
    ]
    crossed = {r["entry_id"]: r["confidence_ppm"] for r in bundle_of(*rows).rows(ENTRIES)}
    assert [r["confidence_ppm"] for r in table] == [crossed[r["entry_id"]] for r in table], (
        "with the confidence of the heir"
    )


@pytest.mark.row("INH-8")
def test_links_cross_only_among_crossing_entries_and_no_stronger_than_them() -> None:
    kept = [entry(about=pattern("t", regime=regime), sign=-1) for regime in ("trending_up", "trending_down")]
    gone = entry(about=pattern("t"), sign=-1, status="pruned")
    bundle = bundle_of(*kept, gone)
    crossed = {r["entry_id"]: r["confidence_ppm"] for r in bundle.rows(ENTRIES)}
    links = bundle.rows(LINKS)
    assert links, "two rules that differ in the regime alone are linked"
    for link in links:
        assert {link["entry_id"], link["other_id"]} <= crossed.keys()
        assert link["strength_ppm"] == min(crossed[link["entry_id"]], crossed[link["other_id"]])


def test_a_bundle_of_schema_version_1_is_readable() -> None:
    bundle = bundle_of(entry(about="h", kind="heuristic"))
    head = {n: v for n, v in bundle.manifest.items() if n not in ("files", "bundle_hash")}
    later = {LINKS, PROCEDURES, LEARNING, "manifest.json"}
    old = seal({n: d for n, d in bundle.files.items() if n not in later}, head | {"schema_version": 1})
    assert read_bundle(old.files).entries().num_rows == 1
    assert forecast_variances(old.learning) == (None, None, None)
    assert orjson.loads(bundle.files[LEARNING])["forecast_variance"]["price"] == 40
