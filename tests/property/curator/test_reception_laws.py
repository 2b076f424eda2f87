"""Laws of reception: verdicts and quarantine equal their twins, and received entries need own evidence before use."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from bardo_pipeline.curator.state.decision_log import DECISION_SCHEMA, fold
from bardo_pipeline.curator.state.received_entries import verdicts
from bardo_pipeline.grimoire.entries import CAME_OVER
from tests.reference.learning.evidence import evidence_by_row
from tests.reference.learning.reception import evidence_about, shadow_by_row, verdicts_by_row
from tests.support.example_count import times
from tests.support.knowledge.handmade_grimoires import DIED, baseline, entry, grimoire, pattern, shuffled
from tests.support.knowledge.received_knowledge import BRIEF, Received, claim, crossing, delivery
from tests.support.records.handmade_records import SITUATIONS, SPAN, cycles_of, lives, stream

AT_US = int(DIED.timestamp() * 1_000_000)
ABOUT = [
    *(pattern(tool, gas_band=band) for tool in ("t", "u") for band in ("cheap", "normal", "dear", "any")),
    pattern("t")._replace(chain="base"), baseline("gas_price"), baseline("slippage"),
]  # fmt: skip
FEW = BRIEF.model_copy(
    update={"reception": BRIEF.reception.model_copy(update={"entries_max": 2, "size_entries_min": 2})}
)


@st.composite
def entries(draw: st.DrawFn, golem: str, *, arriving: bool) -> list[dict[str, Any]]:
    """Draw a golem's entries, or arriving ones, from few distinct values."""
    rows = []
    for about in draw(st.lists(st.sampled_from(ABOUT), unique=True, max_size=7)):
        mean = draw(st.sampled_from([100, 400, 5_000]))
        fields = {
            "sign": 0 if about.source == "baseline" else draw(st.sampled_from([1, -1])), "anchor_at": DIED,
            "effect_mean_ppm": mean, "effect_low_ppm": mean - 50, "effect_high_ppm": mean + 50,
            "confidence_ppm": draw(st.sampled_from([200_000, 700_000, 900_000])),
        }  # fmt: skip
        if arriving:
            rows.append(claim(about, **{"kind": "insight", "generation": draw(st.integers(1, 4)), **fields}))
        else:
            status = draw(st.sampled_from(["active", "active", "candidate", "pruned", "retracted"]))
            came = draw(st.sampled_from(["self", "self", "import"])) if status == "candidate" else "self"
            rows.append(entry(golem, about, status=status, provenance=came, **fields))
    return rows


@pytest.mark.row("INH-11", "INH-13")
@settings(deadline=None, max_examples=times(20))
@given(entries("g-far", arriving=True), entries("g-1", arriving=False), st.sampled_from(["import", "replicant"]),
       st.integers(0, 99))  # fmt: skip
def test_verdicts_equal_their_twin_in_any_row_order(
    arriving: list[dict[str, Any]], held: list[dict[str, Any]], source: str, seed: int
) -> None:
    came = crossing(*arriving)
    wrong = came["entry_id"].to_pylist()[:1] if seed % 3 == 0 else []
    result = verdicts(shuffled(came, seed), shuffled(grimoire(*held), seed), AT_US, source, FEW, unproven=wrong)
    got = [(r["entry_id"], r["verdict"], r["confidence_ppm"]) for r in result.to_pylist()]
    assert got == verdicts_by_row(came.to_pylist(), held, DIED, source, wrong, FEW)
    for _, verdict, _ in got:
        event(verdict)


@pytest.mark.row("INH-10", "INH-11", "INH-13")
@settings(deadline=None, max_examples=times(10))
@given(lives(golems=2), st.data())
def test_received_entries_stay_inactive_until_own_outcomes_confirm_them(lived: Any, data: st.DataObject) -> None:
    records = stream(lived)
    golem = data.draw(st.sampled_from(sorted({life.golem_id for life in lived})))
    claims = [
        claim(when, data.draw(st.sampled_from([1, -1])))
        for when in data.draw(st.lists(st.sampled_from(SITUATIONS), min_size=1, unique=True))
    ]
    seen = data.draw(st.integers(0, 2 * SPAN))
    source = data.draw(st.sampled_from(CAME_OVER))
    given_ = delivery(*claims, golem_id=golem, seen=seen, source=source)
    result, plain = Received(records, given_), Received(records)
    at_cycle = seen // SPAN + 1
    if at_cycle not in {
        c for g, c in zip(records["golem_id"].to_pylist(), cycles_of(records), strict=True) if g == golem
    }:
        assert result.decisions == plain.decisions, "entries were admitted in a cycle without records"
        return
    _equals_the_twin(result, plain, records, golem, claims, at_cycle, source)
    earned: set[str] = set()
    for row in result.decisions:
        if row["operation"] == "borne_out":
            assert row["cause_ticks"], "an entry was borne out without own outcomes"
            assert min(row["cause_ticks"]) > seen - SPAN
            assert row["cycle"] > at_cycle
            earned.add(row["structure"])
        if row["provenance"] in CAME_OVER and row["status"] == "active":
            assert row["structure"] in earned, "an entry became active before own outcomes confirmed it"
    first = min((r["cycle"] for r in result.decisions if r["operation"] == "admitted"), default=10**6)
    about = {row["structure"] for row in claims}
    assert _without(result.decisions, about, first) == _without(plain.decisions, about, first), (
        "the reception changed other entries"
    )
    books = [[p for p in made.playbooks if p["golem_id"] != golem] for made in (result, plain)]
    assert books[0] == books[1], "the reception changed another golem"
    again = Received(records, given_, cycle_by_cycle=True)
    assert _sorted(again.decisions) == _sorted(result.decisions), "decisions depend on the number of cycles per run"
    event(f"admitted: {first < 10**6}")


def _equals_the_twin(
    reception: Received, plain: Received, records: pa.Table, golem: str, claims: Any, at_cycle: int, source: str
) -> None:
    """Check that the decisions on each claim equal the twin."""
    cycles = cycles_of(records).tolist()
    result = evidence_by_row(list(zip(records.to_pylist(), cycles, strict=True)), BRIEF.curator)
    then = [r for r in plain.decisions if r["golem_id"] == golem and r["cycle"] <= at_cycle]
    known = fold(pa.Table.from_pylist(then, schema=DECISION_SCHEMA)).to_pylist()
    active = {row["structure"] for row in known if row["status"] == "active"}
    for row, when in ((row, when) for row in claims for when in SITUATIONS if when.structure.key == row["structure"]):
        own = evidence_about(result, golem, when.structure)
        answer = reception.decided(when, golem)
        if row["structure"] in active:
            assert (at_cycle, "quarantined") not in answer
            continue
        place = answer.index((at_cycle, "quarantined"))
        forgotten = max(
            (r["cycle"] for r in then if (r["structure"], r["operation"]) == (row["structure"], "pruned")), default=0
        )  # a pruned entry starts its evidence again
        before = [group for cycle, group in sorted(own.items()) if forgotten < cycle <= at_cycle]
        after = {cycle: group for cycle, group in own.items() if cycle > at_cycle}
        enters = 400_000 if source == "import" else 300_000
        wanted = shadow_by_row(row["sign"], enters, before, after, BRIEF)
        assert answer[place + 1 : place + 1 + len(wanted)] == wanted


def _without(decisions: list[dict[str, Any]], about: set[str], cycle: int) -> list[dict[str, Any]]:
    kept = [r for r in decisions if r["structure"] not in about and r["cycle"] < cycle]
    return [{k: v for k, v in r.items() if k != "seq"} for r in kept if not r["cause_event"]]


def _sorted(decisions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(decisions, key=lambda r: (r["golem_id"], r["cycle"], r["seq"]))
