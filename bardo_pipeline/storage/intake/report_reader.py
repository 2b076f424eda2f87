"""Read lines of one report each as the records that are built from them.

The record of a line is a function of the line, so a file that is ingested again gives the same records.
"""

from __future__ import annotations

import numpy as np
from pydantic import ValidationError

from bardo_pipeline.errors import RecordError
from bardo_pipeline.events.experience.reported_experience import TimedReport, fault_of, record_of_report
from bardo_pipeline.events.record.repeated_keys import check_keys
from bardo_pipeline.storage.intake.json_reader import BadLine, Parsed, claims_of, read_lines
from bardo_pipeline.storage.intake.line_buffer import Lines


def record_line(line: bytes) -> bytes:
    """Return the JSON of the record of a report's line. Raises RecordError for a line that is no report."""
    try:
        report = TimedReport.model_validate_json(line)
    except ValidationError as error:
        raise RecordError(fault_of(error)) from None
    check_keys(line)
    return record_of_report(report).model_dump_json().encode()


def read_reports(lines: Lines) -> tuple[Lines, Parsed]:
    """Return the lines of the records, a bad line as it is, and the records."""
    written, good, bad = list[bytes](lines), list[int](), list[BadLine]()
    for at, line in enumerate(lines):
        try:
            written[at] = record_line(line)
            good.append(at)
        except RecordError as error:
            golem_id, tick, _ = claims_of(line)
            subject = f"golem {golem_id}, tick {tick}" if golem_id is not None else "a line"
            bad.append(BadLine(at, golem_id, tick, RecordError(f"{subject}: {error}")))
    parsed = read_lines(Lines.of([written[at] for at in good]))
    assert not parsed.bad, "a built record is a valid line"
    return Lines.of(written), Parsed(parsed.records, np.array(good, np.int64)[parsed.lines], tuple(bad))
