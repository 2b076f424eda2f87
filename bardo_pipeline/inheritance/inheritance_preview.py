"""Previews the entries that an heir would inherit from a bundle. Pure, set-based.

Source: INH S12 ("Grimoire Inheritance Preview").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.grimoire.entries import MOMENT
from bardo_pipeline.grimoire.entry_columns import confidence_of
from bardo_pipeline.policy import Policy

BANDS = 10
"""Number of histogram bands of confidence, each 0.1 wide; the last includes 1."""

GROUPS = {
    "by_domain": "domain", "by_category": "category", "by_kind": "kind", "by_generation": "generation",
    "by_rule": "selected_by",
}  # fmt: skip
"""Maps each count of a preview to the column by which it groups the entries."""


@dataclass(frozen=True)
class Preview:
    """Summary of the crossing entries.

    before, after: entries per confidence band at death, before and after attenuation. generation: of the heir.
    budget: maximal number of entries. mean_*_ppm: 0 without entries. by_generation: counts by number of crossings.
    """

    golem_id: str
    bundle_hash: str
    generation: int
    entry_count: int
    budget: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    mean_before_ppm: int
    mean_after_ppm: int
    bloodstain_count: int
    anti_knowledge_count: int
    episode_count: int
    by_domain: Mapping[str, int]
    by_category: Mapping[str, int]
    by_kind: Mapping[str, int]
    by_generation: Mapping[str, int]
    by_rule: Mapping[str, int]


def preview(
    crossing: pa.Table,
    inherited: pa.Table,
    trusted_ppm: Mapping[str, int],
    *,
    golem_id: str,
    bundle_hash: str,
    generation: int,
    died_at: datetime,
    episode_count: int,
    policy: Policy,
) -> Preview:
    """Summarize the entries that an heir would inherit.

    Parameters
    ----------
    crossing : pa.Table, CROSSING_SCHEMA, the bundle's entries
    inherited : pa.Table, ENTRY_SCHEMA, the heir's entries at birth (`inherited_entries`)
    trusted_ppm : entry id -> confidence of the dead golem at death; a missing entry counts with the heir's confidence
    generation : int, generation of the heir
    """
    ids = inherited["entry_id"].to_pylist()
    at_us = pa.scalar(died_at, MOMENT).cast(pa.int64()).as_py()
    after = confidence_of(inherited, at_us, policy.decay)
    before = np.array([trusted_ppm.get(e, a) for e, a in zip(ids, after.tolist(), strict=True)], np.int64)
    return Preview(
        golem_id=golem_id,
        bundle_hash=bundle_hash,
        generation=generation,
        entry_count=len(ids),
        budget=policy.inheritance.budget,
        before=histogram(before),
        after=histogram(after),
        mean_before_ppm=_mean(before),
        mean_after_ppm=_mean(after),
        bloodstain_count=pc.sum(crossing["is_bloodstain"]).as_py() or 0,
        anti_knowledge_count=pc.sum(crossing["is_anti_knowledge"]).as_py() or 0,
        episode_count=episode_count,
        **{name: _counted(crossing, column) for name, column in GROUPS.items()},
    )


def histogram(confidence_ppm: NDArray[np.int64]) -> tuple[int, ...]:
    """Return the number of values in each of BANDS. confidence_ppm: in [0, 1,000,000]."""
    bands = np.clip(confidence_ppm * BANDS // PPM, 0, BANDS - 1)
    return tuple(np.bincount(bands, minlength=BANDS).tolist())


def _mean(values: NDArray[np.int64]) -> int:
    return int(values.sum() // len(values)) if len(values) else 0


def _counted(table: pa.Table, column: str) -> dict[str, Any]:
    """Return value -> number of rows, the most frequent first."""
    groups = table.group_by(column).aggregate([(column, "count")])
    rows = zip(groups[column].to_pylist(), groups[f"{column}_count"].to_pylist(), strict=True)
    return {str(value): count for value, count in sorted(rows, key=lambda row: (-row[1], str(row[0])))}
