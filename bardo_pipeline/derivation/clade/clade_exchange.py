"""Exchanges parcels and notes between a home and the relay of an owner's clade: share, send, receive, deliver.

Everything is computed from the log, so a repetition after a crash loses and doubles nothing. A shared parcel is sent
until it comes back through the relay as an import. An imported parcel is delivered to each member that has not received
it, up to the limits of an hour; the rest waits, the oldest first. Parcels of warnings are exempt from the limits.
A note is told until it comes back, and each golem hears it by itself. Parcels of a throttled sibling wait, and its
notes are refused (source_trust.py).
The file of the cursor saves work only. Source: INH S5.3, S6; KAT-9; canon 45; ADR 0110.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import orjson

from bardo_pipeline.derivation.clade.clade_notes import clade_golems, due_notes, newest_tick_at, record_notes
from bardo_pipeline.derivation.clade.share_entries import HOUR, share_entries
from bardo_pipeline.derivation.clade.source_trust import throttled_sources
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.derivation.legacy.bundle_archives import pack_archive, store_import, unpack_archive
from bardo_pipeline.derivation.legacy.bundle_store import load_bundle
from bardo_pipeline.derivation.succession.deliver_bundle import give_parcels, last_ticks
from bardo_pipeline.errors import BundleError, SealError
from bardo_pipeline.events.custody.clade_secret import CladeSecret
from bardo_pipeline.events.life.events import LifeEvent
from bardo_pipeline.inheritance.bundle_inspection import inspected
from bardo_pipeline.inheritance.clade_note import Note, Told, read_note
from bardo_pipeline.inheritance.clade_parcel import check_parcel, is_urgent, kept_days
from bardo_pipeline.storage.home import Home, make_folder, replace_file

if TYPE_CHECKING:  # the client imports httpx, which a derivation does not need
    from bardo_pipeline.client.relay_client import RelayMessage

REFUSED_MAX = 1_000
"""Refused messages that are kept with their reason; of further ones only the number is stated."""


class Relay(Protocol):
    """The topic of a clade at a relay (`client.relay_client.RelayClient`)."""

    def put(self, message_id: str, body: bytes, days: int | None = None) -> int:
        """Send a message; a repetition changes nothing. days: that the relay keeps it; None for its own number."""

    def after(self, number: int) -> Sequence[RelayMessage]:
        """Return the next messages behind a number, in order."""

    def newest(self) -> int:
        """Return the number of the newest message, 0 without one."""


@dataclass(frozen=True)
class Exchange:
    """The result of one exchange.

    Parameters
    ----------
    members : golems of the owner here that take part
    shared_entries, sent_parcels, received_parcels, told_notes, received_notes : of this exchange
    delivered_entries : golem -> entries that it received
    waiting_parcels : deliveries that the limits of the hour, or the throttle, put off
    refused : (message id, reason) of each message that is no parcel of the clade, or the note of a throttled golem
    throttled : golems whose entries own outcomes refused, with the reason
    """

    members: tuple[str, ...]
    shared_entries: int
    sent_parcels: int
    received_parcels: int
    told_notes: int
    received_notes: int
    delivered_entries: dict[str, int]
    waiting_parcels: int
    refused: tuple[tuple[str, str], ...]
    throttled: dict[str, str]


class _Parcel(NamedTuple):
    """An imported parcel. at: time of the sender's newest tick."""

    at: datetime
    bundle_hash: str
    golem_id: str
    entry_count: int


def exchange(
    context: DerivationContext, owner_id: str, secret: CladeSecret, relay: Relay, *, now: datetime
) -> Exchange:
    """Share what is due, send and receive parcels, and deliver them to the members of this home.

    Raises NoServerError and ServerError of the relay; nothing is shared unless the relay answers.
    """
    context = context.whole
    with context.home.lock("clade"):
        newest, golems = relay.newest(), clade_golems(context, owner_id)
        members = [golem_id for golem_id, lives in golems.items() if lives]
        derive_curation(context)
        shared = [event for golem_id in members for event in share_entries(context, golem_id)]
        context.log.record(shared, now)
        sent = _send(context, owner_id, secret, relay)
        notes = due_notes(context, owner_id, golems)
        for note in notes:
            days = note.facts.kept_days if isinstance(note.facts, Told) else None
            relay.put(secret.message_id(note.content_hash), secret.encrypt(note.content), days)
        at = newest_tick_at(context, owner_id) or now
        throttled = throttled_sources(context, list(golems), at)
        inbox = _Inbox(context, owner_id, secret, now, throttled)
        inbox.receive(relay, newest)
        delivered, waiting = _deliver(context, members, secret, throttled, now)
    entries = sum(len(event.shared.entry_ids) for event in shared if event.shared)
    return Exchange(
        tuple(members), entries, sent, inbox.parcels, len(notes), inbox.notes, dict(delivered), waiting,
        tuple(inbox.refused), throttled,
    )  # fmt: skip


def _send(context: DerivationContext, owner_id: str, secret: CladeSecret, relay: Relay) -> int:
    """Send the shared parcels that have not come back; return their number."""
    imported = set(context.life_fields("BundleImported", "bundle_hash")["bundle_hash"].to_pylist())
    owners = context.ownership().golems
    rows = context.life_fields("EntriesShared", "bundle_hash").to_pylist()
    hashes = [r["bundle_hash"] for r in rows if owners.get(r["golem_id"]) == owner_id]
    due = [bundle_hash for bundle_hash in hashes if bundle_hash not in imported]
    for bundle_hash in due:
        parcel = load_bundle(context.home, bundle_hash)
        relay.put(secret.message_id(bundle_hash), secret.encrypt(pack_archive(parcel)), kept_days(parcel))
    return len(due)


class _Inbox:
    """The messages of a topic that a home receives. parcels, notes: numbers of new ones. refused: with reasons."""

    def __init__(
        self,
        context: DerivationContext,
        owner_id: str,
        secret: CladeSecret,
        now: datetime,
        throttled: Mapping[str, str],
    ) -> None:
        self._context, self._owner_id, self._secret, self._now = context, owner_id, secret, now
        self._throttled = throttled
        self.parcels, self.notes, self.refused = 0, 0, list[tuple[str, str]]()

    def receive(self, relay: Relay, newest: int) -> None:
        """Import the messages behind the cursor; a refused one is kept with its reason."""
        folder = clade_folder(self._context.home, self._owner_id)
        make_folder(folder)
        cursor = _cursor(folder)
        cursor = 0 if cursor > newest else cursor  # the relay lost its messages and counts from the beginning
        while messages := relay.after(cursor):
            notes, parcels = list[Note](), dict[str, LifeEvent]()
            for message in messages:
                try:
                    content = self._secret.decrypt(message.body)
                    if content.startswith(b"{"):  # a parcel is an archive
                        notes.append(self._heard(read_note(content, self._owner_id)))
                    else:
                        parcels |= self._imported(content)
                except (BundleError, SealError) as error:
                    self.refused.append((message.message_id, str(error)))
                    _keep_refused(folder, message, str(error))
            self._context.log.record([*parcels.values()], self._now)
            self.parcels += len(parcels)
            self.notes += record_notes(self._context, self._owner_id, notes, self._secret.key_id, now=self._now)
            cursor = messages[-1].number
            replace_file(folder / "cursor", str(cursor).encode())

    def _heard(self, note: Note) -> Note:
        """Return a note. Raises BundleError for that of a throttled golem."""
        if note.from_golem_id in self._throttled:
            raise BundleError(self._throttled[note.from_golem_id])
        return note

    def _imported(self, archive: bytes) -> dict[str, LifeEvent]:
        """Store the files of a parcel; return its hash with the event of its import, nothing for a known parcel."""
        context, owner_id, files = self._context, self._owner_id, unpack_archive(archive)
        check_parcel(inspected(files, context.policy.inheritance), owner_id)
        owner = (owner_id, self._secret.key_id)
        parcel, event, _ = store_import(context, files, public_key=None, now=self._now, owner=owner)
        return {} if event is None else {parcel.bundle_hash: event}


def _deliver(
    context: DerivationContext,
    members: Sequence[str],
    secret: CladeSecret,
    throttled: Collection[str],
    now: datetime,
) -> tuple[Counter[str], int]:
    """Give each member the parcels of its siblings; return its entries, and the number of deliveries that wait."""
    parcels, delivered, waiting = sorted(_parcels(context, secret)), Counter[str](), 0
    limits = context.policy.clade
    given: dict[str, list[str]] = {}
    for golem_id, (_, at) in last_ticks(context, members if parcels else ()).items():
        rows = context.life_fields(
            "KnowledgeReceived", "source", "content_hash", "entry_count", "from_golem_id", golems=[golem_id]
        ).to_pylist()
        known = {row["content_hash"] for row in rows}
        recent = Counter[str]()
        for row in rows:
            if row["source"] == "clade" and row["observed_at"] > at - HOUR:
                recent[row["from_golem_id"]] += row["entry_count"]
        for parcel in parcels:
            if parcel.golem_id == golem_id or parcel.bundle_hash in known:
                continue
            if parcel.at < at - timedelta(days=limits.kept_days):  # one that was paid for may be kept longer
                paid = paid_days(context.home, parcel.bundle_hash)
                if paid is None or parcel.at < at - timedelta(days=paid):
                    continue
            after = recent[parcel.golem_id] + parcel.entry_count, recent.total() + parcel.entry_count
            is_over = after[0] > limits.hour_source or after[1] > limits.hour_in
            if parcel.golem_id in throttled or (
                is_over and not is_urgent(load_bundle(context.home, parcel.bundle_hash))
            ):
                waiting += 1
                continue
            given.setdefault(golem_id, []).append(parcel.bundle_hash)
            recent[parcel.golem_id] += parcel.entry_count
            delivered[golem_id] += parcel.entry_count
    if given:
        give_parcels(context, given, now=now)
    return delivered, waiting


def _parcels(context: DerivationContext, secret: CladeSecret) -> Iterator[_Parcel]:
    """Yield the imported parcels of the clade."""
    rows = context.life_fields("BundleImported", "bundle_hash", "from_golem_id", "key_id", "entry_count").to_pylist()
    for row in rows:
        if row["key_id"] == secret.key_id:
            yield _Parcel(row["observed_at"], row["bundle_hash"], row["from_golem_id"], row["entry_count"])


@lru_cache(maxsize=65_536)
def paid_days(home: Home, bundle_hash: str) -> int | None:
    """Return the days for which a parcel of this home was paid; None if it was not."""
    return kept_days(load_bundle(home, bundle_hash))


def clade_folder(home: Home, owner_id: str) -> Path:
    """Return the folder of an owner's cursor and refused messages: a hash, because an id may be an invalid name."""
    return home.root / "clade" / hashlib.sha256(owner_id.encode()).hexdigest()[:40]


def _cursor(folder: Path) -> int:
    """Return the number of the newest message that was read; 0 without a readable file, and all are read again."""
    try:
        return int((folder / "cursor").read_text())
    except (OSError, ValueError):
        return 0


def _keep_refused(folder: Path, message: RelayMessage, reason: str) -> None:
    """Keep a refused message with its reason, unless REFUSED_MAX are kept."""
    refused = folder / "refused"
    make_folder(refused)
    if sum(1 for _ in refused.iterdir()) >= REFUSED_MAX:
        return
    name = hashlib.sha256(message.message_id.encode()).hexdigest()[:32]
    content = {"message_id": message.message_id, "number": message.number, "reason": reason,
               "body": base64.b64encode(message.body).decode()}  # fmt: skip
    replace_file(refused / f"{name}.json", orjson.dumps(content))
