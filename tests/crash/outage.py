"""Run the steps of a home's life up to a simulated power cut, then check that the home still has every record.

Each step acknowledges its completion. A step starts from the state of the home, so after a kill the same step
continues where it stopped.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, cast
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from bardo_pipeline.derivation.legacy.bundle_store import is_whole, write_bundle
from bardo_pipeline.errors import JournalError, LeaseError
from bardo_pipeline.policy import CarePolicy, Policy, WriterPolicy
from bardo_pipeline.storage import locks
from bardo_pipeline.storage.conversations.conversations import Conversations
from bardo_pipeline.storage.delta.append_only_table import AppendOnlyTable
from bardo_pipeline.storage.delta.checksum_manifest import Sums
from bardo_pipeline.storage.delta.replaceable_table import ReplaceableTable
from bardo_pipeline.storage.delta.table_specs import TABLES
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.index.tick_index import TickIndex
from bardo_pipeline.storage.intake.quarantine import Quarantine
from bardo_pipeline.storage.intake.spool_folder import Spool
from bardo_pipeline.storage.journal import writer_session
from bardo_pipeline.storage.journal.async_event_writer import AsyncEventWriter
from bardo_pipeline.storage.journal.drainer import Drainer, drain_once
from bardo_pipeline.storage.journal.event_writer import EventWriter
from bardo_pipeline.storage.keys.golem_seal_keys import SealKeys
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.log.protocol import CYCLES_SCHEMA
from bardo_pipeline.storage.log.stream_heads import TickRange
from bardo_pipeline.storage.operations.backup import back_up, restore
from bardo_pipeline.storage.operations.maintenance import maintain
from bardo_pipeline.storage.verification.verify import verify
from bardo_pipeline.storage.warehouse import build
from tests.crash.power import MODES, Acknowledged, Disk, Killed, Listed, Mode, Synced, rebuild
from tests.crash.recovery import recover
from tests.crash.roles import digests_of, drop, furnish, line_of
from tests.support.knowledge.handmade_bundles import bundle_of
from tests.support.knowledge.handmade_grimoires import entry
from tests.support.records.drawn_records import records

POLICY = Policy(
    writer=WriterPolicy(batch_records=3, record_bytes_max=64 * 1024, drain_records_max=4, segment_bytes_max=16 * 1024),
    care=CarePolicy(lookback_ticks=3, grace_seconds=1e-6, log_commits_kept=2),
)
"""Small segments, and maintenance that deletes replaced files at once."""

NOW = datetime(2026, 11, 1, tzinfo=UTC)
VERSION_1 = Path(__file__).parents[1] / "golden" / "event_logs" / "v1"
SECRET = bytes(range(32))
LONG = b"x" * 100_000
BATCHED, LIVE, DROPPED = "w0-0000", "live-0000", "spooled"


class Record(NamedTuple):
    """A record is on record, with this digest."""

    golem_id: str
    tick: int
    digest: str


class Refused(NamedTuple):
    """A line was refused, and is in quarantine."""

    line: bytes


class Key(NamedTuple):
    """A golem has a seal key, or had one that was destroyed."""

    golem_id: str
    destroyed: bool


class SentMessage(NamedTuple):
    """A message is in a golem's conversation."""

    golem_id: str
    content: str


class Indexed(NamedTuple):
    """The index has this number of ticks."""

    ticks: int


class Copied(NamedTuple):
    """A backup in another folder holds all earlier acknowledgements."""

    folder: str


class Built(NamedTuple):
    """The warehouse in force has this content, or a newer one."""

    content: bytes


class Projected(NamedTuple):
    """A projection has this row, or a newer one."""

    number: int


class Kept(NamedTuple):
    """The home has this bundle, complete."""

    bundle_hash: str


class Evidence(NamedTuple):
    """The hashes of a table's files are written down."""

    table: str
    lines: bytes


@dataclass
class Life:
    """A home under test. disk: records acknowledgements. sent, gaps: records and lost ticks that the log may have."""

    root: Path
    disk: Disk
    writers: list[EventWriter] = field(default_factory=list)
    sent: dict[tuple[str, int], str] = field(default_factory=dict)
    gaps: tuple[TickRange, ...] = ()

    def live(self, steps: Sequence[Callable[[Life], None]]) -> None:
        """Run these steps. After a simulated kill, repeat the same step in place of a new process."""
        for step in steps:
            try:
                step(self)
            except Killed:
                self.die()
                step(self)
        self.die()

    def die(self) -> None:
        """Close open files and free locks without any clean-up, as the end of a process does."""
        for writer in self.writers:
            writer._lease.abandon()
        self.writers.clear()
        for key in [key for key in writer_session._open if key[0] == self.root]:
            journal = writer_session._open.pop(key).journal
            journal._committer.stop()
            journal._close_segment()
            locks.release(journal._lock)

    @contextmanager
    def log(self) -> Iterator[EventLog]:
        """Open the log."""
        log = EventLog(Home.open(self.root), POLICY)
        yield log

    def send(self, record: Record) -> Record:
        """Note that a record is about to be sent."""
        self.sent[record.golem_id, record.tick] = record.digest
        return record


def _create_home(life: Life) -> None:
    furnish(life.root, 1)


def _append_batches(life: Life) -> None:
    with life.log() as log:
        first = log.head_of(BATCHED).highest // 4
        for number in range(first, first + 2):
            rows = records(4, golems=1, tick=4 * number + 1, seed=number, prefix="w0")
            sent = [life.send(Record(BATCHED, 4 * number + 1 + i, d)) for i, d in enumerate(digests_of(rows))]
            log.append(rows, writer="batches", segment=number, recorded_at=NOW)
            for record in sent:
                life.disk.acknowledge(record)


def _append_live(name: str, count: int) -> Callable[[Life], None]:
    def step(life: Life) -> None:
        writer = EventWriter.open(life.root, LIVE, clock=lambda: NOW, policy=POLICY, writer=name, drain="none")
        life.writers.append(writer)
        _append_more(count)(life)

    return step


def _append_more(count: int) -> Callable[[Life], None]:
    def step(life: Life) -> None:
        first = life.writers[-1]._head.highest + 1
        for tick in range(first, first + count):
            line = line_of(LIVE, tick)
            record = life.send(Record(LIVE, tick, hashlib.sha256(line).hexdigest()[:32]))
            life.writers[-1].append(line)
            life.disk.acknowledge(record)

    return step


def _append_by_loop(name: str, count: int, *, at_once: int = 2) -> Callable[[Life], None]:
    async def append(life: Life) -> None:
        writer = await AsyncEventWriter.open(
            life.root, LIVE, clock=lambda: NOW, policy=POLICY, writer=name, drain="none"
        )
        life.writers.append(writer._writer)

        async def append_tick(tick: int) -> None:
            line = line_of(LIVE, tick)
            record = life.send(Record(LIVE, tick, hashlib.sha256(line).hexdigest()[:32]))
            await writer.append(line)
            life.disk.acknowledge(record)

        first = life.writers[-1]._head.highest + 1
        for tick in range(first, first + count, at_once):
            await asyncio.gather(*map(append_tick, range(tick, tick + at_once)))

    return lambda life: asyncio.run(append(life))


def _drain(life: Life) -> None:
    with life.log() as log:
        drain_once(Home.open(life.root), log, clock=lambda: NOW, policy=POLICY)


def _restart(life: Life) -> None:
    life.die()


def _close(life: Life) -> None:
    for writer in life.writers:
        writer.close()
    life.writers.clear()


def _spool(life: Life) -> None:
    with life.log() as log:
        spool, first = Spool(Home.open(life.root), log, POLICY), log.head_of(DROPPED).highest + 1
        lines = [line_of(DROPPED, tick) for tick in range(first, first + 3)]
        sent = [
            life.send(Record(DROPPED, first + i, hashlib.sha256(line).hexdigest()[:32])) for i, line in enumerate(lines)
        ]
        refused = [b'{"golem_id": "spooled"}', LONG]
        drop(Home.open(life.root), f"{first}.jsonl", b"".join(line + b"\n" for line in [*lines, *refused]))
        for what in [*sent, *map(Refused, refused)]:
            life.disk.acknowledge(what)
        for _ in spool.take(NOW):
            pass


def _seal(life: Life) -> None:
    with life.log() as log:
        keys = SealKeys(Home.open(life.root))
        for golem_id in ("sealed", "ended"):
            keys.make(log, golem_id, hashlib.sha256(golem_id.encode()).digest(), NOW)
        life.disk.acknowledge(Key("sealed", destroyed=False))
        keys.destroy(log, "ended", "asked", NOW)
        life.disk.acknowledge(Key("ended", destroyed=True))


def _send_messages(life: Life) -> None:
    with life.log() as log:
        for number in range(2):
            content = f"message {number}"
            Conversations(Home.open(life.root), log).append("talks", "owner", content, NOW)
            life.disk.acknowledge(SentMessage("talks", content))


def _care(life: Life) -> None:
    home = Home.open(life.root)
    with life.log() as log:
        maintain(home, log, POLICY, now=datetime.now(UTC), in_force=[])
    for path in (home.cycles, home.life):
        life.disk.acknowledge(Evidence(path.name, Sums(home, path).path.read_bytes()))


@dataclass(frozen=True)
class Workload:
    """A home's initial state and the steps after it, in order. whole: no file is damaged at the start."""

    name: str
    begin: Callable[[Life], None]
    steps: tuple[Callable[[Life], None], ...]
    whole: bool = True

    def record(self, folder: Path) -> Life:
        """Run all steps in a folder."""
        life = Life(folder / "home", Disk(folder))
        life.root.mkdir(parents=True)
        self.begin(life)
        life.disk.begin_durable()
        with life.disk.recording():
            life.live(self.steps)
        return life


def _killed(step: Callable[[Life], None], path: str) -> Callable[[Life], None]:
    """Return a step in which the process is killed before this path of the home is synced."""

    def dying(life: Life) -> None:
        life.disk.kill_before = life.root / path
        try:
            step(life)
        except Killed:
            life.die()
        else:
            raise AssertionError(f"{path} was never synced")

    return dying


def _tear(life: Life) -> None:
    """Truncate the last append of a dead writer."""
    (folder,) = Home.open(life.root).journal.iterdir()
    segment = max(folder.glob("*.seg"))
    content = segment.read_bytes()
    segment.write_bytes(content + content[24:200])
    life.disk.scan()


def _fail(life: Life) -> None:
    """Let the disk fail for one record, then write that tick with other content."""
    writer = EventWriter.open(life.root, LIVE, clock=lambda: NOW, policy=POLICY, writer="one", drain="none")
    tick = writer._head.highest + 1

    def refuse(_: int) -> None:
        life.disk.scan()
        raise OSError(errno.EIO, "no")

    with mock.patch("os.fdatasync", refuse), suppress(JournalError):
        writer.append(line_of(LIVE, tick + 1).replace(b'"tick":%d' % (tick + 1), b'"tick":%d' % tick))
    with suppress(JournalError):
        writer.close()
    _append_live("one", 3)(life)


def _back_up(life: Life) -> None:
    back_up(Home.open(life.root), life.root.parent / "backup", NOW)
    life.disk.acknowledge(Copied("backup"))


def _restore(life: Life) -> None:
    restore(life.root.parent / "backup", life.root.parent / "restored", NOW)
    life.disk.acknowledge(Copied("restored"))


def _build(life: Life) -> None:
    """Build two warehouses in turn; only the file replacement is under test."""
    for content in (b"marts", b"newer marts"):
        draft = life.root / "warehouse.draft"
        draft.write_bytes(content)
        build._swap(draft, life.root / "warehouse.duckdb")
        life.disk.acknowledge(Built(content))


def _links(root: Path) -> ReplaceableTable:
    return ReplaceableTable("links", root / "derivations" / "some" / "links", TABLES["links"], 4)


def _project(life: Life) -> None:
    """Replace the row of a projection twice."""
    table = _links(life.root)
    first = table.read()["strength_ppm"].to_pylist() or [0]
    for number in (first[0] + 1, first[0] + 2):
        row = dict.fromkeys(("golem_id", "entry_id", "other_id", "relation", "across"), "some")
        rows = pa.Table.from_pylist([{**row, "strength_ppm": number}], schema=TABLES["links"].schema)
        table.replace(rows, set(range(4)))
        life.disk.acknowledge(Projected(number))


def _keep_bundle(life: Life) -> None:
    bundle = bundle_of(entry(about="h", kind="heuristic", validations=3, confidence_ppm=900_000))
    write_bundle(Home.open(life.root).bundles, bundle)
    life.disk.acknowledge(Kept(bundle.bundle_hash))


def _from_nothing(_: Life) -> None:
    pass


def _from_version_1(life: Life) -> None:
    shutil.copytree(VERSION_1, life.root, dirs_exist_ok=True)
    with life.log() as log:
        rows = log.read_cycles(["golem_id", "tick", "content_hash"]).to_pylist()
        life.sent |= {(row["golem_id"], row["tick"]): row["content_hash"].hex() for row in rows}
        life.gaps = log.gaps()


def _make_and_drop(life: Life) -> None:
    """Drop a spool file, as a runtime in another language does, before the log is first opened."""
    home = Home.create(life.root, Policy(), NOW)
    lines = [line_of(DROPPED, tick) for tick in (1, 2, 3)]
    sent = [life.send(Record(DROPPED, i + 1, hashlib.sha256(line).hexdigest()[:32])) for i, line in enumerate(lines)]
    drop(home, "first.jsonl", b"".join(line + b"\n" for line in lines))
    for record in sent:
        life.disk.acknowledge(record)


def _with_many_ticks(life: Life) -> None:
    _create_home(life)
    with life.log() as log:
        rows = records(2_000, golems=1, prefix="many")
        life.sent |= {("many-0000", tick): digest for tick, digest in enumerate(digests_of(rows), 1)}
        log.append(rows, writer="many", segment=1, recorded_at=NOW)


def _index(life: Life) -> None:
    with life.log() as log:
        life.disk.acknowledge(Indexed(TickIndex.open(Home.open(life.root), log).tick_count))


def _with_a_damaged_file(life: Life) -> None:
    """Return a home with four batches, the first altered after its commit."""
    _create_home(life)
    _append_batches(life)
    _append_batches(life)
    with EventLog(Home.open(life.root), POLICY) as log:
        log.heads()  # the heads are kept at the end, so that appends need not read the damaged file
    first = min(Home.open(life.root).cycles.glob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    rows = pq.read_table(first)
    place = rows.schema.get_field_index("cycle_seen")
    pq.write_table(rows.set_column(place, rows.schema.field(place), pa.array([7] * len(rows))), first)


WORKLOADS = (
    Workload(
        "new home",
        _from_nothing,
        (
            _create_home,
            _append_batches,
            _append_live("one", 8),
            _drain,
            _restart,
            _append_live("two", 2),
            _close,
            _spool,
            _send_messages,
            _seal,
            _care,
            _append_batches,
            _append_live("three", 4),
            _spool,
            _care,
        ),
    ),
    Workload("old home", _from_version_1, (_append_batches, _append_live("one", 4), _drain)),
    Workload(
        "torn home",
        _from_nothing,
        (
            _create_home,
            _append_live("one", 4),
            _restart,
            _tear,
            _append_live("one", 1),
            _restart,
            _fail,
            _restart,
            _drain,
        ),
    ),
    Workload(
        "killed home",
        _from_nothing,
        (_create_home, _append_live("one", 3), _killed(_drain, "log/cycles/_delta_log"), _drain),
    ),
    Workload(
        "copied home",
        _from_nothing,
        (_create_home, _append_batches, _append_live("one", 2), _back_up, _restore, _build),
    ),
    Workload(
        "busy home",
        _from_nothing,
        (
            _create_home,
            _append_live("one", 8),
            _drain,
            _append_more(7),
            _drain,
            _append_more(2),
            _restart,
            _append_live("one", 1),
            _close,
        ),
    ),
    Workload(
        "looped home",
        _from_nothing,
        (
            _create_home,
            _append_by_loop("one", 8),
            _drain,
            _restart,
            _append_by_loop("two", 6, at_once=1),
            _restart,
            _drain,
        ),
    ),
    Workload("derived home", _from_nothing, (_create_home, _project, _keep_bundle, *[_project] * 10)),
    Workload("tended home", _from_nothing, (_create_home, _spool, _care)),
    Workload("full home", _with_many_ticks, (_index,)),
    Workload("empty home", _from_nothing, (_make_and_drop,)),
    Workload("damaged home", _with_a_damaged_file, (_append_batches, _care, _append_batches, _care), whole=False),
)
"""The workloads in which the power is cut."""


def lost(life: Life, cut: int, *, without: str | None = None, mode: Mode = "dropped", whole: bool = True) -> list[str]:
    """Return the faults after a power cut: records acknowledged and lost, doubled or unreadable, and broken tables."""
    result = life.disk.acknowledged(cut)
    if not result:
        return []
    with tempfile.TemporaryDirectory(prefix="bardo-power-") as folder:
        disk = Path(folder) / "disk"
        root = disk / "home"
        rebuild(disk, life.disk.durable(cut, without=without, mode=mode))
        try:
            if not whole:
                return list(_missing_records(root, result))
            return [
                *_faults_after(root, result, dict(life.sent), life.gaps),
                *_readable_secrets(life.disk, cut, without, result),
            ]
        except Exception as error:  # a damaged home may make a library raise any exception
            return [f"{type(error).__name__}: {error}"]


_SHORT = 160
"""A workload with fewer cut points than this is tested at each of them."""


class Failure(NamedTuple):
    """The place of a loss: the life, the point in it, and the fate of data that was not synced."""

    workload: str
    moment: int
    mode: Mode
    what: str


def failing(lives: Sequence[tuple[Workload, Life]], site: str, hint: Sequence[object] = ()) -> Failure | None:
    """Find a cut at which a record is lost if this source line never syncs; None without one.

    hint: the workload, cut and mode of the last such loss.
    """
    passing = [(workload, life) for workload, life in lives if site in life.disk.sites()]
    for workload, life in passing:
        if hint and hint[0] == workload.name:
            moment, mode = cast("tuple[int, Mode]", hint[1:])
            for cut in life.disk.cuts()[moment : moment + 1]:  # the workload may have become shorter than the hint
                result = _attempt(workload, life, site, cut, mode)
                if result is not None:
                    return result
    return next(filter(None, _interleaved([_attempts(workload, life, site) for workload, life in passing])), None)


def _interleaved(several: list[Iterator[Failure | None]]) -> Iterator[Failure | None]:
    """Interleave the attempts of all workloads, because one of them usually shows the loss soon."""
    while several:
        for attempts in list(several):
            try:
                yield next(attempts)
            except StopIteration:
                several.remove(attempts)


def _attempts(workload: Workload, life: Life, site: str) -> Iterator[Failure | None]:
    """Yield the losses of cuts at successive points, soon after a skipped sync and at the end.

    Cuts that leave the same disk as without the skip are left out.
    """
    tried = set()
    for cut, mode in _suspects(life, site):
        mark = _held(life.disk, cut, site, mode)
        if mark in tried or mark == _held(life.disk, cut, None, mode):
            continue
        tried.add(mark)
        yield _attempt(workload, life, site, cut, mode)


def _attempt(workload: Workload, life: Life, site: str, cut: int, mode: Mode) -> Failure | None:
    result = lost(life, cut, without=site, mode=mode, whole=workload.whole)
    if not result or lost(life, cut, mode=mode, whole=workload.whole):
        return None
    return Failure(workload.name, life.disk.cuts().index(cut), mode, result[0])


def _held(disk: Disk, cut: int, without: str | None, mode: Mode) -> int:
    """Return a hash of all content of the disk."""
    tree, blocks = disk.durable(cut, without=without, mode=mode), disk.blocks(cut, without=without)
    return hash((tuple(sorted(tree.items())), frozenset(blocks)))


def _suspects(life: Life, site: str) -> Iterator[tuple[int, Mode]]:
    events = life.disk.events
    passed = [at for at, event in enumerate(events) if isinstance(event, Synced | Listed) and site in event.sites]
    cuts = life.disk.cuts()
    selected_cuts = [cut for cut in cuts if isinstance(events[cut - 1], Acknowledged)]
    soon = [cut for at in passed for cut in [c for c in selected_cuts if c > at][:1]]
    next_ones = [cut for at in passed for cut in [c for c in cuts if c > at][:6]]
    short = cuts if len(cuts) < _SHORT else []
    for cuts_tried in ([*soon[:1], cuts[-1]], soon[1:3], next_ones[:12], short):
        for mode in MODES:
            yield from ((cut, mode) for cut in dict.fromkeys(cuts_tried))


def _missing_records(root: Path, rows: Sequence[object]) -> Iterator[str]:
    """Return acknowledged records that are missing from a home with a damaged file."""
    cycles = AppendOnlyTable(Home.open(root).cycles, CYCLES_SCHEMA, ["golem_id", "tick"], policy=POLICY)
    tables = (pq.read_table(file.path, columns=["golem_id", "tick"]) for file in cycles.tail()[1])
    there = {(row["golem_id"], row["tick"]) for table in tables for row in table.to_pylist()}
    yield from (f"{each} is gone" for each in rows if isinstance(each, Record) and each[:2] not in there)


def _faults_after(
    root: Path, rows: Sequence[object], sent: dict[tuple[str, int], str], gaps: tuple[TickRange, ...]
) -> Iterator[str]:
    yield from _unreadable_by_delta(root)
    yield from _damaged_before_repair(root)
    _append_by_intruder(root, sent)
    acknowledged = {(each.golem_id, each.tick): each.digest for each in rows if isinstance(each, Record)}
    yield from _continue_life(root, sent, max((tick for golem_id, tick in acknowledged if golem_id == LIVE), default=0))
    faults = recover(root, sent, acknowledged, gaps=gaps, curate=False)
    yield from faults.sentences()
    home = Home.open(root)
    quarantined = set(_raw(home))
    yield from (
        f"a refused line is gone: {each.line[:30]!r}"
        for each in rows
        if isinstance(each, Refused) and each.line not in quarantined
    )
    for each in rows:
        if isinstance(each, Evidence) and not (home.cycles.parent / "sums" / each.table).read_bytes().startswith(
            each.lines
        ):
            yield f"hashes of {each.table} are gone"
    yield from _copies(root, rows, sent, gaps)
    with EventLog(home) as log:
        yield from _indexed(home, log)
        for each in rows:
            if isinstance(each, Key) and not each.destroyed:
                SealKeys(home).in_force(log, each.golem_id)
            elif isinstance(each, Key) and SealKeys(home).key(each.golem_id) is not None:
                yield f"the destroyed key of {each.golem_id} is there"
            elif isinstance(each, Projected):
                if _links(root).read()["strength_ppm"][0].as_py() < each.number:
                    yield f"row {each.number} of a projection is gone"
            elif isinstance(each, Kept):
                if not is_whole(home.bundles / each.bundle_hash):
                    yield f"bundle {each.bundle_hash} is gone"
            elif isinstance(each, SentMessage):
                contents = [message.content for message in Conversations(home, log).view(each.golem_id)]
                if each.content not in contents:
                    yield f"a message is gone: {each.content}"


def _unreadable_by_delta(root: Path) -> Iterator[str]:
    """Open the tables of the log as other readers of Delta do, before Bardo opens the home and repairs what it can."""
    for path in sorted((root / "log").glob("*/_delta_log")):
        if any(path.glob("*.json")):
            try:
                DeltaTable(path.parent).file_uris()
            except Exception as error:  # the library raises errors of several kinds
                yield f"Delta's library does not open {path.parent.name}: {error}"


def _damaged_before_repair(root: Path) -> Iterator[str]:
    """Verify the home before the log opens. Stream heads and checksum manifests are not synced, so they may break."""
    damaged = verify(Home.open(root)).files
    yield from (f"damaged until the log opens: {name}" for name in damaged if not name.startswith(_UNSYNCED))


_UNSYNCED = ("index/heads.arrow", "log/sums/")


def _copies(
    root: Path, rows: Sequence[object], sent: dict[tuple[str, int], str], gaps: tuple[TickRange, ...]
) -> Iterator[str]:
    """Check that backups and restored homes hold all earlier records, and that the warehouse is one of those built."""
    for at, each in enumerate(rows):
        if isinstance(each, Copied):
            before = {(r.golem_id, r.tick): r.digest for r in rows[:at] if isinstance(r, Record)}
            target = root.parent / each.folder
            if each.folder == "backup":
                target = root.parent / "restored again"
                restore(root.parent / "backup", target, NOW)
            faults = recover(target, sent, before, gaps=gaps, curate=False)
            yield from (f"{each.folder}: {sentence}" for sentence in faults.sentences())
    built = [each.content for each in rows if isinstance(each, Built)]
    if built and (root / "warehouse.duckdb").read_bytes() not in (built[-1], b"newer marts"):
        yield "the warehouse has unknown content"


def _indexed(home: Home, log: EventLog) -> Iterator[str]:
    """Check that the tick index answers like a rebuilt one, for any state of its files."""
    index = TickIndex.open(home, log)
    answers = index.ticks(limit=10_000), index.phases()
    index.drop()
    index.refresh()
    if answers != (index.ticks(limit=10_000), index.phases()):
        yield "the tick index differs from the log"


def _append_by_intruder(root: Path, sent: dict[tuple[str, int], str]) -> None:
    """A second process appends a batch of the live golem, at ticks that its writer has not acknowledged."""
    home = Home.open(root)
    with EventLog(home, POLICY) as log:
        # as a process that drained another journal does
        Drainer(home, log, clock=lambda: NOW, policy=POLICY).clear_leases()
        tick = log.head_of(LIVE).highest + 1
        rows = records(1, golems=1, tick=tick, seed=99, prefix="live")
        with suppress(LeaseError):
            log.append(rows, writer="intruder", segment=1, recorded_at=NOW)
            sent[LIVE, tick] = digests_of(rows)[0]


def _continue_life(root: Path, sent: dict[tuple[str, int], str], value: int) -> Iterator[str]:
    """Continue the live golem from two processes, one with an earlier writer's name and one with a new name.

    value: the golem's highest acknowledged tick; continuing below it would record a lost tick again and hide the
    loss.
    """
    for name in ("three", "afterwards"):
        with EventWriter.open(root, LIVE, clock=lambda: NOW, policy=POLICY, writer=name, drain="none") as writer:
            tick = writer._head.highest + 1
            if tick <= value:
                yield f"golem {LIVE}: tick {tick} is gone"
            line = line_of(LIVE, tick)
            sent.setdefault((LIVE, tick), hashlib.sha256(line).hexdigest()[:32])
            writer.append(line)


def _raw(home: Home) -> Iterable[bytes]:
    quarantine = Quarantine(home, POLICY)
    for item_id in quarantine.open(["item_id"])["item_id"].to_pylist():
        yield quarantine.raw_of(quarantine.show(item_id))


def _readable_secrets(disk: Disk, cut: int, without: str | None, rows: Sequence[object]) -> Iterator[str]:
    """Return the secrets of destroyed keys that some block of the disk still holds, named or not."""
    for each in rows:
        if isinstance(each, Key) and each.destroyed:
            secret = hashlib.sha256(each.golem_id.encode()).digest()
            if any(secret in content for content in disk.blocks(cut, without=without)):
                yield f"the destroyed key of {each.golem_id} is still on the disk"
