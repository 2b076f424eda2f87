"""Projections as one owner sees them: each read returns the owner's rows only.

Votes are visible to the owner whose golem cast them. The consensus on a proposition is visible to an owner whose golems
voted on it, and to all once golems of two owners did: one voice alone is not anonymous. The tables of a view are read,
never derived into. Source: X-12; KAT (Lethe); ADR 0065.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.delta.replaceable_table import ReplaceableTable
from bardo_pipeline.storage.delta.table_digest import Digest
from bardo_pipeline.storage.delta.table_specs import TABLES, TableSpec
from bardo_pipeline.storage.projections.projections import GrowingTable, Projections

Keys = Callable[[], Collection[str]]
"""The values of a column whose rows an owner may see, now."""


class _GrowingOfOwner(GrowingTable):
    def __init__(self, name: str, path: Path, spec: TableSpec, policy: Policy, column: str, keys: Keys) -> None:
        super().__init__(name, path, spec, policy)
        self._column, self._keys = column, keys
        self._digest: tuple[int, Digest] | None = None

    def _condition(self, only: ds.Expression | None, golems: Iterable[str] | None) -> ds.Expression:
        is_own = pc.field(self._column).isin(pa.array(sorted(self._keys()), pa.string()))
        wanted = super()._condition(only, golems)
        return is_own if wanted is None else is_own & wanted

    @property
    def row_count(self) -> int:
        """Number of the owner's valid rows."""
        return self.read([self._column]).num_rows

    def digest(self) -> Digest:
        """Return the digest of the owner's valid rows."""
        version = self.table.version
        if self._digest is None or self._digest[0] != version:
            self._digest = version, Digest.of(self.read())
        return self._digest[1]


class _ReplaceableOfOwner(ReplaceableTable):
    def __init__(self, name: str, path: Path, spec: TableSpec, bucket_count: int, keys: Keys) -> None:
        super().__init__(name, path, spec, bucket_count)
        self._keys = keys

    def read(self, buckets: Iterable[int] | None = None, *, only: Iterable[str] | None = None) -> pa.Table:
        """Read the owner's rows; see ReplaceableTable."""
        keys = set(self._keys())
        return super().read(buckets, only=keys if only is None else keys.intersection(only))

    def digest(self) -> Digest:
        """Return the digest of the owner's rows."""
        return Digest.of(self.read())


class ProjectionsOfOwner(Projections):
    """The tables of one derivation, limited to one owner.

    Parameters
    ----------
    golems : returns the golems of the owner
    """

    def __init__(self, root: Path, bucket_count: int, policy: Policy, *, owner: str, golems: Keys) -> None:
        super().__init__(root, bucket_count, policy)
        self._owner, self._golems = owner, golems

    def _table(self, name: str) -> GrowingTable | ReplaceableTable:
        spec, path = TABLES[name], self.root / name
        if name in self._open:
            return self._open[name]
        if spec.grows:
            column = "golem_id" if "golem_id" in spec.schema.names else "vote_id"
            keys = self._golems if column == "golem_id" else self._votes
            self._open[name] = _GrowingOfOwner(name, path, spec, self._policy, column, keys)
        else:
            of_key: dict[str, Keys] = {
                "golem_id": self._golems,
                "owner_id": lambda: (self._owner,),
                "proposition_id": self._propositions,
            }
            self._open[name] = _ReplaceableOfOwner(name, path, spec, self.bucket_count, of_key[spec.key[0]])
        return self._open[name]

    def _votes(self) -> Collection[str]:
        causes = self.growing("vote_causes").read(["vote_id"])
        return causes["vote_id"].to_pylist()

    def _propositions(self) -> Collection[str]:
        whole = Projections(self.root, self.bucket_count, self._policy)
        causes = whole.growing("vote_causes").read(["vote_id", "owner_id"])
        cast = whole.growing("votes").read(["vote_id", "proposition_id"]).join(causes, "vote_id", join_type="inner")
        voters: dict[str, set[str]] = {}
        for proposition, owner in zip(cast["proposition_id"].to_pylist(), cast["owner_id"].to_pylist(), strict=True):
            voters.setdefault(proposition, set()).add(owner)
        return [name for name, owners in voters.items() if self._owner in owners or len(owners) > 1]
