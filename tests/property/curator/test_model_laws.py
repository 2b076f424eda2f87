"""The laws with language models: the time of an answer's record and of each derivation do not change the result.

Schedule independence (3), rebuild (4) and lineage (6), with strikes among the arrivals; in the log, and during a fleet
run. The answers are events; no model is called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from bardo_pipeline.curator.state.grimoire_state import entry_id
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.derivation.curation.request_proposals import living_golems, propose
from bardo_pipeline.derivation.repair.removal_proof import remains
from bardo_pipeline.errors import RegressionError
from bardo_pipeline.events.life.events import LifeEvent, life_event
from bardo_pipeline.events.life.proposal_events import Asked, ProposedOperation, ProposedSituation
from bardo_pipeline.heartbeat.fleet import Founding
from bardo_pipeline.runtime import fleet_run
from tests.conftest import NOW
from tests.property.curator.test_override_laws import orderly
from tests.property.derivation.test_laws import (
    POLICY,
    Parcel,
    SplitLife,
    arrive,
    arrive_side_by_side,
    beside,
    deliver,
    derive_all,
    fingerprints,
    lost,
    parcels,
    stores_at,
)
from tests.property.derivation.test_repair_laws import learner, reorged
from tests.support.example_count import some
from tests.support.fleets.memory_fleets import lively_market
from tests.support.homes.homes_to_repair import derive_all_again, rebuilt_fingerprints
from tests.support.knowledge.drawn_proposals import ABOUTS, situation
from tests.support.processes.loopback_provider import loopback, operations
from tests.support.records.handmade_records import SITUATIONS, START, STORM


class Answer(NamedTuple):
    """Draw a model's answer about a golem in its present state. number: makes answers distinct."""

    golem_id: str
    number: int
    operations: tuple[ProposedOperation, ...]


def operation(kind: str, about: int, golem_id: str, evidence: Sequence[int]) -> ProposedOperation:
    """One operation about one of the situations."""
    adds, structure = kind == "ADD", ABOUTS[about]
    return ProposedOperation(
        operation=kind,  # type: ignore[arg-type]
        entry_id=None if adds else entry_id(golem_id, structure.key),
        situation=ProposedSituation(**dict(zip(ProposedSituation.model_fields, situation(structure), strict=True)))
        if adds
        else None,
        sign=1 if adds else None,
        confidence=0.9 if adds else None,
        note="a note" if kind == "EDIT" else None,
        reason="so it seems",
        evidence=tuple(evidence),
    )


@st.composite
def answers(draw: st.DrawFn, golem_id: str, number: int) -> Answer:
    """Some operations of a golem, with ticks that exist and that do not."""
    kinds = draw(st.lists(st.sampled_from(("ADD", "UPVOTE", "DOWNVOTE", "EDIT")), min_size=1, max_size=3))
    rows = []
    for kind in kinds:
        evidence = sorted(draw(st.sets(st.integers(1, 30), min_size=1, max_size=5)))
        about = draw(st.integers(0, len(ABOUTS) - 1 if kind == "ADD" else len(SITUATIONS) - 1))
        rows.append(operation(kind, about, golem_id, evidence))
    return Answer(golem_id, number, tuple(rows))


@st.composite
def arrivals(draw: st.DrawFn) -> list[Parcel | Answer]:
    """Draw records, events, strikes and answers in a possible order of arrival."""
    arriving: list[Parcel | Answer] = [*draw(parcels())]
    golems = sorted({p.happened.golem_id for p in arriving if isinstance(p, Parcel) and p.happened is not None})
    for number in range(draw(st.integers(4, 12))):
        answer = draw(answers(draw(st.sampled_from(golems)), number))
        arriving.insert(draw(st.integers(len(arriving) // 2, len(arriving))), answer)
    for golem_id in draw(st.lists(st.sampled_from(golems), max_size=2)):
        first = draw(st.integers(1, 24))
        gone = reorged(golem_id, first, first + draw(st.integers(0, 9)))
        arriving.insert(draw(st.integers(0, len(arriving))), gone)
    return arriving


def recorded(stores: DerivationContext, answer: Answer) -> LifeEvent | None:
    """Record an answer, unless the golem's life is closed."""
    seen = stores.log.head_of(answer.golem_id).contiguous
    payload = Asked(
        cycle=0, tick_seen=seen, provider="p", model="m", prompt_hash=f"{answer.number}", outcome="answered", detail="",
        answer="{}", operations=answer.operations, request_count=1, input_tokens=1, output_tokens=1, cost_micros=1,
        latency_ms=1,
    )  # fmt: skip
    made = life_event(answer.golem_id, START + timedelta(minutes=seen), payload)
    try:
        stores.log.record([made], NOW)
    except RegressionError:
        return None
    return made


@pytest.mark.full
@pytest.mark.row("MEM-4", "X-1")
@some(2)
@given(arrivals(), st.data())
def test_projections_are_independent_of_the_time_of_answers_and_derivations(
    arriving: list[Parcel | Answer], data: st.DataObject
) -> None:
    with TemporaryDirectory() as folder:
        stores = stores_at(Path(folder) / "late")
        orders = arrive(stores, arriving, data, recorded)
        rows = stores.projections.read("curation")
        for row in rows.select(["operation", "cause_event"]).to_pylist():
            if row["cause_event"]:
                event(row["operation"])
        known = set(stores.log.life()["event_id"].to_pylist())
        assert set(rows["cause_event"].to_pylist()) - {None} <= known, "every cause is on record"
        wanted = fingerprints(stores)
        again = beside(stores, Path(folder) / "beside")
        derive_all(again)
        assert fingerprints(again) == wanted, "the rebuild differs"
        assert (
            fingerprints(orderly([p for p in arriving if isinstance(p, Parcel)], orders, Path(folder) / "o")) == wanted
        )


def all_of(golem_id: str) -> Answer:
    """Return every operation that can be proposed about one situation."""
    kinds = ("ADD", "UPVOTE", "EDIT")
    return Answer(golem_id, 0, tuple(operation(kind, SITUATIONS.index(STORM), golem_id, range(1, 9)) for kind in kinds))


G = learner("g-0")
ALL = all_of("g-0")
CITING = "citing ticks that are struck later"
DROPPED = ("in a cycle with all ticks struck later", "in a cycle that is lost")
ANSWERED: dict[str, Callable[[SplitLife, Answer], list[Parcel | Answer]]] = {
    "at the end of a cycle": lambda g, event: [g.birth, g.part(1, 8), event, g.part(9, 22), g.death],
    "in the middle of a cycle": lambda g, event: [g.birth, g.part(1, 10), event, g.part(11, 22), g.death],
    "in the last cycle, closed by the death": lambda g, event: [g.birth, g.part(1, 22), event, g.death],
    DROPPED[0]: lambda g, event: [
        g.birth, g.part(1, 10), event, g.part(11, 22), reorged(g.golem_id, 9, 12), g.death
    ],
    DROPPED[1]: lambda g, event: [g.birth, g.part(1, 8), event, g.part(13, 22), lost(g.golem_id, 9, 12), g.death],
    "while a gap is open": lambda g, event: [g.birth, g.part(1, 6), g.part(13, 22), event, g.part(7, 12), g.death],
    "before the birth is on record": lambda g, event: [g.part(1, 9), event, g.birth, g.part(10, 22), g.death],
    CITING: lambda g, event: [g.birth, g.part(1, 8), event, g.part(9, 22), g.death, reorged(g.golem_id, 2, 5)],
}  # fmt: skip


@pytest.mark.full
@pytest.mark.row("MEM-4")
def test_proposals_yield_equal_projections_in_frequent_and_single_runs(tmp_path: Path) -> None:
    """All stories in one home, one golem each."""
    golems = {name: f"g-{k}" for k, name in enumerate(ANSWERED)}
    stories = [arrives(learner(golems[name]), all_of(golems[name])) for name, arrives in ANSWERED.items()]
    stores, late = stores_at(tmp_path / "often"), stores_at(tmp_path / "once")
    orders = arrive_side_by_side(stores, late, stories, recorded)
    assert {event.golem_id for event in orders} == set(golems.values())
    assert fingerprints(stores) == fingerprints(late)
    decided = stores.projections.growing("curation").read(["golem_id", "cause_event", "cause_ticks"]).to_pylist()
    judged = [row for row in decided if row["cause_event"]]
    assert {row["golem_id"] for row in judged} == {g for name, g in golems.items() if name not in DROPPED}
    cited = {tick for row in judged if row["golem_id"] == golems[CITING] for tick in row["cause_ticks"]}
    assert cited
    assert not cited & set(range(2, 6))
    assert not remains(stores)


@pytest.mark.row("MEM-4")
def test_the_log_refuses_answers_about_a_dead_golem_or_a_stale_tick(tmp_path: Path) -> None:
    stores = stores_at(tmp_path / "home")
    for number, item in enumerate([G.birth, G.part(1, 21)]):
        deliver(stores, item, number)
    made = recorded(stores, ALL)
    assert made is not None
    assert made.asked is not None
    stale = made.asked.model_copy(update={"tick_seen": 20, "prompt_hash": "another"})
    with pytest.raises(RegressionError, match="tick 20 is no longer its newest tick: that is 21"):
        stores.log.record([life_event("g-0", START, stale)], NOW)
    for number, item in enumerate([G.part(22, 22), G.death]):
        deliver(stores, item, 5 + number)
    assert recorded(stores, ALL._replace(number=1)) is None
    failed = stale.model_copy(update={"operations": (), "outcome": "failed", "answer": None})
    stores.log.record([life_event("g-0", START, failed)], NOW)
    assert len(stores.life("ModelAsked")) == 2, "a failed request is recorded at any time"


# during a fleet run

RUN = fleet_run.Run(
    "run", lively_market(460, 11), 2, 2, Founding(owners=("owner-1",), credit_share=0.03, lifespan_ticks=(320, 420))
)


@pytest.mark.full
@pytest.mark.row("MEM-4")
def test_a_fleet_run_and_a_concurrent_job_apply_proposals_equally(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a key of no worth")
    stores, job = stores_at(tmp_path / "home", POLICY), stores_at(tmp_path / "home", POLICY)
    asked = []
    with loopback() as provider:
        add = operation("ADD", 0, "any", (1, 2)).model_dump(exclude={"entry_id", "note"})
        provider.answering(operations(add))

        def meanwhile(progress: fleet_run.Progress) -> None:
            if progress.ticks_done % 100 == 0:
                derive_curation(job)
                for golem_id in living_golems(job):
                    asking = propose(job, golem_id, provider.settings, clock=lambda: NOW)
                    asked.extend([asking] if asking.event is not None else [])

        fleet_run.FleetRun(stores, RUN, lambda: NOW).live(meanwhile)
        derive_all_again(stores)
        requests = len(provider.requests)
        assert requests == len(asked) > 2
        decided = stores.projections.read("curation")
        judged = set(decided["cause_event"].to_pylist()) - {None}
        assert judged
        assert judged <= {asking.event.event_id for asking in asked}
        assert fingerprints(stores) == rebuilt_fingerprints(stores, tmp_path / "beside")
        version = stores.log.version
        fleet_run.FleetRun(stores_at(tmp_path / "home", POLICY), RUN, lambda: NOW).live()
        assert stores.log.version == version, "a repeated run wrote something"
        assert len(provider.requests) == requests, "neither a rebuild nor a repeated run asks"
