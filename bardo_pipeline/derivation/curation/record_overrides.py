"""Overrides: an owner's view of a golem's grimoire, and the owner's orders about entries, recorded as events.

An override names an entry that the golem held at its last closed cycle. It takes effect when the open cycle closes.
Source: X-8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation, require_curated
from bardo_pipeline.derivation.dreams.derive_lessons import dream_decisions, known_entries
from bardo_pipeline.derivation.incremental.record_queries import require_born
from bardo_pipeline.errors import OverrideError, QueryError
from bardo_pipeline.events.life.events import life_event
from bardo_pipeline.events.life.override_events import Corrected, Order, Override, Pinned, Retracted, Unpinned
from bardo_pipeline.grimoire.confidence import DAY_US, FOREVER_US
from bardo_pipeline.grimoire.entries import ENTRY_KINDS, STATUSES
from bardo_pipeline.grimoire.entry_columns import confidence_of, half_life_of
from bardo_pipeline.storage.intake.json_reader import sentence_of

_ATTEMPTS = 20
"""Retries of an override that was rejected because the golem's stream advanced meanwhile."""


@dataclass(frozen=True)
class Grimoire:
    """A golem's grimoire and lessons at its last closed cycle.

    entries: ENTRY_SCHEMA with confidence_now_ppm at `at` and half_life_days (null: does not fade), most confident
    first. tick, at: the golem's last tick without a gap before it, and its time.
    """

    golem_id: str
    cycle: int
    tick: int
    at: datetime
    died_at_tick: int | None
    entries: pa.Table


def grimoire_of(context: DerivationContext, golem_id: str, *, derives: bool = True) -> Grimoire:
    """Curate closed cycles, then return a golem's grimoire. Raises QueryError for an unknown golem.

    Parameters
    ----------
    derives : whether to curate; without it, DerivationDueError is raised if the golem's life is not curated
    """
    require_born(context, golem_id)
    born = context.life("GolemBorn", [golem_id])["observed_at"]
    if context.frozen is None and derives:
        derive_curation(context.whole)
    elif context.frozen is None:
        require_curated(context, [golem_id])
    tick, died = context.log.head_of(golem_id).contiguous, context.log.death_of(golem_id)
    at = _time_of(context, golem_id, tick) or born[0].as_py()
    table = context.projections.replaceable("grimoire")
    rows = known_entries(context, [golem_id])
    decay = context.policy.decay
    now = confidence_of(rows, pa.scalar(at, pa.timestamp("us", tz="UTC")).cast(pa.int64()).as_py(), decay)
    half_life_us = half_life_of(rows, decay)
    half_life_days = pa.array(half_life_us / DAY_US, pa.float64(), mask=half_life_us >= FOREVER_US)
    rows = rows.append_column("confidence_now_ppm", pa.array(now, pa.int64()))
    rows = rows.append_column("half_life_days", half_life_days)
    rows = rows.sort_by([("confidence_now_ppm", "descending"), ("entry_id", "ascending")])
    is_over = died is not None and tick >= died
    return Grimoire(golem_id, table.done(golem_id) or 0, tick, at, died if is_over else None, rows)


def _time_of(context: DerivationContext, golem_id: str, tick: int) -> datetime | None:
    """Return the time of the newest record up to a tick; the tick itself may be lost."""
    rows = context.log.read_ticks(["golem_id", "tick", "observed_at"], {golem_id: tick})
    if not rows.num_rows and tick:
        rows = context.log.read_stretch(["tick", "observed_at"], [golem_id], 1, tick)
    time: datetime | None = pc.max(rows["observed_at"]).as_py() if rows.num_rows else None
    return time


def find_entry(
    grimoire: Grimoire, entry: str, *, active: bool = False, listed_by: str = "`bardo grimoire list {golem_id}`"
) -> dict[str, Any]:
    """Return the entry with this id or prefix of an id. Raises QueryError unless exactly one matches.

    Parameters
    ----------
    active : whether to raise QueryError for an entry that is not active
    listed_by : command or tool by which the caller can list entries, named by the error
    """
    ids = [e for e in grimoire.entries["entry_id"].to_pylist() if entry and e.startswith(entry)]
    listing = f"{listed_by.format(golem_id=grimoire.golem_id)} lists all entries"
    if len(ids) != 1:
        problem = f"{len(ids)} entries begin with {entry!r}: {', '.join(ids[:4])}" if ids else f"no entry {entry!r}"
        remedy = "give more of the id" if ids else listing
        raise QueryError(f"golem {grimoire.golem_id}, cycle {grimoire.cycle}: {problem}: {remedy}")
    row: dict[str, Any] = grimoire.entries.filter(pc.equal(grimoire.entries["entry_id"], ids[0])).to_pylist()[0]
    if active and row["status"] != "active":
        raise QueryError(
            f"golem {grimoire.golem_id} does not hold entry {ids[0]} at the end of cycle {grimoire.cycle}: it is "
            f"{row['status']}, and an override of it would have no effect: {listing}"
        )
    return row


def select_entries(
    grimoire: Grimoire, *, status: str, kind: str | None, text: str | None, confidence_min: float, pinned: bool
) -> pa.Table:
    """Return the entries that meet all conditions.

    Raises QueryError for an unknown status or kind, and for a confidence outside [0, 1].

    Parameters
    ----------
    status : one of STATUSES, or "all"
    text : part of the entry's text or category
    """
    if status not in (*STATUSES, "all"):
        raise QueryError(f"--status {status!r} is not one of all, {', '.join(STATUSES)}")
    if kind not in (None, *ENTRY_KINDS):
        raise QueryError(f"--kind {kind!r} is not one of {', '.join(ENTRY_KINDS)}")
    if not 0.0 <= confidence_min <= 1.0:
        raise QueryError(f"a confidence is between 0 and 1, not {confidence_min}")
    rows = grimoire.entries
    conditions = [pc.greater_equal(rows["confidence_now_ppm"], round(confidence_min * 1e6))]
    if status != "all":
        conditions.append(pc.equal(rows["status"], status))
    if kind is not None:
        conditions.append(pc.equal(rows["kind"], kind))
    if text is not None:
        matches = (pc.match_substring(rows[name], text, ignore_case=True) for name in ("text", "category"))
        conditions.append(pc.or_(*matches))
    if pinned:
        conditions.append(pc.greater(rows["pinned_ppm"], 0))
    return rows.filter(reduce(pc.and_, conditions))


def decisions_about(context: DerivationContext, golem_id: str, entry_id: str) -> list[dict[str, Any]]:
    """Return the decisions of the curator and of dreams about an entry, oldest first."""
    rows = context.projections.growing("curation").read(golems=[golem_id], only=pc.field("entry_id") == entry_id)
    rows = pa.concat_tables([rows, dream_decisions(context, [golem_id], [entry_id])])
    return rows.sort_by([("cycle", "ascending"), ("seq", "ascending")]).to_pylist()


def pending_orders(context: DerivationContext, grimoire: Grimoire, entry_id: str | None = None) -> tuple[Order, ...]:
    """Return the orders about a golem's entries, or about one, that have not taken effect yet."""
    span = context.policy.curator.cycle_ticks
    return tuple(
        order
        for order in context.overrides().of_golem(grimoire.golem_id)
        if order.cycle(span) > grimoire.cycle and entry_id in (None, order.entry_id)
    )


@dataclass(frozen=True)
class HoldingHeir:
    """An heir that holds an inherited entry."""

    golem_id: str
    alive: bool


def heirs_holding(context: DerivationContext, golem_id: str, entry_id: str) -> list[HoldingHeir]:
    """Return the direct and indirect heirs of a golem that hold an entry, by generation and id."""
    births = {e["golem_id"]: e["born"] for e in context.life("GolemBorn").select(["golem_id", "born"]).to_pylist()}
    generation, heirs = {golem_id}, set[str]()
    while generation:
        generation = {g for g, b in births.items() if b["predecessor_id"] in generation} - heirs
        heirs |= generation
    if not heirs:
        return []
    table = context.projections.replaceable("grimoire")
    rows = table.read(table.buckets(sorted(heirs)))
    is_held = pc.and_(pc.equal(rows["entry_id"], entry_id), pc.equal(rows["status"], "active"))
    holding = heirs & set(rows.filter(is_held)["golem_id"].to_pylist())
    return [
        HoldingHeir(g, context.log.death_of(g) is None)
        for g in sorted(holding, key=lambda heir: (births[heir]["generation"], heir))
    ]


@dataclass(frozen=True)
class RecordedOverride:
    """The result of an override.

    event_id: None if the override changes nothing and is not recorded. entry: at the last closed cycle. cycle: the
    override takes effect when it closes. heirs: those that hold a retracted entry.
    """

    golem_id: str
    event_id: str | None
    entry: dict[str, Any]
    cycle: int
    tick: int
    heirs: tuple[HoldingHeir, ...] = ()


def pin(context: DerivationContext, golem_id: str, entry: str, why: str, *, now: datetime) -> RecordedOverride:
    """Pin an entry at its present confidence, so that it does not fade further.

    Raises QueryError unless the golem held the entry at its last closed cycle, OverrideError for a dead golem.

    Parameters
    ----------
    now : time of recording, UTC
    """
    return _record(context, golem_id, entry, Pinned, {"why": why}, now)


def unpin(context: DerivationContext, golem_id: str, entry: str, why: str, *, now: datetime) -> RecordedOverride:
    """Let a pinned entry fade again. Raises as `pin`."""
    return _record(context, golem_id, entry, Unpinned, {"why": why}, now)


def retract(context: DerivationContext, golem_id: str, entry: str, why: str, *, now: datetime) -> RecordedOverride:
    """Remove an entry and its evidence so far from the grimoire. Raises as `pin`."""
    return _record(context, golem_id, entry, Retracted, {"why": why}, now)


def retract_from_line(
    context: DerivationContext, golem_id: str, entry: str, why: str, *, now: datetime
) -> list[RecordedOverride]:
    """Remove an entry from the grimoires of all living holders among a golem and its heirs.

    Raises QueryError for an entry that is not in the golem's grimoire, OverrideError without a living holder.
    """
    grimoire = grimoire_of(context, golem_id)
    row = find_entry(grimoire, entry)
    entry_id = row["entry_id"]
    living = [heir.golem_id for heir in heirs_holding(context, golem_id, entry_id) if heir.alive]
    if grimoire.died_at_tick is None and row["status"] == "active":
        living.insert(0, golem_id)
    if not living:
        raise OverrideError(f"entry {entry_id} has no living holder: neither golem {golem_id} nor an heir of it")
    return [retract(context, g, entry_id, why, now=now) for g in living]


def correct(
    context: DerivationContext, golem_id: str, entry: str, why: str, *, now: datetime, **fields: object
) -> RecordedOverride:
    """Correct an entry's confidence, verdict, decay class or note (fields of `Corrected`).

    Raises as `pin`, and OverrideError for a value that is out of range or does not fit the entry.
    """
    return _record(context, golem_id, entry, Corrected, {"why": why, **fields}, now)


def _record(
    context: DerivationContext,
    golem_id: str,
    entry: str,
    kind: type[Override],
    fields: dict[str, object],
    now: datetime,
) -> RecordedOverride:
    """Record an override as of the golem's newest tick; retry if the stream advances meanwhile."""
    for attempt in range(_ATTEMPTS):
        grimoire = grimoire_of(context, golem_id)
        row = find_entry(grimoire, entry, active=grimoire.died_at_tick is None)
        heirs = tuple(heirs_holding(context, golem_id, row["entry_id"]))
        if grimoire.died_at_tick is not None:
            raise OverrideError(_death_message(grimoire, row["entry_id"], heirs))
        cycle = grimoire.tick // context.policy.curator.cycle_ticks + 1
        override = _override(kind, fields, context, grimoire, row)
        heirs = heirs if kind is Retracted else ()
        if _changes_nothing(override, row, pending_orders(context, grimoire, row["entry_id"])):
            return RecordedOverride(golem_id, None, row, cycle, grimoire.tick, heirs)
        event = life_event(golem_id, grimoire.at, override)
        try:
            context.log.record([event], now)
        except OverrideError:
            if attempt + 1 == _ATTEMPTS:
                raise
            continue
        return RecordedOverride(golem_id, event.event_id, row, cycle, grimoire.tick, heirs)
    raise AssertionError("the last attempt raises")


def _override(
    kind: type[Override], fields: dict[str, object], context: DerivationContext, grimoire: Grimoire, row: dict[str, Any]
) -> Override:
    number = len(context.overrides().of_golem(grimoire.golem_id)) + 1
    seen = {"number": number, "tick_seen": grimoire.tick, "cycle_seen": grimoire.cycle, "entry_id": row["entry_id"]}
    try:
        override = kind.model_validate(seen | fields)
    except ValidationError as error:
        raise OverrideError(f"golem {grimoire.golem_id}, entry {row['entry_id']}: {sentence_of(error)}") from None
    if isinstance(override, Corrected):
        _check_correction(override, row)
    return override


def _check_correction(override: Corrected, row: dict[str, Any]) -> None:
    """Raise OverrideError for a correction that entries of this kind do not allow."""
    if row["source"] == "dream":
        raise OverrideError(
            f"entry {row['entry_id']} comes from a dream, and only outcomes correct it: pin it, or retract it"
        )
    if override.decay_class is not None and row["decay_class"] == "fact":
        raise OverrideError(
            f"entry {row['entry_id']} is a fact, and its decay class is fixed: correct its confidence, or pin it"
        )
    if override.verdict is not None and row["source"] != "pattern":
        raise OverrideError(
            f"entry {row['entry_id']} is a {row['source']}, which has no verdict on whether acting pays: correct its "
            "confidence, or retract it"
        )


def _changes_nothing(override: Override, row: dict[str, Any], orders: Sequence[Order]) -> bool:
    """Return whether an override has no effect after the pending orders.

    Raises OverrideError if a pending order retracts the entry.
    """
    if retraction := next((order for order in orders if order.kind == "EntryRetracted"), None):
        if isinstance(override, Retracted):
            return True
        raise OverrideError(
            f"entry {row['entry_id']} is retracted ({retraction.event_id}, {retraction.why}): it is removed when its "
            "cycle closes"
        )
    is_pinned, is_fading = row["pinned_ppm"] > 0, row["confidence_now_ppm"] > row["pinned_ppm"]
    for order in orders:
        if order.kind in ("EntryPinned", "EntryUnpinned"):
            is_pinned, is_fading = order.kind == "EntryPinned", False
    if isinstance(override, Pinned):
        return is_pinned and not is_fading
    return isinstance(override, Unpinned) and not is_pinned


def _death_message(grimoire: Grimoire, entry_id: str, heirs: Sequence[HoldingHeir]) -> str:
    living = [heir.golem_id for heir in heirs if heir.alive]
    remedy = f"override it in the heirs that hold it: {', '.join(living)}" if living else "no living heir holds it"
    death = f"golem {grimoire.golem_id} died at tick {grimoire.died_at_tick}, so its grimoire is closed"
    return f"{death}; entry {entry_id}: {remedy}"
