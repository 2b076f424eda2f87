"""The log in part: as it was by a version or a moment, or of some golems alone. Reads alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.errors import QueryError
from bardo_pipeline.events.record.arrow_schema import MOMENT
from bardo_pipeline.storage.delta.append_only_table import Part
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.log.stream_heads import Heads, golem_column


class _Part:
    """A log of which a part is seen. Vectors are all seen: keyed by content, they change nothing that is derived."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self.vectors, self.record_vectors = log.vectors, log.record_vectors

    @property
    def version(self) -> int:
        """The newest version of the cycles."""
        return self._log.version

    @property
    def life_version(self) -> int:
        """The newest version of the life events."""
        return self._log.life_version


class LogAsOf(_Part):
    """An event log, seen from an earlier version of its cycles or an earlier moment of event time."""

    def __init__(self, log: EventLog, *, version: int | None = None, moment: datetime | None = None) -> None:
        if (version is None) == (moment is None):
            raise QueryError("a log is seen as of a version or as of a moment: give one of them")
        if version is not None and not 0 <= version <= log.version:
            raise QueryError(f"the log has versions 0 to {log.version}, not {version}")
        super().__init__(log)
        self._version, self._moment = version, moment

    @property
    def version(self) -> int:
        """The version seen."""
        return self._log.version if self._version is None else self._version

    def read_cycles(
        self,
        columns: Sequence[str] | None = None,
        since_version: int | None = None,
        golems: Sequence[str] | None = None,
    ) -> pa.Table:
        """Cycles, all or those after a version, up to where this looks."""
        if self._moment is None:
            return self._log.read_cycles_between(columns, since_version, self.version, golems)
        extra = [c for c in ("observed_at",) if columns is not None and c not in columns]
        rows = self._log.read_cycles(None if columns is None else [*columns, *extra], since_version, golems)
        return rows.filter(pc.less_equal(rows["observed_at"], self._at())).drop_columns(extra)

    def cycles_in_parts(self, columns: Sequence[str], since_version: int | None = None) -> Iterator[Part]:
        """Cycles in parts, early ticks first; as of a moment, in one."""
        if self._moment is None:
            return self._log.cycles_in_parts(columns, since_version, self.version)
        return iter([Part(self.read_cycles(columns, since_version), is_last=True)])

    def life(self, kind: str | None = None, since_version: int | None = None) -> pa.Table:
        """Life events. As of a version, those of golems that had records, up to the last record's moment."""
        events = self._log.life(kind, since_version)
        return events.filter(pc.less_equal(events["observed_at"], self._at()))

    def heads(self) -> pa.Table:
        """How far each golem had come."""
        heads = Heads()
        rows = self.read_cycles(["golem_id", "tick"])
        heads.record(golem_column(rows), rows["tick"].to_numpy())
        for row in self.life("GapAccepted").select(["golem_id", "gap"]).to_pylist():
            heads.head(row["golem_id"]).accept((row["gap"]["tick_from"], row["gap"]["tick_to"]))
        return heads.table()

    def _at(self) -> pa.Scalar:
        if self._moment is not None:
            return pa.scalar(self._moment, MOMENT)
        newest = pc.max(self._log.read_cycles_between(["observed_at"], None, self.version)["observed_at"])
        return newest.cast(MOMENT)


class LogOfGolems(_Part):
    """An event log, seen as if it held nothing but the records and life events of some golems."""

    def __init__(self, log: EventLog, golems: Sequence[str]) -> None:
        known = set(log.life("GolemBorn")["golem_id"].to_pylist())
        if unknown := sorted(set(golems) - known):
            raise QueryError(f'no golem is called {", ".join(unknown)}: `bardo sql "from dim_golem"` lists all')
        super().__init__(log)
        self.golems = tuple(sorted(set(golems)))

    def read_cycles(
        self,
        columns: Sequence[str] | None = None,
        since_version: int | None = None,
        golems: Sequence[str] | None = None,
    ) -> pa.Table:
        """Their cycles, all or those after a version, of all of them or of these."""
        wanted = self.golems if golems is None else [g for g in golems if g in self.golems]
        return self._log.read_cycles(columns, since_version, list(wanted))

    def cycles_in_parts(self, columns: Sequence[str], since_version: int | None = None) -> Iterator[Part]:
        """Their cycles in parts, early ticks first."""
        return self._log.cycles_in_parts(columns, since_version, golems=self.golems)

    def life(self, kind: str | None = None, since_version: int | None = None) -> pa.Table:
        """Their life events."""
        return self._theirs(self._log.life(kind, since_version))

    def heads(self) -> pa.Table:
        """How far each of them has come."""
        return self._theirs(self._log.heads())

    def _theirs(self, rows: pa.Table) -> pa.Table:
        return rows.filter(pc.is_in(rows["golem_id"], value_set=pa.array(self.golems, pa.string())))
