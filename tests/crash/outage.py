"""Outage: what a home does in its life, up to a moment at which the power goes; and whether it still knows all of it.

Each step is one that somebody is told of when it is done. It begins from what the home knows, so that after a kill the
same step again goes on where it was.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from bardo_pipeline.policy import CarePolicy, Policy, WriterPolicy
from bardo_pipeline.storage import desk
from bardo_pipeline.storage.conversations import Conversations
from bardo_pipeline.storage.drainer import drain_once
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.log import EventLog
from bardo_pipeline.storage.maintenance import maintain
from bardo_pipeline.storage.quarantine import Quarantine
from bardo_pipeline.storage.seal_keys import SealKeys
from bardo_pipeline.storage.spool import Spool
from bardo_pipeline.storage.sums import Sums
from bardo_pipeline.storage.tick_index import TickIndex
from bardo_pipeline.storage.writer import EventWriter
from tests.crash.power import Disk, Killed, Mode, rebuild
from tests.crash.recovery import recover
from tests.crash.roles import digests_of, drop, furnish, line_of
from tests.records import records

POLICY = Policy(
    writer=WriterPolicy(batch_records=3, record_bytes_max=64 * 1024, drain_records_max=4),
    care=CarePolicy(lookback_ticks=3, grace_seconds=1e-6, log_commits_kept=2),
)
"""Small segments, and a maintenance without patience: what it takes away is gone at once."""

NOW = datetime(2026, 11, 1, tzinfo=UTC)
SECRET = bytes(range(32))
LONG = b"x" * 100_000
BATCHED, LIVE, DROPPED = "w0-0000", "live", "spooled"


class Record(NamedTuple):
    """A record is on record, with this digest."""

    golem_id: str
    tick: int
    digest: str


class Refused(NamedTuple):
    """A line was refused, and is in quarantine."""

    line: bytes


class Key(NamedTuple):
    """A golem has a seal key; or had one, that nobody can read any more."""

    golem_id: str
    destroyed: bool


class Said(NamedTuple):
    """A message is in a golem's conversation."""

    golem_id: str
    content: str


class Evidence(NamedTuple):
    """The hashes of a table's files are written down."""

    table: str
    lines: bytes


@dataclass
class Life:
    """A home in the making. disk: hears of everything that somebody is told."""

    root: Path
    disk: Disk
    writers: list[EventWriter] = field(default_factory=list)
    sent: dict[tuple[str, int], str] = field(default_factory=dict)

    def live(self) -> None:
        """Go through every step; after a kill, through the same one again, in another process as it were."""
        for step in STEPS:
            try:
                step(self)
            except Killed:
                self.die()
                step(self)
        self.die()

    def die(self) -> None:
        """Leave everything as a process leaves it that ends in the middle: open files closed, locks free, no more."""
        for writer in self.writers:
            writer._lease.abandon()
        self.writers.clear()
        for key in [key for key in desk._open if key[0] == self.root]:
            journal = desk._open.pop(key).journal
            journal.keeper.stop()
            if journal._handle is not None:
                os.close(journal._handle)
            os.close(journal._lock)

    @contextmanager
    def log(self) -> Iterator[EventLog]:
        """The log, as a process opens it."""
        log = EventLog(Home.open(self.root), POLICY)
        yield log

    def send(self, record: Record) -> Record:
        """Note that a record is about to be sent."""
        self.sent[record.golem_id, record.tick] = record.digest
        return record


def _found(life: Life) -> None:
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
        first = writer._head.highest + 1
        for tick in range(first, first + count):
            line = line_of(LIVE, tick)
            record = life.send(Record(LIVE, tick, hashlib.sha256(line).hexdigest()[:32]))
            writer.append(line)
            life.disk.acknowledge(record)

    return step


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


def _talk(life: Life) -> None:
    with life.log() as log:
        for number in range(2):
            content = f"message {number}"
            Conversations(Home.open(life.root), log).append("talks", "owner", content, NOW)
            life.disk.acknowledge(Said("talks", content))


def _care(life: Life) -> None:
    home = Home.open(life.root)
    with life.log() as log:
        maintain(home, log, POLICY, now=datetime.now(UTC), in_force=[])
    for path in (home.cycles, home.life):
        life.disk.acknowledge(Evidence(path.name, Sums(home, path).path.read_bytes()))


STEPS: tuple[Callable[[Life], None], ...] = (
    _found,
    _append_batches,
    _append_live("one", 8),
    _drain,
    _restart,
    _append_live("two", 2),
    _close,
    _spool,
    _talk,
    _seal,
    _care,
    _append_batches,
    _append_live("three", 4),
    _spool,
    _care,
)
"""What happens, in order."""


def lost(
    disk: Disk, sent: dict[tuple[str, int], str], cut: int, *, without: str | None = None, mode: Mode = "dropped"
) -> list[str]:
    """What is wrong after the power went at a moment: acknowledged and gone, doubled, unreadable, broken."""
    told = disk.acknowledged(cut)
    if not told:
        return []
    with tempfile.TemporaryDirectory(prefix="bardo-power-") as folder:
        root = Path(folder) / "home"
        rebuild(root, disk.durable(cut, without=without, mode=mode))
        try:
            return [*_gone(root, told, sent), *_readable_secrets(disk, cut, without, told)]
        except Exception as error:  # whatever it is that a home that lost something makes a library raise
            return [f"{type(error).__name__}: {error}"]


def _gone(root: Path, told: Sequence[object], sent: dict[tuple[str, int], str]) -> Iterator[str]:
    records_told = {(each.golem_id, each.tick): each.digest for each in told if isinstance(each, Record)}
    _go_on(root, sent)
    found = recover(root, sent, records_told, curate=False)
    yield from found.sentences()
    home = Home.open(root)
    quarantined = set(_raw(home))
    yield from (
        f"a refused line is gone: {each.line[:30]!r}"
        for each in told
        if isinstance(each, Refused) and each.line not in quarantined
    )
    for each in told:
        if isinstance(each, Evidence) and not (home.cycles.parent / "sums" / each.table).read_bytes().startswith(
            each.lines
        ):
            yield f"hashes of {each.table} are gone"
    with EventLog(home) as log:
        yield from _indexed(home, log)
        for each in told:
            if isinstance(each, Key) and not each.destroyed:
                SealKeys(home).in_force(log, each.golem_id)
            elif isinstance(each, Key) and SealKeys(home).key(each.golem_id) is not None:
                yield f"the destroyed key of {each.golem_id} is there"
            elif isinstance(each, Said):
                contents = [message.content for message in Conversations(home, log).view(each.golem_id)]
                if each.content not in contents:
                    yield f"what was said is gone: {each.content}"


def _indexed(home: Home, log: EventLog) -> Iterator[str]:
    """The tick index answers as the log does, whatever became of its files."""
    index = TickIndex.open(home, log)
    there = log.read_cycles(["golem_id", "tick"]).group_by("golem_id").aggregate([("tick", "max"), ("tick", "count")])
    for row in there.to_pylist():
        found = index.ticks(golems=[row["golem_id"]], limit=row["tick_count"] + 1)["tick"].to_pylist()
        if len(found) != row["tick_count"] or max(found) != row["tick_max"]:
            yield f"the index knows {len(found)} ticks of {row['golem_id']}, and there are {row['tick_count']}"


def _go_on(root: Path, sent: dict[tuple[str, int], str]) -> None:
    """Processes, one of a name that there was and one of a new name, go on with the live golem, as if nothing was."""
    for name in ("three", "afterwards"):
        with EventWriter.open(root, LIVE, clock=lambda: NOW, policy=POLICY, writer=name, drain="none") as writer:
            tick = writer._head.highest + 1
            line = line_of(LIVE, tick)
            sent.setdefault((LIVE, tick), hashlib.sha256(line).hexdigest()[:32])
            writer.append(line)


def _raw(home: Home) -> Iterable[bytes]:
    quarantine = Quarantine(home, POLICY)
    for item_id in quarantine.open(["item_id"])["item_id"].to_pylist():
        yield quarantine.raw_of(quarantine.show(item_id))


def _readable_secrets(disk: Disk, cut: int, without: str | None, told: Sequence[object]) -> Iterator[str]:
    """Secrets of destroyed keys that some block of the disk still holds, whether a name leads there or not."""
    for each in told:
        if isinstance(each, Key) and each.destroyed:
            secret = hashlib.sha256(each.golem_id.encode()).digest()
            if any(secret in content for content in disk.blocks(cut, without=without)):
                yield f"the destroyed key of {each.golem_id} is still on the disk"
