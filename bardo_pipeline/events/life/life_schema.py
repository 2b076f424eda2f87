"""The Arrow schema of life events. Source: architecture ("the log")."""

from __future__ import annotations

import pyarrow as pa

from bardo_pipeline.events.life.events import LifeEvent
from bardo_pipeline.events.record.arrow_schema import arrow_schema

LIFE_SCHEMA: pa.Schema = arrow_schema(LifeEvent)
"""One row per life event, without the columns of the log."""
