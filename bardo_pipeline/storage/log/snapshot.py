"""Read-only views of the log: as of a version or time, or of some golems."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.errors import QueryError
from bardo_pipeline.events.record.arrow_columns import rows_of_golems
from bardo_pipeline.events.record.arrow_schema import MOMENT
from bardo_pipeline.storage.delta.append_only_table import Part
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.log.stream_heads import Heads, golem_column


class _Part:
    """A view of a log. It shows all vectors: they are keyed by content and do not change derivations."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self.vectors, self.vector_parts, self.record_vectors = log.vectors, log.vector_parts, log.record_vectors

    @property
    def version(self) -> int:
        """Newest version of the cycles."""
        return self._log.version

    @property
    def life_version(self) -> int:
        """Newest version of the life events."""
        return self._log.life_version


class LogAsOf(_Part):
    """The log as of an earlier version of the cycles or an earlier event time."""

    def __init__(self, log: EventLog, *, version: int | None = None, moment: datetime | None = None) -> None:
        if (version is None) == (moment is None):
            raise QueryError("a log is seen as of a version or as of a moment: give one of them")
        if version is not None and not 0 <= version <= log.version:
            raise QueryError(f"the log has versions 0 to {log.version}, not {version}")
        super().__init__(log)
        self._version, self._moment = version, moment

    @property
    def version(self) -> int:
        """Version of the view."""
        return self._log.version if self._version is None else self._version

    def read_cycles(
        self,
        columns: Sequence[str] | None = None,
        since_version: int | None = None,
        golems: Sequence[str] | None = None,
    ) -> pa.Table:
        """Read the cycles of the view, all or those after a version."""
        if self._moment is None:
            return self._log.read_cycles(columns, since_version, golems, until_version=self.version)
        extra = [c for c in ("observed_at",) if columns is not None and c not in columns]
        rows = self._log.read_cycles(None if columns is None else [*columns, *extra], since_version, golems)
        return rows.filter(pc.less_equal(rows["observed_at"], self._at())).drop_columns(extra)

    def cycles_in_parts(self, columns: Sequence[str], since_version: int | None = None) -> Iterator[Part]:
        """Read cycles in parts by tick; a view as of a time has one part."""
        if self._moment is None:
            return self._log.cycles_in_parts(columns, since_version, self.version)
        return iter([Part(self.read_cycles(columns, since_version), is_last=True)])

    def life(self, kind: str | None = None, since_version: int | None = None) -> pa.Table:
        """Read life events up to the event time of the view; for a version, that of its last record."""
        events = self._log.life(kind, since_version)
        return events.filter(pc.less_equal(events["observed_at"], self._at()))

    def heads(self) -> pa.Table:
        """Return the heads of the view (HEADS_SCHEMA)."""
        heads = Heads()
        rows = self.read_cycles(["golem_id", "tick"])
        heads.record(golem_column(rows), rows["tick"].to_numpy())
        for row in self.life("GapAccepted").select(["golem_id", "gap"]).to_pylist():
            heads.head(row["golem_id"]).accept((row["gap"]["tick_from"], row["gap"]["tick_to"]))
        return heads.table()

    def _at(self) -> pa.Scalar:
        if self._moment is not None:
            return pa.scalar(self._moment, MOMENT)
        newest = pc.max(self._log.read_cycles(["observed_at"], until_version=self.version)["observed_at"])
        return newest.cast(MOMENT)


class LogOfGolems(_Part):
    """The log limited to the records and life events of some golems."""

    def __init__(self, log: EventLog, golems: Sequence[str]) -> None:
        born = set(log.life("GolemBorn")["golem_id"].to_pylist())
        if unknown := sorted(set(golems) - born):
            raise QueryError(f'no golem is called {", ".join(unknown)}: `bardo sql "from dim_golem"` lists all')
        super().__init__(log)
        self.golems = tuple(sorted(set(golems)))

    def read_cycles(
        self,
        columns: Sequence[str] | None = None,
        since_version: int | None = None,
        golems: Sequence[str] | None = None,
    ) -> pa.Table:
        """Read cycles of the golems of the view, or of some of them."""
        visible = self.golems if golems is None else [g for g in golems if g in self.golems]
        return self._log.read_cycles(columns, since_version, list(visible))

    def cycles_in_parts(self, columns: Sequence[str], since_version: int | None = None) -> Iterator[Part]:
        """Read cycles in parts by tick."""
        return self._log.cycles_in_parts(columns, since_version, golems=self.golems)

    def life(self, kind: str | None = None, since_version: int | None = None) -> pa.Table:
        """Read life events of the golems of the view."""
        return self._visible(self._log.life(kind, since_version))

    def heads(self) -> pa.Table:
        """Return the heads of the golems of the view."""
        return self._visible(self._log.heads())

    def _visible(self, rows: pa.Table) -> pa.Table:
        return rows_of_golems(rows, self.golems)
