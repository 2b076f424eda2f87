"""Rebuild: derive everything again from the log alone, beside what is in force, and compare fingerprints.

As of an earlier version or moment, what is in force is first cut to the cycles that were closed then.
Source: X-1; architecture, law 4 ("dropped and made again from the log, a projection has the same fingerprint").
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.decisions import fold
from bardo_pipeline.derivation.belief import derive_consensus, derive_votes
from bardo_pipeline.derivation.curation import derive_curation
from bardo_pipeline.derivation.legacy import derive_candidates, derive_testaments, published_bundles
from bardo_pipeline.derivation.memory import derive_episodes, derive_facts
from bardo_pipeline.derivation.reading import closed_through
from bardo_pipeline.derivation.stores import Stores
from bardo_pipeline.storage.as_of import LogAsOf
from bardo_pipeline.storage.projections import Digest, Projections
from bardo_pipeline.storage.tables import TABLES

BY_CYCLE = ("curation", "cycles", "playbooks", "episodes")
"""Tables whose rows say which cycle of which golem they came from."""


@dataclass(frozen=True)
class Compared:
    """One projection in force beside the same one rebuilt."""

    table: str
    row_count: int
    fingerprint: str
    rebuilt_row_count: int
    rebuilt_fingerprint: str

    @property
    def equal(self) -> bool:
        """Whether both have the same rows."""
        return (self.row_count, self.fingerprint) == (self.rebuilt_row_count, self.rebuilt_fingerprint)


def derive_everything(stores: Stores, *, now: datetime, tell: Callable[[str], None] = lambda _: None) -> None:
    """Bring every projection up to the log, causes first. Verdicts and publications are events: not made here."""
    steps: tuple[tuple[str, Callable[[], object]], ...] = (
        ("curation", lambda: derive_curation(stores)),
        ("facts", lambda: derive_facts(stores)),
        ("episodes", lambda: derive_episodes(stores, now=now)),
        ("votes", lambda: derive_votes(stores)),
        ("consensus", lambda: derive_consensus(stores)),
        ("testaments", lambda: derive_testaments(stores)),
        ("candidates", lambda: derive_candidates(stores)),
    )
    for name, derive in steps:
        tell(name)
        derive()


def rebuild(
    stores: Stores,
    *,
    now: datetime,
    version: int | None = None,
    moment: datetime | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Compared]:
    """Derive all tables beside and compare them with those in force, which are brought up to the log first.

    version, moment: compare as of an earlier version of the log, or moment of event time. The rebuilt tables are
    removed.
    """
    earlier = version is not None or moment is not None
    derive_everything(stores, now=now)
    folder = stores.home.derivations / f"{stores.derivation_id}.rebuild"
    shutil.rmtree(folder, ignore_errors=True)
    beside = replace(
        stores,
        projections=Projections(folder, stores.home.bucket_count, stores.policy),
        as_of=LogAsOf(stores.log, version=version, moment=moment) if earlier else None,
        _life=None,
        _life_seen=None,
    )
    try:
        derive_everything(beside, now=now, tell=tell)
        if earlier:
            return _compare_earlier(stores, beside)
        found = [_compared(n, stores.projections.digest(n), beside.projections.digest(n)) for n in TABLES]
        return [*found, _compare_bundles(stores, beside)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _compared(name: str, standing: Digest, rebuilt: Digest) -> Compared:
    return Compared(name, standing.rows, standing.fingerprint, rebuilt.rows, rebuilt.fingerprint)


def _compare_bundles(stores: Stores, beside: Stores) -> Compared:
    """Published bundles beside the same golems' candidates, made again."""
    published = published_bundles(stores)
    rows = beside.projections.growing("candidates").read(["golem_id", "bundle_hash"]).to_pylist()
    again = {r["golem_id"]: r["bundle_hash"] for r in rows if r["golem_id"] in published}
    return _compared("published bundles", _hashes(published), _hashes(again))


def _hashes(by_golem: dict[str, str]) -> Digest:
    table = pa.table(
        {
            "golem_id": pa.array(sorted(by_golem), pa.string()),
            "hash": pa.array([by_golem[g] for g in sorted(by_golem)], pa.string()),
        }
    )
    return Digest.of(table)


def _compare_earlier(stores: Stores, beside: Stores) -> list[Compared]:
    """What is in force, cut to the cycles that were closed then, beside what was rebuilt as of then."""
    closed = closed_through(beside)
    known = set(beside.life("GolemBorn")["golem_id"].to_pylist())
    found = []
    for name in BY_CYCLE:
        standing = _cut(stores.projections.growing(name).read(), closed, known)
        found.append(_compared(name, Digest.of(standing), beside.projections.digest(name)))
    decisions = _cut(stores.projections.growing("curation").read(), closed, known)
    found.append(_compared("grimoire", Digest.of(fold(decisions)), beside.projections.digest("grimoire")))
    return found


def _cut(rows: pa.Table, closed: dict[str, int], known: set[str]) -> pa.Table:
    golems = rows["golem_id"].to_pylist()
    limit = np.array([closed.get(g, 0) if g in known or g in closed else -1 for g in golems], dtype=np.int64)
    return rows.filter(pc.less_equal(rows["cycle"], pa.array(limit)))
