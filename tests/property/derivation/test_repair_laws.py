"""The laws under repair: struck, reorged or withdrawn records leave no trace, for any time of the retraction.

In any order of arrival, the projections equal those of the whole log (3, 4); a repair costs the golem's
later ticks, not those of the fleet (5); no remaining row names a struck record (6).
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from bardo_pipeline.curator.state.grimoire_state import to_table
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.derivation.curation.curator_state import state_from_birth
from bardo_pipeline.derivation.dreams.playbook_pages import pages_of
from bardo_pipeline.derivation.legacy.bundle_store import load_bundle, published_bundles, stale_bundles
from bardo_pipeline.derivation.memory.derive_episodes import episode_index, refresh_index, similar_episodes
from bardo_pipeline.derivation.repair.removal_proof import remains
from bardo_pipeline.derivation.reports.lineage import lineage_of
from bardo_pipeline.derivation.strikes_and_reorgs import Recorded, reorg, strike, withdraw
from bardo_pipeline.derivation.versions.rebuild import rebuild
from bardo_pipeline.events.life.events import Reorg, Struck, life_event
from bardo_pipeline.heartbeat.fleet import Founding
from bardo_pipeline.inheritance.choice_evidence import evidence_of
from bardo_pipeline.runtime import fleet_run
from bardo_pipeline.storage.delta import append_only_table
from bardo_pipeline.storage.delta.replaceable_table import ReplaceableTable
from bardo_pipeline.storage.projections.projections import GrowingTable
from tests.conftest import NOW
from tests.property.derivation.test_laws import (
    POLICY,
    Parcel,
    SplitLife,
    arrive,
    arrive_side_by_side,
    birth_of,
    deliver,
    derive_all,
    derived_at_once,
    event_parcel,
    fingerprints,
    parcels,
    rows_of,
    small_run,
    stores_at,
)
from tests.support.example_count import some
from tests.support.fleets.memory_fleets import lively_market
from tests.support.homes.homes_to_repair import (
    GROWING,
    RENEWED,
    births,
    derive_all_again,
    inherited_evidence,
    line,
    rebuilt_fingerprints,
)
from tests.support.records.handmade_records import FOG, SPAN, START, STORIES, STORM, Life, full

CHAIN = lively_market(60).chain


def struck(golem_id: str, tick: int, why: str = "its sensor lied") -> Parcel:
    return event_parcel(life_event(golem_id, START, Struck(tick=tick, why=why)))


def reorged(golem_id: str, first: int, last: int) -> Parcel:
    payload = Reorg(chain="polygon", block_from=first, block_to=last, tick_from=first, tick_to=last)
    return event_parcel(life_event(golem_id, START, payload))


@st.composite
def repaired_parcels(draw: st.DrawFn) -> list[Parcel]:
    """Draw records and life events, among them strikes and reorgs, in a possible order of arrival."""
    arriving = draw(parcels())
    golems = sorted({p.happened.golem_id for p in arriving if p.happened is not None})
    for golem_id in draw(st.lists(st.sampled_from(golems), min_size=1, max_size=4)):
        first = draw(st.integers(1, 24))
        if draw(st.booleans()):
            answer = struck(golem_id, first, draw(st.sampled_from(("a lie", "a slip"))))
        else:
            answer = reorged(golem_id, first, first + draw(st.integers(0, 9)))
        early = 0 if draw(st.booleans()) else len(arriving) * 2 // 3
        arriving.insert(draw(st.integers(early, len(arriving))), answer)
    return arriving


@pytest.mark.row("X-4", "EV-8", "X-1")
@some(3)
@given(repaired_parcels(), st.data())
def test_projections_are_independent_of_the_time_of_strikes_and_reorgs(
    arriving: list[Parcel], data: st.DataObject
) -> None:
    with TemporaryDirectory() as folder:
        stores = stores_at(Path(folder) / "late")
        arrive(stores, arriving, data)
        wanted = derived_at_once(arriving, Path(folder) / "orderly")
        for name, (rows, _) in wanted.items():
            taken = stores.projections.growing(name).taken_back().num_rows if name not in RENEWED else 0
            event(f"{name}: {'some' if rows else 'no'} rows, {'some' if taken else 'none'} taken back")
        assert fingerprints(stores) == wanted


def learner(golem_id: str) -> SplitLife:
    """A golem that found a warning and a rule, changed its playbook for both, and died in its sixth cycle."""
    return SplitLife(Life(golem_id, {STORM: STORIES[1], FOG: STORIES[0]}, (3, 2), timedelta(minutes=2), 22))


G = learner("g-0")
LATE: dict[str, Callable[[SplitLife, str], list[Parcel]]] = {
    "a record that taught something": lambda g, me: [g.birth, g.part(1, 22), g.death, struck(me, 10)],
    "the first record": lambda g, me: [g.birth, g.part(1, 22), g.death, struck(me, 1)],
    "the last record, of the cycle that death closed": lambda g, me: [
        g.birth, g.part(1, 22), g.death, struck(me, 22)
    ],
    "a record of the open cycle": lambda g, me: [g.birth, g.part(1, 6), struck(me, 6), g.part(7, 22), g.death],
    "a later record": lambda g, me: [g.birth, g.part(1, 6), struck(me, 9), g.part(7, 22), g.death],
    "the same record twice": lambda g, me: [
        g.birth, g.part(1, 22), struck(me, 5), struck(me, 5, "again"), g.death
    ],
    "two records, the later one first": lambda g, me: [g.birth, g.part(1, 22), struck(me, 11), struck(me, 3), g.death],
    "a reorg over whole cycles": lambda g, me: [g.birth, g.part(1, 22), g.death, reorged(me, 3, 12)],
    "records that changed its playbook": lambda g, me: [
        g.birth, g.part(1, 20), reorged(me, 9, 16), g.part(21, 22), g.death
    ],
    "all its records": lambda g, me: [g.birth, g.part(1, 22), g.death, reorged(me, 1, 22)],
    "a reorg and a strike within it": lambda g, me: [
        g.birth, g.part(1, 22), reorged(me, 5, 8), g.death, struck(me, 6)
    ],
}  # fmt: skip


@pytest.mark.full
@pytest.mark.row("X-4", "EV-8")
def test_late_strikes_yield_the_projections_of_an_ordered_log(tmp_path: Path) -> None:
    """All stories in one home, one golem each."""
    stores = stores_at(tmp_path / "late")
    stories = [arrives(learner(f"g-{k}"), f"g-{k}") for k, arrives in enumerate(LATE.values())]
    arrive_side_by_side(stores, None, stories)
    assert fingerprints(stores) == derived_at_once(list(chain(*stories)), tmp_path / "orderly")
    refresh_index(stores)
    assert remains(stores) == [], "a row still depends on a decision of a struck tick"


@pytest.mark.full
@pytest.mark.row("X-4")
def test_the_revision_of_a_decision_counts_the_left_out_ticks(tmp_path: Path) -> None:
    stores = stores_at(tmp_path / "home")
    for number, parcel in enumerate(
        [G.birth, G.part(1, 22), struck("g-0", 11), reorged("g-0", 6, 7), struck("g-0", 6)]
    ):
        deliver(stores, parcel, number)
        derive_all(stores)
    decided = stores.projections.growing("curation").read(["cycle", "revision"]).to_pylist()
    assert {(d["cycle"], d["revision"]) for d in decided} == {(1, 0), (2, 2), *((cycle, 3) for cycle in range(3, 6))}


# laws 3 and 4, with heirs


@pytest.fixture
def stores(two_lineages: Path, tmp_path: Path) -> DerivationContext:
    shutil.copytree(two_lineages, tmp_path / "home")
    return stores_at(tmp_path / "home", POLICY)


@pytest.mark.full
@pytest.mark.row("X-4")
def test_a_strike_withdraws_derived_entries_from_the_golem_and_its_heir(
    stores: DerivationContext, tmp_path: Path
) -> None:
    golem, heir = line(stores)
    tick, entry = inherited_evidence(stores, golem, heir)
    before = fingerprints(stores)
    done = strike(stores, golem, tick, "its sensor lied", now=NOW)
    (event,) = done.heirs
    assert event.golem_id == heir
    assert event.withdrawn is not None
    assert (event.withdrawn.because, event.withdrawn.from_golem_id, event.withdrawn.tick) == (
        *done.event_ids,
        golem,
        tick,
    )
    assert entry in event.withdrawn.entry_ids
    assert remains(stores), "rows must remain before the next derivation"
    derive_all_again(stores)
    assert remains(stores) == []
    assert fingerprints(stores) == rebuilt_fingerprints(stores, tmp_path / "beside")
    changed = {name for name, result in fingerprints(stores).items() if result != before[name]}
    assert {"curation", "cycles", "grimoire", "testaments", "candidates"} <= changed
    received = stores.projections.growing("curation").read(golems=[heir])
    received = received.filter(pc.equal(received["cycle"], 0))["entry_id"].to_pylist()
    bundle = load_bundle(stores.home, births(stores)[heir]["bundle_hash"])
    inherited = {*bundle.entries()["entry_id"].to_pylist(), *(e.entry_id for e in evidence_of(bundle.learning))}
    assert inherited - set(received) == set(event.withdrawn.entry_ids)
    assert entry not in {r["entry_id"] for r in rows_of(stores, "grimoire") if r["golem_id"] == heir}


@pytest.mark.full
@pytest.mark.row("X-4")
def test_a_second_strike_withdraws_only_entries_not_yet_withdrawn(stores: DerivationContext) -> None:
    lines = sorted((b["predecessor_id"], g) for g, b in births(stores).items() if b["predecessor_id"])
    assert len(lines) > 1
    for golem, heir in lines:
        first, entry = inherited_evidence(stores, golem, heir)
        (event,) = strike(stores, golem, first, "its sensor lied", now=NOW).heirs
        assert event.golem_id == heir
        decided = stores.projections.growing("curation").read(golems=[golem]).to_pylist()
        later = max(t for d in decided if d["entry_id"] == entry for t in d["cause_ticks"])
        assert later > first
        done = strike(stores, golem, later, "and again", now=NOW)
        assert done.event_ids
        assert event.withdrawn is not None
        lost = {e for more in done.heirs if more.withdrawn for e in more.withdrawn.entry_ids}
        assert not lost & set(event.withdrawn.entry_ids), "an entry was withdrawn twice"
    derive_all_again(stores)
    assert remains(stores) == []


@pytest.mark.full
@pytest.mark.row("X-4")
def test_a_reorg_rewrites_the_playbook_that_depends_on_it(tmp_path: Path) -> None:
    stores = stores_at(tmp_path / "home")
    for number, parcel in enumerate([G.birth, G.part(1, 22)]):
        deliver(stores, parcel, number)
    derive_all(stores)
    page = stores.home.playbooks / "g-0" / "PLAYBOOK.md"
    before, versions = page.read_text(), stores.projections.read("playbooks").num_rows
    assert versions > 1
    deliver(stores, reorged("g-0", 1, 20), 2)
    derive_all(stores)
    standing = stores.projections.read("playbooks")
    assert standing.num_rows < versions
    assert page.read_text() == dict(pages_of(standing, stores.projections.read("lessons")))["g-0"] != before
    refresh_index(stores)
    assert remains(stores) == []


@pytest.mark.full
@pytest.mark.row("X-4")
def test_a_strike_removes_the_text_of_its_record_from_the_index(stores: DerivationContext) -> None:
    episodes = stores.projections.growing("episodes").read(["golem_id", "tick", "text", "text_hash"])
    times = Counter(episodes["text_hash"].to_pylist())
    only = next(e for e in episodes.sort_by("text_hash").to_pylist() if times[e["text_hash"]] == 1)
    assert similar_episodes(stores, only["text"], limit=1)["text"].to_pylist() == [only["text"]]
    strike(stores, only["golem_id"], only["tick"], "its sensor lied", now=NOW)
    assert only["text"] not in similar_episodes(stores, only["text"], limit=500)["text"].to_pylist(), (
        "the search must drop it before the repair"
    )
    derive_all_again(stores)
    kept, texts = episode_index(stores).held()
    assert only["text_hash"] not in texts["text_hash"].to_pylist()
    assert set(texts["text_hash"].to_pylist()) == set(kept["text_hash"].to_pylist())
    assert kept.num_rows == episodes.num_rows - 1


@pytest.mark.full
@pytest.mark.row("X-4")
def test_striking_a_record_twice_changes_nothing(stores: DerivationContext) -> None:
    golem, heir = line(stores)
    tick, _ = inherited_evidence(stores, golem, heir)
    strike(stores, golem, tick, "its sensor lied", now=NOW)
    derive_all_again(stores)
    version, before = stores.log.life_version, fingerprints(stores)
    versions = {name: stores.projections.growing(name).table.version for name in GROWING}
    again = strike(stores, golem, tick, "a repeated strike", now=NOW)
    assert (again.event_ids, again.heirs) == ((), ())
    derive_all_again(stores)
    assert stores.log.life_version == version
    assert fingerprints(stores) == before
    assert {name: stores.projections.growing(name).table.version for name in GROWING} == versions


@pytest.mark.full
@pytest.mark.row("X-4")
def test_a_strike_keeps_the_published_bundle_and_publishes_a_new_bundle(stores: DerivationContext) -> None:
    golem, heir = line(stores)
    old = published_bundles(stores)[golem]
    files = {p.name: p.read_bytes() for p in (stores.home.bundles / old).iterdir()}
    strike(stores, golem, inherited_evidence(stores, golem, heir)[0], "its sensor lied", now=NOW)
    derive_all_again(stores)
    assert (golem, old) in stale_bundles(stores)
    assert {p.name: p.read_bytes() for p in (stores.home.bundles / old).iterdir()} == files
    new = published_bundles(stores)[golem]
    assert new != old
    assert load_bundle(stores.home, new).manifest["left_out"]["ticks"]
    assert "left_out" not in load_bundle(stores.home, old).manifest
    different = {table.table for table in rebuild(stores, now=NOW) if not table.equal}
    assert different <= {"episodes"}, "only vectors may differ, because the rebuild uses another embedder"


@pytest.mark.full
@pytest.mark.row("X-4", "EV-8")
@some(2)
@given(st.data())
def test_no_projection_depends_on_records_struck_in_a_line(two_lineages: Path, data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        shutil.copytree(two_lineages, Path(folder) / "home")
        stores = stores_at(Path(folder) / "home", POLICY)
        ticks = {r["golem_id"]: r["highest"] for r in stores.log.heads().to_pylist()}
        for _ in range(data.draw(st.integers(1, 3))):
            golem = data.draw(st.sampled_from(sorted(ticks)))
            first = data.draw(st.integers(1, ticks[golem]))
            if data.draw(st.booleans()):
                strike(stores, golem, first, "a lie", now=NOW)
            else:
                last = data.draw(st.integers(first, min(ticks[golem], first + 60)))
                reorg(stores, golem, CHAIN, ticks=(first, last), now=NOW)
            if data.draw(st.booleans()):
                derive_all_again(stores)
        derive_all_again(stores)
        event(f"{stores.life('KnowledgeWithdrawn').num_rows} withdrawals from heirs")
        assert remains(stores) == []
        assert fingerprints(stores) == rebuilt_fingerprints(stores, Path(folder) / "beside")


@pytest.mark.full
@pytest.mark.row("X-4")
def test_a_strike_withdraws_entries_from_later_generations(tmp_path: Path) -> None:
    stores = stores_at(tmp_path / "home", POLICY)
    founding = Founding(owners=("owner-1",), credit_share=0.03, lifespan_ticks=(90, 120))
    fleet_run.FleetRun(stores, fleet_run.Run("run", lively_market(400), 1, 4, founding), lambda: NOW).live()
    derive_all_again(stores)
    by_generation = {b["generation"]: g for g, b in births(stores).items()}
    founder, heir = by_generation[0], by_generation[1]
    tick, entry = inherited_evidence(stores, founder, heir)
    done = strike(stores, founder, tick, "its sensor lied", now=NOW)
    losing = {event.golem_id for event in done.heirs}
    assert {by_generation[1], by_generation[2]} <= losing
    assert {e.withdrawn.because for e in done.heirs if e.withdrawn} == set(done.event_ids)
    assert withdraw(stores, now=NOW) == [], "nothing is withdrawn twice"
    derive_all_again(stores)
    assert remains(stores) == []
    assert fingerprints(stores) == rebuilt_fingerprints(stores, tmp_path / "beside")
    states = {h.golem_id: h.status for h in lineage_of(stores, entry, now=NOW)}
    assert {states[g] for g in losing if entry in lost_by(done, g)} == {"withdrawn"}


def lost_by(done: Recorded, golem_id: str) -> tuple[str, ...]:
    return next(e.withdrawn.entry_ids for e in done.heirs if e.golem_id == golem_id and e.withdrawn)


# law 3, during a fleet run


@pytest.mark.full
@pytest.mark.row("X-4", "EV-8")
def test_a_running_fleet_applies_a_strike_at_its_next_cycle(tmp_path: Path) -> None:
    stores = stores_at(tmp_path / "home", POLICY)
    job = stores_at(tmp_path / "home", POLICY)
    lines: list[str] = []

    def meanwhile(progress: fleet_run.Progress) -> None:
        if progress.ticks_done == 100:
            golem = sorted(births(job))[0]
            reorg(job, golem, CHAIN, ticks=(52, 55), now=NOW)
            strike(job, golem, 7, "a lie", now=NOW)
            lines.append(golem)

    life = fleet_run.FleetRun(stores, small_run("run"), lambda: NOW)
    life.live(meanwhile)
    rows = stores.log.read_cycles(["golem_id", "tick", "tier", "forced_by", "cycle_seen"], golems=lines).sort_by("tick")
    forced = [r for r in rows.to_pylist() if r["forced_by"] == "reorg"]
    assert [(r["tick"], r["tier"], r["cycle_seen"]) for r in forced] == [(101, "T2", 2)]
    derive_all_again(stores)
    assert remains(stores) == []
    assert fingerprints(stores) == rebuilt_fingerprints(stores, tmp_path / "beside")
    revised = stores.projections.growing("curation").read(golems=lines)
    assert set(revised.filter(pc.equal(revised["cycle"], 1))["revision"].to_pylist()) == {1}
    assert set(revised.filter(pc.greater(revised["cycle"], 2))["revision"].to_pylist()) == {5}
    version = stores.log.version
    fleet_run.FleetRun(stores_at(tmp_path / "home", POLICY), small_run("run"), lambda: NOW).live()
    assert stores.log.version == version, "a repeated run wrote something"


@pytest.mark.full
@pytest.mark.row("X-4")
def test_a_running_fleet_discards_curation_that_a_strike_made_stale(tmp_path: Path) -> None:
    stores, job = stores_at(tmp_path / "home", POLICY), stores_at(tmp_path / "home", POLICY)
    ticks = 0

    def in_the_middle_of_the_third_cycle() -> bool:
        nonlocal ticks
        ticks += 1
        if ticks == 125:
            for golem in sorted(births(job)):
                strike(job, golem, 7, "a lie", now=NOW)
            derive_curation(job)
        return False

    run = replace(small_run("run"), killed=in_the_middle_of_the_third_cycle)
    fleet_run.FleetRun(stores, run, lambda: NOW).live()
    derive_all_again(stores)
    assert remains(stores) == []
    assert fingerprints(stores) == rebuilt_fingerprints(stores, tmp_path / "beside")


@pytest.mark.row("EV-8")
def test_a_reorg_forces_the_next_tick_for_any_time_of_its_event(tmp_path: Path) -> None:
    stores = stores_at(tmp_path / "home", POLICY)

    def meanwhile(progress: fleet_run.Progress) -> None:
        if progress.ticks_done == 50:
            payload = Reorg(chain=CHAIN, block_from=1, block_to=2, tick_from=49, tick_to=50)
            stores.log.record([life_event(sorted(births(stores))[0], NOW, payload)], NOW)

    fleet_run.FleetRun(stores, small_run("run"), lambda: NOW).live(meanwhile)
    rows = stores.log.read_cycles(["golem_id", "tick", "forced_by"]).to_pylist()
    assert [(r["golem_id"], r["tick"]) for r in rows if r["forced_by"] == "reorg"] == [(sorted(births(stores))[0], 51)]


@pytest.mark.full
@pytest.mark.row("X-4")
def test_the_state_of_a_living_golem_equals_a_rebuild_after_a_strike(tmp_path: Path) -> None:
    stores = stores_at(tmp_path / "home", POLICY)
    seen: list[pa.Table] = []

    def meanwhile(progress: fleet_run.Progress) -> None:
        golem = sorted(births(stores))[0]
        if progress.ticks_done == 100:
            first = next(t for _, r in life.mind.pending for d in r.decisions.to_pylist() for t in d["cause_ticks"])
            strike(stores, golem, first, "a lie", now=NOW)
        if progress.ticks_done == 150:
            state = to_table(life.mind.state, POLICY.curator, POLICY.decay)
            seen.append(state.filter(pc.equal(state["golem_id"], golem)))
            again = to_table(
                state_from_birth(stores, {golem: 3}, stores.left_out()).state, POLICY.curator, POLICY.decay
            )
            seen.append(again)

    life = fleet_run.FleetRun(stores, small_run("run"), lambda: NOW)
    life.live(meanwhile)
    assert seen[0].num_rows
    assert seen[0].equals(seen[1])


# an interrupted repair


class PowerCut(Exception):
    """A simulated crash before a write."""


def power_cut_before(table_name: str, method: str, patch: pytest.MonkeyPatch) -> None:
    """Raise PowerCut when a method is about to write a table."""
    kind = ReplaceableTable if table_name in RENEWED else GrowingTable
    honest = getattr(kind, method)

    def cut(table: GrowingTable | ReplaceableTable, *args: object, **more: object) -> object:
        if table.name == table_name:
            raise PowerCut(table_name)
        return honest(table, *args, **more)

    patch.setattr(kind, method, cut)


@pytest.mark.full
@pytest.mark.row("X-4")
def test_a_repair_interrupted_at_any_table_is_completed_by_the_next_run(
    stores: DerivationContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strikes at ever later ticks than the previous repair: no row is repaired twice."""
    golem, heir = line(stores)
    taught_at = inherited_evidence(stores, golem, heir)[0]
    for number, name in enumerate(["facts", "consensus", "grimoire", *GROWING]):
        strike(stores, golem, taught_at + number, "its sensor lied", now=NOW)
        with monkeypatch.context() as patch:
            power_cut_before(name, "replace" if name in RENEWED else "repair", patch)
            with pytest.raises(PowerCut):
                derive_all_again(stores)
        stores = stores_at(stores.home.root, POLICY)
    derive_all_again(stores)
    assert remains(stores) == []
    assert fingerprints(stores) == rebuilt_fingerprints(stores, tmp_path / "beside")


HALF_DERIVED = [G.birth, G.part(1, 5), G.part(6, 22)]
REPAIRED = [struck("g-0", 10), struck("g-0", 5), G.death]


@pytest.fixture(scope="module")
def half_derived(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, tuple[int, str]]]:
    """Return a home with partly derived records (copy it before writing), and its fingerprints after a repair."""
    folder = tmp_path_factory.mktemp("half")
    stores = stores_at(folder / "home")
    for number, parcel in enumerate(HALF_DERIVED):
        if number == 2:
            derive_all(stores)
        deliver(stores, parcel, number)
    stores.log.close()
    return stores.home.root, derived_at_once([*HALF_DERIVED, *REPAIRED], folder / "orderly")


@pytest.mark.full
@pytest.mark.row("X-4")
@pytest.mark.parametrize(
    ("cut_before", "method"),
    [
        ("cycles", "append"),
        ("playbooks", "append"),
        ("grimoire", "upsert"),
        ("votes", "put"),
        ("consensus", "replace"),
    ],
)
def test_a_half_written_derivation_is_repaired_by_the_next_run(
    cut_before: str,
    method: str,
    half_derived: tuple[Path, dict[str, tuple[int, str]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home, wanted = half_derived
    shutil.copytree(home, tmp_path / "home")
    stores = stores_at(tmp_path / "home")
    with monkeypatch.context() as patch:
        power_cut_before(cut_before, method, patch)
        with pytest.raises(PowerCut):
            derive_all(stores)
    later = stores_at(tmp_path / "home")
    for parcel in REPAIRED:
        deliver(later, parcel, 3)
    derive_all(later)
    assert fingerprints(later) == wanted


# law 5


def read_by_a_repair(root: Path, golems: int, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return the rows of the files that a repair of one golem's last cycles reads, by table."""
    story = {STORM: STORIES[0] * 4, FOG: STORIES[5] * 4}
    fleet = [Life(f"g-{i}", story, (3, 1), timedelta(minutes=2), SPAN * 24) for i in range(golems)]
    stores = stores_at(root)
    stores.log.record([birth_of(item) for item in fleet], NOW)
    for number, item in enumerate(fleet):
        for stretch in range(4):
            rows = item.rows()[SPAN * 6 * stretch : SPAN * 6 * (stretch + 1)]
            stores.log.append(full(rows), writer="w", segment=4 * number + stretch, recorded_at=NOW)
    derive_all(stores)
    strike(stores, "g-0", SPAN * 20 + 1, "a lie", now=NOW)
    read: Counter[str] = Counter()
    plain = append_only_table.scan

    def counted(paths: Sequence[str], *args: Any) -> pa.Table:
        for path in paths:
            read["/".join(Path(path).parts[-3:-1])] += pq.read_metadata(path).num_rows
        return plain(paths, *args)

    with monkeypatch.context() as patch:
        patch.setattr(append_only_table, "scan", counted)
        derive_all(stores)
        once = Counter(read)
        derive_all(stores)
    assert read["log/cycles"] == once["log/cycles"], "a strike was repaired twice"
    return once


@pytest.mark.full
@pytest.mark.row("X-4")
def test_a_repair_reads_only_later_records_of_its_golem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = read_by_a_repair(tmp_path / "few", 2, monkeypatch)
    many = read_by_a_repair(tmp_path / "many", 4, monkeypatch)
    assert few["log/cycles"] == many["log/cycles"] == 2 * SPAN * 6 + 3 * SPAN * 24 + SPAN * 6, (
        "one file of the log for what is curated and for what is credited; for moments, readings and dreams, the "
        "golem's own life; for failures, its records since"
    )
