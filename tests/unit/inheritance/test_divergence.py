"""Divergence: a golem's changes to its inheritance; copies are flagged, founders are exempt."""

from typing import Any

import pyarrow as pa
import pytest

from bardo_pipeline.inheritance.divergence import (
    DIVERGENCE_SCHEMA,
    SENTENCE_COUNT_SCHEMA,
    divergence_counts,
    divergence_words,
    divergences,
)
from bardo_pipeline.inheritance.testament import testaments as written_by
from bardo_pipeline.policy import DivergencePolicy, Policy
from tests.support.knowledge.handmade_bundles import bundle_of
from tests.support.knowledge.handmade_grimoires import (
    DIED,
    POLICY,
    baseline,
    deaths,
    decided,
    decisions,
    entry,
    grimoire,
    pattern,
)

FRESH = {"anchor_at": DIED, "decay_class": "structural", "origin_golem_id": "g-0"}
"""Inherited from g-0 without decay, so confidences are as stated."""


def received(about: Any, **fields: Any) -> dict[str, Any]:
    """The first decision about an inherited entry."""
    return decided("received", 0, about=about, **(FRESH | fields))


def held(about: Any, **fields: Any) -> dict[str, Any]:
    """Return an inherited entry in its state at death."""
    return entry(about=about, **(FRESH | fields))


def own(about: Any, **fields: Any) -> dict[str, Any]:
    """Return an entry that the golem learned itself."""
    return entry(about=about, **(FRESH | {"origin_golem_id": "g-1"} | fields))


def apart(left: list[dict[str, Any]], rows: list[dict[str, Any]], policy: Policy = POLICY, **fields: int) -> Any:
    counts = pa.Table.from_pylist(
        [{"golem_id": "g-1", "items": 10, "questions": 1, "gaps": 1} | fields], schema=SENTENCE_COUNT_SCHEMA
    )
    table = divergences(grimoire(*left), decisions(*rows), deaths("g-1"), counts, policy)
    assert table.schema.equals(DIVERGENCE_SCHEMA)
    return table.to_pylist()[0]


@pytest.mark.row("INH-14")
def test_divergence_is_weighted_by_the_confidence_of_rules_of_both_sides() -> None:
    arrivals = [received("kept", confidence_ppm=300_000), received("lost", confidence_ppm=100_000)]
    left = [held("kept", confidence_ppm=600_000), own("found", confidence_ppm=300_000)]
    verdict = apart(left, arrivals)
    assert verdict["divergence_ppm"] == (100_000 + 300_000) * 1_000_000 // (600_000 + 100_000 + 300_000)
    assert (verdict["inherited_count"], verdict["left_count"], verdict["novel_count"]) == (2, 2, 1)


@pytest.mark.row("INH-14")
def test_a_copy_is_flagged_and_a_rule_of_opposite_sign_counts_as_divergence() -> None:
    arrivals = [received("a"), received("b")]
    assert (
        apart([held("a"), held("b")], arrivals)["divergence_ppm"],
        apart([held("a"), held("b")], arrivals)["low_divergence"],
    ) == (0, True)
    turned = apart([held("a"), held("b", sign=-1)], arrivals)
    assert (turned["divergence_ppm"], turned["low_divergence"]) == (500_000, False)


@pytest.mark.row("INH-14")
@pytest.mark.parametrize(("ppm", "flagged"), [(149_999, True), (150_000, False)])
def test_a_divergence_at_the_minimum_is_not_flagged(ppm: int, flagged: bool) -> None:
    arrivals = [received("kept", confidence_ppm=1_000_000 - ppm)]
    verdict = apart([held("kept", confidence_ppm=1_000_000 - ppm), own("new", confidence_ppm=ppm)], arrivals)
    assert (verdict["divergence_ppm"], verdict["low_divergence"]) == (ppm, flagged)
    assert ("divergence" in verdict["shortfalls"]) == flagged


@pytest.mark.row("INH-14")
def test_only_gaps_and_questions_are_required_of_a_founder() -> None:
    verdict = apart([own("found")], [decided("created", 1, about="found")], gaps=0, questions=0)
    assert verdict["divergence_ppm"] is None
    assert not verdict["low_divergence"]
    assert verdict["shortfalls"] == ["explicit_gaps", "question_ratio"]
    assert "inherited nothing" in divergence_words(verdict)


@pytest.mark.row("INH-14")
def test_an_heir_of_facts_without_new_rules_has_zero_divergence() -> None:
    fact = baseline("gas_price")
    verdict = apart([held(fact)], [received(fact)])
    assert (verdict["divergence_ppm"], verdict["low_divergence"], verdict["novel_count"]) == (0, True, 0)


@pytest.mark.row("INH-14")
def test_a_promoted_or_folded_rule_counts_as_the_inherited_rule() -> None:
    arrivals = [received(pattern("t", gas_band=band)) for band in ("cheap", "normal")]
    wide = own(pattern("t", gas_band="not_dear"), kind="heuristic")
    folded = [held(pattern("t", gas_band=band), status="folded") for band in ("cheap", "normal")]
    verdict = apart([wide, *folded], arrivals)
    assert (verdict["divergence_ppm"], verdict["novel_count"], verdict["forgotten_count"]) == (0, 0, 0)


@pytest.mark.row("INH-14")
@pytest.mark.parametrize(
    ("operation", "row", "how"),
    [
        ("contradicted", {"contradictions": 2, "validations": 1}, "contradicted"),
        ("contradicted", {"status": "pruned"}, "pruned"),
        ("retracted", {"status": "retracted"}, "retracted"),
        ("corrected", {"sign": -1}, "turned"),
    ],
)
def test_an_invalidated_entry_names_the_decision_against_it(operation: str, row: dict[str, Any], how: str) -> None:
    against = decided(operation, 4, about="a", **(FRESH | row), reason="it was not so", cause_ticks=[170, 190])
    arrivals = [received("a"), against, decided("pruned", 6, about="a", **(FRESH | row))]
    (item,) = apart([held("a", **row)], arrivals)["invalidated"]
    assert item == {
        "entry_id": against["entry_id"], "how": how, "text": against["text"], "cycle": 4, "seq": 1,
        "reason": "it was not so", "ticks": [170, 190],
    }  # fmt: skip


@pytest.mark.row("INH-14")
def test_a_decayed_entry_is_forgotten_and_a_recovered_entry_is_kept() -> None:
    arrivals = [
        received("faded"), received("recovered"),
        decided("pruned", 5, about="faded", **FRESH, status="pruned"),
        decided("contradicted", 2, about="recovered", **FRESH, contradictions=1),
        decided("reinforced", 3, about="recovered", **FRESH, contradictions=1, validations=2),
    ]  # fmt: skip
    verdict = apart([held("faded", status="pruned"), held("recovered")], arrivals)
    assert verdict["invalidated"] == []
    assert verdict["forgotten_count"] == 1


@pytest.mark.row("INH-14")
def test_a_pruned_and_relearned_entry_is_invalidated_and_novel() -> None:
    arrivals = [
        received("a"),
        decided("contradicted", 2, about="a", **FRESH, status="pruned"),
        decided("created", 9, about="a", **(FRESH | {"origin_golem_id": "g-1", "sign": -1})),
    ]
    verdict = apart([own("a", sign=-1)], arrivals)
    assert [item["how"] for item in verdict["invalidated"]] == ["pruned"]
    assert (verdict["novel_count"], verdict["divergence_ppm"]) == (1, 1_000_000)


@pytest.mark.row("INH-14")
def test_each_shortfall_is_reported_separately() -> None:
    arrivals = [received(name) for name in "abc"]
    against = [decided("contradicted", 2, about=n, **FRESH, status="pruned") for n in "abc"]
    left = [held(n, status="pruned") for n in "abc"] + [own(f"n{i}") for i in range(5)]
    assert apart(left, arrivals + against)["shortfalls"] == []
    assert apart(left[:-1], arrivals + against)["shortfalls"] == ["novel_entries"]
    assert apart(left, arrivals + against[1:])["shortfalls"] == ["invalidated_entries"]
    assert apart(left, arrivals + against, gaps=0)["shortfalls"] == ["explicit_gaps"]
    assert apart(left, arrivals + against, items=11)["shortfalls"] == ["question_ratio"]
    milder = Policy(divergence=DivergencePolicy(novel_min=4))
    assert apart(left[:-1], arrivals + against, milder)["shortfalls"] == []


@pytest.mark.row("INH-14")
def test_the_testament_and_the_manifest_contain_the_divergence() -> None:
    decided_rows = decisions(received("a"), received("b"))
    row = written_by(grimoire(held("a"), held("b")), decided_rows, deaths("g-1"), POLICY).to_pylist()[0]
    assert row["low_divergence"]
    assert "low_divergence" in row["markdown"]
    assert "I inherited 2 entries and leave 2, 0 of them new" in row["markdown"]
    manifest = bundle_of(held("a"), testament=row).manifest
    assert manifest["divergence"] == divergence_counts(row)
    assert manifest["divergence"]["low_divergence"] is True
    assert "invalidated" not in manifest["divergence"], "invalidated entries with ticks and reasons are not published"


def test_rules_on_one_side_only_and_rules_of_opposite_sign_diverge() -> None:
    inherited = [received("a"), received("b"), received("d")]
    assert apart([held("d")], [received("d")])["divergence_ppm"] == 0
    assert apart([held("d")], [received("a"), received("d")])["divergence_ppm"] == 500_000
    assert apart([own("c"), held("d")], [received("d")])["divergence_ppm"] == 500_000
    assert apart([held("b", sign=-1), held("d")], [received("b"), received("d")])["divergence_ppm"] == 500_000
    assert apart([held("b", sign=-1), own("c"), held("d")], inherited)["divergence_ppm"] == 750_000
