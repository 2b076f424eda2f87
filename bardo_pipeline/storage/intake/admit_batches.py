"""Intake: what others sent goes to the log, row by row; of each row that does not, who it claims to be and why not.

One door for the spool and for what is retried from quarantine.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError
from pydantic_core import from_json

from bardo_pipeline.errors import (
    BardoError,
    IdentityError,
    InputError,
    LeaseError,
    RecordError,
    SignatureError,
    StreamError,
)
from bardo_pipeline.events.custody.hash_chain import Payloads, Signature
from bardo_pipeline.events.life.events import LifeEvent
from bardo_pipeline.events.record.check_batch import Examined, examine
from bardo_pipeline.storage.intake.json_reader import BadLine, Parsed, sentence_of
from bardo_pipeline.storage.intake.line_buffer import Lines
from bardo_pipeline.storage.log.event_log import EventLog

_OF_A_ROW = (InputError, StreamError, LeaseError)
"""What is wrong with something that was sent; any other error is the log's own."""


@dataclass(frozen=True)
class Refusal:
    """Rows or lines (indices of what was given) that were not taken, whose they say they are, and why not."""

    places: tuple[int, ...]
    golem_id: str | None
    tick: int | None
    error: BardoError


@dataclass(frozen=True)
class Outcome:
    """What became of what was sent. written: new on record. repeated: on record already, or twice in it."""

    written: int = 0
    repeated: int = 0
    refused: tuple[Refusal, ...] = field(default=())


@dataclass(frozen=True)
class Stamp:
    """How records are marked in the log: the transaction, and when they were recorded."""

    writer: str
    segment: int
    recorded_at: datetime


@dataclass(frozen=True)
class Looked:
    """What JSON lines hold, looked at as far as it can be without the log. places: the line of each record."""

    examined: Examined
    payloads: Payloads
    places: np.ndarray
    bad: Sequence[BadLine]

    @classmethod
    def at(cls, lines: Lines, parsed: Parsed, contents: Sequence[bytes] | None = None) -> Looked:
        """At these lines. contents: what each line's link would cover, where that is known."""
        column = lines.column(parsed.lines)
        if contents is None:
            payloads = Payloads.of(column)
        else:
            payloads = Payloads(column, [contents[line] for line in parsed.lines.tolist()])
        return cls(examine(parsed.records), payloads, parsed.lines, parsed.bad)

    def without(self, rows: Collection[int]) -> Looked:
        """The others."""
        left = np.setdiff1d(np.arange(len(self.places)), np.fromiter(rows, np.int64, len(rows)))
        examined = examine(self.examined.records.take(pa.array(left)))
        return Looked(examined, self.payloads.take(left), self.places[left], self.bad)


def admit_lines(
    log: EventLog,
    looked: Looked,
    stamp: Stamp,
    *,
    owner: str | None = None,
    signatures: Sequence[Signature | SignatureError | None] | None = None,
) -> Outcome:
    """Admit the records of JSON lines. owner: the only golem that may speak here; None for any.

    signatures: one a line; an error where it could not be read.
    """
    refused = [Refusal((line.line,), line.golem_id, line.tick, line.error) for line in looked.bad]
    wrong = _impostors(looked.examined.records, owner)
    if signatures is not None:
        unread = {row: signatures[line] for row, line in enumerate(looked.places.tolist())}
        wrong |= {row: fault for row, fault in unread.items() if isinstance(fault, SignatureError)}
    if wrong:
        refused += _refusals(looked.examined.records, looked.places, wrong)
        looked = looked.without(wrong)
    if not len(looked.places):
        return Outcome(refused=tuple(refused))
    mine = None if signatures is None else [_signature(signatures[line]) for line in looked.places.tolist()]
    admitted = log.admit(
        looked.examined,
        writer=stamp.writer,
        segment=stamp.segment,
        recorded_at=stamp.recorded_at,
        payloads=looked.payloads,
        signatures=mine,
    )
    refused += _refusals(looked.examined.records, looked.places, {r.row: r.error for r in admitted.refused})
    return Outcome(admitted.appended.written, admitted.appended.repeated, tuple(refused))


def _signature(found: Signature | SignatureError | None) -> Signature | None:
    assert not isinstance(found, SignatureError), "what could not be read was refused before"
    return found


def admit_batch(
    log: EventLog,
    records: pa.Table,
    stamp: Stamp,
    *,
    owner: str | None = None,
    signatures: Mapping[str, Signature] | None = None,
) -> Outcome:
    """Admit the rows of an Arrow batch. A golem's signed slice is refused whole, as one."""
    signed = signatures or {}
    places = np.arange(len(records))
    wrong: dict[int, BardoError] = _impostors(records, owner)
    left = np.setdiff1d(places, np.fromiter(wrong, np.int64, len(wrong)))
    written = repeated = 0
    if len(left):
        admitted = log.admit(
            examine(records if not wrong else records.take(pa.array(left))),
            writer=stamp.writer,
            segment=stamp.segment,
            recorded_at=stamp.recorded_at,
            signatures=dict(signed),
        )
        written, repeated = admitted.appended.written, admitted.appended.repeated
        wrong |= {int(left[refused.row]): refused.error for refused in admitted.refused}
    single = _refusals(records, places, wrong)
    slices: dict[str, list[Refusal]] = {}
    for refusal in single:
        if refusal.golem_id in signed:
            slices.setdefault(str(refusal.golem_id), []).append(refusal)
    whole = [_one(refusals) for refusals in slices.values()]
    return Outcome(written, repeated, tuple([r for r in single if r.golem_id not in slices] + whole))


def _one(refusals: Sequence[Refusal]) -> Refusal:
    """The refusals of one slice as one, with the cause rather than its consequence."""
    causes = [r for r in refusals if not isinstance(r.error, SignatureError)] or list(refusals)
    places = tuple(place for refusal in refusals for place in refusal.places)
    return Refusal(places, causes[0].golem_id, causes[0].tick, causes[0].error)


def _impostors(records: pa.Table, owner: str | None) -> dict[int, BardoError]:
    if owner is None:
        return {}
    other = pc.fill_null(pc.not_equal(records.column("golem_id"), owner), True)
    return {
        int(row): IdentityError(
            f"golem {records.column('golem_id')[int(row)].as_py()}: this came in the folder of golem {owner}, where "
            "only its own records go"
        )
        for row in np.flatnonzero(np.asarray(other))
    }


def _refusals(records: pa.Table, places: np.ndarray, wrong: Mapping[int, BardoError]) -> list[Refusal]:
    rows = sorted(wrong)
    golems = records.column("golem_id").take(pa.array(rows, pa.int64())).to_pylist()
    ticks = records.column("tick").take(pa.array(rows, pa.int64())).to_pylist()
    return [Refusal((int(places[r]),), g, t, wrong[r]) for r, g, t in zip(rows, golems, ticks, strict=True)]


# life events


def record_events(log: EventLog, lines: Sequence[bytes], recorded_at: datetime, *, owner: str | None = None) -> Outcome:
    """Record the life events of JSON lines; an event without an id gets that of its content."""
    refused: list[Refusal] = []
    events: list[tuple[int, LifeEvent]] = []
    for place, line in enumerate(lines):
        try:
            event = life_event_of(line)
            if owner is not None and event.golem_id != owner:
                raise IdentityError(f"golem {event.golem_id}: this came in the folder of golem {owner}")
            events.append((place, event))
        except InputError as error:
            refused.append(Refusal((place,), None, None, error))
    written, more = _record(log, events, recorded_at)
    return Outcome(written, len(events) - written - len(more), tuple(refused + more))


def _record(log: EventLog, events: Sequence[tuple[int, LifeEvent]], recorded_at: datetime) -> tuple[int, list[Refusal]]:
    """Record events; where the log does not take them together, halves of them."""
    if not events:
        return 0, []
    try:
        return log.record([event for _, event in events], recorded_at), []
    except _OF_A_ROW as error:
        if len(events) == 1:
            place, event = events[0]
            return 0, [Refusal((place,), event.golem_id, None, error)]
    middle = len(events) // 2
    before, after = _record(log, events[:middle], recorded_at), _record(log, events[middle:], recorded_at)
    return before[0] + after[0], before[1] + after[1]


def life_event_of(line: bytes) -> LifeEvent:
    """The life event of a JSON line. Raises RecordError for a line that holds none, or one with a wrong id."""
    try:
        said = from_json(line, allow_inf_nan=False)
        if not isinstance(said, dict):
            raise RecordError("the line is no JSON object")
        event = LifeEvent.model_validate_json(orjson.dumps({"event_id": "none given", **said}), strict=True)
    except ValidationError as error:
        raise RecordError(sentence_of(error)) from error
    except (ValueError, TypeError) as error:
        raise RecordError(f"the line is no JSON: {error}") from error
    named = event.model_copy(update={"event_id": event.content_id()})
    if "event_id" in said and event != named:
        raise RecordError(
            f"golem {event.golem_id}: {event.kind} has the id {event.event_id}, not that of its content: leave it out"
        )
    return named
