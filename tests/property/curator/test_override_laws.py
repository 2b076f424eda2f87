"""The laws with owners' overrides: the time of an override's record and of each derivation do not change the result.

Schedule independence (3) and rebuild (4), with strikes and lost ticks among the overrides; in the log, during a fleet
run, and between a golem's last record and its death.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from bardo_pipeline.curator.state.grimoire_state import entry_id
from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation import record_overrides
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.derivation.memory.derive_episodes import refresh_index
from bardo_pipeline.derivation.repair.removal_proof import remains
from bardo_pipeline.derivation.versions.rebuild import rebuild
from bardo_pipeline.errors import OverrideError, QueryError
from bardo_pipeline.events.custody.hash_chain import content_of
from bardo_pipeline.events.life.events import LifeEvent, life_event
from bardo_pipeline.events.life.override_events import Corrected, Override, Pinned, Retracted, Unpinned
from bardo_pipeline.events.life.proposal_events import Asked
from bardo_pipeline.runtime import fleet_run
from bardo_pipeline.storage.intake.accept_or_refuse import record_events
from bardo_pipeline.storage.keys.owner_signing_keys import OwnerKeys
from tests.conftest import NOW
from tests.property.derivation.test_laws import (
    POLICY,
    Parcel,
    SplitLife,
    arrive,
    arrive_side_by_side,
    beside,
    deliver,
    derive_all,
    event_parcel,
    fingerprints,
    lost,
    parcels,
    stores_at,
)
from tests.property.derivation.test_repair_laws import learner, reorged, struck
from tests.support.example_count import some
from tests.support.homes.homes_to_repair import births, derive_all_again, rebuilt_fingerprints
from tests.support.homes.owner_events import RUN
from tests.support.homes.spool_homes import KEY, OWNER_KEY, PUBLIC
from tests.support.homes.tampered_homes import signature_of
from tests.support.records.handmade_records import MARKET, SITUATIONS, START, STORM

ABOUT = [
    *(s.structure for s in SITUATIONS),
    *(Structure("baseline", *MARKET.values(), metric=m) for m in ("gas_price",)),
]


class DrawnOverride(NamedTuple):
    """Draw an owner's override of an entry of the golem in its present state."""

    golem_id: str
    entry_id: str
    kind: type[Override]
    fields: dict[str, Any]


override_kinds = st.sampled_from((Pinned, Unpinned, Retracted, Corrected)).flatmap(
    lambda kind: st.tuples(st.just(kind), corrections if kind is Corrected else st.just({}))
)
corrections = st.fixed_dictionaries(
    {
        "confidence": st.sampled_from((0.0, 0.3, 0.97)),
        "verdict": st.sampled_from((None, "pays", "harms", "anti_knowledge")),
        "decay_class": st.sampled_from((None, "structural", "ephemeral")),
    }
)


@st.composite
def arrivals(draw: st.DrawFn) -> list[Parcel | DrawnOverride]:
    """Draw records, events, strikes and overrides in a possible order of arrival."""
    arriving: list[Parcel | DrawnOverride] = [*draw(parcels())]
    golems = sorted({p.happened.golem_id for p in arriving if isinstance(p, Parcel) and p.happened is not None})
    for _ in range(draw(st.integers(8, 24))):
        golem_id, (kind, statement) = draw(st.sampled_from(golems)), draw(override_kinds)
        about = draw(st.sampled_from(ABOUT))
        override = DrawnOverride(golem_id, entry_id(golem_id, about.key), kind, statement)
        arriving.insert(draw(st.integers(len(arriving) // 2, len(arriving))), override)
    for golem_id in draw(st.lists(st.sampled_from(golems), max_size=2)):
        first = draw(st.integers(1, 24))
        gone = (
            struck(golem_id, first)
            if draw(st.booleans())
            else reorged(golem_id, first, first + draw(st.integers(0, 9)))
        )
        arriving.insert(draw(st.integers(0, len(arriving))), gone)
    return arriving


def record_override(stores: DerivationContext, override: DrawnOverride) -> LifeEvent | None:
    """Record an override, unless the golem's life is closed."""
    number = len(stores.overrides().of_golem(override.golem_id)) + 1
    seen = stores.log.head_of(override.golem_id).contiguous
    place = {"number": number, "tick_seen": seen, "cycle_seen": 0, "entry_id": override.entry_id, "why": "so"}
    answer = life_event(override.golem_id, START + timedelta(minutes=seen), override.kind(**place, **override.fields))
    try:
        stores.log.record([answer], NOW)
    except OverrideError:
        return None
    return answer


def orderly(arriving: Sequence[Parcel], life_events: Sequence[LifeEvent], root: Path) -> DerivationContext:
    """Build a log golem by golem and tick by tick, each override directly after its tick."""
    stores = stores_at(root)
    events = [p.happened for p in arriving if p.happened is not None]
    stores.log.record([e for e in events if e.gap is None and e.died is None], NOW)
    steps: list[tuple[str, int, int, Parcel]] = []
    for parcel in arriving:
        if parcel.records is not None:
            rows = parcel.records
            steps += [
                (row["golem_id"], row["tick"], 1, Parcel(rows.slice(i, 1), None))
                for i, row in enumerate(rows.to_pylist())
            ]
        elif parcel.happened is not None and parcel.happened.gap is not None:
            steps.append((parcel.happened.golem_id, parcel.happened.gap.tick_from, 1, parcel))
        elif parcel.happened is not None and parcel.happened.died is not None:
            steps.append((parcel.happened.golem_id, 2**40, 0, parcel))
    for item in life_events:
        assert isinstance(item.payload, Override | Asked)
        steps.append(
            (item.golem_id, item.payload.tick_seen, 2 + getattr(item.payload, "number", 0), event_parcel(item))
        )
    in_order = [step[3] for step in sorted(steps, key=lambda step: step[:3])]
    for number, (_, several) in enumerate(groupby(in_order, key=lambda parcel: parcel.records is None)):
        together = list(several)
        batches = [parcel.records for parcel in together if parcel.records is not None]
        for parcel in [one_parcel(batches)] if batches else together:
            deliver(stores, parcel, number)
    derive_all(stores)
    return stores


def one_parcel(batches: Sequence[pa.Table]) -> Parcel:
    """Return one parcel of all these batches."""
    return Parcel(pa.concat_tables(batches), None)


@pytest.mark.row("X-8", "X-1")
@some(2)
@given(arrivals(), st.data())
def test_projections_are_independent_of_the_time_of_overrides_and_derivations(
    arriving: list[Parcel | DrawnOverride], data: st.DataObject
) -> None:
    with TemporaryDirectory() as folder:
        stores = stores_at(Path(folder) / "late")
        orders = arrive(stores, arriving, data, record_override)
        rows = stores.projections.read("curation")
        for operation in set(rows["operation"].to_pylist()):
            event(operation)
        wanted = fingerprints(stores)
        again = beside(stores, Path(folder) / "beside")
        derive_all(again)
        assert fingerprints(again) == wanted, "the rebuild differs"
        assert (
            fingerprints(orderly([p for p in arriving if isinstance(p, Parcel)], orders, Path(folder) / "o")) == wanted
        )


G = learner("g-0")
RULE = entry_id("g-0", STORM.structure.key)
Timing = Callable[[SplitLife, Callable[..., DrawnOverride]], list[Parcel | DrawnOverride]]
TURN = {"confidence": 0.9, "verdict": "pays"}
GONE = "before ticks that are struck later"
TIMINGS: dict[str, Timing] = {
    "at the end of a cycle": lambda g, made: [g.birth, g.part(1, 8), made(Retracted), g.part(9, 22), g.death],
    "in the middle of a cycle": lambda g, made: [g.birth, g.part(1, 10), made(Retracted), g.part(11, 22), g.death],
    "in the last cycle, closed by the death": lambda g, made: [g.birth, g.part(1, 22), made(Corrected, TURN), g.death],
    "in a cycle with all ticks struck later": lambda g, made: [
        g.birth, g.part(1, 10), made(Retracted), g.part(11, 22), reorged(g.golem_id, 9, 12), g.death
    ],
    "in a cycle that is lost": lambda g, made: [
        g.birth, g.part(1, 8), made(Corrected, TURN), g.part(13, 22), lost(g.golem_id, 9, 12), g.death
    ],
    "twice in a cycle": lambda g, made: [
        g.birth, g.part(1, 9), made(Pinned), g.part(10, 11), made(Corrected, TURN), g.part(12, 22), g.death
    ],
    "while a gap is open": lambda g, made: [
        g.birth, g.part(1, 6), g.part(13, 22), made(Pinned), g.part(7, 12), g.death
    ],
    "before the birth is on record": lambda g, made: [
        g.part(1, 9), made(Corrected, TURN), g.birth, g.part(10, 22), g.death
    ],
    GONE: lambda g, made: [
        g.birth, g.part(1, 8), made(Pinned), g.part(9, 22), g.death, reorged(g.golem_id, 1, 8)
    ],
}  # fmt: skip


@pytest.mark.full
@pytest.mark.row("X-8")
def test_overrides_yield_equal_projections_in_frequent_and_single_runs(tmp_path: Path) -> None:
    """All stories in one home, one golem each."""
    stories = []
    for k, arrives in enumerate(TIMINGS.values()):
        rule = entry_id(f"g-{k}", STORM.structure.key)
        stories.append(
            arrives(
                learner(f"g-{k}"),
                lambda kind, statement=None, k=k, rule=rule: DrawnOverride(f"g-{k}", rule, kind, statement or {}),
            )
        )
    stores, late = stores_at(tmp_path / "often"), stores_at(tmp_path / "once")
    orders = arrive_side_by_side(stores, late, stories, record_override)
    assert {event.golem_id for event in orders} == {f"g-{k}" for k in range(len(TIMINGS))}
    assert fingerprints(stores) == fingerprints(late)
    refresh_index(stores)
    assert remains(stores) == [], "a row still depends on a struck record"
    decided = stores.projections.growing("curation").read(["cause_event"])["cause_event"].to_pylist()
    ineffective = f"g-{list(TIMINGS).index(GONE)}"
    assert set(decided) - {None} == {event.event_id for event in orders if event.golem_id != ineffective}


@pytest.mark.row("X-8")
def test_the_log_refuses_overrides_of_a_dead_golem_or_a_stale_tick(tmp_path: Path) -> None:
    stores = stores_at(tmp_path / "home")
    for number, item in enumerate([G.birth, G.part(1, 21)]):
        deliver(stores, item, number)
    before = stores.log.life_version
    place = {"entry_id": RULE, "cycle_seen": 5, "why": "so"}
    for payload in (Pinned(**place, number=1, tick_seen=20), Pinned(**place, number=2, tick_seen=21)):
        with pytest.raises(OverrideError, match="look at the entry again"):
            stores.log.record([life_event("g-0", START, payload)], NOW)
    for item in (G.part(22, 22), G.death):
        deliver(stores, item, 9 if item is G.death else 8)
    with pytest.raises(OverrideError, match="golem g-0 died at tick 22, so its grimoire is closed"):
        record_overrides.pin(stores, "g-0", RULE, "so", now=NOW)
    assert stores.overrides().events == ()
    assert stores.log.life_version == before + 1


@pytest.mark.row("X-8")
def test_an_override_line_is_recorded_or_refused_with_a_reason(tmp_path: Path) -> None:
    stores = stores_at(tmp_path / "home")
    for number, item in enumerate([G.birth, G.part(1, 9)]):
        deliver(stores, item, number)
    place = {"entry_id": RULE, "cycle_seen": 2, "why": "so"}
    overrides = [
        ("EntryPinned", "pinned", {**place, "number": 1, "tick_seen": 9}),
        ("EntryRetracted", "retracted", {**place, "number": 2, "tick_seen": 8}),
        ("EntryCorrected", "corrected", {**place, "number": 2, "tick_seen": 9, "confidence": 1.7}),
    ]
    lines = [
        orjson.dumps({"kind": kind, "golem_id": "g-0", "observed_at": START.isoformat(), attribute: statement})
        for kind, attribute, statement in overrides
    ]
    OwnerKeys(stores.home, stores.log).register(births(stores)["g-0"]["owner_id"], PUBLIC, NOW)
    signatures = [signature_of("g-0", content_of(line), KEY, OWNER_KEY) for line in lines]
    outcome = record_events(stores.log, lines, NOW, signatures=signatures)
    assert (outcome.written, [refusal.places for refusal in outcome.refused]) == (1, [(2,), (1,)])
    assert "less than or equal to 1, not 1.7" in str(outcome.refused[0].error)
    assert "the newest tick is 9" in str(outcome.refused[1].error)


# during a fleet run


def sure(stores: DerivationContext, golem_id: str) -> str | None:
    """The surest entry of a golem, if it has one."""
    held = record_overrides.select_entries(
        record_overrides.grimoire_of(stores, golem_id),
        status="active",
        kind=None,
        text=None,
        confidence_min=0,
        pinned=False,
    )
    return held["entry_id"][0].as_py() if held.num_rows else None


@pytest.mark.full
@pytest.mark.row("X-8")
def test_a_fleet_run_and_a_concurrent_job_apply_overrides_equally(tmp_path: Path) -> None:
    stores, job = stores_at(tmp_path / "home", POLICY), stores_at(tmp_path / "home", POLICY)
    rows: list[record_overrides.RecordedOverride] = []

    def meanwhile(progress: fleet_run.Progress) -> None:
        if progress.ticks_done % 100 == 0:
            for number, golem_id in enumerate(sorted(births(job))):
                entry = sure(job, golem_id)
                speak = (record_overrides.retract, record_overrides.pin)[(number + progress.ticks_done // 100) % 2]
                try:
                    rows.append(speak(job, golem_id, entry or "none", "I was there", now=NOW))
                except (OverrideError, QueryError):
                    continue
        if progress.ticks_done % 150 == 0:
            derive_curation(job)

    fleet_run.FleetRun(stores, RUN, lambda: NOW).live(meanwhile)
    derive_all_again(stores)
    assert len(rows) > 4
    decided = stores.projections.read("curation")
    keys = set(decided["cause_event"].to_pylist()) - {None}
    assert {"pinned", "retracted"} <= set(decided["operation"].to_pylist())
    assert keys <= {item.event_id for item in rows}
    assert fingerprints(stores) == rebuilt_fingerprints(stores, tmp_path / "beside")
    version = stores.log.version
    fleet_run.FleetRun(stores_at(tmp_path / "home", POLICY), RUN, lambda: NOW).live()
    assert stores.log.version == version, "a repeated run wrote something"


@pytest.mark.full
@pytest.mark.row("X-8")
def test_an_override_between_the_last_record_and_the_death_is_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores, owner = stores_at(tmp_path / "home", POLICY), stores_at(tmp_path / "home", POLICY)
    bury, statement = fleet_run.FleetRun._bury, list[record_overrides.RecordedOverride]()

    def retract_and_bury(self: fleet_run.FleetRun, dead: dict[str, int], stop: int) -> Any:
        for golem_id in dead:
            statement.append(
                record_overrides.retract(owner, golem_id, sure(owner, golem_id) or "none", "a lie", now=NOW)
            )
        return bury(self, dead, stop)

    monkeypatch.setattr(fleet_run.FleetRun, "_bury", retract_and_bury)
    fleet_run.FleetRun(stores, RUN, lambda: NOW).live()
    derive_all_again(stores)
    decided = stores.projections.growing("curation").read()
    keys = set(decided["cause_event"].to_pylist()) - {None}
    assert keys == {item.event_id for item in statement if item.tick % POLICY.curator.cycle_ticks}
    assert keys
    for item in statement:
        heirs = pa.array([g for g, b in births(stores).items() if b["predecessor_id"] == item.golem_id], pa.string())
        received = decided.filter(pc.is_in(decided["golem_id"], value_set=heirs))
        assert item.entry["entry_id"] not in received["entry_id"].to_pylist(), "an heir inherited the retracted entry"
    assert fingerprints(stores) == rebuilt_fingerprints(stores, tmp_path / "beside")
    different = {item.table for item in rebuild(stores, now=NOW) if not item.equal}
    assert different <= {"episodes"}, "only vectors may differ, because the rebuild uses another embedder"
