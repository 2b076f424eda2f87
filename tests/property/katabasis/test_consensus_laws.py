"""Laws of consensus: it equals its row-at-a-time twin, and is a function of the set of votes alone."""

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from bardo_pipeline.katabasis.anonymous_votes import VOTE_SCHEMA
from bardo_pipeline.katabasis.weighted_consensus import CONSENSUS_SCHEMA, consensus
from tests.reference.katabasis.consensus import consensus_by_row
from tests.support.example_count import times
from tests.support.knowledge.handmade_grimoires import DIED, POLICY, shuffled

pytestmark = pytest.mark.row("KAT-5")

CONFIDENCES = st.one_of(
    st.sampled_from([0, 1, 350_000, 499_999, 500_000, 649_999, 650_000, 10**6]), st.integers(0, 10**6)
)


@st.composite
def ballots(draw: st.DrawFn) -> tuple[pa.Table, set[str]]:
    """Votes of a few voters on a few propositions, with ties in time, and the ids that a recorded death backs."""
    rows: list[dict[str, Any]] = []
    for number in range(draw(st.integers(1, 24))):
        dead = draw(st.booleans())
        proposition = draw(st.sampled_from(["p", "q", "level-1", "level-2", "level-3"]))
        question = proposition.split("-", maxsplit=1)[0]
        rows.append(
            {
                "vote_id": f"v{draw(st.integers(0, 99)):02}-{number}", "proposition_id": proposition,
                "question_id": question, "domain": "gas",
                "claim": f"claim of {proposition}", "voter_id": draw(st.sampled_from("abcdef")) + question,
                "confidence_ppm": draw(CONFIDENCES), "is_death_vote": dead, "weight_tenths": 25 if dead else 10,
                "at": DIED + timedelta(hours=draw(st.sampled_from([0, 1, 2, 30, 60, 90]))),
            }
        )  # fmt: skip
    cast = {row["vote_id"] for row in rows if row["is_death_vote"]}
    backed = draw(st.sets(st.sampled_from(sorted(cast)))) if cast else set()
    return pa.Table.from_pylist(rows, schema=VOTE_SCHEMA), backed


def counted(votes: pa.Table, backed: set[str], touched: list[str] | None = None) -> pa.Table:
    names = None if touched is None else pa.array(touched, pa.string())
    return consensus(votes, pa.array(sorted(backed), pa.string()), POLICY.katabasis, names)


@settings(max_examples=times(25), deadline=None)
@given(ballots())
def test_consensus_equals_its_twin(cast: tuple[pa.Table, set[str]]) -> None:
    votes, backed = cast
    rows = counted(votes, backed).to_pylist()
    for row in rows:
        event(f"quorum {row['quorum_met']}, contradicted {row['contradicted']}")
        event(f"floored {row['confidence_ppm'] > row['weighted_mean_ppm']}")
    assert rows == consensus_by_row(votes.to_pylist(), backed, POLICY.katabasis)


@settings(max_examples=times(25), deadline=None)
@given(ballots(), st.integers(0, 2**32), st.integers(0, 24))
def test_consensus_ignores_order_repetition_and_chunks(cast: tuple[pa.Table, set[str]], seed: int, cut: int) -> None:
    votes, backed = cast
    again = pa.concat_tables([shuffled(votes, seed).slice(cut), shuffled(votes, seed)])
    assert counted(again, backed).equals(counted(votes, backed))


@settings(max_examples=times(25), deadline=None)
@given(ballots(), st.lists(st.integers(0, 24), max_size=3), st.integers(0, 2**32))
def test_counting_touched_questions_per_batch_equals_one_full_count(
    cast: tuple[pa.Table, set[str]], cuts: list[int], seed: int
) -> None:
    votes, backed = cast
    votes = shuffled(votes, seed)
    kept: dict[str, dict[str, Any]] = {}
    bounds = [0, *sorted(min(c, votes.num_rows) for c in cuts), votes.num_rows]
    for start, stop in pairwise(bounds):
        touched = sorted(set(votes.slice(start, stop - start).column("question_id").to_pylist()))
        rows = counted(votes.slice(0, stop), backed, touched)
        assert {name.split("-")[0] for name in rows.column("proposition_id").to_pylist()} <= set(touched)
        kept = {name: row for name, row in kept.items() if name.split("-")[0] not in touched}
        kept |= {row["proposition_id"]: row for row in rows.to_pylist()}
    whole = counted(votes, backed)
    assert pa.Table.from_pylist([kept[name] for name in sorted(kept)], schema=CONSENSUS_SCHEMA).equals(whole)


@settings(max_examples=times(25), deadline=None)
@given(ballots())
def test_death_votes_without_a_recorded_death_do_not_count(cast: tuple[pa.Table, set[str]]) -> None:
    votes, backed = cast
    backed_or_living = votes.filter(
        pa.array([not v["is_death_vote"] or v["vote_id"] in backed for v in votes.to_pylist()], pa.bool_())
    )
    assert counted(votes, backed).equals(counted(backed_or_living, backed))
