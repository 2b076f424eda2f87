"""Ingest one spool file block by block into the log; refused rows go to quarantine."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from io import BufferedIOBase
from itertools import count, islice
from pathlib import Path

import pyarrow as pa

from bardo_pipeline.errors import BardoError, RecordError, SchemaVersionError, SignatureError
from bardo_pipeline.events.custody.hash_chain import Signature
from bardo_pipeline.policy import WriterPolicy
from bardo_pipeline.storage.intake.accept_or_refuse import (
    ExaminedLines,
    Outcome,
    Refusal,
    admit_batch,
    admit_lines,
    record_events,
)
from bardo_pipeline.storage.intake.arrow_reader import Batch, read_batches, rows_as_stream
from bardo_pipeline.storage.intake.json_reader import Parsed, read_lines
from bardo_pipeline.storage.intake.line_buffer import Lines
from bardo_pipeline.storage.intake.quarantine import Kept, Quarantine, QuarantineItem
from bardo_pipeline.storage.intake.report_reader import read_reports
from bardo_pipeline.storage.intake.spool_blocks import Block, blocks_of
from bardo_pipeline.storage.intake.spool_sealing import Seals
from bardo_pipeline.storage.intake.spool_signatures import LineSignatures, slice_signatures
from bardo_pipeline.storage.log.batch import Stamp
from bardo_pipeline.storage.log.event_log import EventLog

_AHEAD = 2  # blocks that are parsed while one is admitted; with 1, parsing would wait


@dataclass
class IngestReport:
    """Result of a file: bytes, records, new ones, those already in the log, and quarantined ones by error."""

    file: str
    size: int
    records: int = 0
    written: int = 0
    repeated: int = 0
    quarantined: int = 0
    errors: Counter[str] = field(default_factory=Counter)


class FileIngest:
    """The ingestion of one file.

    Parameters
    ----------
    writer : id of its transactions in the log
    owner : the only golem whose records are accepted; None for any
    """

    def __init__(
        self,
        log: EventLog,
        quarantine: Quarantine,
        limits: WriterPolicy,
        *,
        report: IngestReport,
        owner: str | None,
        writer: str,
        taken_at: datetime,
    ) -> None:
        self._log, self._quarantine, self._limits, self._seals = log, quarantine, limits, Seals(log)
        self._owner, self._writer, self._taken_at = owner, writer, taken_at
        self.report = report

    def lines(
        self, file: BufferedIOBase, signatures: Path, ahead: ThreadPoolExecutor, *, are_reports: bool = False
    ) -> None:
        """Ingest a file of JSON lines.

        Parameters
        ----------
        ahead : threads that parse blocks while an earlier block is admitted
        are_reports : each line is a report instead of a record
        """
        parsing = ((block, ahead.submit(_parse, block.lines, are_reports)) for block in self._blocks(file))
        queue = deque(islice(parsing, _AHEAD))
        with closing(LineSignatures(signatures)) as signed:
            while queue:
                queue.extend(islice(parsing, 1))
                block, future = queue.popleft()
                written, parsed, examined = future.result()
                each = signed.of(block.numbers)
                lines, sealed = self._seals.lines(written, parsed, each)
                if sealed is not parsed:
                    examined = ExaminedLines.at(lines, sealed)
                outcome = admit_lines(self._log, examined, self._stamp(), owner=self._owner, signatures=each)
                self._settle(outcome, len(block.lines) + len(block.long), self._line_items(block, outcome, each))

    def life(self, file: BufferedIOBase, signatures: Path) -> None:
        """Ingest a file of life events as JSON lines."""
        with closing(LineSignatures(signatures)) as signed:
            for block in self._blocks(file):
                each = signed.of(block.numbers)
                outcome = record_events(self._log, block.lines, self._taken_at, owner=self._owner, signatures=each)
                self._settle(outcome, len(block.lines) + len(block.long), self._line_items(block, outcome, each))

    def arrow(
        self, source: pa.NativeFile, signatures: Path
    ) -> RecordError | SchemaVersionError | SignatureError | None:
        """Ingest an Arrow file batch by batch; return the error of the first unreadable batch."""
        row = 0
        try:
            signed = slice_signatures(signatures)
            for number, batch in enumerate(read_batches(source)):
                own = signed.get(number, {})
                records = self._seals.batch(batch.records, own)
                outcome = admit_batch(self._log, records, self._stamp(), owner=self._owner, signatures=own)
                self._settle(outcome, batch.source.num_rows, self._row_items(batch, outcome, own, row))
                row += batch.source.num_rows
        except (RecordError, SchemaVersionError, SignatureError) as error:
            return error
        return None

    def whole(self, kept: Kept, error: BardoError) -> None:
        """Quarantine the whole file."""
        self._settle(Outcome(), 1, [self._item(0, Refusal((), None, None, error), kept, self._log.sealing())])

    def _blocks(self, file: BufferedIOBase) -> Iterator[Block]:
        return blocks_of(
            file,
            block_bytes=self._limits.spool_block_bytes,
            line_bytes_max=self._limits.record_bytes_max,
            keep=self._seals.keeping(self._quarantine.keep),
        )

    def _stamp(self) -> Stamp:
        # A retried file continues after its last committed block number; committed records are repetitions.
        return Stamp(self._writer, next(self._segments), self._taken_at)

    @cached_property
    def _segments(self) -> Iterator[int]:
        return count(self._log.last_segment(self._writer) + 1)

    def _settle(self, outcome: Outcome, records: int, items: Sequence[QuarantineItem]) -> None:
        """Quarantine the refused items and update the report."""
        if items:
            self._quarantine.put(items, self._taken_at)
        self.report.records += records
        self.report.written += outcome.written
        self.report.repeated += outcome.repeated
        self.report.quarantined += records - outcome.written - outcome.repeated
        self.report.errors.update(item.error for item in items)

    def _line_items(
        self, block: Block, outcome: Outcome, signed: Sequence[Signature | SignatureError | None] | None
    ) -> list[QuarantineItem]:
        items, sealing = [], self._log.sealing()
        for refusal in outcome.refused:
            (at,) = refusal.places
            line_signature = signed[at] if signed is not None else None
            signature = line_signature if isinstance(line_signature, Signature) else None
            items.append(self._item(block.numbers[at], refusal, block.lines[at], sealing, signature))
        for number, kept in block.long:
            refusal = Refusal((), None, None, too_long(kept.length, self._limits))
            items.append(self._item(number, refusal, kept, sealing))
        return items

    def _row_items(
        self, batch: Batch, outcome: Outcome, signed: Mapping[str, Signature], row: int
    ) -> list[QuarantineItem]:
        """Return one item per refused row of a batch. row: number of rows in earlier batches."""
        sealing = self._log.sealing()
        refused = [
            Refusal(tuple(batch.rows[list(r.places)].tolist()), r.golem_id, r.tick, r.error) for r in outcome.refused
        ]
        unreadable = RecordError("the row holds text that is not UTF-8")
        refused += [Refusal((at,), None, None, unreadable) for at in batch.unreadable]
        return [
            self._item(
                row + 1 + r.places[0],
                r,
                rows_as_stream(batch.source.take(pa.array(r.places))),
                sealing,
                signed.get(r.golem_id) if r.golem_id is not None else None,
            )
            for r in refused
        ]

    def _item(
        self,
        line: int,
        refusal: Refusal,
        raw: bytes | Kept,
        sealing: frozenset[str],
        signature: Signature | None = None,
    ) -> QuarantineItem:
        error = refusal.error
        reason, raw = self._seals.kept(error, refusal.golem_id, raw, sealing)
        return QuarantineItem(
            source="spool",
            file=self.report.file,
            line=line,
            golem_id=refusal.golem_id,
            tick=refusal.tick,
            error=type(error).__name__,
            reason=reason,
            raw=raw,
            signature=signature,
        )


def _parse(lines: Lines, are_reports: bool) -> tuple[Lines, Parsed, ExaminedLines]:
    written, parsed = read_reports(lines) if are_reports else (lines, read_lines(lines))
    return written, parsed, ExaminedLines.at(written, parsed)


def too_long(length: int, limits: WriterPolicy) -> RecordError:
    """Return the error of a line of this length."""
    return RecordError(f"the line is {length:,} bytes long, more than the limit of {limits.record_bytes_max:,}")
