"""Laws of votes: private columns do not change public rows, and neither does the cut of the stream."""

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from bardo_pipeline.katabasis.anonymous_votes import Ballots, backed_votes, death_votes, routine_votes
from tests.support.example_count import times
from tests.support.knowledge.handmade_grimoires import POLICY, deaths, decided, decisions, entry, grimoire, shuffled

OWNERS = pa.table({"golem_id": ["g-1", "g-2"], "owner_id": ["owner-1", "owner-2"]})

PRIVATE = st.fixed_dictionaries(
    {
        "own_count": st.integers(0, 10**6), "own_sum": st.integers(-(10**12), 10**12),
        "own_sumsq": st.integers(0, 10**15), "effect_mean_ppm": st.integers(-(10**6), 10**6),
        "effect_low_ppm": st.integers(-(10**6), 10**6),
        "evidence_count": st.integers(0, 10**6), "validations": st.integers(0, 99), "generation": st.integers(0, 9),
        "pleasure_sum_milli": st.integers(-(10**6), 10**6), "text": st.text(max_size=40),
        "kind": st.sampled_from(["insight", "heuristic", "warning"]),
    }
)  # fmt: skip
"""The columns of a pattern other than structure, side and confidence."""


@st.composite
def lives(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Decisions about a few entries over a few cycles of two golems, at most one operation an entry and cycle."""
    rows = []
    for golem in ("g-1", "g-2"):
        for cycle in range(1, draw(st.integers(2, 5))):
            for tool in draw(st.sets(st.sampled_from(["a", "b", "c"]))):
                operation = draw(st.sampled_from(["created", "reinforced", "promoted", "contradicted", "received"]))
                fields = {"sign": draw(st.sampled_from([-1, 1])), "confidence_ppm": draw(st.integers(600_000, 10**6))}
                rows.append(decided(operation, cycle, golem_id=golem, about=tool, **fields))
    return rows


def together(parts: list[Ballots]) -> list[list[dict[str, Any]]]:
    tables = (pa.concat_tables(tables) for tables in zip(*parts, strict=True))
    return [sorted(table.to_pylist(), key=lambda row: row["vote_id"]) for table in tables]


@settings(max_examples=times(25), deadline=None)
@given(lives(), st.sets(st.integers(0, 10)), st.integers(0, 2**32))
def test_votes_cast_per_cycle_equal_votes_cast_at_once(rows: list[dict[str, Any]], early: set[int], seed: int) -> None:
    whole = decisions(*rows)
    places = [i for i, row in enumerate(rows) if row["cycle"] + (5 if row["golem_id"] == "g-2" else 0) in early]
    first = whole.take(pa.array(places, pa.int64()))
    rest = whole.take(pa.array([i for i in range(len(rows)) if i not in places], pa.int64()))
    parts = [routine_votes(shuffled(part, seed), OWNERS, POLICY) for part in (first, rest)]
    assert together(parts) == together([routine_votes(whole, OWNERS, POLICY)])


@settings(max_examples=times(25), deadline=None)
@given(PRIVATE, PRIVATE, st.sampled_from([-1, 1]))
def test_private_columns_do_not_change_public_votes(first: dict[str, Any], other: dict[str, Any], sign: int) -> None:
    seen = []
    for private in (first, other):
        known = entry(sign=sign, confidence_ppm=800_000, **private)
        last = death_votes(grimoire(known), deaths("g-1"), POLICY)
        routine = routine_votes(
            decisions(decided("created", 1, sign=sign, confidence_ppm=800_000, **private)), OWNERS, POLICY
        )
        seen.append((last.votes.to_pylist(), routine.votes.to_pylist()))
    assert seen[0] == seen[1]


@settings(max_examples=times(25), deadline=None)
@given(st.sets(st.sampled_from(["g-1", "g-2", "g-3"])), st.sets(st.sampled_from(["g-1", "g-2", "g-3"])))
def test_only_recorded_deaths_back_their_votes(cast_by: set[str], recorded: set[str]) -> None:
    cast = death_votes(grimoire(*(entry(g) for g in sorted(cast_by))), deaths(*sorted(cast_by)), POLICY)
    backed = backed_votes(*cast, deaths(*sorted(recorded))).to_pylist()
    golems = {row["vote_id"]: row["golem_id"] for row in cast.causes.to_pylist()}
    assert {golems[vote] for vote in backed} == cast_by & recorded
