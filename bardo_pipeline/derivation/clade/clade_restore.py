"""Restores the golems of an owner from the backup of their clade: the relay's messages and the secret are enough.

All messages are read and checked before the first event is recorded. Then records and events are recorded in the order
and with the recording times of the home that wrote them, by the same admission as any others. So links and signatures
are those of the lost home, and a repetition doubles nothing. A mark in the home states an unfinished restore.
Source: KAT-10; INH S6.5; ADR 0112.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.clade.clade_backup import Vault, restore_mark
from bardo_pipeline.derivation.clade.vault_snapshots import Part, Place, Snapshot, assembled, part_of
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.legacy.bundle_archives import unpack_archive
from bardo_pipeline.derivation.legacy.bundle_store import write_bundle
from bardo_pipeline.errors import BackupError, BardoError, InputError, SealError, StreamError
from bardo_pipeline.events.custody.clade_secret import CladeSecret
from bardo_pipeline.events.custody.hash_chain import Payloads, Signature
from bardo_pipeline.events.life.events import EVERY_GOLEM, LifeEvent
from bardo_pipeline.events.life.ownership import OF_OWNERS, visible_events
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA, to_models
from bardo_pipeline.events.record.validate import examine
from bardo_pipeline.inheritance.bundle_files import read_bundle
from bardo_pipeline.storage.home import make_folder, remove_tree, replace_file
from bardo_pipeline.storage.log.batch import Stamp
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.log.protocol import DECIDING, LIFE_LOG_SCHEMA


@dataclass(frozen=True)
class Restored:
    """The result of a restore.

    Parameters
    ----------
    home_id : the home whose backup was restored
    made_at : time of its newest restored snapshot
    golems : golems that the snapshots hold
    snapshots : restored, of the number that the relay should have
    records, events, bundles : that were new here
    missing : what the relay lacks; empty for a complete backup
    refused : (message id, reason) of each message that is no part of a backup by this secret
    """

    home_id: str
    made_at: datetime
    golems: tuple[str, ...]
    snapshots: int
    records: int
    events: int
    bundles: int
    missing: str
    refused: tuple[tuple[str, str], ...]


@dataclass
class _Stored:
    """A snapshot as its messages: the parts that were read, as files."""

    first: Part
    files: dict[int, Path] = field(default_factory=dict)

    @property
    def place(self) -> Place:
        return self.first.place

    @property
    def missing(self) -> list[int]:
        """Numbers of the parts that were not read."""
        return [number for number in range(1, self.first.total + 1) if number not in self.files]

    def snapshot(self) -> Snapshot:
        """Return the snapshot. Raises BackupError."""
        return assembled([part_of(path.read_bytes()) for path in self.files.values()])


def restore_clade(
    context: DerivationContext, owner_id: str, secret: CladeSecret, vault: Vault, *, home_id: str | None = None,
    is_partial: bool = False,
) -> Restored:  # fmt: skip
    """Record what a backup holds and this home lacks.

    Raises BackupError for an incomplete, altered or foreign backup, before anything is recorded; NoServerError and
    ServerError of the relay; ForkError for another record of a tick in this home.

    Parameters
    ----------
    secret : of the clade, for the vault (`CladeSecret.vault`)
    home_id : begin of the id of the home to restore; None if the relay has the backup of one home
    is_partial : restore the snapshots before the first missing message
    """
    context, home = context.whole, context.home
    with home.lock("clade"):
        for leftover in home.root.glob(".restore-*"):
            remove_tree(leftover)
        with tempfile.TemporaryDirectory(dir=home.root, prefix=".restore-") as folder:
            stored, refused = _read(vault, secret, Path(folder))
            chain, missing = _chain(_chosen(stored, home_id, owner_id, refused), is_partial)
            golems = _check(context, owner_id, chain)
            mark = restore_mark(home, owner_id)
            make_folder(mark.parent)
            replace_file(mark, owner_id.encode())
            replay = _Replay(context, owner_id, golems)
            for snapshot, following in _snapshots(chain):
                replay.add(snapshot, following)
            replay.finish()
            mark.unlink()
    last = chain[-1].place
    return Restored(
        last.home_id, last.made_at, tuple(sorted(golems)), len(chain), replay.records, replay.events, replay.bundles,
        missing, tuple(refused),
    )  # fmt: skip


def _read(vault: Vault, secret: CladeSecret, folder: Path) -> tuple[dict[str, _Stored], list[tuple[str, str]]]:
    """Read all messages; return the snapshots by hash, and (message id, reason) of each that is no part of one."""
    stored, refused, number = dict[str, _Stored](), list[tuple[str, str]](), 0
    while messages := vault.after(number):
        for message in messages:
            try:
                plaintext = secret.decrypt(message.body)
                part = part_of(plaintext)
            except (SealError, BackupError) as error:
                refused.append((message.message_id, str(error)))
                continue
            path = folder / str(message.number)
            path.write_bytes(plaintext)
            known = stored.setdefault(part.hash, _Stored(part._replace(content=b"")))
            known.files[part.number] = path
        number = messages[-1].number
    return stored, refused


def _chosen(
    stored: dict[str, _Stored], home_id: str | None, owner_id: str, refused: Sequence[tuple[str, str]]
) -> dict[str, _Stored]:
    """Return the snapshots of the one home that is named, or that has any. Raises BackupError."""
    newest: dict[str, datetime] = {}
    for one in stored.values():
        newest[one.place.home_id] = max(one.place.made_at, newest.get(one.place.home_id, one.place.made_at))
    named = [name for name in newest if name.startswith(home_id or "")]
    if not newest:
        more = f"; {len(refused)} messages are not readable: {refused[0][1]}" if refused else ""
        raise BackupError(f"the relay has no backup of the clade of {owner_id}{more}: name the relay of its homes")
    if len(named) != 1:
        homes = ", ".join(f"{name[:8]} of {at:%Y-%m-%d %H:%M} UTC" for name, at in sorted(newest.items()))
        raise BackupError(f"the relay has backups of {len(newest)} homes ({homes}): name one by --from")
    return {key: one for key, one in stored.items() if one.place.home_id == named[0]}


def _chain(stored: dict[str, _Stored], is_partial: bool) -> tuple[list[_Stored], str]:
    """Return the complete snapshots from the first on, and what is missing up to the newest one.

    A home may have begun several chains; the one with the newest snapshot counts. Raises BackupError if something is
    missing, unless `is_partial` and there is a first snapshot.
    """
    followers: dict[str, list[tuple[str, _Stored]]] = {}
    for key, one in stored.items():
        if not one.missing:
            followers.setdefault(one.place.previous, []).append((key, one))
    chains = [_followed(first, followers) for first in followers.get("", [])]
    chain = max(chains, key=lambda c: (c[-1][1].place.made_at, len(c)), default=[])
    newest = max(stored.values(), key=lambda one: (one.place.made_at, one.place.number))
    if chain and chain[-1][1].first.hash == newest.first.hash:
        return [one for _, one in chain], ""
    previous, number = (chain[-1][0], len(chain) + 1) if chain else ("", 1)
    torn = next((one for one in stored.values() if one.place.previous == previous and one.missing), None)
    parts = "" if torn is None else f" (parts {', '.join(map(str, torn.missing))} of {torn.first.total})"
    fact = f"the relay lacks snapshot {number}{parts} of {newest.place.number} of home {newest.place.home_id[:8]}"
    if not chain or not is_partial:
        cure = f"--incomplete restores the {len(chain)} before it" if chain else "no snapshot before it is complete"
        raise BackupError(f"{fact}: back up again if the home exists; {cure}")
    return [one for _, one in chain], fact


def _followed(first: tuple[str, _Stored], followers: dict[str, list[tuple[str, _Stored]]]) -> list[tuple[str, _Stored]]:
    """Return the chain from its first snapshot on."""
    chain = [first]
    while nexts := followers.get(chain[-1][0]):
        chain.append(max(nexts, key=lambda one: one[1].place.made_at))
    return chain


def _check(context: DerivationContext, owner_id: str, chain: Sequence[_Stored]) -> frozenset[str]:
    """Return the golems of the snapshots. Raises BackupError for an altered snapshot, or what is another owner's."""
    births, named, foreign = dict[str, str](), set[str](), 0
    for one in chain:
        snapshot = one.snapshot()
        born = snapshot.events.filter(pc.equal(snapshot.events["kind"], "GolemBorn"))
        owners = pc.struct_field(born["born"].combine_chunks(), "owner_id").to_pylist()
        births |= dict(zip(born["golem_id"].to_pylist(), owners, strict=True))
        events = snapshot.events.filter(pc.not_equal(snapshot.events["kind"], "BundleImported"))
        golems = {*events["golem_id"].to_pylist(), *snapshot.records["golem_id"].unique().to_pylist()} - {EVERY_GOLEM}
        visible = visible_events(events, owner_id, pa.array(sorted(golems), pa.string()))
        foreign += events.num_rows - visible.num_rows
        named |= golems
    here = context.ownership().golems
    others = sorted(g for g in named if {births.get(g), here.get(g)} - {None} != {owner_id})
    if others or foreign:
        what = f"golem {others[0]}" if others else f"{foreign} events of owners"
        raise BackupError(f"the backup holds {what}, which does not belong to {owner_id}: name its owner")
    return frozenset(named)


def _snapshots(chain: Sequence[_Stored]) -> Iterator[tuple[Snapshot, pa.Table]]:
    """Yield each snapshot with the events of the next one."""
    snapshot = chain[0].snapshot()
    for one in chain[1:]:
        following = one.snapshot()
        yield snapshot, following.events
        snapshot = following
    yield snapshot, LIFE_LOG_SCHEMA.empty_table()


class _Replay:
    """Records snapshots in the order of their home.

    The order is known by recording times, which a process reads shortly before it commits. So an event may seem to
    precede a record that it needs; it waits until it is accepted. And an event about the state of a golem at a tick,
    such as an override, may seem to follow later records; it is recorded before them.
    """

    def __init__(self, context: DerivationContext, owner_id: str, golems: Collection[str]) -> None:
        self.records = self.events = self.bundles = 0
        self._context, self._log = context, context.log
        self._waiting: list[tuple[LifeEvent, datetime]] = []
        self._seen: list[tuple[datetime, LifeEvent]] = []
        self._error: BardoError | None = None
        self._is_alone = set(context.ownership().golems) <= set(golems)

    def add(self, snapshot: Snapshot, following: pa.Table) -> None:
        """Record a snapshot: its bundles, then its records and events in the order in which they were recorded.

        following : events of the next snapshot
        """
        for name, archive in snapshot.bundles.items():
            bundle = read_bundle(unpack_archive(archive))
            if bundle.bundle_hash != name:
                raise BackupError(f"bundle {name[:12]} of the backup has the hash {bundle.bundle_hash[:12]}")
            self.bundles += not (self._context.home.bundles / name).exists()
            write_bundle(self._context.home.bundles, bundle)
        writes = list(_writes(self._suitable(snapshot.events)))
        self._seen = [(at, event) for at, events in (*writes, *_writes(following)) for event in events
                      if _tick_seen(event) is not None]  # fmt: skip
        place = 0
        for at, rows in _commits(snapshot.records):
            while place < len(writes) and writes[place][0] <= at:
                self._record(*writes[place])
                place += 1
            self._record_seen(set(rows["golem_id"].unique().to_pylist()))
            self.records += _append(self._log, rows, f"vault-{snapshot.place.home_id}")
            self._retry()
        for write in writes[place:]:
            self._record(*write)
        self._retry()

    def finish(self) -> None:
        """Raise BackupError if an event was not accepted."""
        if self._waiting:
            event, _ = self._waiting[0]
            raise BackupError(
                f"{len(self._waiting)} events of the backup contradict this home, such as {event.kind} of golem "
                f"{event.golem_id} ({self._error}): restore into an empty home"
            )

    def _suitable(self, events: pa.Table) -> pa.Table:
        """Leave out events of the whole home, runs apart, if golems of another origin live here."""
        if self._is_alone:
            return events
        run = pc.struct_field(events["configured"].combine_chunks(), "run")
        is_of_home = pc.and_(
            pc.equal(events["golem_id"], EVERY_GOLEM),
            pc.and_(pc.invert(pc.is_in(events["kind"], value_set=pa.array(list(OF_OWNERS)))), run.is_null()),
        )
        return events.filter(pc.invert(is_of_home))

    def _record(self, at: datetime, events: Sequence[LifeEvent]) -> None:
        """Record events of one moment, together or else one by one; those that are refused wait."""
        self._record_seen({event.golem_id for event in events if event.kind in DECIDING})
        try:
            self.events += self._log.record(events, at)
        except (InputError, StreamError):
            self._waiting += [(event, at) for event in events]
            self._retry()

    def _record_seen(self, golems: Collection[str]) -> None:
        """Record the events about the present state of these golems, which is about to change."""
        for at, event in self._seen:
            if event.golem_id in golems and _tick_seen(event) == self._log.head_of(event.golem_id).contiguous:
                with suppress(InputError, StreamError):  # its turn comes again
                    self.events += self._log.record([event], at)

    def _retry(self) -> None:
        """Record the waiting events that are accepted now."""
        is_stuck = not self._waiting
        while not is_stuck:
            waiting, self._waiting = self._waiting, []
            for event, at in waiting:
                try:
                    self.events += self._log.record([event], at)
                except (InputError, StreamError) as error:
                    self._waiting.append((event, at))
                    self._error = error
            is_stuck = len(self._waiting) in (0, len(waiting))


def _tick_seen(event: LifeEvent) -> int | None:
    """Return the newest tick of its golem when an event was recorded, None for events that state none."""
    about = event.quarantined or event.payload
    return getattr(about, "tick_seen", None)


def _commits(records: pa.Table) -> Iterator[tuple[datetime, pa.Table]]:
    """Yield the commits of records by version, each with the latest recording time up to it."""
    version = pc.fill_null(records["version"], 0).to_numpy()
    order = np.argsort(version, kind="stable")
    rows, version = records.take(pa.array(order)), version[order]
    edges = [0, *(np.flatnonzero(np.diff(version)) + 1).tolist(), len(version)] if len(version) else []
    latest: datetime | None = None
    for start, stop in pairwise(edges):
        commit = rows.slice(start, stop - start)
        at = pc.max(commit["recorded_at"]).as_py()
        latest = at if latest is None else max(at, latest)
        yield latest, commit


def _writes(events: pa.Table) -> Iterator[tuple[datetime, list[LifeEvent]]]:
    """Yield the events of each recording time in order."""
    events = events.sort_by("recorded_at")
    moments = events["recorded_at"].to_pylist()
    models = to_models(events.drop_columns(["recorded_at"]), LifeEvent)
    start = 0
    for place in range(1, len(moments) + 1):
        if place == len(moments) or moments[place] != moments[start]:
            yield moments[start], list(models[start:place])
            start = place


def _append(log: EventLog, rows: pa.Table, writer: str) -> int:
    """Append the records of one commit with their signatures; return the number of new ones."""
    stamp = Stamp(writer, log.last_segment(writer) + 1, rows["recorded_at"][0].as_py(), checks_clock=False)
    link = rows["link"].combine_chunks()
    order = pc.sort_indices(pc.fill_null(pc.struct_field(link, "number"), 0))
    rows, link = rows.take(order), link.take(order)
    signatures = [
        None if key_id is None else Signature(key_id, value)
        for key_id, value in zip(*(pc.struct_field(link, n).to_pylist() for n in ("key_id", "signature")), strict=True)
    ]
    examined = examine(rows.select(RECORD_SCHEMA.names).combine_chunks())
    examined.check()
    payload = rows["payload"].combine_chunks()
    if payload.null_count == 0:
        done = log.admit(examined, stamp, payloads=Payloads.of(payload), signatures=signatures)
    else:
        by_golem = {g: s for g, s in zip(rows["golem_id"].to_pylist(), signatures, strict=True) if s is not None}
        done = log.admit(examined, stamp, signatures=by_golem)
    if done.refused:
        raise next(iter(done.refused.values()))
    return done.appended.written
