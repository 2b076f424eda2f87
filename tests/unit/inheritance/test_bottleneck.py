"""The bottleneck: which entries cross, by which rule, in which order."""

from typing import Any

import pytest

from bardo_pipeline.inheritance.bottleneck import SELECTED_SCHEMA, bottleneck
from bardo_pipeline.policy import InheritancePolicy, Policy
from tests.support.knowledge.handmade_grimoires import DAY, DIED, POLICY, deaths, entry, grimoire

pytestmark = pytest.mark.row("INH-5")

EIGHT = Policy(inheritance=InheritancePolicy(budget=8))
"""Eight places: two in the first quarter, four by category."""


def anti(name: str, **fields: Any) -> dict[str, Any]:
    return entry(about=name, kind="warning", sign=-1, is_anti_knowledge=True, anchor_at=DIED, **fields)


def stain(name: str, **fields: Any) -> dict[str, Any]:
    return entry(about=name, kind="warning", sign=-1, is_bloodstain=True, anchor_at=DIED, **fields)


def baldwin(name: str, **fields: Any) -> dict[str, Any]:
    return entry(about=name, anchor_at=DIED, **{"generation": 3, "confidence_ppm": 700_000, **fields})


def plain(name: str, confidence: int, **fields: Any) -> dict[str, Any]:
    return entry(about=name, anchor_at=DIED, confidence_ppm=confidence, **fields)


def chosen(*rows: dict[str, Any], policy: Policy = EIGHT) -> list[tuple[str, str]]:
    table = bottleneck(grimoire(*rows), deaths("g-1"), policy)
    assert table.schema.equals(SELECTED_SCHEMA)
    assert table.column("rank").to_pylist() == list(range(1, table.num_rows + 1))
    return [(row["tool"], row["selected_by"]) for row in table.to_pylist()]


def test_anti_knowledge_ranks_before_bloodstains_and_these_before_baldwin() -> None:
    rows = [plain("p", 900_000), baldwin("b"), stain("s", confidence_ppm=990_000), anti("a", confidence_ppm=300_000)]
    assert chosen(*rows, policy=POLICY) == [
        ("a", "anti_knowledge"),
        ("s", "bloodstain"),
        ("b", "baldwin"),
        ("p", "diversity"),
    ]


def test_only_anti_knowledge_and_bloodstains_may_exceed_the_first_quarter() -> None:
    rows = [*(anti(f"a{i}") for i in range(3)), stain("s"), baldwin("b1"), plain("p", 800_000)]
    assert [rule for _, rule in chosen(*rows)] == [*["anti_knowledge"] * 3, "bloodstain", "diversity", "diversity"]


def test_baldwin_entries_fill_the_first_quarter_and_compete_for_the_rest() -> None:
    rows = [anti("a"), *(baldwin(f"b{i}", confidence_ppm=700_000 + 1_000 * i) for i in range(3))]
    assert chosen(*rows) == [("a", "anti_knowledge"), ("b2", "baldwin"), ("b1", "diversity"), ("b0", "diversity")]


@pytest.mark.parametrize("short", [{"generation": 2}, {"confidence_ppm": 699_999}])
def test_a_baldwin_entry_needs_three_generations_and_seventy_percent(short: dict[str, int]) -> None:
    assert chosen(baldwin("b", **short)) == [("b", "diversity")]


def test_anti_knowledge_stops_at_the_budget() -> None:
    rows = [anti(f"a{i:02}", confidence_ppm=400_000 + 1_000 * i) for i in range(10)]
    assert [name for name, _ in chosen(*rows)] == [f"a{i:02}" for i in range(9, 1, -1)]


def test_half_of_the_budget_is_filled_by_category_in_turn() -> None:
    many = [plain(f"r{i}", 900_000 - 1_000 * i) for i in range(9)]
    few = [plain(f"x{i}", 500_000 - 1_000 * i, category="risk_events") for i in range(2)]
    got = chosen(*many, *few)
    assert got[:4] == [("r0", "diversity"), ("x0", "diversity"), ("r1", "diversity"), ("x1", "diversity")]
    assert got[4:] == [(f"r{i}", "fill") for i in range(2, 6)]


def test_remaining_entries_fill_the_budget() -> None:
    assert len(chosen(*(plain(f"r{i}", 500_000 + i) for i in range(20)))) == 8
    assert len(chosen(*(plain(f"r{i}", 500_000 + i) for i in range(5)))) == 5
    assert len(chosen(*(anti(f"a{i}") for i in range(6)), *(plain(f"r{i}", 500_000) for i in range(9)))) == 8


def test_quality_is_confidence_at_death_times_the_share_of_confirmations() -> None:
    rows = [
        plain("untested", 800_000),
        plain("confirmed", 600_000, validations=8),
        plain("contradicted", 900_000, validations=1, contradictions=4),
        entry(about="faded", confidence_ppm=990_000, validations=8, anchor_at=DIED - 42 * DAY),
    ]
    table = bottleneck(grimoire(*rows), deaths("g-1"), EIGHT)
    by_name = {row["tool"]: (row["quality_ppm"], row["confidence_death_ppm"]) for row in table.to_pylist()}
    assert by_name == {
        "confirmed": (540_000, 600_000),
        "untested": (400_000, 800_000),
        "contradicted": (257_142, 900_000),
        "faded": (111_375, 123_750),
    }
    assert list(by_name) == ["confirmed", "untested", "contradicted", "faded"]


def test_ties_go_to_the_latest_validation_and_then_to_the_smaller_id() -> None:
    rows = [plain(f"t{i}", 600_000, validated_at=DIED - (1 if i == 3 else 2) * DAY) for i in range(4)]
    ids = {row["tool"]: row["entry_id"] for row in rows}
    assert [name for name, _ in chosen(*rows)] == ["t3", *sorted(["t0", "t1", "t2"], key=lambda n: ids[n])]


def test_candidates_and_pruned_entries_do_not_cross() -> None:
    assert chosen(plain("c", 900_000, status="candidate"), anti("p", status="pruned")) == []


def test_entries_of_each_death_in_a_batch_are_selected_independently() -> None:
    rows = [entry(g, f"t{i}", confidence_ppm=500_000 + i) for g in ("g-1", "g-2", "g-3") for i in range(9)]
    together = bottleneck(grimoire(*rows), deaths("g-1", "g-2"), EIGHT)
    alone = [bottleneck(grimoire(*rows), deaths(g), EIGHT) for g in ("g-1", "g-2")]
    assert together.column("golem_id").to_pylist() == ["g-1"] * 8 + ["g-2"] * 8
    assert together.to_pylist() == alone[0].to_pylist() + alone[1].to_pylist()


def test_the_default_budget_is_2048_entries() -> None:
    rows = [entry(about=f"t{i}", confidence_ppm=500_000 + i) for i in range(2_100)]
    assert bottleneck(grimoire(*rows), deaths("g-1"), POLICY).num_rows == 2_048
