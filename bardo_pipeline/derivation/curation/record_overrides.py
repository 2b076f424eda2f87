"""Overriding: what a golem's owner sees of its grimoire, and what the owner says of an entry, as an event.

An override names an entry that the golem held in its last closed cycle, and takes effect when the open one closes.
Source: X-8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.derivation.dreams.derive_lessons import dream_decisions, known_entries
from bardo_pipeline.errors import OverrideError, QueryError
from bardo_pipeline.events.life.events import life_event
from bardo_pipeline.events.life.override_events import Corrected, Order, Override, Pinned, Retracted, Unpinned
from bardo_pipeline.grimoire.confidence import DAY_US, FOREVER_US
from bardo_pipeline.grimoire.entries import ENTRY_KINDS, STATUSES
from bardo_pipeline.grimoire.entry_columns import confidence_of, half_life_of
from bardo_pipeline.storage.intake.json_reader import sentence_of

_ATTEMPTS = 20
"""How often an owner's word is said anew because the stream went on while it was being said."""


@dataclass(frozen=True)
class Grimoire:
    """What a golem knew at its last closed cycle.

    entries: ENTRY_SCHEMA with two columns more, confidence_now_ppm at `at` and half_life_days (null: does not fade),
    surest first. at: the golem's newest moment up to which its stream has no gap.
    """

    golem_id: str
    cycle: int
    tick: int
    at: datetime
    died_at_tick: int | None
    entries: pa.Table


def grimoire_of(context: DerivationContext, golem_id: str) -> Grimoire:
    """A golem's grimoire, closed cycles curated before. Raises QueryError for a golem that was never born."""
    births = context.life("GolemBorn")
    born = births.filter(pc.equal(births["golem_id"], golem_id))["observed_at"]
    if not len(born):
        raise QueryError(f'golem {golem_id}: no golem of this name was born: `bardo sql "from dim_golem"` lists all')
    if context.frozen is None:
        derive_curation(context)
    tick, died = context.log.head_of(golem_id).contiguous, context.log.death_of(golem_id)
    at = _moment(context, golem_id, tick) or born[0].as_py()
    table = context.projections.replaceable("grimoire")
    rows = known_entries(context, [golem_id])
    decay = context.policy.decay
    now = confidence_of(rows, pa.scalar(at, pa.timestamp("us", tz="UTC")).cast(pa.int64()).as_py(), decay)
    half = half_life_of(rows, decay)
    rows = rows.append_column("confidence_now_ppm", pa.array(now, pa.int64()))
    rows = rows.append_column("half_life_days", pa.array(half / DAY_US, pa.float64(), mask=half >= FOREVER_US))
    rows = rows.sort_by([("confidence_now_ppm", "descending"), ("entry_id", "ascending")])
    over = died is not None and tick >= died
    return Grimoire(golem_id, table.done(golem_id) or 0, tick, at, died if over else None, rows)


def _moment(context: DerivationContext, golem_id: str, tick: int) -> datetime | None:
    """The moment of the newest record up to this tick; ticks that were lost have none."""
    rows = context.log.read_stretch(["tick", "observed_at"], [golem_id], tick, tick)
    if not rows.num_rows and tick:
        rows = context.log.read_stretch(["tick", "observed_at"], [golem_id], 1, tick)
    moment: datetime | None = pc.max(rows["observed_at"]).as_py() if rows.num_rows else None
    return moment


def find(grimoire: Grimoire, entry: str, *, active: bool = False) -> dict[str, Any]:
    """The entry that this id, or its beginning, names. active: only among what the golem knows.

    Raises QueryError if none or several answer.
    """
    ids = [e for e in grimoire.entries["entry_id"].to_pylist() if entry and e.startswith(entry)]
    if len(ids) != 1:
        said = f"{len(ids)} entries begin with {entry!r}: {', '.join(ids[:4])}" if ids else f"no entry {entry!r}"
        cure = "give more of the id" if ids else f"`bardo grimoire list {grimoire.golem_id}` shows what there is"
        raise QueryError(f"golem {grimoire.golem_id}, cycle {grimoire.cycle}: {said}; {cure}")
    row: dict[str, Any] = grimoire.entries.filter(pc.equal(grimoire.entries["entry_id"], ids[0])).to_pylist()[0]
    if active and row["status"] != "active":
        raise QueryError(
            f"golem {grimoire.golem_id} does not hold entry {ids[0]} at the end of cycle {grimoire.cycle}: it is "
            f"{row['status']}; an owner's word about it would have no effect"
        )
    return row


def chosen(
    grimoire: Grimoire, *, status: str, kind: str | None, text: str | None, confidence_min: float, pinned: bool
) -> pa.Table:
    """Those of the entries that answer. status: one of STATUSES, or all. text: what their text or category holds.

    Raises QueryError for a status or kind that there is not, and a confidence outside of [0, 1].
    """
    if status not in (*STATUSES, "all"):
        raise QueryError(f"--status {status!r} is none of all, {', '.join(STATUSES)}")
    if kind not in (None, *ENTRY_KINDS):
        raise QueryError(f"--kind {kind!r} is none of {', '.join(ENTRY_KINDS)}")
    if not 0.0 <= confidence_min <= 1.0:
        raise QueryError(f"a confidence is between 0 and 1, not {confidence_min}")
    rows = grimoire.entries
    keep = pc.greater_equal(rows["confidence_now_ppm"], round(confidence_min * 1e6))
    if status != "all":
        keep = pc.and_(keep, pc.equal(rows["status"], status))
    if kind is not None:
        keep = pc.and_(keep, pc.equal(rows["kind"], kind))
    if text is not None:
        said = (pc.match_substring(rows[name], text, ignore_case=True) for name in ("text", "category"))
        keep = pc.and_(keep, pc.or_(*said))
    if pinned:
        keep = pc.and_(keep, pc.greater(rows["pinned_ppm"], 0))
    return rows.filter(keep)


def decisions_about(context: DerivationContext, golem_id: str, entry_id: str) -> list[dict[str, Any]]:
    """What the curator decided about an entry, oldest first."""
    rows = context.projections.growing("curation").read(golems=[golem_id], only=pc.field("entry_id") == entry_id)
    rows = pa.concat_tables([rows, dream_decisions(context, [golem_id], [entry_id])])
    return rows.sort_by([("cycle", "ascending"), ("seq", "ascending")]).to_pylist()


def waiting(context: DerivationContext, grimoire: Grimoire, entry_id: str | None = None) -> tuple[Order, ...]:
    """What was said of the golem's entries (or of one of them) and has not taken effect yet."""
    span = context.policy.curator.cycle_ticks
    return tuple(
        order
        for order in context.overrides().of_golem(grimoire.golem_id)
        if order.cycle(span) > grimoire.cycle and entry_id in (None, order.entry_id)
    )


@dataclass(frozen=True)
class Holder:
    """A golem that holds an entry it inherited, and whether it lives."""

    golem_id: str
    alive: bool


def heirs_holding(context: DerivationContext, golem_id: str, entry_id: str) -> list[Holder]:
    """Heirs of a golem, and theirs, that hold an entry, by generation and id."""
    births = {e["golem_id"]: e["born"] for e in context.life("GolemBorn").select(["golem_id", "born"]).to_pylist()}
    line, heirs = {golem_id}, set[str]()
    while line:
        line = {g for g, b in births.items() if b["predecessor_id"] in line} - heirs
        heirs |= line
    if not heirs:
        return []
    table = context.projections.replaceable("grimoire")
    rows = table.read(table.buckets(sorted(heirs)))
    held = pc.and_(pc.equal(rows["entry_id"], entry_id), pc.equal(rows["status"], "active"))
    holding = heirs & set(rows.filter(held)["golem_id"].to_pylist())
    return [
        Holder(g, context.log.death_of(g) is None)
        for g in sorted(holding, key=lambda heir: (births[heir]["generation"], heir))
    ]


@dataclass(frozen=True)
class Spoken:
    """What became of an owner's word: the event, None where it says nothing new, and with which cycle it counts.

    entry: as it was in the last closed cycle. heirs: those that hold a retracted entry.
    """

    golem_id: str
    event_id: str | None
    entry: dict[str, Any]
    cycle: int
    tick: int
    heirs: tuple[Holder, ...] = ()


def pin(context: DerivationContext, golem_id: str, entry: str, why: str, *, now: datetime) -> Spoken:
    """Pin an entry: it does not fade below what it is trusted now. now: the moment of recording.

    Raises QueryError unless the golem held it in its last closed cycle, OverrideError for a golem whose life is closed.
    """
    return _say(context, golem_id, entry, Pinned, {"why": why}, now)


def unpin(context: DerivationContext, golem_id: str, entry: str, why: str, *, now: datetime) -> Spoken:
    """Let an entry fade again. Errors as of `pin`."""
    return _say(context, golem_id, entry, Unpinned, {"why": why}, now)


def retract(context: DerivationContext, golem_id: str, entry: str, why: str, *, now: datetime) -> Spoken:
    """Take an entry out of the grimoire, with the evidence until then. Errors as of `pin`."""
    return _say(context, golem_id, entry, Retracted, {"why": why}, now)


def retract_from_line(
    context: DerivationContext, golem_id: str, entry: str, why: str, *, now: datetime
) -> list[Spoken]:
    """Take an entry out of the grimoires of a golem and of all its heirs, as far as they live and hold it.

    Raises QueryError for an entry that is not in the golem's grimoire, OverrideError if nobody who lives holds it.
    """
    grimoire = grimoire_of(context, golem_id)
    held = find(grimoire, entry)
    living = [heir.golem_id for heir in heirs_holding(context, golem_id, held["entry_id"]) if heir.alive]
    if grimoire.died_at_tick is None and held["status"] == "active":
        living.insert(0, golem_id)
    if not living:
        raise OverrideError(
            f"nobody who lives holds entry {held['entry_id']}, neither golem {golem_id} nor an heir of it"
        )
    return [retract(context, g, held["entry_id"], why, now=now) for g in living]


def correct(
    context: DerivationContext, golem_id: str, entry: str, why: str, *, now: datetime, **said: object
) -> Spoken:
    """Correct an entry: its confidence, verdict, decay class, or a note (fields of `Corrected`).

    Errors as of `pin`; OverrideError for what leaves its range or does not fit the entry.
    """
    return _say(context, golem_id, entry, Corrected, {"why": why, **said}, now)


def _say(
    context: DerivationContext, golem_id: str, entry: str, kind: type[Override], said: dict[str, object], now: datetime
) -> Spoken:
    """Record an override of the golem as it is now; if its stream goes on meanwhile, look again."""
    for attempt in range(_ATTEMPTS):
        grimoire = grimoire_of(context, golem_id)
        held = find(grimoire, entry, active=grimoire.died_at_tick is None)
        heirs = tuple(heirs_holding(context, golem_id, held["entry_id"]))
        if grimoire.died_at_tick is not None:
            raise OverrideError(_closed(grimoire, held["entry_id"], heirs))
        orders = waiting(context, grimoire, held["entry_id"])
        cycle = grimoire.tick // context.policy.curator.cycle_ticks + 1
        override = _override(kind, said, context, grimoire, held)
        spoken = Spoken(golem_id, None, held, cycle, grimoire.tick, heirs if kind is Retracted else ())
        if _is_known(override, held, orders):
            return spoken
        event = life_event(golem_id, grimoire.at, override)
        try:
            context.log.record([event], now)
        except OverrideError:
            if attempt + 1 == _ATTEMPTS:
                raise
            continue
        return Spoken(golem_id, event.event_id, held, cycle, grimoire.tick, spoken.heirs)
    raise AssertionError("the last attempt raises")


def _override(
    kind: type[Override], said: dict[str, object], context: DerivationContext, grimoire: Grimoire, held: dict[str, Any]
) -> Override:
    number = len(context.overrides().of_golem(grimoire.golem_id)) + 1
    place = {"number": number, "tick_seen": grimoire.tick, "cycle_seen": grimoire.cycle, "entry_id": held["entry_id"]}
    try:
        override = kind.model_validate(place | said)
    except ValidationError as error:
        raise OverrideError(f"golem {grimoire.golem_id}, entry {held['entry_id']}: {sentence_of(error)}") from None
    if isinstance(override, Corrected):
        _check_fit(override, held)
    return override


def _check_fit(override: Corrected, held: dict[str, Any]) -> None:
    """Raise OverrideError for a correction of something that the entry has not."""
    if held["source"] == "dream":
        raise OverrideError(
            f"entry {held['entry_id']} says what a dream suggested and outcomes confirmed, and they alone correct it: "
            "pin it, or retract it"
        )
    if override.decay_class is not None and held["decay_class"] == "fact":
        raise OverrideError(
            f"entry {held['entry_id']} is a fact and decays by the fact's rule alone: correct its confidence, or pin it"
        )
    if override.verdict is not None and held["source"] != "pattern":
        raise OverrideError(
            f"entry {held['entry_id']} is a {held['source']} and says nothing of whether acting pays: correct its "
            "confidence, or retract it"
        )


def _is_known(override: Override, held: dict[str, Any], orders: Sequence[Order]) -> bool:
    """Whether the override would change nothing, after what waits. OverrideError if the entry is as good as gone."""
    if gone := next((order for order in orders if order.kind == "EntryRetracted"), None):
        if isinstance(override, Retracted):
            return True
        raise OverrideError(
            f"entry {held['entry_id']} is retracted ({gone.event_id}, {gone.why}) and leaves when its cycle closes"
        )
    pinned, fading = held["pinned_ppm"] > 0, held["confidence_now_ppm"] > held["pinned_ppm"]
    for order in orders:
        if order.kind in ("EntryPinned", "EntryUnpinned"):
            pinned, fading = order.kind == "EntryPinned", False
    if isinstance(override, Pinned):
        return pinned and not fading
    return isinstance(override, Unpinned) and not pinned


def _closed(grimoire: Grimoire, entry_id: str, heirs: Sequence[Holder]) -> str:
    alive = [heir.golem_id for heir in heirs if heir.alive]
    cure = f"say it of those heirs that hold it: {', '.join(alive)}" if alive else "no living heir of it holds it"
    died = f"golem {grimoire.golem_id} died at tick {grimoire.died_at_tick} and what it knew is closed"
    return f"{died}; entry {entry_id}: {cure}"
