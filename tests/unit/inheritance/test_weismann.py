"""The Weismann barrier: vectors, floors, and when a bloodstain starts to act."""

import pytest

from bardo_pipeline.inheritance.weismann import SHED_COLUMNS, attenuate, leave_bloodstains, shed
from bardo_pipeline.policy import InheritancePolicy, Policy
from tests.support.knowledge.handmade_grimoires import (
    DAY,
    DIED,
    POLICY,
    baseline,
    confidence_at,
    deaths,
    entry,
    grimoire,
)

RESET = Policy(inheritance=InheritancePolicy(weismann="reset"))


def crossed(confidence: int, times: int) -> int:
    table = grimoire(entry(confidence_ppm=confidence))
    for _ in range(times):
        table = attenuate(table, POLICY)
    return int(table.column("confidence_ppm")[0].as_py())


@pytest.mark.row("INH-6")
@pytest.mark.parametrize(("times", "left"), [(1, 850_000), (2, 722_500), (3, 614_125), (5, 443_700)])
def test_each_crossing_keeps_85_percent_of_the_confidence(times: int, left: int) -> None:
    assert crossed(1_000_000, times) == pytest.approx(left, abs=10)


@pytest.mark.row("INH-6")
def test_a_confidence_of_30_percent_is_21_7_percent_after_two_crossings() -> None:
    assert round(crossed(300_000, 2) / 1_000_000, 3) == 0.217


@pytest.mark.row("INH-6")
def test_a_crossing_counts_once_for_any_generation() -> None:
    table = attenuate(grimoire(entry(confidence_ppm=800_000, generation=4)), POLICY)
    assert (table.column("confidence_ppm")[0].as_py(), table.column("generation")[0].as_py()) == (680_000, 5)


@pytest.mark.row("INH-6")
def test_attenuation_keeps_the_anchor_so_that_decay_continues() -> None:
    table = grimoire(entry(confidence_ppm=800_000, anchor_at=DIED - 14 * DAY))
    after = attenuate(table, POLICY)
    assert after.column("anchor_at").equals(table.column("anchor_at"))
    assert confidence_at(after, DIED) == [340_000]
    assert confidence_at(after, DIED + 14 * DAY) == [170_000]


@pytest.mark.row("INH-6")
def test_the_reset_lowers_a_higher_confidence_to_40_percent_at_death() -> None:
    rows = [entry(about=f"t{i}", confidence_ppm=c, anchor_at=DIED - 14 * DAY) for i, c in enumerate((950_000, 500_000))]
    table = grimoire(*rows)
    table = table.append_column("confidence_death_ppm", [confidence_at(table, DIED)])
    assert confidence_at(attenuate(table, RESET), DIED) == [pytest.approx(400_000, abs=1), 250_000]


def test_anti_knowledge_crosses_at_its_floor() -> None:
    faded = entry(kind="warning", sign=-1, is_anti_knowledge=True, confidence_ppm=320_000, anchor_at=DIED - 90 * DAY)
    assert confidence_at(attenuate(grimoire(faded), POLICY), DIED) == [300_000]


def test_a_confidence_below_the_floor_is_not_attenuated() -> None:
    voted_down = entry(kind="warning", sign=-1, is_anti_knowledge=True, confidence_ppm=200_000, anchor_at=DIED)
    assert confidence_at(attenuate(grimoire(voted_down), POLICY), DIED) == [200_000]


def test_only_active_warnings_of_dead_golems_become_bloodstains() -> None:
    rows = [
        entry(about="w", kind="warning", sign=-1),
        entry(about="h", kind="heuristic"),
        entry(about="i", sign=-1),
        entry(about="gone", kind="warning", sign=-1, status="pruned"),
        entry("g-alive", about="w", kind="warning", sign=-1),
    ]
    left = leave_bloodstains(grimoire(*rows), deaths("g-1"), POLICY)
    stained = [row["tool"] for row in left.to_pylist() if row["is_bloodstain"]]
    assert stained == ["w"]
    assert set(left.column("golem_id").to_pylist()) == {"g-1"}


def test_a_bloodstain_slows_decay_from_the_death_on() -> None:
    warning = entry(kind="warning", sign=-1, confidence_ppm=800_000, anchor_at=DIED - 14 * DAY)
    left = leave_bloodstains(grimoire(warning), deaths("g-1"), POLICY)
    assert left.column("anchor_at")[0].as_py() == warning["anchor_at"]
    assert confidence_at(left, DIED) == [pytest.approx(400_000, abs=1)]
    # From death on it halves in three times fourteen days.
    assert confidence_at(left, DIED + 42 * DAY) == [pytest.approx(200_000, abs=1)]
    assert confidence_at(left, DIED + 5000 * DAY) == [50_000]
    assert left.column("fades_at")[0].as_py() > DIED


def test_a_warning_below_the_floor_is_not_raised_at_death() -> None:
    spent = entry(kind="warning", sign=-1, confidence_ppm=800_000, anchor_at=DIED - 140 * DAY)
    before = confidence_at(grimoire(spent), DIED)
    left = leave_bloodstains(grimoire(spent), deaths("g-1"), POLICY)
    assert before == confidence_at(left, DIED) == confidence_at(attenuate(left, POLICY), DIED)
    assert before[0] < 50_000


def test_an_existing_bloodstain_is_unchanged() -> None:
    old = grimoire(entry(kind="warning", sign=-1, is_bloodstain=True))
    assert leave_bloodstains(old, deaths("g-1"), POLICY).equals(old)


def test_shed_removes_private_experience_and_keeps_confidence() -> None:
    own = dict.fromkeys(SHED_COLUMNS, 7) | {"own_count": 50}
    table = grimoire(entry(about=baseline("gas_price"), evidence_count=20, **own), entry(**own))
    bare = shed(table, POLICY)
    assert not any(bare.column(name).to_pylist() != [0, 0] for name in SHED_COLUMNS)
    assert bare.column("evidence_count").to_pylist() == [50, 50]
    for at in (DIED, DIED + 30 * DAY):
        assert confidence_at(bare, at) == confidence_at(table, at)


def test_fades_at_is_recomputed_after_a_crossing() -> None:
    table = grimoire(entry(confidence_ppm=800_000, anchor_at=DIED))
    sooner = attenuate(table, POLICY).column("fades_at")[0].as_py()
    assert sooner < table.column("fades_at")[0].as_py()
    assert confidence_at(attenuate(table, POLICY), sooner)[0] <= 100_000
