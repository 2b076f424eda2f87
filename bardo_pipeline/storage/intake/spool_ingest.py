"""Taking one spool file: block by block into the log, and what the log does not take into quarantine."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from io import BufferedIOBase
from itertools import count, islice
from pathlib import Path
from threading import Lock

import pyarrow as pa

from bardo_pipeline.errors import BardoError, RecordError, SchemaVersionError, SignatureError
from bardo_pipeline.events.custody.hash_chain import Signature, content_of
from bardo_pipeline.policy import WriterPolicy
from bardo_pipeline.storage.intake.admit_batches import (
    Looked,
    Outcome,
    Refusal,
    Stamp,
    admit_batch,
    admit_lines,
    record_events,
)
from bardo_pipeline.storage.intake.arrow_reader import Batch, read_batches, rows_as_stream
from bardo_pipeline.storage.intake.json_reader import Parsed, Part, groups_of, read_group, together
from bardo_pipeline.storage.intake.line_buffer import Lines
from bardo_pipeline.storage.intake.quarantine import Kept, Quarantine, QuarantineItem
from bardo_pipeline.storage.intake.spool_blocks import Block, blocks_of
from bardo_pipeline.storage.intake.spool_sealing import Seals
from bardo_pipeline.storage.intake.spool_signatures import LineSignatures, slice_signatures
from bardo_pipeline.storage.log.event_log import EventLog

_AHEAD = 2  # blocks: with one alone, who parses waits for who admits


@dataclass
class Taken:
    """What became of a file: its bytes and records, those that were new, on record already, or refused, by error."""

    file: str
    size: int
    records: int = 0
    written: int = 0
    repeated: int = 0
    quarantined: int = 0
    errors: Counter[str] = field(default_factory=Counter)


class Taking:
    """One file on its way. writer: its name in the log's transactions; owner: who alone may speak in it."""

    def __init__(
        self,
        log: EventLog,
        quarantine: Quarantine,
        limits: WriterPolicy,
        *,
        taken: Taken,
        owner: str | None,
        writer: str,
        taken_at: datetime,
    ) -> None:
        self._log, self._quarantine, self._limits, self._seals = log, quarantine, limits, Seals(log)
        self._owner, self._writer, self._taken_at = owner, writer, taken_at
        self.taken = taken

    def lines(self, file: BufferedIOBase, signatures: Path, ahead: ThreadPoolExecutor) -> None:
        """Take a file of JSON lines. ahead: threads that read blocks while one before them is admitted."""
        begun = ((block, _Reading(block.lines, ahead).done) for block in self._blocks(file))
        due = deque(islice(begun, _AHEAD))
        with closing(LineSignatures(signatures)) as signed:
            while due:
                due.extend(islice(begun, 1))
                block, reading = due.popleft()
                parsed, looked = reading.result()
                each = signed.of(block.numbers)
                lines, sealed = self._seals.lines(block.lines, parsed, each)
                if sealed is not parsed:
                    looked = Looked.at(lines, sealed)
                outcome = admit_lines(self._log, looked, self._stamp(), owner=self._owner, signatures=each)
                self._settle(outcome, len(block.lines) + len(block.long), self._line_items(block, outcome, each))

    def life(self, file: BufferedIOBase) -> None:
        """Take a file of life events as JSON lines."""
        for block in self._blocks(file):
            outcome = record_events(self._log, block.lines, self._taken_at, owner=self._owner)
            self._settle(outcome, len(block.lines) + len(block.long), self._line_items(block, outcome, None))

    def arrow(
        self, source: pa.NativeFile, signatures: Path
    ) -> RecordError | SchemaVersionError | SignatureError | None:
        """Take an Arrow file, a record batch at a time, up to where it cannot be read on; returns why it cannot."""
        row = 0
        try:
            signed = slice_signatures(signatures)
            for number, batch in enumerate(read_batches(source)):
                own = signed.get(number, {})
                records = self._seals.batch(batch.records, own)
                outcome = admit_batch(self._log, records, self._stamp(), owner=self._owner, signatures=own)
                self._settle(outcome, batch.given.num_rows, self._row_items(batch, outcome, own, row))
                row += batch.given.num_rows
        except (RecordError, SchemaVersionError, SignatureError) as error:
            return error
        return None

    def whole(self, kept: Kept, error: BardoError) -> None:
        """Put the whole file into quarantine."""
        self._settle(Outcome(), 1, [self._item(0, Refusal((), None, None, error), kept, self._log.sealing())])

    def _blocks(self, file: BufferedIOBase) -> Iterator[Block]:
        return blocks_of(
            file,
            block_bytes=self._limits.spool_block_bytes,
            line_bytes_max=self._limits.record_bytes_max,
            keep=self._seals.keeping(self._quarantine.keep),
        )

    def _stamp(self) -> Stamp:
        # A file that was taken in part goes on behind its last block; what that brought is then only repeated.
        return Stamp(self._writer, next(self._segments), self._taken_at)

    @cached_property
    def _segments(self) -> Iterator[int]:
        return count(self._log.last_segment(self._writer) + 1)

    def _settle(self, outcome: Outcome, records: int, items: Sequence[QuarantineItem]) -> None:
        """Put into quarantine what was refused, and count."""
        if items:
            self._quarantine.put(items, self._taken_at)
        self.taken.records += records
        self.taken.written += outcome.written
        self.taken.repeated += outcome.repeated
        self.taken.quarantined += records - outcome.written - outcome.repeated
        self.taken.errors.update(item.error for item in items)

    def _line_items(
        self, block: Block, outcome: Outcome, signed: Sequence[Signature | SignatureError | None] | None
    ) -> list[QuarantineItem]:
        items, sealing = [], self._log.sealing()
        for refusal in outcome.refused:
            (at,) = refusal.places
            found = signed[at] if signed is not None else None
            signature = found if isinstance(found, Signature) else None
            items.append(self._item(block.numbers[at], refusal, block.lines[at], sealing, signature))
        for number, kept in block.long:
            refusal = Refusal((), None, None, too_long(kept.length, self._limits))
            items.append(self._item(number, refusal, kept, sealing))
        return items

    def _row_items(
        self, batch: Batch, outcome: Outcome, signed: Mapping[str, Signature], row: int
    ) -> list[QuarantineItem]:
        """row: how many rows came before this batch."""
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
                rows_as_stream(batch.given.take(pa.array(r.places))),
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
            file=self.taken.file,
            line=line,
            golem_id=refusal.golem_id,
            tick=refusal.tick,
            error=type(error).__name__,
            reason=reason,
            raw=raw,
            signature=signature,
        )


class _Reading:
    """Lines that threads read in groups; whoever reads the last group looks at all of them together.

    done: what the lines hold. So no thread waits for another one, and what takes long is done beside each other.
    """

    def __init__(self, lines: Lines, ahead: ThreadPoolExecutor) -> None:
        self.done: Future[tuple[Parsed, Looked]] = Future()
        self._lines = lines
        self._parts: dict[int, tuple[list[Part], list[bytes]]] = {}
        groups = list(groups_of(lines))
        self._left, self._lock = len(groups), Lock()
        if not groups:
            self.done.set_result(self._together())
        for group in groups:
            ahead.submit(self._read, group)

    def _read(self, group: range) -> None:
        try:
            self._parts[group.start] = read_group(self._lines, group), list(map(content_of, self._lines.views(group)))
            with self._lock:
                self._left -= 1
                is_last = not self._left
            if is_last:
                self.done.set_result(self._together())
        except BaseException as error:
            with suppress(InvalidStateError):  # another group's came first
                self.done.set_exception(error)

    def _together(self) -> tuple[Parsed, Looked]:
        parts = [self._parts[first] for first in sorted(self._parts)]
        parsed = together(part for part, _ in parts)
        return parsed, Looked.at(self._lines, parsed, [content for _, contents in parts for content in contents])


def too_long(length: int, limits: WriterPolicy) -> RecordError:
    """What is wrong with a line of so many bytes."""
    return RecordError(f"the line is {length:,} bytes long, and at most {limits.record_bytes_max:,} are taken")
