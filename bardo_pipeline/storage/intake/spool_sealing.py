"""Sealing of private parts in the spool: unsigned records are sealed before hashing, and refused ones are not kept.

A signature covers the sender's bytes, so signed records must arrive sealed. Source: X-7.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np
import pyarrow as pa

from bardo_pipeline.arrays import BoolArray, Int64Array
from bardo_pipeline.errors import BardoError, RecordError, SchemaVersionError, SealError
from bardo_pipeline.events.custody.sealing import SealKey, must_be_sealed, seal_table, withheld
from bardo_pipeline.events.record.arrow_schema import to_models
from bardo_pipeline.events.record.model import DecisionCycleRecord
from bardo_pipeline.events.record.validate import row_errors
from bardo_pipeline.storage.intake.json_reader import Parsed
from bardo_pipeline.storage.intake.line_buffer import Lines
from bardo_pipeline.storage.intake.quarantine import Kept
from bardo_pipeline.storage.keys.golem_seal_keys import SealKeys
from bardo_pipeline.storage.log.event_log import EventLog

WITHHELD = "a golem of this home seals its private parts, so neither these bytes nor words of them are kept"


class Seals:
    """Seals records of the golems of a log."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    def lines(self, lines: Lines, parsed: Parsed, signed: Sequence[object] | None) -> tuple[Lines, Parsed]:
        """Seal the private parts of unsigned records in the lines of a block and in the parsed records."""
        if not self._log.sealing():
            return lines, parsed
        unsigned = np.array([signed is None or signed[line] is None for line in parsed.lines.tolist()], dtype=np.bool_)
        records, rows = self._sealed(parsed.records, unsigned)
        if not len(rows):
            return lines, parsed
        sealed_lines = list(lines)
        for row, model in zip(rows.tolist(), to_models(records.take(pa.array(rows)), DecisionCycleRecord), strict=True):
            sealed_lines[int(parsed.lines[row])] = model.model_dump_json().encode()
        return Lines.of(sealed_lines), Parsed(records, parsed.lines, parsed.bad)

    def batch(self, records: pa.Table, signed: Collection[str]) -> pa.Table:
        """Seal the private parts of unsigned golems in an Arrow batch. signed: golems with a signature."""
        if not self._log.sealing():
            return records
        unsigned = np.array([golem_id not in signed for golem_id in records["golem_id"].to_pylist()], dtype=np.bool_)
        return self._sealed(records, unsigned)[0]

    def _sealed(self, records: pa.Table, which: BoolArray) -> tuple[pa.Table, Int64Array]:
        """Seal the records that need it; return them and the sealed rows.

        Invalid records and those that cannot be sealed stay unchanged; the log refuses them with a reason.
        """
        keys = self._keys(set(records["golem_id"].unique().to_pylist()) & self._log.sealing())
        rows = np.flatnonzero(which & must_be_sealed(records, keys))
        wrong = row_errors(records.take(pa.array(rows)), DecisionCycleRecord)
        sealed, done = _sealed_rows(records, np.delete(rows, sorted(wrong)), keys)
        if not len(done):
            return records, done
        order = np.arange(len(records))
        order[done] = len(records) + np.arange(len(done))
        return pa.concat_tables([records, sealed]).take(pa.array(order)).combine_chunks(), done

    def _keys(self, golem_ids: Iterable[str]) -> dict[str, SealKey]:
        keys: dict[str, SealKey] = {}
        for golem_id in golem_ids:
            try:
                keys[golem_id] = SealKeys(self._log.home).in_force(self._log, golem_id)
            except SealError:
                continue  # the key was destroyed; the log refuses unsealed records
        return keys

    # refused items

    def keeping(self, keep: Callable[[Iterable[bytes]], Kept]) -> Callable[[Iterable[bytes]], Kept]:
        """Return a replacement of `keep` that drops the bytes if they may be private."""

        def counted(chunks: Iterable[bytes]) -> Kept:
            return Kept("", sum(len(chunk) for chunk in chunks)) if self._log.sealing() else keep(chunks)

        return counted

    def kept(
        self, error: BardoError, golem_id: str | None, raw: bytes | Kept, sealing: Collection[str]
    ) -> tuple[str, bytes | Kept]:
        """Return reason and bytes of a quarantine item, without private content.

        Parameters
        ----------
        sealing : golems that seal, read after the refusal
        """
        if golem_id is not None and isinstance(raw, bytes):
            private = golem_id in sealing
        else:
            private = bool(sealing) and (isinstance(raw, Kept) or withheld(raw, sealing))
        if not private:
            return str(error), raw
        # The text of a schema error quotes values.
        fact = "it does not fit the schema" if isinstance(error, RecordError | SchemaVersionError) else str(error)
        return f"{fact}; {WITHHELD}: correct it at its source and send it again", b""


def _sealed_rows(records: pa.Table, rows: Int64Array, keys: dict[str, SealKey]) -> tuple[pa.Table, Int64Array]:
    """Seal these rows; return the sealed records and their rows, without those that cannot be sealed."""
    try:
        return seal_table(records.take(pa.array(rows)), keys), rows
    except SealError:
        if len(rows) == 1:
            return records.slice(0, 0), rows[:0]
    halves = [_sealed_rows(records, half, keys) for half in np.array_split(rows, 2)]
    return pa.concat_tables([table for table, _ in halves]), np.concatenate([done for _, done in halves])
