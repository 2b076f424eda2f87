"""Cache of rows by golem, one Arrow file per bucket.

All cached rows can be computed again from the log and the projections, so an unreadable or missing file only costs
time. Files of other names in the folder are ignored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.checkpoints import consumer_folder, read_arrow, write_arrow
from bardo_pipeline.errors import DamagedError
from bardo_pipeline.events.record.arrow_columns import rows_of_golems, rows_of_other_golems
from bardo_pipeline.storage.home import bucket_of


@dataclass(frozen=True)
class GolemCache:
    """Rows of living golems in the folder `readers/<name>`; the schema has a column golem_id."""

    context: DerivationContext
    name: str
    schema: pa.Schema

    def read(self, golem_ids: Iterable[str]) -> pa.Table:
        """Return the cached rows of these golems."""
        members = self._by_bucket(golem_ids)
        parts = [rows_of_golems(self._load(bucket), golems) for bucket, golems in members.items()]
        return pa.concat_tables([self.schema.empty_table(), *parts])

    def replace(self, rows: pa.Table, golem_ids: Iterable[str]) -> None:
        """Replace the rows of these golems, and drop the rows of dead golems from the files that are written."""
        golem_ids = set(golem_ids)
        dead = set(self.context.life("DeathDeclared")["golem_id"].to_pylist())
        for bucket, golems in self._by_bucket(golem_ids).items():
            kept = rows_of_other_golems(self._load(bucket), golem_ids | dead)
            path = self._path(bucket)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_arrow(path, pa.concat_tables([kept, rows_of_golems(rows, golems - dead)]))

    def _by_bucket(self, golem_ids: Iterable[str]) -> dict[int, set[str]]:
        members: dict[int, set[str]] = defaultdict(set)
        for golem_id in golem_ids:
            members[bucket_of(golem_id, self.context.home.bucket_count)].add(golem_id)
        return members

    def _load(self, bucket: int) -> pa.Table:
        try:
            rows = read_arrow(self._path(bucket))
        except (FileNotFoundError, DamagedError):
            return self.schema.empty_table()
        return rows if rows.schema.equals(self.schema) else self.schema.empty_table()

    def _path(self, bucket: int) -> Path:
        return consumer_folder(self.context, self.name) / f"{bucket}.arrow"
