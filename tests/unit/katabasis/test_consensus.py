"""Consensus: means, quorum, floor, contradiction, and which votes are counted."""

from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest

from bardo_pipeline.katabasis.anonymous_votes import VOTE_SCHEMA
from bardo_pipeline.katabasis.weighted_consensus import CONSENSUS_SCHEMA, consensus
from tests.support.knowledge.handmade_grimoires import DAY, DIED, POLICY

pytestmark = pytest.mark.row("KAT-5")


def vote(name: str, confidence: float, *, dead: bool = False, voter: str = "", at: datetime = DIED) -> dict[str, Any]:
    return {
        "vote_id": name,
        "proposition_id": "p",
        "question_id": "p",
        "domain": "gas",
        "claim": "gas is dear",
        "voter_id": voter or f"of {name}",
        "confidence_ppm": round(confidence * 10**6),
        "is_death_vote": dead,
        "weight_tenths": 25 if dead else 10,
        "at": at,
    }


def counted(*votes: dict[str, Any], unbacked: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the consensus row of these votes; all death votes are backed except those named."""
    backed = [v["vote_id"] for v in votes if v["is_death_vote"] and v["vote_id"] not in unbacked]
    rows = consensus(
        pa.Table.from_pylist(list(votes), schema=VOTE_SCHEMA), pa.array(backed, pa.string()), POLICY.katabasis
    )
    assert rows.schema.equals(CONSENSUS_SCHEMA)
    return rows.to_pylist()[0] if rows.num_rows else {}


def test_the_mean_is_weighted_and_a_death_vote_weighs_two_and_a_half() -> None:
    row = counted(vote("a", 0.9), vote("b", 0.6), vote("c", 0.2, dead=True))
    assert row["weighted_mean_ppm"] == round((0.9 + 0.6 + 0.2 * 2.5) / 4.5 * 10**6)
    assert (row["total_weight_tenths"], row["vote_count"], row["death_vote_count"]) == (45, 3, 1)


def test_three_votes_make_a_quorum_and_two_do_not() -> None:
    assert not counted(vote("a", 0.9), vote("b", 0.9))["quorum_met"]
    assert counted(vote("a", 0.9), vote("b", 0.9), vote("c", 0.9))["quorum_met"]


def test_one_death_vote_makes_a_quorum_and_raises_confidence_to_the_floor() -> None:
    row = counted(vote("a", 0.55, dead=True))
    assert (row["quorum_met"], row["weighted_mean_ppm"], row["confidence_ppm"]) == (True, 550_000, 650_000)


def test_the_floor_needs_a_death_vote_of_at_least_half() -> None:
    assert counted(vote("a", 0.5, dead=True))["confidence_ppm"] == 650_000
    assert counted(vote("a", 0.499999, dead=True))["confidence_ppm"] == 499_999


def test_the_floor_does_not_lower_a_higher_confidence() -> None:
    assert counted(vote("a", 0.9, dead=True))["confidence_ppm"] == 900_000


def test_the_floor_does_not_apply_to_a_quorum_of_three_votes() -> None:
    row = counted(vote("a", 0.1), vote("b", 0.1), vote("c", 0.6, dead=True))
    assert row["confidence_ppm"] == row["weighted_mean_ppm"] < 650_000


def test_a_death_vote_without_a_recorded_death_is_not_counted() -> None:
    assert counted(vote("a", 0.9, dead=True), unbacked=("a",)) == {}
    row = counted(vote("a", 0.9, dead=True), vote("b", 0.7), unbacked=("a",))
    assert (row["vote_count"], row["quorum_met"], row["confidence_ppm"]) == (1, False, 700_000)


def test_votes_are_contradicted_above_the_variance_limit_but_not_at_it() -> None:
    assert counted(vote("a", 1.0), vote("b", 0.0))["contradicted"]
    # Variance of two equal weights is the square of half their distance: 0.3873^2 = 0.15.
    assert not counted(vote("a", 0.8872), vote("b", 0.1127))["contradicted"]
    assert counted(vote("a", 0.8874), vote("b", 0.1126))["contradicted"]


def test_the_variance_is_weighted_and_of_the_population() -> None:
    row = counted(vote("a", 1.0), vote("b", 0.0, dead=True))
    mean = 1.0 / 3.5
    expected = (1.0 * (1 - mean) ** 2 + 2.5 * mean**2) / 3.5
    assert row["variance_ppm2"] == pytest.approx(expected * 10**12)


def test_only_the_latest_vote_of_a_voter_counts() -> None:
    row = counted(vote("a", 0.9, voter="v", at=DIED - DAY), vote("b", 0.7, voter="v"), vote("c", 0.8))
    assert (row["vote_count"], row["weighted_mean_ppm"]) == (2, 750_000)
    assert (row["first_vote_at"], row["last_vote_at"]) == (DIED - DAY, DIED)


def test_a_death_vote_supersedes_a_vote_of_the_same_moment() -> None:
    assert counted(vote("a", 0.2, voter="v", dead=True), vote("b", 0.9, voter="v"))["weighted_mean_ppm"] == 200_000
    assert counted(vote("a", 0.7, voter="v"), vote("b", 0.9, voter="v"))["weighted_mean_ppm"] == 900_000


def test_a_vote_that_arrives_twice_counts_once() -> None:
    once, twice = (vote("a", 0.9), vote("b", 0.7)), (vote("a", 0.9), vote("b", 0.7), vote("a", 0.9))
    assert counted(*once) == counted(*twice)


def test_sums_do_not_overflow_with_a_million_death_votes() -> None:
    many = 1_000_000
    rows = pa.Table.from_pylist([vote("a", 1.0, dead=True)], schema=VOTE_SCHEMA)
    names = pa.array([f"v{i}" for i in range(many)])
    table = (
        rows.take(pa.array([0] * many))
        .set_column(0, VOTE_SCHEMA.field(0), names)
        .set_column(5, VOTE_SCHEMA.field("voter_id"), names)
    )
    (row,) = consensus(table, names, POLICY.katabasis).to_pylist()
    assert (row["vote_count"], row["weighted_mean_ppm"], row["variance_ppm2"]) == (many, 10**6, 0)


def band(name: str, confidence: float, *, claim: str, day: int, dead: bool = False, voter: str = "") -> dict[str, Any]:
    """Return a vote for one band of a level on a market day."""
    plain = vote(name, confidence, dead=dead, voter=voter, at=DIED + day * DAY)
    return plain | {"proposition_id": claim, "question_id": "level", "claim": claim}


def rows_of(*votes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the consensus row of each claim."""
    backed = pa.array([v["vote_id"] for v in votes if v["is_death_vote"]], pa.string())
    rows = consensus(pa.Table.from_pylist(list(votes), schema=VOTE_SCHEMA), backed, POLICY.katabasis)
    return {row["claim"]: row for row in rows.to_pylist()}


@pytest.mark.row("KAT-5", "KAT-7")
def test_a_vote_for_one_band_of_a_level_speaks_against_the_others() -> None:
    votes = [band(f"a{day}", 0.99, claim="20 to 50", day=day) for day in range(3)]
    assert rows_of(*votes)["20 to 50"]["confidence_ppm"] == 990_000
    votes += [band(f"b{day}", 0.99, claim="50 to 100", day=day) for day in range(3, 6)]
    both = rows_of(*votes)
    assert {row["confidence_ppm"] for row in both.values()} == {500_000}
    assert all(row["contradicted"] for row in both.values())
    assert sum(row["confidence_ppm"] for row in both.values()) <= 1_000_000


@pytest.mark.row("KAT-5", "KAT-7")
def test_siblings_of_one_market_day_are_one_witness_of_a_level() -> None:
    crowd = [band(f"a{number}", 0.9, claim="20 to 50", day=0) for number in range(30)]
    assert (rows_of(*crowd)["20 to 50"]["quorum_met"], rows_of(*crowd)["20 to 50"]["vote_count"]) == (False, 30)
    row = rows_of(*crowd, band("b1", 0.9, claim="50 to 100", day=1), band("b2", 0.9, claim="50 to 100", day=2))
    assert row["20 to 50"]["total_weight_tenths"] == 30
    assert row["20 to 50"]["confidence_ppm"] == pytest.approx((0.9 + 0.1 + 0.1) / 3 * 10**6, abs=1)
    lasting = [band(f"c{day}", 0.9, claim="20 to 50", day=day, voter="sibling") for day in range(3)]
    assert rows_of(*lasting)["20 to 50"]["quorum_met"], "one golem witnessed three market days"


@pytest.mark.row("KAT-5")
def test_a_golem_whose_level_moved_withdraws_its_vote_for_the_band_before() -> None:
    votes = band("a", 0.9, claim="20 to 50", day=0, voter="g"), band("b", 0.8, claim="50 to 100", day=1, voter="g")
    moved = rows_of(*votes)
    assert "20 to 50" not in moved
    assert (moved["50 to 100"]["vote_count"], moved["50 to 100"]["confidence_ppm"]) == (1, 800_000)


@pytest.mark.row("KAT-5")
def test_no_floor_raises_a_band_that_another_vote_opposes() -> None:
    alone = band("a", 0.55, claim="20 to 50", day=0, dead=True)
    assert rows_of(alone)["20 to 50"]["confidence_ppm"] == 650_000
    assert rows_of(alone, band("b", 0.9, claim="50 to 100", day=1))["20 to 50"]["confidence_ppm"] < 650_000
