"""Counts the records whose gating reason the checks of reasons understand."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.quality.reason_checks import _GATE, _LEARNED, FIRST_VERSION


def stated_in_rules(records: pa.Table) -> int:
    """Return the number of records whose gating reason the checks understand."""
    texts = records.filter(pc.greater_equal(records["schema_version"], FIRST_VERSION))["gating_reason"]
    return sum((_GATE.fullmatch(text) or _LEARNED.fullmatch(text)) is not None for text in texts.to_pylist())
