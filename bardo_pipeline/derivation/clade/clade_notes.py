"""Notes of a clade: what its golems tell each other beside entries, computed from the derived tables and the log.

A note is told until it comes back through the relay as `NoteReceived`, so the log is its outbox, as for parcels. Scars
are told at the close of the cycle that qualified them and at death, a shift of regime and the residuals of a delta
while they are the newest ones, a playbook at each close of a cycle that changed it, a golem's own words once they are
written, and the reflection of a death with its bundle.
Source: INH S5.1, S6.4; MEM-14; KAT (Styx L1 Publication); KAT-13; canon 46; HB adaptive clock (delta, step 5).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.configuration import in_force_of
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.dreams.playbook_pages import pages_of
from bardo_pipeline.derivation.incremental import record_queries as queries
from bardo_pipeline.derivation.katabasis.scars import derive_failures, derive_scars
from bardo_pipeline.derivation.legacy.bundle_store import load_bundle
from bardo_pipeline.derivation.legacy.death_queries import deaths_with_ticks
from bardo_pipeline.events.experience.stored_text import TEXT_MAX, stored_text
from bardo_pipeline.events.life.clade_events import NoteReceived
from bardo_pipeline.events.life.events import EVERY_GOLEM, life_event
from bardo_pipeline.events.record.arrow_columns import rows_of_golems
from bardo_pipeline.events.record.model import ItemResiduals
from bardo_pipeline.inheritance.bundle_files import TESTAMENT_PAGE
from bardo_pipeline.inheritance.clade_note import (
    End,
    Note,
    Reflection,
    Residuals,
    Scar,
    Shift,
    Snapshot,
    Told,
    read_note,
    text_of,
)
from bardo_pipeline.katabasis.scar_rules import FAILURE_SCHEMA

_SHIFT_CYCLES = 2
"""Closed cycles in which the newest shift of regime is looked for; an older one is no news."""


class HeardNote(NamedTuple):
    """A received note. at: event time of its receipt; a golem hears it after that time."""

    at: datetime
    content_hash: str
    note: Note


class NoteRow(NamedTuple):
    """A received note as a row of a report. at: time of the fact."""

    at: datetime
    owner_id: str
    from_golem_id: str
    about: str
    text: str


def clade_golems(context: DerivationContext, owner_id: str) -> dict[str, bool]:
    """Return the golems of an owner here whose configuration opens the clade, and whether each lives, by id."""
    dead = set(context.life("DeathDeclared")["golem_id"].to_pylist())
    golems = sorted(context.ownership().golems_of(owner_id))
    return {g: g not in dead for g, now in in_force_of(context, golems).items() if now.configuration.styx.clade_enabled}


def due_notes(context: DerivationContext, owner_id: str, golems: Mapping[str, bool]) -> list[Note]:
    """Derive failures and scars of curated cycles, then return the notes of these golems that are not received.

    golems: golem -> whether it lives.
    """
    derive_failures(context)
    derive_scars(context)
    heard = notes_received(context, owner_id)
    told = [
        *_scars(context, owner_id, golems, heard), *market_notes(context, owner_id, [g for g in golems if golems[g]]),
        *_reflections(context, owner_id, golems, heard), *_snapshots(context, owner_id, golems, heard),
        *_entries(context, owner_id, golems),
    ]  # fmt: skip
    known = {note.content_hash for note in heard}
    return [note for note in told if note.content_hash not in known]


def _scars(
    context: DerivationContext, owner_id: str, golems: Collection[str], heard: Sequence[HeardNote]
) -> Iterator[Note]:
    """Yield the scars of these golems, except those whose failure a sibling of another home told before."""
    scars = context.projections.replaceable("scars").read(only=[owner_id])
    scars = rows_of_golems(scars, golems)
    if not scars.num_rows:
        return
    failures = context.projections.growing("failures").read(golems=sorted(set(scars["golem_id"].to_pylist())))
    rows = {row["scar_id"]: row for row in failures.select(FAILURE_SCHEMA.names).to_pylist()}
    deaths = deaths_with_ticks(context).to_pylist()
    ends = {row["golem_id"]: End(tick=row["tick"], cycle=row["cycle"]) for row in deaths}
    told = {
        (facts.failure["structure"], facts.failure["mechanism"])
        for facts in (known.note.facts for known in heard if known.note.from_golem_id not in golems)
        if isinstance(facts, Scar)
    }
    for scar in scars.to_pylist():
        if (scar["structure"], scar["mechanism"]) not in told:
            death = ends.get(scar["golem_id"]) if scar["is_bloodstain"] else None
            failure = rows[scar["scar_id"]]
            facts = Scar(failure=_plain(failure), death=death)
            yield Note(owner_id, scar["golem_id"], "scar", scar["confirmed_at"], facts)


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with its times as text, as a reader of its JSON gets it."""
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in row.items()}


_MARKET = {name: f"observation.{name}" for name in ("chain", "protocol", "pair")}
_MARKET_COLUMNS = ("golem_id", "tick", "observed_at", "regime", "residual_digest", *_MARKET.values())


def market_notes(context: DerivationContext, owner_id: str, golems: Sequence[str]) -> Iterator[Note]:
    """Yield the newest change of regime and the newest residuals in the last closed cycles of these golems."""
    curated = {g: queries.curated_through(context, g) or 0 for g in golems}
    upto = {g: cycle for g, cycle in curated.items() if cycle}
    first = {g: max(1, cycle - _SHIFT_CYCLES + 1) for g, cycle in upto.items()}
    records = queries.closed_records(context, _MARKET_COLUMNS, first, upto, context.left_out())
    for golem_id in upto:
        rows = records.filter(pc.equal(records["golem_id"], golem_id))
        regimes = rows["regime"].to_pylist()
        places = [n for n in range(1, len(regimes)) if regimes[n] != regimes[n - 1]]
        if places:
            row, market = _market_of(rows, places[-1])
            facts = Shift(tick=row["tick"], before=regimes[places[-1] - 1], regime=row["regime"], **market)
            yield Note(owner_id, golem_id, "regime_shift", row["observed_at"], facts)
        digested = np.flatnonzero(rows["residual_digest"].is_valid())
        if len(digested):
            row, market = _market_of(rows, int(digested[-1]))
            items = tuple(ItemResiduals(**item) for item in row["residual_digest"])
            residuals = Residuals(tick=row["tick"], items=items, **market)
            yield Note(owner_id, golem_id, "residual_digest", row["observed_at"], residuals)


def _market_of(rows: pa.Table, place: int) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a record and what identifies its market."""
    row = rows.slice(place, 1).to_pylist()[0]
    return row, {name: row[column] for name, column in _MARKET.items()}


def _reflections(
    context: DerivationContext, owner_id: str, golems: Collection[str], heard: Sequence[HeardNote]
) -> Iterator[Note]:
    """Yield the page of the testament of each golem that published a bundle, unless it was told."""
    told = {known.note.facts.bundle_hash for known in heard if isinstance(known.note.facts, Reflection)}
    for row in context.life_fields("BundlePublished", "bundle_hash").to_pylist():
        if row["golem_id"] in golems and row["bundle_hash"] not in told:
            page = load_bundle(context.home, row["bundle_hash"]).files[TESTAMENT_PAGE].decode()
            facts = Reflection(bundle_hash=row["bundle_hash"], page=page[:TEXT_MAX])
            yield Note(owner_id, row["golem_id"], "death_reflection", row["observed_at"], facts)


def _snapshots(
    context: DerivationContext, owner_id: str, golems: Mapping[str, bool], heard: Sequence[HeardNote]
) -> Iterator[Note]:
    """Yield the playbook of each living golem as of its last curated cycle, unless it told the same page last."""
    told: dict[str, Snapshot] = {}
    for known in heard:
        before, facts = told.get(known.note.from_golem_id), known.note.facts
        if isinstance(facts, Snapshot) and (before is None or facts.cycle > before.cycle):
            told[known.note.from_golem_id] = facts
    living = [golem_id for golem_id, lives in golems.items() if lives]
    versions = context.projections.growing("playbooks").newest("version", ["version", "markdown"])
    versions = rows_of_golems(versions, living)
    cycles = context.projections.growing("cycles").newest("cycle", ["cycle", "closed_at"]).to_pylist()
    closed = {row["golem_id"]: row for row in cycles}
    for golem_id, page in pages_of(versions, context.projections.replaceable("lessons").read(only=living)):
        last = told.get(golem_id)
        if golem_id in closed and (last is None or last.page != page[:TEXT_MAX]):
            facts = Snapshot(cycle=closed[golem_id]["cycle"], page=page[:TEXT_MAX])
            yield Note(owner_id, golem_id, "playbook_snapshot", closed[golem_id]["closed_at"], facts)


def _entries(context: DerivationContext, owner_id: str, golems: Mapping[str, bool]) -> Iterator[Note]:
    """Yield the entries in their own words that these golems wrote to the clade and whose time is not over."""
    rows = context.life_fields("StyxCalled", "layers", "written", golems=sorted(golems)).to_pylist()
    newest = newest_tick_at(context, owner_id)
    for row in rows:
        written, at = row["written"], row["observed_at"]
        if written is None or written["entry_id"] is not None or "clade" not in row["layers"]:
            continue
        if newest is None or at + timedelta(days=written["kept_days"]) > newest:
            yield Note(owner_id, row["golem_id"], "entry", at, told_of(written))


def told_of(written: Mapping[str, Any]) -> Told:
    """Return an entry in words from the content of its event (WrittenEntry)."""
    return Told(**{name: written[name] for name in Told.model_fields})


def record_notes(
    context: DerivationContext, owner_id: str, notes: Sequence[Note], key_id: str, *, now: datetime
) -> int:
    """Record the notes of an owner's clade that are not on record, in one commit; return their number.

    Their event time is that of the newest tick of the owner's golems here. The page of a reflection becomes an episode
    of each living member here, so that it is searched like its own texts. Similar episodes are not merged, because each
    of them happened.
    """
    known = set(context.life_fields("NoteReceived", "content_hash")["content_hash"].to_pylist())
    new = {note.content_hash: note for note in notes if note.content_hash not in known}
    if not new:
        return 0
    newest, golems = newest_tick_at(context, owner_id), clade_golems(context, owner_id)
    events = []
    for content_hash, note in new.items():
        at = newest or note.at
        payload = NoteReceived(
            owner_id=owner_id, from_golem_id=note.from_golem_id, about=note.about, key_id=key_id,
            content_hash=content_hash, content=note.content.decode(),
        )  # fmt: skip
        events.append(life_event(EVERY_GOLEM, at, payload))
        if isinstance(note.facts, Reflection):
            tags = (note.about, note.from_golem_id)
            text = stored_text(note.facts.page, sort="episode", importance="critical", tags=tags)
            events += [life_event(g, at, text) for g, lives in golems.items() if lives and g != note.from_golem_id]
    context.log.record(events, now)
    return len(new)


def newest_tick_at(context: DerivationContext, owner_id: str) -> datetime | None:
    """Return the time of the newest tick of an owner's golems here, None without a record."""
    golems = context.ownership().golems_of(owner_id)
    rows = queries.last_records(context, ("golem_id", "tick", "observed_at"), golems)
    newest: datetime | None = pc.max(rows["observed_at"]).as_py()
    return newest


def notes_received(
    context: DerivationContext, owner_id: str | None = None, *, known: Collection[str] = ()
) -> list[HeardNote]:
    """Return the received notes of an owner's clade, or of all, by time of receipt.

    known: content hashes of notes to leave out.
    """
    fields = context.life_fields("NoteReceived", "owner_id", "content_hash", "content").to_pylist()
    rows = [row for row in fields if owner_id in (None, row["owner_id"]) and row["content_hash"] not in known]
    heard = [
        HeardNote(row["observed_at"], row["content_hash"], read_note(row["content"].encode(), row["owner_id"]))
        for row in rows
    ]
    return sorted(heard, key=lambda note: (note.at, note.content_hash))


def note_rows(context: DerivationContext) -> list[dict[str, Any]]:
    """Return the received notes of the owners of a view as rows (NoteRow), by time of the fact."""
    notes = [heard.note for heard in notes_received(context)]
    rows = [NoteRow(note.at, note.owner_id, note.from_golem_id, note.about, text_of(note)) for note in notes]
    return [row._asdict() for row in sorted(rows)]
