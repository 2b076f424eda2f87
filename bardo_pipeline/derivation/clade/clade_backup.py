"""Backs up what the golems of an owner recorded, as encrypted messages on the vault's topic of a relay.

The first snapshot holds all that the log has about the golems, each later one what is new. The messages of a snapshot
are durable files in the home before the cursor states the snapshot, and stay until the relay has them. So a kill at any
moment leads to the same messages. A relay that lost messages gets a new chain of snapshots, and so does a home that
lost its cursor. Source: KAT-10; INH S6.5; ADR 0112.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.clade.clade_exchange import clade_folder
from bardo_pipeline.derivation.clade.vault_snapshots import (
    Place,
    Snapshot,
    bytes_table,
    divided,
    pack,
    table_bytes,
    unpack,
)
from bardo_pipeline.derivation.configuration import in_force_of
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.legacy.bundle_archives import pack_archive
from bardo_pipeline.derivation.legacy.bundle_store import load_bundle
from bardo_pipeline.errors import BackupError
from bardo_pipeline.events.custody.clade_secret import CladeSecret
from bardo_pipeline.events.life.events import ATTRIBUTE_OF, FREQUENT
from bardo_pipeline.events.life.ownership import visible_events
from bardo_pipeline.inheritance.bundle_inspection import is_hash
from bardo_pipeline.storage.home import Home, children, make_folder, replace_file
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.verification.verify import commits_paused

if TYPE_CHECKING:  # the client imports httpx, which a derivation does not need
    from bardo_pipeline.client.relay_client import RelayMessage

SNAPSHOT_ROWS = 20_000
"""Records from which a snapshot is full."""

RENEWAL = timedelta(days=1)
"""Time after which a backup asks the relay again to keep the messages, at most a quarter of the time that they stay."""

_NEVER = datetime.min.replace(tzinfo=UTC)
_BUNDLE_FIELDS = ("bundle_hash", "content_hash")


class Vault(Protocol):
    """The vault's topic of a clade at a relay (`client.relay_client.RelayClient`)."""

    def put(self, message_id: str, body: bytes, days: int | None = None) -> int:
        """Send a message to be kept for so many days; return its number. A repetition extends its time."""

    def keep(self, message_ids: Sequence[str], days: int) -> list[str]:
        """Keep messages for so many days from now; return the ids of those that the relay does not have."""

    def after(self, number: int) -> Sequence[RelayMessage]:
        """Return the next messages behind a number, in order."""

    def newest(self) -> int:
        """Return the number of the newest message, 0 without one."""


@dataclass(frozen=True)
class BackedUp:
    """The result of a backup.

    Parameters
    ----------
    golems : golems of the owner here that are backed up
    snapshots, records, events, messages : made and sent by this backup
    number : newest snapshot of the home, 0 without one
    """

    golems: tuple[str, ...]
    snapshots: int
    records: int
    events: int
    messages: int
    number: int


class _Covered(NamedTuple):
    """A golem's part in the snapshots: its records up to a version of the log, its highest tick and its death."""

    version: int
    tick: int
    is_dead: bool


@dataclass
class _Cursor:
    """The state of a home's backup. A home without the file begins a new chain.

    Parameters
    ----------
    home_id, key_id : the log and the secret for which the chain was begun
    number, previous : number and hash of the newest snapshot
    newest : highest number of a message that the relay stated
    kept_at : time at which the relay was last asked to keep all messages
    life_version : version of the life events up to which the snapshots hold the FREQUENT ones of `golems`
    message_ids, bundles, events : all that the snapshots hold; events by id
    """

    home_id: str
    key_id: str
    number: int = 0
    previous: str = ""
    newest: int = 0
    kept_at: datetime = _NEVER
    life_version: int = -1
    golems: dict[str, _Covered] = field(default_factory=dict)
    message_ids: list[str] = field(default_factory=list)
    bundles: set[str] = field(default_factory=set)
    events: pa.Array = field(default_factory=lambda: pa.array([], pa.string()))

    @classmethod
    def read(cls, folder: Path, home_id: str, key_id: str) -> Self:
        """Read the cursor; a missing, unreadable or foreign one gives that of a new chain."""
        try:
            files = unpack((folder / "cursor").read_bytes())
            facts = orjson.loads(files["facts"])
            golems = {golem_id: _Covered(*covered) for golem_id, covered in facts.pop("golems").items()}
            moment, bundles = datetime.fromisoformat(facts.pop("kept_at")), set(facts.pop("bundles"))
            events = bytes_table(files["events"])["event_id"].combine_chunks()
            cursor = cls(**facts, kept_at=moment, golems=golems, bundles=bundles, events=events)
        except (OSError, ValueError, KeyError, TypeError, zlib.error, pa.ArrowException):
            return cls(home_id, key_id)
        return cursor if (cursor.home_id, cursor.key_id) == (home_id, key_id) else cls(home_id, key_id)

    def write(self, folder: Path) -> None:
        """Replace the file of the cursor."""
        facts = {name: value for name, value in vars(self).items() if name != "events"}
        facts |= {"bundles": sorted(self.bundles), "golems": {g: [*covered] for g, covered in self.golems.items()}}
        events = table_bytes(pa.table({"event_id": self.events}))
        replace_file(folder / "cursor", pack({"facts": orjson.dumps(facts), "events": events}))


def vault_members(context: DerivationContext, owner_id: str) -> dict[str, int]:
    """Return an owner's golems with `styx.vault_enabled`, dead ones too -> days to keep their backup."""
    golems = context.ownership().golems_of(owner_id)
    in_force = in_force_of(context, sorted(golems)).items()
    styx = {golem_id: now.configuration.styx for golem_id, now in in_force}
    return {golem_id: own.vault.ttl_days for golem_id, own in styx.items() if own.vault_enabled}


def back_up(
    context: DerivationContext, owner_id: str, secret: CladeSecret, vault: Vault, *, now: datetime, is_due_only: bool
) -> BackedUp:
    """Make snapshots of the new records and events of an owner's golems, and send them.

    Raises NoServerError and ServerError of the relay, which then gets the rest by the next backup; BackupError while a
    restore is unfinished.

    Parameters
    ----------
    secret : of the clade, for the vault (`CladeSecret.vault`)
    is_due_only : make snapshots only if a golem was born, died, or lived `clade.backup_ticks` since the last one
    """
    context = context.whole
    with context.home.lock("clade"):
        require_restored(context.home, owner_id)
        if not (members := vault_members(context, owner_id)):
            return BackedUp((), 0, 0, 0, 0, 0)
        folder, days = clade_folder(context.home, owner_id) / "vault", max(members.values())
        make_folder(folder / "outbox")
        cursor = _Cursor.read(folder, context.log.table_id, secret.key_id)
        is_wanted, snapshots, messages = not is_due_only or _is_due(context, members, cursor), list[Snapshot](), 0
        if is_wanted or children(folder / "outbox") or now - cursor.kept_at >= _renewal(days):
            is_shorter = vault.newest() < cursor.newest
            messages += _send(vault, cursor, folder, days)
            if cursor.number and (is_shorter or _has_lost(vault, cursor, folder, days, now)):
                cursor, is_wanted = _Cursor(cursor.home_id, cursor.key_id), True
        for snapshot in _new_snapshots(context, owner_id, members, cursor, now) if is_wanted else ():
            _put_out(snapshot, cursor, secret, folder, now)
            snapshots.append(snapshot)
            messages += _send(vault, cursor, folder, days)
    records, events = (sum(getattr(s, name).num_rows for s in snapshots) for name in ("records", "events"))
    return BackedUp(tuple(sorted(members)), len(snapshots), records, events, messages, cursor.number)


def require_restored(home: Home, owner_id: str) -> None:
    """Raise BackupError while a restore of an owner's clade is unfinished."""
    if restore_mark(home, owner_id).exists():
        raise BackupError(
            f"the restore of the clade of {owner_id} was interrupted: `bardo clade restore {owner_id}` goes on with it"
        )


def restore_mark(home: Home, owner_id: str) -> Path:
    """Return the file that exists while a restore of an owner's clade is unfinished."""
    return clade_folder(home, owner_id) / "restoring"


def _is_due(context: DerivationContext, members: Collection[str], cursor: _Cursor) -> bool:
    """Whether a member was born, died, or lived `clade.backup_ticks` since the newest snapshot."""
    ticks = _highest_ticks(context.log)
    for golem_id in members:
        covered = cursor.golems.get(golem_id)
        if covered is None or ticks.get(golem_id, 0) - covered.tick >= context.policy.clade.backup_ticks:
            return True
        if not covered.is_dead and context.log.death_of(golem_id) is not None:
            return True
    return False


def _highest_ticks(log: EventLog) -> dict[str, int]:
    heads = log.heads()
    return dict(zip(heads["golem_id"].to_pylist(), heads["highest"].to_pylist(), strict=True))


def _renewal(days: int) -> timedelta:
    return min(RENEWAL, timedelta(days=days) / 4)


def _has_lost(vault: Vault, cursor: _Cursor, folder: Path, days: int, now: datetime) -> bool:
    """Ask the relay to keep the messages, unless it was asked lately; return whether it lacks one."""
    if now - cursor.kept_at < _renewal(days):
        return False
    if vault.keep(cursor.message_ids, days):
        return True
    cursor.kept_at = now
    cursor.write(folder)
    return False


# making snapshots


def _new_snapshots(
    context: DerivationContext, owner_id: str, members: Collection[str], cursor: _Cursor, now: datetime
) -> Iterator[Snapshot]:
    """Yield snapshots of what the log has and the cursor does not. The caller advances the cursor by each.

    Records and events are those of one moment, so each event follows the records that it needs.
    """
    log, golems = context.log, pa.array(sorted(members), pa.string())
    life_since = cursor.life_version if set(members) == cursor.golems.keys() else -1
    with commits_paused(context.home):
        version, life_version = log.version, log.life_version
        events = _events_of(context, owner_id, golems, life_since)
    dead = set(events.filter(pc.equal(events["kind"], "DeathDeclared"))["golem_id"].to_pylist())
    events = events.filter(pc.invert(pc.is_in(events["event_id"], value_set=cursor.events)))
    events = events.sort_by([("recorded_at", "ascending"), ("event_id", "ascending")])
    since = [cursor.golems[g].version if g in cursor.golems else -1 for g in golems.to_pylist()]
    first = min(since)
    keys = _records_of(log, golems, since, first, version, ["golem_id", "version"])
    for last in _bounds(keys, version):
        records = _records_of(log, golems, since, first, last, None)
        until = pc.max(records["recorded_at"]) if last < version else None
        taken = events if until is None else events.filter(pc.less_equal(events["recorded_at"], until))
        events = events.slice(taken.num_rows)
        place = Place(cursor.home_id, cursor.number + 1, cursor.previous, now)
        cursor.golems = _covered(golems.to_pylist(), last, records, cursor, dead if last == version else set())
        cursor.life_version = life_version if last == version else cursor.life_version
        if records.num_rows or taken.num_rows:
            yield Snapshot(place, records, taken, _bundles_of(context.home, taken, cursor.bundles))
        first = last


def _events_of(context: DerivationContext, owner_id: str, golems: pa.Array, since: int) -> pa.Table:
    """Return the life events of the owner and these golems, those of the home, and the imports of their bundles.

    since : version of the life events after which FREQUENT ones are read
    """
    frequent = [context.log.life(kind, since) for kind in FREQUENT]
    every = pa.concat_tables([context.usual_life(), *frequent])
    own = visible_events(every, owner_id, golems)
    imports = every.filter(pc.equal(every["kind"], "BundleImported"))
    imported = imports["imported"].combine_chunks()
    is_own = pc.or_(
        pc.fill_null(pc.equal(pc.struct_field(imported, "owner_id"), owner_id), False),
        pc.is_in(pc.struct_field(imported, "bundle_hash"), value_set=pa.array(sorted(_named(own)), pa.string())),
    )
    more = imports.filter(is_own)
    return pa.concat_tables([own, more.filter(pc.invert(pc.is_in(more["event_id"], value_set=own["event_id"])))])


def _records_of(
    log: EventLog, golems: pa.Array, since: Sequence[int], first: int, last: int, columns: list[str] | None
) -> pa.Table:
    """Return records of the versions after `first` up to `last`, without those up to each golem's own version.

    columns : names; None for all, in the order of their commits
    """
    rows = log.read_cycles(columns, None if first < 0 else first, golems.to_pylist(), until_version=last)
    version = pc.fill_null(rows["version"], 0).to_numpy()  # null in rows of the first schema version
    own = np.array(since)[pc.index_in(rows["golem_id"], value_set=golems).to_numpy()]
    rows = rows.filter(pa.array((version > own) & (version > first) & (version <= last)))
    return rows if columns else rows.sort_by([(name, "ascending") for name in ("version", "golem_id", "tick")])


def _bounds(keys: pa.Table, version: int) -> list[int]:
    """Return the last versions of snapshots of at least SNAPSHOT_ROWS records; the last one is that of the log.

    An interrupted backup divides the rest as before.
    """
    versions, counts = np.unique(pc.fill_null(keys["version"], 0).to_numpy(), return_counts=True)
    ends, filled = [], 0
    for last, count in zip(versions[:-1].tolist(), counts.tolist(), strict=False):
        filled += count
        if filled >= SNAPSHOT_ROWS:
            ends.append(last)
            filled = 0
    return [*ends, version]


def _named(events: pa.Table) -> set[str]:
    """Return the hashes of the bundles that life events name."""
    names: set[str] = set()
    for kind in events["kind"].unique().to_pylist():
        payload = events[ATTRIBUTE_OF[kind]].combine_chunks()
        for name in _BUNDLE_FIELDS:
            if payload.type.get_field_index(name) >= 0:
                names.update(pc.struct_field(payload, name).drop_null().to_pylist())
    return {name for name in names if is_hash(name)}


def _bundles_of(home: Home, events: pa.Table, known: Collection[str]) -> dict[str, bytes]:
    """Return the archives of the bundles in this home that life events name, without the known ones."""
    names = sorted(name for name in _named(events) - set(known) if (home.bundles / name).exists())
    return {name: pack_archive(load_bundle(home, name)) for name in names}


def _covered(
    golems: Sequence[str], version: int, records: pa.Table, cursor: _Cursor, dead: Collection[str]
) -> dict[str, _Covered]:
    """Return what the snapshots hold of each golem, with these records up to a version."""
    ticks = records.group_by("golem_id").aggregate([("tick", "max")])
    highest = dict(zip(ticks["golem_id"].to_pylist(), ticks["tick_max"].to_pylist(), strict=True))
    before = {g: cursor.golems[g].tick for g in golems if g in cursor.golems}
    return {g: _Covered(version, max(highest.get(g, 0), before.get(g, 0)), g in dead) for g in golems}


# sending them


def _put_out(snapshot: Snapshot, cursor: _Cursor, secret: CladeSecret, folder: Path, now: datetime) -> None:
    """Write the messages of a snapshot to the outbox, then the cursor that states it."""
    packed = snapshot.packed()
    for number, plaintext in enumerate(divided(snapshot.place, packed), 1):
        message_id = secret.message_id(hashlib.sha256(plaintext).hexdigest())
        replace_file(
            folder / "outbox" / f"{snapshot.place.number:08}-{number:06}-{message_id}", secret.encrypt(plaintext)
        )
        cursor.message_ids.append(message_id)
    cursor.number, cursor.previous = snapshot.place.number, hashlib.sha256(packed).hexdigest()
    cursor.bundles |= set(snapshot.bundles)
    cursor.events = pa.concat_arrays([cursor.events, *snapshot.events["event_id"].chunks])
    if cursor.number == 1:
        cursor.kept_at = now
    cursor.write(folder)


def _send(vault: Vault, cursor: _Cursor, folder: Path, days: int) -> int:
    """Send the messages of the outbox in order; return their number. Messages that no cursor states are removed."""
    sent, stated = 0, set(cursor.message_ids)
    for path in children(folder / "outbox"):
        message_id = path.name.rpartition("-")[2]
        if message_id in stated:
            cursor.newest = max(cursor.newest, vault.put(message_id, path.read_bytes(), days))
            sent += 1
        path.unlink()
    if sent:
        cursor.write(folder)
    return sent
