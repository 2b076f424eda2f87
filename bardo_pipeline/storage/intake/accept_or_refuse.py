"""Accepts received records and life events into the log, or refuses them with reasons.

The spool and retries from quarantine both use these functions.
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

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.errors import (
    BardoError,
    IdentityError,
    InputError,
    LeaseError,
    RecordError,
    SignatureError,
    StreamError,
)
from bardo_pipeline.events.custody.authority import Proof
from bardo_pipeline.events.custody.hash_chain import Payloads, Signature, content_of
from bardo_pipeline.events.life.events import LifeEvent
from bardo_pipeline.events.record.repeated_keys import check_keys
from bardo_pipeline.events.record.validate import Examined, examine
from bardo_pipeline.storage.intake.json_reader import BadLine, Parsed, sentence_of
from bardo_pipeline.storage.intake.line_buffer import Lines
from bardo_pipeline.storage.log.batch import Stamp
from bardo_pipeline.storage.log.event_log import EventLog

_DATA_ERRORS = (InputError, StreamError, LeaseError)
"""Errors of received data; any other error is a failure of the log."""


@dataclass(frozen=True)
class Refusal:
    """Refused rows or lines (indices), the golem and tick that they name, and the error."""

    places: tuple[int, ...]
    golem_id: str | None
    tick: int | None
    error: BardoError


@dataclass(frozen=True)
class Outcome:
    """Counts of new records (written), of records already in the log or repeated in the batch, and the refusals."""

    written: int = 0
    repeated: int = 0
    refused: tuple[Refusal, ...] = field(default=())


@dataclass(frozen=True)
class ExaminedLines:
    """Records of JSON lines, checked without the log. places: line of each record."""

    examined: Examined
    payloads: Payloads
    places: Int64Array
    bad: Sequence[BadLine]

    @classmethod
    def at(cls, lines: Lines, parsed: Parsed) -> ExaminedLines:
        """Examine parsed lines."""
        return cls(examine(parsed.records), Payloads.of(lines.column(parsed.lines)), parsed.lines, parsed.bad)

    def without(self, rows: Collection[int]) -> ExaminedLines:
        """Return the records without these rows."""
        kept = np.setdiff1d(np.arange(len(self.places)), np.fromiter(rows, np.int64, len(rows)))
        examined = examine(self.examined.records.take(pa.array(kept)))
        return ExaminedLines(examined, self.payloads.take(kept), self.places[kept], self.bad)


def admit_lines(
    log: EventLog,
    examined: ExaminedLines,
    stamp: Stamp,
    *,
    owner: str | None = None,
    signatures: Sequence[Signature | SignatureError | None] | None = None,
) -> Outcome:
    """Admit the records of JSON lines.

    Parameters
    ----------
    owner : the only golem whose records are accepted; None for any
    signatures : one per line, or the error of an unreadable signature
    """
    refused = [Refusal((line.line,), line.golem_id, line.tick, line.error) for line in examined.bad]
    wrong = _impostors(examined.examined.records, owner)
    if signatures is not None:
        by_row = {row: signatures[line] for row, line in enumerate(examined.places.tolist())}
        wrong |= {row: fault for row, fault in by_row.items() if isinstance(fault, SignatureError)}
    if wrong:
        refused += _refusals(examined.examined.records, examined.places, wrong)
        examined = examined.without(wrong)
    if not len(examined.places):
        return Outcome(refused=tuple(refused))
    row_signatures = None if signatures is None else [_signature(signatures[line]) for line in examined.places.tolist()]
    admitted = log.admit(examined.examined, stamp, payloads=examined.payloads, signatures=row_signatures)
    refused += _refusals(examined.examined.records, examined.places, admitted.refused)
    return Outcome(admitted.appended.written, admitted.appended.repeated, tuple(refused))


def _signature(signature: Signature | SignatureError | None) -> Signature | None:
    assert not isinstance(signature, SignatureError), "rows with an unreadable signature were refused before"
    return signature


def admit_batch(
    log: EventLog,
    records: pa.Table,
    stamp: Stamp,
    *,
    owner: str | None = None,
    signatures: Mapping[str, Signature] | None = None,
) -> Outcome:
    """Admit the rows of an Arrow batch. A golem's signed slice is refused as a whole."""
    signed = signatures or {}
    places = np.arange(len(records))
    wrong: dict[int, BardoError] = _impostors(records, owner)
    accepted = np.setdiff1d(places, np.fromiter(wrong, np.int64, len(wrong)))
    written = repeated = 0
    if len(accepted):
        admitted = log.admit(
            examine(records if not wrong else records.take(pa.array(accepted))), stamp, signatures=dict(signed)
        )
        written, repeated = admitted.appended.written, admitted.appended.repeated
        wrong |= {int(accepted[row]): error for row, error in admitted.refused.items()}
    single = _refusals(records, places, wrong)
    slices: dict[str, list[Refusal]] = {}
    for refusal in single:
        if refusal.golem_id in signed:
            slices.setdefault(str(refusal.golem_id), []).append(refusal)
    whole = [_slice_refusal(refusals) for refusals in slices.values()]
    return Outcome(written, repeated, tuple([r for r in single if r.golem_id not in slices] + whole))


def _slice_refusal(refusals: Sequence[Refusal]) -> Refusal:
    """Merge the refusals of a slice; the first error other than a signature error is the cause."""
    causes = [r for r in refusals if not isinstance(r.error, SignatureError)] or list(refusals)
    places = tuple(place for refusal in refusals for place in refusal.places)
    return Refusal(places, causes[0].golem_id, causes[0].tick, causes[0].error)


def _impostors(records: pa.Table, owner: str | None) -> dict[int, BardoError]:
    if owner is None:
        return {}
    is_other = pc.fill_null(pc.not_equal(records.column("golem_id"), owner), True)
    return {
        int(row): IdentityError(
            f"golem {records.column('golem_id')[int(row)].as_py()}: this came in the folder of golem {owner}, which "
            "accepts only its own records"
        )
        for row in np.flatnonzero(np.asarray(is_other))
    }


def _refusals(records: pa.Table, places: Int64Array, wrong: Mapping[int, BardoError]) -> list[Refusal]:
    rows = sorted(wrong)
    golems = records.column("golem_id").take(pa.array(rows, pa.int64())).to_pylist()
    ticks = records.column("tick").take(pa.array(rows, pa.int64())).to_pylist()
    return [Refusal((int(places[r]),), g, t, wrong[r]) for r, g, t in zip(rows, golems, ticks, strict=True)]


# life events


def record_events(
    log: EventLog,
    lines: Sequence[bytes],
    recorded_at: datetime,
    *,
    owner: str | None = None,
    signatures: Sequence[Signature | SignatureError | None] | None = None,
) -> Outcome:
    """Record the life events of JSON lines; an event without an id gets the id of its content.

    Parameters
    ----------
    owner : the only golem whose events are accepted; None for any
    signatures : one per line, or the error of an unreadable signature
    """
    refused: list[Refusal] = []
    events: list[tuple[int, LifeEvent]] = []
    proofs: dict[str, Proof] = {}
    for place, line in enumerate(lines):
        try:
            event, signature = life_event_of(line), None if signatures is None else signatures[place]
            if isinstance(signature, SignatureError):
                raise signature
            if owner is not None and event.golem_id != owner:
                raise IdentityError(f"golem {event.golem_id}: this came in the folder of golem {owner}")
            events.append((place, event))
            if signature is not None:
                proofs[event.event_id] = Proof(signature, content_of(line))
        except InputError as error:
            refused.append(Refusal((place,), None, None, error))
    written, more = _record(log, events, recorded_at, proofs)
    return Outcome(written, len(events) - written - len(more), tuple(refused + more))


def _record(
    log: EventLog, events: Sequence[tuple[int, LifeEvent]], recorded_at: datetime, proofs: Mapping[str, Proof]
) -> tuple[int, list[Refusal]]:
    """Record events; if the log refuses them together, split them in halves to isolate the refused ones."""
    if not events:
        return 0, []
    try:
        return log.record([event for _, event in events], recorded_at, door="spool", proofs=proofs), []
    except _DATA_ERRORS as error:
        if len(events) == 1:
            place, event = events[0]
            return 0, [Refusal((place,), event.golem_id, None, error)]
    middle = len(events) // 2
    before, more = _record(log, events[:middle], recorded_at, proofs)
    after, further = _record(log, events[middle:], recorded_at, proofs)
    return before + after, more + further


def life_event_of(line: bytes) -> LifeEvent:
    """Parse a life event from a JSON line. Raises RecordError for an invalid event or a wrong id."""
    try:
        fields = from_json(line, allow_inf_nan=False)
        if not isinstance(fields, dict):
            raise RecordError("the line is no JSON object")
        check_keys(line)
        event = LifeEvent.model_validate_json(orjson.dumps({"event_id": "none given", **fields}), strict=True)
    except ValidationError as error:
        raise RecordError(sentence_of(error)) from error
    except (ValueError, TypeError) as error:
        raise RecordError(f"the line is no JSON: {error}") from error
    with_id = event.model_copy(update={"event_id": event.content_id()})
    if "event_id" in fields and event != with_id:
        raise RecordError(
            f"golem {event.golem_id}: {event.kind} has the id {event.event_id}, not that of its content: leave it out"
        )
    return with_id
