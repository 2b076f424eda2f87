"""The laws of the projections.

Any batches and arrival order give equal rows (3); a rebuild from the log gives equal rows (4); a
run's cost depends on the new rows (5); every row names its causes, and they exist (6).
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import chain, pairwise, zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from bardo_pipeline.curator.curate import Curation, curate
from bardo_pipeline.curator.playbook import Playbooks
from bardo_pipeline.curator.state import level_readings
from bardo_pipeline.curator.state.decision_log import DECISION_KEY, fold
from bardo_pipeline.curator.state.grimoire_state import GrimoireState, from_table, to_table
from bardo_pipeline.curator.state.level_readings import LevelReadings
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import commit_curation, derive_curation
from bardo_pipeline.derivation.curation.grimoire_views import GRIMOIRE_VIEWS, derive_grimoire_views
from bardo_pipeline.derivation.dreams.derive_dreams import derive_dreams
from bardo_pipeline.derivation.katabasis.derive_consensus import derive_consensus
from bardo_pipeline.derivation.katabasis.derive_votes import derive_votes
from bardo_pipeline.derivation.katabasis.scars import derive_failures, derive_scars
from bardo_pipeline.derivation.legacy.bundle_store import load_bundle, published_bundles
from bardo_pipeline.derivation.legacy.derive_legacies import derive_candidates, derive_testaments
from bardo_pipeline.derivation.library.derive_library import derive_library
from bardo_pipeline.derivation.memory.derive_episodes import derive_episodes
from bardo_pipeline.derivation.memory.retrieval_credits import derive_credits
from bardo_pipeline.derivation.versions.rebuild import rebuild
from bardo_pipeline.events.life.events import Died, Gap, LifeEvent, life_event
from bardo_pipeline.events.record.model import Vitality
from bardo_pipeline.heartbeat.fleet import Founding, born
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.embedder_interface import EmbedderIdentity, unit
from bardo_pipeline.runtime import fleet_run
from bardo_pipeline.storage.delta import append_only_table, replaceable_table
from bardo_pipeline.storage.delta.table_digest import Digest
from bardo_pipeline.storage.delta.table_specs import TABLES
from bardo_pipeline.storage.home import Home
from tests.conftest import NOW, copy_home
from tests.support.example_count import some, times
from tests.support.fleets.memory_fleets import lively_market
from tests.support.records.handmade_records import (
    FOG,
    KEEN,
    SPAN,
    START,
    STORIES,
    STORM,
    Life,
    cycles_of,
    full,
    kindred,
    lives,
    stream,
)

POLICY = Policy()
BRIEF = POLICY.model_copy(update={"curator": KEEN.curator.model_copy(update={"cycle_ticks": SPAN})})
"""The policy with cycles of a few ticks, in which golems still learn."""

KEYS = {"decisions": DECISION_KEY, "cycles": ("golem_id", "cycle"), "playbooks": ("golem_id", "version")}


def by_key(table: pa.Table, *key: str) -> pa.Table:
    return table.sort_by([(name, "ascending") for name in key])


# law 3, in memory: any cut of the stream


def taken(records: pa.Table, state: GrimoireState, books: Playbooks) -> Curation:
    return curate(state, books, records, cycles_of(records), policy=POLICY, policy_hash=POLICY.hash)


def cuts(draw: st.DrawFn, lived: Sequence[Life]) -> Iterator[dict[str, tuple[int, int]]]:
    """Draw runs that together cover every cycle: golem to the first and last tick of its part."""
    left = {life.golem_id: list(range(1, life.ticks + 1, SPAN)) for life in lived}
    ends = {life.golem_id: life.ticks for life in lived}
    while any(left.values()):
        part: dict[str, tuple[int, int]] = {}
        for golem_id in draw(st.permutations([g for g, starts in left.items() if starts])):
            count = draw(st.integers(0, len(left[golem_id])))
            if count:
                first, left[golem_id] = left[golem_id][0], left[golem_id][count:]
                part[golem_id] = (first, left[golem_id][0] - 1 if left[golem_id] else ends[golem_id])
        if not part:
            golem_id = next(g for g, starts in left.items() if starts)
            first, left[golem_id] = left[golem_id][0], []
            part[golem_id] = (first, ends[golem_id])
        yield part


def within(records: pa.Table, part: dict[str, tuple[int, int]]) -> pa.Table:
    golems, ticks = records["golem_id"].to_pylist(), records["tick"].to_pylist()
    keep = [g in part and part[g][0] <= t <= part[g][1] for g, t in zip(golems, ticks, strict=True)]
    return records.filter(pa.array(keep, pa.bool_()))


@pytest.mark.row("P-2")
@settings(max_examples=times(60), deadline=None, derandomize=True)
@given(st.one_of(lives(), kindred()), st.booleans(), st.data())
def test_curator_decisions_are_independent_of_batches(
    lived: tuple[Life, ...], reloaded: bool, data: st.DataObject
) -> None:
    records = stream(lived)
    whole_state = GrimoireState()
    whole = taken(records, whole_state, Playbooks())
    state, books, kept = GrimoireState(), Playbooks(), to_table(GrimoireState(), POLICY.curator, POLICY.decay)
    histograms = LevelReadings()
    made: list[Curation] = []
    for part in cuts(data.draw, lived):
        rows = within(records, part)
        rows = rows.take(pa.array(data.draw(st.permutations(range(rows.num_rows)))))
        here = pc.is_in(kept["golem_id"], value_set=pa.array(list(part), pa.string()))
        if reloaded:
            state = from_table(kept.filter(here))
            state.readings = level_readings.from_table(histograms.table(set(part)))
        made.append(taken(rows, state, books))
        histograms.absorb(state.readings)
        now = to_table(state, POLICY.curator, POLICY.decay)
        kept = pa.concat_tables([kept.filter(pc.invert(here)), now]) if reloaded else now
    event(f"{len(made)} runs")
    for name, key in KEYS.items():
        together = pa.concat_tables([getattr(item, name) for item in made])
        assert by_key(together, *key).equals(getattr(whole, name).combine_chunks()), name
    wanted = to_table(whole_state, POLICY.curator, POLICY.decay)
    assert by_key(kept, "golem_id", "entry_id").equals(wanted)


# law 3, on disk: any order of arrival


class Hashes:
    """An embedder with hashes as vectors: quick, and equal for equal texts."""

    identity = EmbedderIdentity("hashes", "1", 8, "0" * 16, "none")

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """A unit vector for each text."""
        return unit(self.raw(texts))

    def raw(self, texts: Sequence[str]) -> np.ndarray:
        """Return a vector for each text."""
        drawn = [np.frombuffer(hashlib.blake2b(t.encode(), digest_size=8).digest(), np.uint8) + 1.0 for t in texts]
        return np.array(drawn, dtype=np.float64).reshape(len(texts), 8)


def stores_at(root: Path, policy: Policy = BRIEF) -> DerivationContext:
    """Open the home in this folder, or create it."""
    Home.create(root, policy, NOW)
    return with_hashes(DerivationContext.open(root, policy=policy))


def with_hashes(stores: DerivationContext) -> DerivationContext:
    stores.share_embedder(Hashes())
    return stores


DERIVATIONS: tuple[Callable[[DerivationContext], object], ...] = (
    derive_curation,
    derive_credits,
    derive_dreams,
    *(partial(derive_grimoire_views, name=name) for name in GRIMOIRE_VIEWS),
    lambda stores: derive_episodes(stores, now=NOW),
    derive_failures,
    derive_scars,
    derive_votes,
    derive_consensus,
    derive_testaments,
    derive_candidates,
    derive_library,
)


def derive_all(stores: DerivationContext) -> None:
    for derive in DERIVATIONS:
        derive(stores)


def fingerprints(stores: DerivationContext) -> dict[str, tuple[int, str]]:
    return {name: (d.rows, d.fingerprint) for name in TABLES if (d := stores.projections.digest(name))}


def beside(stores: DerivationContext, folder: Path) -> DerivationContext:
    """Return a home with the same log and nothing derived."""
    other = DerivationContext.open(stores.home.root, policy=stores.policy, beside=folder)
    return with_hashes(other)


def birth_of(life: Life, policy: Policy = BRIEF) -> LifeEvent:
    founding = Founding(owners=("a",), lifespan_ticks=(6, 24))
    owner = "owner-1" if life.golem_id.endswith("0") else "owner-2"
    _, birth = born(
        lineage_id=life.golem_id, generation=0, owner_id=owner, founding=founding, market="by hand", market_hash="0",
        derivation_id="d", policy=policy,
    )  # fmt: skip
    return life_event(life.golem_id, START, birth)


def death_of(life: Life) -> LifeEvent:
    vitality = Vitality(economic=0.0, epistemic=0.7, stochastic=0.5, composite=0.0)
    payload = Died(
        cause="economic", tick=life.ticks, phase="terminal", vitality=vitality, credits_micros=0, capital_micros=1,
        earned_micros=0,
    )  # fmt: skip
    return life_event(life.golem_id, START + life.ticks * life.every, payload)


class Parcel(NamedTuple):
    """One arrival: some records, or an event."""

    records: pa.Table | None
    happened: LifeEvent | None

    def __repr__(self) -> str:
        """Return a short text, so that a failure is readable."""
        if self.happened is not None:
            return f"{self.happened.kind} {self.happened.golem_id}"
        assert self.records is not None
        ticks = self.records["tick"].to_pylist()
        return f"{self.records['golem_id'][0]}: {ticks[0]}-{ticks[-1]}"


def parcel_of(rows: list[dict[str, Any]]) -> Parcel:
    return Parcel(full(rows), None)


def event_parcel(event: LifeEvent) -> Parcel:
    return Parcel(None, event)


def lost(golem_id: str, first: int, last: int) -> Parcel:
    """Ticks that will never come."""
    return event_parcel(life_event(golem_id, START, Gap(tick_from=first, tick_to=last, why="the disk died")))


@st.composite
def parcels(draw: st.DrawFn) -> list[Parcel]:
    """Draw records and life events of some golems in a possible order of arrival; some records never arrive."""
    rows: list[Parcel] = []
    for item in draw(lives()):
        rows.append(event_parcel(birth_of(item)))
        if draw(st.booleans()):
            rows.append(event_parcel(death_of(item)))
        at = sorted(draw(st.sets(st.integers(1, max(1, item.ticks - 1)), max_size=3)) | {0, item.ticks})
        missing = draw(st.integers(0, 3 * len(at)))
        for number, (start, stop) in enumerate(pairwise(at)):
            never = number == missing
            rows.append(lost(item.golem_id, start + 1, stop) if never else parcel_of(item.rows()[start:stop]))
    return draw(st.permutations(rows))


def deliver(stores: DerivationContext, parcel: Parcel, segment: int) -> None:
    if parcel.records is not None:
        stores.log.append(parcel.records, writer="w", segment=segment, recorded_at=NOW)
    if parcel.happened is not None:
        stores.log.record([parcel.happened], NOW)


Recorder = Callable[[DerivationContext, Any], LifeEvent | None]


def put(stores: DerivationContext, what: Any, segment: int, recording: Recorder | None) -> list[LifeEvent]:
    """Deliver a parcel or call its recorder, and return the recorded rows."""
    if isinstance(what, Parcel) or recording is None:
        deliver(stores, what, segment)
        return []
    orders = recording(stores, what)
    return [] if orders is None else [orders]


def arrive(
    stores: DerivationContext, arriving: Sequence[Any], data: st.DataObject, recording: Recorder | None = None
) -> list[LifeEvent]:
    """Deliver the parcels one by one with random derivations in between, and derive everything at the end."""
    rows: list[LifeEvent] = []
    for number, what in enumerate(arriving):
        rows += put(stores, what, number, recording)
        for derive in DERIVATIONS:
            if data.draw(st.integers(0, 2)) == 0:
                derive(stores)
    derive_all(stores)
    return rows


def put_together(stores: DerivationContext, parcels: Sequence[Parcel], segment: int) -> None:
    """Deliver parcels of as many golems: one batch of records, one of events."""
    batches = [parcel.records for parcel in parcels if parcel.records is not None]
    if batches:
        stores.log.append(pa.concat_tables(batches), writer="w", segment=segment, recorded_at=NOW)
    stores.log.record([parcel.happened for parcel in parcels if parcel.happened is not None], NOW)


def arrive_side_by_side(
    often: DerivationContext,
    once: DerivationContext | None,
    stories: Iterable[Sequence[Any]],
    recording: Recorder | None = None,
) -> list[LifeEvent]:
    """Append all first arrivals, then all second ones, and so on. One home derives after each, the other at the end.

    Each story belongs to another golem: the first arrivals of all stories are appended together.
    """
    rows: list[LifeEvent] = []
    for number, several in enumerate(zip_longest(*stories)):
        parcels = [what for what in several if isinstance(what, Parcel)]
        drawn_items = [what for what in several if what is not None and not isinstance(what, Parcel)]
        for home in filter(None, (often, once)):
            put_together(home, parcels, number)
            for drawn_item in drawn_items:
                rows += put(home, drawn_item, number, recording)
        derive_all(often)
    if once is not None:
        derive_all(once)
    return rows


def derived_at_once(arriving: Sequence[Parcel], root: Path) -> dict[str, tuple[int, str]]:
    """Return the fingerprints of a home in which everything arrived in order and was derived once."""
    stores = stores_at(root)
    events = [p.happened for p in arriving if p.happened is not None]
    stores.log.record(sorted(events, key=lambda e: (e.golem_id, e.kind != "GolemBorn", e.observed_at)), NOW)
    batches = [p.records for p in arriving if p.records is not None]
    if batches:
        records = by_key(pa.concat_tables(batches), "golem_id", "tick")
        stores.log.append(records, writer="w", segment=1, recorded_at=NOW)
    derive_all(stores)
    return fingerprints(stores)


@pytest.mark.row("P-2", "X-1")
@some(3)
@given(parcels(), st.data())
def test_projections_are_independent_of_arrival_order(arriving: list[Parcel], data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        stores = stores_at(Path(folder) / "late")
        arrive(stores, arriving, data)
        wanted = derived_at_once(arriving, Path(folder) / "orderly")
        for name, (rows, _) in wanted.items():
            event(f"{name}: {'some' if rows else 'no'} rows")
        assert fingerprints(stores) == wanted


@dataclass(frozen=True)
class SplitLife:
    """A life that arrives in parts."""

    life: Life

    @property
    def golem_id(self) -> str:
        return self.life.golem_id

    @property
    def birth(self) -> Parcel:
        return event_parcel(birth_of(self.life))

    @property
    def death(self) -> Parcel:
        return event_parcel(death_of(self.life))

    def part(self, first: int, last: int) -> Parcel:
        return parcel_of(self.life.rows()[first - 1 : last])


def learner(golem_id: str) -> SplitLife:
    """A golem that learned something and died in its fourth cycle."""
    return SplitLife(Life(golem_id, {STORM: STORIES[0]}, (3, 2), timedelta(minutes=2), 14))


LATE: dict[str, Callable[[SplitLife], list[Parcel]]] = {
    "the birth comes late": lambda g: [g.part(1, 14), g.birth, g.death],
    "the birth comes after the death": lambda g: [g.death, g.part(1, 14), g.birth],
    "gaps are filled late": lambda g: [g.birth, g.part(9, 14), g.part(3, 6), g.part(1, 2), g.death, g.part(7, 8)],
    "a cycle is lost in the middle": lambda g: [
        g.birth, g.part(1, 3), g.part(9, 14), g.death, lost(g.golem_id, 4, 8)
    ],
    "the last cycle is lost, then the death is declared": lambda g: [
        g.birth, g.part(1, 12), lost(g.golem_id, 13, 14), g.death
    ],
    "the end is lost after the death was declared": lambda g: [
        g.birth, g.part(1, 11), g.death, lost(g.golem_id, 12, 14)
    ],
}  # fmt: skip


@pytest.mark.full
@pytest.mark.row("P-2")
def test_late_and_lost_arrivals_yield_the_same_projections(tmp_path: Path) -> None:
    """All stories in one home, one golem each."""
    stores = stores_at(tmp_path / "late")
    stories = [arrives(learner(f"g-{k}")) for k, arrives in enumerate(LATE.values())]
    arrive_side_by_side(stores, None, stories)
    left = fingerprints(stores)
    assert left == derived_at_once(list(chain(*stories)), tmp_path / "orderly")
    assert all(left[name][0] for name in ("cycles", "testaments", "candidates")), (
        "dead golems left no testament or candidate"
    )


# law 3, during concurrent writes


@pytest.mark.full
@pytest.mark.row("P-2")
@pytest.mark.parametrize("asked", ["cycles_in_parts", "heads", "life"])
def test_appends_during_a_derivation_are_derived_completely(
    asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores, other = stores_at(tmp_path / "busy"), stores_at(tmp_path / "busy")
    g = learner("g-0")
    deliver(stores, g.birth, 0)
    deliver(stores, g.part(1, 6), 1)
    arriving = iter([g.part(7, 14), g.death] if asked != "life" else [g.death])
    if asked == "life":
        deliver(stores, g.part(7, 14), 2)

    def meanwhile(*args: Any, **kwargs: Any) -> Any:
        before, parcel = (next(arriving, None), None) if asked == "life" else (None, next(arriving, None))
        written(before)
        result = plain(*args, **kwargs)
        result = iter(list(result)) if asked == "cycles_in_parts" else result
        written(parcel)
        return result

    def written(parcel: Parcel | None) -> None:
        if parcel is not None:
            deliver(other, parcel, 2)

    plain = getattr(stores.log, asked)
    monkeypatch.setattr(stores.log, asked, meanwhile)
    for _ in range(4):
        derive_all(stores)
    assert next(arriving, None) is None
    assert fingerprints(stores) == derived_at_once([g.birth, g.part(1, 14), g.death], tmp_path / "orderly")


def small_run(name: str) -> fleet_run.Run:
    founding = Founding(owners=("owner-1", "owner-2"), credit_share=0.03, lifespan_ticks=(120, 200))
    return fleet_run.Run(name, lively_market(330), 2, 2, founding)


@pytest.mark.full
@pytest.mark.row("P-2")
def test_a_job_that_derives_during_a_fleet_run_equals_the_fleet(tmp_path: Path) -> None:
    undisturbed = stores_at(tmp_path / "alone", POLICY)
    ending = fleet_run.FleetRun(undisturbed, small_run("run"), lambda: NOW).live()
    derive_all(undisturbed)
    busy, job = stores_at(tmp_path / "busy", POLICY), with_hashes(DerivationContext.open(tmp_path / "busy"))
    assert fleet_run.FleetRun(busy, small_run("run"), lambda: NOW).live(lambda _: derive_all(job)) == ending
    derive_all(job)
    assert ending.deaths >= 2
    assert ending.births >= 4
    assert fingerprints(busy) == fingerprints(job) == fingerprints(undisturbed)
    assert published_bundles(busy) == published_bundles(undisturbed)


@pytest.mark.full
@pytest.mark.row("P-2")
def test_a_curation_commit_holds_the_derivation_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stores = stores_at(tmp_path / "home", POLICY)
    held = []

    def watched(stores: DerivationContext, mind: Any, golems: Any) -> Any:
        with (stores.home.locks / f"derive-{stores.projections.root.name}.lock").open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held.append(False)
            except BlockingIOError:
                held.append(True)
        return commit_curation(stores, mind, golems)

    monkeypatch.setattr(fleet_run, "commit_curation", watched)
    fleet_run.FleetRun(stores, small_run("run"), lambda: NOW).live()
    assert len(held) >= 2
    assert all(held)


# law 4


@pytest.fixture(scope="module")
def lived(small_home: Path, tmp_path_factory: pytest.TempPathFactory) -> DerivationContext:
    """A home in which golems and their heirs lived and died, everything derived. Not to be changed."""
    stores = DerivationContext.open(copy_home(small_home, tmp_path_factory.mktemp("laws") / "home"))
    derive_all(stores)
    empty = {name for name, (rows, _) in fingerprints(stores).items() if not rows}
    few = {"hypotheses", "lessons", "links", "failures", "scars", "kits"}
    assert empty <= few, "only these tables may be empty after lives of a few hours"
    return stores


@pytest.mark.row("X-1", "P-2")
def test_a_rebuild_from_the_log_has_equal_fingerprints(
    lived: DerivationContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_only_table, "_PART_ROWS", 150)  # in portions, if derivation ran during the life
    again = DerivationContext.open(lived.home.root, beside=tmp_path / "beside")
    derive_all(again)
    assert fingerprints(again) == fingerprints(lived)
    made = {r["golem_id"]: r["bundle_hash"] for r in again.projections.read("candidates").to_pylist()}
    published = published_bundles(lived)
    assert len(published) > 3
    assert published == {golem_id: made[golem_id] for golem_id in published}


@pytest.mark.row("X-1")
def test_a_recorded_fingerprint_equals_that_of_the_rows_on_disk(lived: DerivationContext) -> None:
    for name, (rows, fingerprint) in fingerprints(lived).items():
        table = lived.projections.read(name)
        assert table.num_rows == rows
        assert Digest.of(table).fingerprint == fingerprint
        shuffled = table.take(pa.array(np.random.default_rng(1).permutation(rows)))
        assert Digest.of(shuffled).fingerprint == fingerprint
        assert not rows or Digest.of(table.slice(1)).fingerprint != fingerprint


@pytest.mark.full
@pytest.mark.row("X-1")
def test_dropped_projections_are_rebuilt(small_home: Path, lived: DerivationContext, tmp_path: Path) -> None:
    stores = DerivationContext.open(copy_home(small_home, tmp_path / "home"))
    shutil.rmtree(stores.projections.root)
    stores = DerivationContext.open(stores.home.root)
    derive_all(stores)
    assert fingerprints(stores) == fingerprints(lived)


@pytest.mark.full
@pytest.mark.row("X-1")
@pytest.mark.parametrize("share", [0.3, 0.8])
@pytest.mark.parametrize("by", ["version", "moment"])
def test_a_rebuild_as_of_an_earlier_version_or_time_is_equal(lived: DerivationContext, by: str, share: float) -> None:
    seen = pc.min_max(lived.log.read_cycles(["observed_at"])["observed_at"]).as_py()
    moment = seen["min"] + share * (seen["max"] - seen["min"])
    as_of: dict[str, Any] = {"version": round(share * lived.log.version)} if by == "version" else {"moment": moment}
    compared = {table.table: table for table in rebuild(lived, now=NOW, **as_of)}
    assert {"curation", "grimoire", "playbooks", "episodes"} <= set(compared)
    assert [table.table for table in compared.values() if not table.equal] == []
    assert 0 < compared["curation"].row_count < lived.projections.digest("curation").rows


# law 5


@contextmanager
def counting_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[tuple[str, str]]]:
    """Count the files and rows that are read in the block, by table."""
    read: Counter[tuple[str, str]] = Counter()
    plain = append_only_table.scan

    def counted(paths: Sequence[str], *args: Any, **options: Any) -> pa.Table:
        for path in paths:
            name = next(part for part in Path(path).parts[::-1][1:] if "=" not in part)
            read[name, "files"] += 1
            read[name, "rows"] += pq.read_metadata(path).num_rows
        return plain(paths, *args, **options)

    with monkeypatch.context() as patch:
        for module in (append_only_table, replaceable_table):
            patch.setattr(module, "scan", counted)
        yield read


QUIET = 3
"""Every few cycles are idle, and their episodes are tagged, so that a dream follows at once."""

FORGETFUL = BRIEF.model_copy(update={"dreams": BRIEF.dreams.model_copy(update={"lookback_ticks": QUIET * SPAN})})


def reads_after_one_more_batch(root: Path, cycles: int, monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, str]]:
    """Return the files and rows read for one more cycle of two dreaming golems, on a log of this many cycles."""
    assert cycles % QUIET == 0
    story = {STORM: STORIES[0] * (1 + cycles // 4), FOG: STORIES[5] * (1 + cycles // 4)}
    both = [Life(f"g-{i}", story, (0, 3, 1), timedelta(minutes=2), SPAN * (cycles + 1)) for i in range(2)]
    rows = [entry.rows() for entry in both]
    for own in rows:
        for tick in range(0, len(own), QUIET * SPAN):
            own[tick]["dream_tag"] = "what was that?"
    stores = stores_at(root, FORGETFUL)
    stores.log.record([birth_of(entry) for entry in both], NOW)
    for cycle in range(cycles):
        batch = [row for own in rows for row in own[SPAN * cycle : SPAN * (cycle + 1)]]
        stores.log.append(full(batch), writer="w", segment=cycle, recorded_at=NOW)
        if cycle % 6 == 5:
            derive_all(stores)
    fresh = [row for own in rows for row in own[SPAN * cycles :]]
    stores.log.append(full(fresh), writer="w", segment=cycles, recorded_at=NOW)
    dreams = stores.projections.digest("dreams").rows
    with counting_reads(monkeypatch) as read:
        derive_all(stores)
    assert stores.projections.digest("cycles").rows == 2 * (cycles + 1)
    assert stores.projections.digest("dreams").rows == dreams + 2
    return read


READERS = 5
"""Curation, credits, episodes, dreams and failures read records."""

LOOKED_BACK = QUIET + 1 + (FORGETFUL.prediction.check_ticks - 1) // SPAN
"""Cycles that a dream reads: those since the last dream, and the later verdicts on their decisions."""

RECOUNTED = {"votes", "vote_causes"}
"""Consensus counts all votes of the touched propositions, so it is the only run that reads rows again."""


@pytest.mark.full
@pytest.mark.row("P-2")
def test_a_derivation_reads_only_new_rows_for_any_log_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = reads_after_one_more_batch(tmp_path / "short", 12, monkeypatch)
    long = reads_after_one_more_batch(tmp_path / "long", 24, monkeypatch)
    for read in (short, long):
        assert read["cycles", "files"] == READERS + LOOKED_BACK
        assert read["cycles", "rows"] == (READERS + LOOKED_BACK) * 2 * SPAN
        assert read["life", "files"] == 0
    for table, measure in long:
        if table not in RECOUNTED:
            assert long[table, measure] <= short[table, measure] + 4, (table, measure)


# law 6


Ticks = set[tuple[str, int]]
Rows = list[dict[str, Any]]


def rows_of(stores: DerivationContext, name: str) -> Rows:
    rows: Rows = stores.projections.read(name).to_pylist()
    return rows


def recorded(stores: DerivationContext) -> Ticks:
    """Every golem and tick of the log."""
    known = stores.log.read_cycles(["golem_id", "tick"])
    return set(zip(known["golem_id"].to_pylist(), known["tick"].to_pylist(), strict=True))


@pytest.mark.row("X-1", "P-2")
def test_the_grimoire_is_the_fold_of_the_decisions(lived: DerivationContext) -> None:
    grimoire = lived.projections.read("grimoire")
    assert fold(lived.projections.read("curation")).equals(grimoire.combine_chunks())


@pytest.mark.row("X-1", "P-2")
def test_every_decision_names_existing_causes(lived: DerivationContext) -> None:
    ticks, left = recorded(lived), set(published_bundles(lived).values())
    founded: set[tuple[str, str]] = set()
    given: dict[tuple[str, str], str] = {}
    named = 0
    for row in rows_of(lived, "curation"):
        about = (row["golem_id"], row["entry_id"])
        assert {(row["golem_id"], tick) for tick in row["cause_ticks"]} <= ticks
        if row["cycle"] == 0:
            assert row["operation"] in ("received", "staged")
            assert row["cause_bundle"] in left
            if row["own_count"]:
                given[row["golem_id"], row["structure"]] = row["cause_bundle"]
        elif row["operation"] in ("promoted", "pruned"):
            assert about in founded, "a promotion or pruning without an earlier decision"
        else:
            assert row["cause_ticks"]
        if row["cycle"] > 0:
            pooled = given.get((row["golem_id"], row["structure"]))
            assert row["cause_bundle"] == pooled, "a sum with inherited evidence names another bundle or none"
            named += pooled is not None
        founded.add(about)
    assert named, "no heir pooled its own windows with inherited ones"
    known = {(r["golem_id"], r["entry_id"]) for r in rows_of(lived, "grimoire")}
    assert known <= founded


@pytest.mark.row("P-2")
def test_every_fact_and_playbook_line_refers_to_an_entry(lived: DerivationContext) -> None:
    decided: dict[tuple[str, str], int] = {}
    for row in rows_of(lived, "curation"):
        decided.setdefault((row["golem_id"], row["entry_id"]), row["cycle"])
    for book in rows_of(lived, "playbooks"):
        assert all(decided[book["golem_id"], entry] <= book["cycle"] for entry in book["cause_entries"])
    baselines = {
        (r["golem_id"], r["entry_id"])
        for r in rows_of(lived, "grimoire")
        if (r["source"], r["status"]) == ("baseline", "active")
    }
    assert {(r["golem_id"], r["entry_id"]) for r in rows_of(lived, "facts")} == baselines


@pytest.mark.row("P-2")
def test_every_episode_is_a_record_and_every_cycle_counts_its_records(lived: DerivationContext) -> None:
    ticks = recorded(lived)
    for row in rows_of(lived, "episodes"):
        assert row["episode_id"] == f"{row['golem_id']}:{row['tick']}"
        assert (row["golem_id"], row["tick"]) in ticks
    counted = {(r["golem_id"], r["cycle"]): r["record_count"] for r in rows_of(lived, "cycles")}
    span = lived.policy.curator.cycle_ticks
    assert counted == Counter((g, (t - 1) // span + 1) for g, t in ticks if (g, (t - 1) // span + 1) in counted)


@pytest.mark.row("P-2")
def test_every_vote_has_one_cause_with_an_existing_entry(lived: DerivationContext) -> None:
    votes, causes = rows_of(lived, "votes"), {r["vote_id"]: r for r in rows_of(lived, "vote_causes")}
    owner = {e["golem_id"]: e["born"]["owner_id"] for e in lived.life("GolemBorn").to_pylist()}
    decided = {(r["golem_id"], r["entry_id"]) for r in rows_of(lived, "curation")}
    closed = {(r["golem_id"], r["cycle"]): r["closed_at"] for r in rows_of(lived, "cycles")}
    assert {v["vote_id"] for v in votes} == set(causes)
    assert len(votes) == len(causes)
    for vote in votes:
        cause = causes[vote["vote_id"]]
        assert (cause["golem_id"], cause["entry_id"]) in decided
        assert cause["owner_id"] == owner[cause["golem_id"]]
        assert vote["at"] == closed[cause["golem_id"], cause["cycle"]]
    standing: dict[tuple[str, str], dict[str, Any]] = {}
    for vote in sorted(votes, key=lambda v: (v["at"], v["is_death_vote"], v["vote_id"])):
        standing[vote["question_id"], vote["voter_id"]] = vote  # a voter has one vote on the bands of a level
    counted = {r["proposition_id"] for r in rows_of(lived, "consensus")}
    assert counted == {vote["proposition_id"] for vote in standing.values()}


@pytest.mark.row("INH-16")
def test_library_rows_lead_to_entries_and_events_of_their_golems(lived: DerivationContext) -> None:
    owner = {e["golem_id"]: e["born"]["owner_id"] for e in lived.life("GolemBorn").to_pylist()}
    decided = {(r["golem_id"], r["entry_id"]) for r in rows_of(lived, "curation")}
    events = set(lived.log.life()["event_id"].to_pylist())
    library = rows_of(lived, "library")
    assert library, "the library is empty"
    for row in library:
        assert {owner[g] for g in (*row["golem_ids"], *row["validator_ids"])} == {row["owner_id"]}
        assert all(any((g, e) in decided for g in row["golem_ids"]) for e in row["entry_ids"])
        assert row["entry_id"] in row["entry_ids"]
        assert set(row["event_ids"]) <= events


@pytest.mark.row("P-2")
def test_every_bundle_holds_only_entries_of_its_dead_golem(lived: DerivationContext) -> None:
    known = {(r["golem_id"], r["entry_id"]) for r in rows_of(lived, "grimoire")}
    died = set(lived.life("DeathDeclared")["golem_id"].to_pylist())
    candidates = rows_of(lived, "candidates")
    assert {r["golem_id"] for r in candidates} == {r["golem_id"] for r in rows_of(lived, "testaments")} == died
    for row in candidates:
        assert {(row["golem_id"], entry) for entry in row["cause_entries"]} <= known
        bundle = load_bundle(lived.home, row["bundle_hash"])
        assert sorted(bundle.entries()["entry_id"].to_pylist()) == row["cause_entries"]
        assert (bundle.golem_id, bundle.bundle_hash) == (row["golem_id"], row["bundle_hash"])


@pytest.mark.row("X-1", "P-2")
def test_received_entries_lead_through_the_bundle_to_ticks_of_the_predecessor(lived: DerivationContext) -> None:
    ticks, published = recorded(lived), published_bundles(lived)
    births = {e["golem_id"]: e["born"] for e in lived.life("GolemBorn").to_pylist()}
    events = {e["golem_id"]: e["received"] for e in lived.life("KnowledgeReceived").to_pylist()}
    heirs = {g for g, b in births.items() if b["predecessor_id"]}
    assert len(heirs) >= 3
    assert set(events) == heirs
    decisions: dict[tuple[str, str], Rows] = {}
    for row in rows_of(lived, "curation"):
        decisions.setdefault((row["golem_id"], row["entry_id"]), []).append(row)
    received = Counter(golem for (golem, _), rows in decisions.items() if rows[0]["operation"] == "received")
    for (golem_id, entry_id), rows in decisions.items():
        if rows[0]["operation"] != "received":
            continue
        bundle_hash, before = rows[0]["cause_bundle"], births[golem_id]["predecessor_id"]
        assert bundle_hash == births[golem_id]["bundle_hash"] == events[golem_id]["content_hash"] == published[before]
        assert events[golem_id]["from_golem_id"] == before
        assert events[golem_id]["entry_count"] == received[golem_id]
        assert entry_id in load_bundle(lived.home, bundle_hash).entries()["entry_id"].to_pylist()
        behind = {(before, tick) for row in decisions[before, entry_id] for tick in row["cause_ticks"]}
        assert behind or decisions[before, entry_id][0]["operation"] == "received"
        assert behind <= ticks
