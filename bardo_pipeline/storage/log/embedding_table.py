"""The embedding log: a table of drift checks of embedders and of begun migrations.

A migration ends with the life event `DerivationAdopted`; a `ReembeddingBegan` without one is an unfinished migration.
Source: MEM (embedding integrity); canon 56.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.events.record.arrow_columns import all_nullable, required
from bardo_pipeline.events.record.arrow_schema import MOMENT
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.embedder_drift import Drift, Verdict
from bardo_pipeline.retrieval.embedder_interface import EmbedderIdentity
from bardo_pipeline.storage.delta.append_only_table import AppendOnlyTable
from bardo_pipeline.storage.delta.checksum_manifest import Sums
from bardo_pipeline.storage.home import Home, writing_to
from bardo_pipeline.storage.log.protocol import IDENTITY_COLUMNS, VECTORS_SCHEMA, utc

Kind = Literal["DriftChecked", "ReembeddingBegan"]


_MEASURES = ("texts", "distance_mean_ppm", "distance_max_ppm", "neighbours_ppm", "norm_variance_ppm", "norm_first_ppm")

EMBEDDING_SCHEMA = pa.schema(
    [
        required("number", pa.int64()),
        required("kind", pa.string()),
        required("at", MOMENT),
        required("name", pa.string()),
        *(VECTORS_SCHEMA.field(name) for name in IDENTITY_COLUMNS),
        *all_nullable(pa.int64(), *_MEASURES),
        *all_nullable(pa.string(), "verdict", "says", "derivation_id"),
        pa.field("adoptions", pa.int64()),
    ]
)
"""One row per event. number: from 1, in recording order. name: argument of `open_embedder`. embedder: key of its
identity. DriftChecked has the columns from `texts` to `says` (embedder_drift.py), ReembeddingBegan has the target
derivation and the number of its earlier adoptions."""


@dataclass(frozen=True)
class Checked:
    """A recorded drift check of an embedder."""

    at: datetime
    name: str
    embedder: str
    drift: Drift


@dataclass(frozen=True)
class Migration:
    """A begun migration: time, target embedder, target derivation and the number of its earlier adoptions."""

    at: datetime
    name: str
    embedder: str
    derivation_id: str
    adoptions: int


class EmbeddingLog:
    """Drift checks and migrations of a home in recording order. Only writing creates the table."""

    def __init__(self, home: Home, policy: Policy | None = None) -> None:
        self._home, self._policy = home, policy or Policy()
        self._kept: AppendOnlyTable | None = None
        self._read: tuple[int, list[dict[str, Any]]] = (-1, [])

    def record_check(self, at: datetime, name: str, identity: EmbedderIdentity, drift: Drift) -> Checked:
        """Record the result of a drift check."""
        self._record("DriftChecked", at, name, identity, asdict(drift) | {"says": "; ".join(drift.says)})
        return Checked(at, name, identity.key, drift)

    def begin(
        self, at: datetime, name: str, identity: EmbedderIdentity, derivation_id: str, adoptions: pa.Table
    ) -> None:
        """Record the begin of a migration. adoptions: all DerivationAdopted events."""
        more = {"derivation_id": derivation_id, "adoptions": _adopted(adoptions, derivation_id)}
        self._record("ReembeddingBegan", at, name, identity, more)

    def _record(self, kind: Kind, at: datetime, name: str, identity: EmbedderIdentity, more: Mapping[str, Any]) -> None:
        row = {"kind": kind, "at": utc(at, "the moment of a check"), "name": name, "embedder": identity.key}
        with writing_to(self._home.root), self._home.lock("log"):
            self._home.raise_version()
            table = self._table()
            row |= asdict(identity) | dict(more) | {"number": table.read(["number"]).num_rows + 1}
            table.append(pa.Table.from_pylist([row], schema=EMBEDDING_SCHEMA), transactions={})

    def checks(self, embedder: str | None = None, *, name: str | None = None) -> list[Checked]:
        """Return the checks, oldest first, optionally of one embedder key or name."""
        return [
            Checked(row["at"], row["name"], row["embedder"], _drift(row))
            for row in self._rows()
            if row["kind"] == "DriftChecked" and embedder in (None, row["embedder"]) and name in (None, row["name"])
        ]

    def migrations(self) -> list[Migration]:
        """Return all begun migrations, oldest first."""
        return [
            Migration(row["at"], row["name"], row["embedder"], row["derivation_id"], row["adoptions"])
            for row in self._rows()
            if row["kind"] == "ReembeddingBegan"
        ]

    def unfinished(self, adoptions: pa.Table) -> Migration | None:
        """Return the last migration if it has not ended. adoptions: all DerivationAdopted events."""
        began = self.migrations()
        if not began or _adopted(adoptions, began[-1].derivation_id) > began[-1].adoptions:
            return None
        return began[-1]

    def _rows(self) -> list[dict[str, Any]]:
        if not (self._home.embedding / "_delta_log").exists():
            return []
        table = self._table()
        version = table.version
        if self._read[0] != version:
            self._read = version, table.read().sort_by("number").to_pylist()
        return self._read[1]

    def _table(self) -> AppendOnlyTable:
        if self._kept is None:
            path, sums = self._home.embedding, Sums(self._home, self._home.embedding)
            self._kept = AppendOnlyTable(path, EMBEDDING_SCHEMA, ["embedder"], policy=self._policy, sums=sums)
        return self._kept


def _drift(row: Mapping[str, Any]) -> Drift:
    verdict: Verdict = row["verdict"]
    return Drift(**{n: row[n] for n in _MEASURES}, verdict=verdict, says=tuple(filter(None, row["says"].split("; "))))


def _adopted(adoptions: pa.Table, derivation_id: str) -> int:
    """Count the life events that adopt a derivation."""
    if not adoptions.num_rows:
        return 0
    names = pc.struct_field(adoptions["adopted"].combine_chunks(), "derivation_id")
    return int(pc.sum(pc.equal(names, derivation_id)).as_py() or 0)
