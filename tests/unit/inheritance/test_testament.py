"""The testament: nine categories, each sentence with its evidence, on a page of about 5 KB."""

from typing import Any

import pytest

from bardo_pipeline.inheritance.testament import CATEGORIES, TESTAMENT_SCHEMA
from bardo_pipeline.inheritance.testament import testaments as written_by
from bardo_pipeline.policy import InheritancePolicy, Policy
from tests.support.knowledge.handmade_grimoires import (
    POLICY,
    baseline,
    deaths,
    decided,
    decisions,
    entry,
    grimoire,
    shuffled,
)

OWN = {"status": "candidate", "sign": 0}
"""A candidate: evidence of its own, no side taken."""


def candidate(name: str, count: int, mean: int, spread: int = 2_000) -> dict[str, Any]:
    sums = {"own_count": count, "own_sum": count * mean, "own_sumsq": count * (mean**2 + spread**2)}
    return entry(about=name, **OWN, **sums)


LIFE = (
    entry(about="won", kind="heuristic", confidence_ppm=900_000),
    entry(about="lost", kind="warning", sign=-1),
    entry(about="doubted", contradictions=2, validations=5),
    entry(about="refuted", contradictions=3, validations=1, sign=-1),
    entry(about="gone", status="pruned"),
    candidate("leaning", 8, 300),
    candidate("blurred", 8, 0),
    candidate("young", 2, -300),
    entry(about=baseline("gas_price")),
)


def written_row(*rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    result = more.pop("decisions", decisions())
    table = written_by(grimoire(*rows), result, deaths("g-1"), more.pop("policy", POLICY))
    assert table.schema.equals(TESTAMENT_SCHEMA)
    return table.to_pylist()[0]


def about(testament: dict[str, Any], category: str) -> set[str]:
    """The tools of the entries that a category rests on."""
    names = {row["entry_id"]: row["tool"] or row["metric"] for row in LIFE}
    return {names[e] for item in testament[category] for e in item["entry_ids"]}


@pytest.mark.parametrize(
    ("category", "expected"),
    [
        ("worked", {"won", "doubted"}),
        ("failed", {"lost", "refuted"}),
        ("confused", {"doubted", "refuted", "blurred"}),
        ("suspected", {"leaning"}),
        ("untested", {"young"}),
        ("regime", {"leaning", "blurred", "young", "gas_price"}),
        ("causes", set()),
        ("forget", {"refuted", "gone"}),
        ("ask", {"leaning", "young"}),
    ],
)
def test_each_category_contains_its_entries(category: str, expected: set[str]) -> None:
    assert about(written_row(*LIFE), category) == expected


def test_there_are_nine_categories_and_causes_are_empty_without_links() -> None:
    assert len(CATEGORIES) == 9
    testament = written_row(*LIFE)
    assert testament["causes"] == []
    assert all(f"## {title}\n" in testament["markdown"] for title in CATEGORIES.values())


def test_every_sentence_names_its_evidence() -> None:
    testament = written_row(*LIFE)
    items = [item for name in CATEGORIES for item in testament[name]]
    assert len(items) > 10
    assert all(item["entry_ids"] or item["ticks"] for item in items)
    assert all(item["statement"].endswith((".", "?", "times).")) for item in items)


def test_the_first_failure_is_the_death_itself() -> None:
    assert written_row()["failed"] == [
        {"statement": "I died at tick 150: my credits ran out.", "entry_ids": [], "ticks": [150]}
    ]


def test_an_item_names_the_last_ticks_of_its_decisions() -> None:
    decided_rows = decisions(
        decided("created", 1, about="won", cause_ticks=[3, 9, 11]),
        decided("reinforced", 2, about="won", cause_ticks=list(range(60, 70))),
        decided("created", 1, about="lost", cause_ticks=[4]),
    )
    (item,) = written_row(LIFE[0], decisions=decided_rows)["worked"]
    assert item["ticks"] == list(range(62, 70))


def test_a_suspicion_becomes_a_question_with_its_sign() -> None:
    up, down = (
        written_row(candidate("up", 8, 300))["ask"][0],
        written_row(candidate("down", 8, -300))["ask"][0],
    )
    assert up["statement"].startswith("Does re-centring beat holding in a volatile market")
    assert down["statement"].startswith("Does re-centring lose to holding in a volatile market")


def test_the_page_is_limited_by_whole_items_and_counts_omitted_items() -> None:
    rows = [
        entry(about=f"{kind}{i}", kind=kind, sign=s)
        for i in range(20)
        for kind, s in (("heuristic", 1), ("warning", -1))
    ]
    rows += [candidate(f"c{i}", i + 1, 300) for i in range(20)]
    testament = written_row(*rows)
    page = testament["markdown"]
    assert len(page.encode()) <= 5120
    assert "more in testament.json)" in page
    assert [len(testament[name]) for name in ("worked", "failed", "suspected")] == [8, 9, 8]
    for line in page.splitlines():
        assert not line.startswith("- ") or line.endswith(("]", ")"))


def test_a_smaller_page_keeps_the_best_item_of_each_category_first() -> None:
    rows = [entry(about=f"h{i}", kind="heuristic", confidence_ppm=900_000 - 1_000 * i) for i in range(8)]
    rows += [entry(about="w", kind="warning", sign=-1)]
    small = Policy(inheritance=InheritancePolicy(testament_bytes_max=2048))
    page = written_row(*rows, policy=small)["markdown"]
    assert len(page.encode()) <= 2048
    assert "do not act" in page


def test_testaments_of_one_batch_are_independent() -> None:
    rows = [*LIFE, *(entry("g-2", about=f"t{i}", kind="heuristic") for i in range(3))]
    table = written_by(shuffled(grimoire(*rows), 3), decisions(), deaths("g-2", "g-1"), POLICY)
    assert table.column("golem_id").to_pylist() == ["g-1", "g-2"]
    assert table.to_pylist()[0] == written_row(*LIFE)
    assert len(table.to_pylist()[1]["worked"]) == 3
