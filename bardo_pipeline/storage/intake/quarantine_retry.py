"""Retry quarantined items, whose cause may have been removed: a missing key, a held lease, a gap, an old package.

Admitted items get the ruling "retried"; items that are refused again stay in quarantine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

import pyarrow as pa

from bardo_pipeline.errors import BardoError, InputError, RecordError, SchemaVersionError
from bardo_pipeline.policy import Policy, WriterPolicy
from bardo_pipeline.storage.intake.accept_or_refuse import ExaminedLines, admit_batch, admit_lines, record_events
from bardo_pipeline.storage.intake.arrow_reader import read_batches
from bardo_pipeline.storage.intake.json_reader import read_lines
from bardo_pipeline.storage.intake.line_buffer import Lines
from bardo_pipeline.storage.intake.quarantine import Quarantine, QuarantineItem
from bardo_pipeline.storage.intake.report_reader import read_reports
from bardo_pipeline.storage.intake.spool_folder import ARROW, LIFE, REPORTS, owner_of
from bardo_pipeline.storage.intake.spool_ingest import FileIngest, IngestReport, too_long
from bardo_pipeline.storage.intake.spool_sealing import Seals
from bardo_pipeline.storage.log.batch import Stamp
from bardo_pipeline.storage.log.event_log import EventLog

_ITEMS_AT_ONCE = 500
Kind = Literal["lines", "life", "reports", "rows", "file"]


@dataclass
class Retried:
    """Ids of the admitted items, and of those that stay, with the present error."""

    taken: list[str] = field(default_factory=list)
    stayed: list[tuple[str, BardoError]] = field(default_factory=list)


def retry(log: EventLog, quarantine: Quarantine, item_ids: Sequence[str], *, at: datetime, policy: Policy) -> Retried:
    """Retry these items (full ids) in the given order. Raises QueryError for an unknown id."""
    retried = Retried()
    intake = _Intake(log, quarantine, policy.writer, at)
    for items in _batches(quarantine.items(item_ids)):
        stay = intake.send(items)
        taken = [item.item_id for k, item in enumerate(items) if k not in stay]
        quarantine.rule(taken, "retried", at=at, why="the log has it")
        retried.taken += taken
        retried.stayed += [(items[k].item_id, error) for k, error in stay.items()]
    return retried


def _batches(items: Iterator[QuarantineItem]) -> Iterator[list[QuarantineItem]]:
    """Group consecutive items of one kind and owner."""
    group: list[QuarantineItem] = []
    for item in items:
        is_single = _kind(item) in ("rows", "file")
        if group and (is_single or len(group) == _ITEMS_AT_ONCE or _key(item) != _key(group[0])):
            yield group
            group = []
        group.append(item)
    if group:
        yield group


def _key(item: QuarantineItem) -> tuple[Kind, str | None]:
    return _kind(item), _owner(item)


def _kind(item: QuarantineItem) -> Kind:
    if item.source == "spool" and item.file.endswith(ARROW):
        return "rows" if item.line else "file"
    if item.source == "spool" and item.file.endswith(REPORTS):
        return "reports"
    return "life" if item.file.endswith(LIFE) else "lines"


def _owner(item: QuarantineItem) -> str | None:
    return owner_of(item.file) if item.source == "spool" else None


class _Intake:
    """Sends items to the log. Each method returns the errors of the refused items by index."""

    def __init__(self, log: EventLog, quarantine: Quarantine, limits: WriterPolicy, at: datetime) -> None:
        self._log, self._quarantine, self._limits, self._at = log, quarantine, limits, at
        self._seals = Seals(log)

    def send(self, items: Sequence[QuarantineItem]) -> Mapping[int, BardoError]:
        kind = _kind(items[0])
        if kind == "file":
            return self._file(items[0])
        if kind == "rows":
            return self._rows(items[0])
        return self._lines(items, life=kind == "life")

    def _lines(self, items: Sequence[QuarantineItem], *, life: bool) -> Mapping[int, BardoError]:
        stay: dict[int, BardoError] = {}
        for k, item in enumerate(items):
            if item.kept.length > self._limits.record_bytes_max:
                stay[k] = too_long(item.kept.length, self._limits)
        fit = [k for k in range(len(items)) if k not in stay]
        raws, owner = [self._quarantine.raw_of(items[k]) for k in fit], _owner(items[0])
        signed = [items[k].signature for k in fit]
        if life:
            outcome = record_events(self._log, raws, self._at, owner=owner, signatures=signed)
        else:
            original = Lines.of(raws)
            is_report = _kind(items[0]) == "reports"
            written, parsed = read_reports(original) if is_report else (original, read_lines(original))
            lines, parsed = self._seals.lines(written, parsed, signed)
            outcome = admit_lines(
                self._log, ExaminedLines.at(lines, parsed), self._stamp(items), owner=owner, signatures=signed
            )
        return stay | {fit[place]: r.error for r in outcome.refused for place in r.places}

    def _rows(self, item: QuarantineItem) -> Mapping[int, BardoError]:
        try:
            (batch,) = read_batches(pa.BufferReader(self._quarantine.raw_of(item)))
            if batch.unreadable:
                raise RecordError("the row holds text that is not UTF-8")
        except (InputError, SchemaVersionError) as error:
            return {0: error}
        signed = {} if item.signature is None or item.golem_id is None else {item.golem_id: item.signature}
        records = self._seals.batch(batch.records, signed)
        outcome = admit_batch(self._log, records, self._stamp([item]), owner=_owner(item), signatures=signed)
        return {0: outcome.refused[0].error} if outcome.refused else {}

    def _file(self, item: QuarantineItem) -> Mapping[int, BardoError]:
        """Retry a whole file; it is admitted if it is readable to its end, and its refused rows are new items."""
        ingest = FileIngest(
            self._log,
            self._quarantine,
            self._limits,
            report=IngestReport(item.file, item.kept.length),
            owner=_owner(item),
            writer=f"spool/{item.kept.hash}",
            taken_at=self._at,
        )
        signatures = self._quarantine.signatures_of(item.kept)
        broken = ingest.arrow(pa.BufferReader(self._quarantine.raw_of(item)), signatures)
        return {} if broken is None else {0: broken}

    def _stamp(self, items: Sequence[QuarantineItem]) -> Stamp:
        writer = "quarantine/" + hashlib.sha256("".join(item.item_id for item in items).encode()).hexdigest()
        return Stamp(writer, self._log.last_segment(writer) + 1, self._at)
