"""The inheritance preview, entry by entry: the twin of inheritance/inheritance_preview.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any


def preview_by_rows(
    crossing: Sequence[Mapping[str, Any]], after: Mapping[str, int], trusted: Mapping[str, int]
) -> dict[str, Any]:
    """Return the counts of a bundle's rows. after, trusted: confidence in ppm by entry, after crossing and at death."""
    before = {row["entry_id"]: trusted.get(row["entry_id"], after[row["entry_id"]]) for row in crossing}
    fields: dict[str, Any] = {"entry_count": len(crossing)}
    for name, values in (("before", before), ("after", {e: after[e] for e in before})):
        bands = [0] * 10
        for value in values.values():
            bands[min(value // 100_000, 9)] += 1
        fields[name] = tuple(bands)
        fields[f"mean_{name}_ppm"] = sum(values.values()) // len(values) if values else 0
    fields["bloodstain_count"] = sum(bool(row["is_bloodstain"]) for row in crossing)
    fields["anti_knowledge_count"] = sum(bool(row["is_anti_knowledge"]) for row in crossing)
    groups = {
        "by_domain": "domain", "by_category": "category", "by_kind": "kind", "by_generation": "generation",
        "by_rule": "selected_by",
    }  # fmt: skip
    for name, column in groups.items():
        fields[name] = dict(Counter(str(row[column]) for row in crossing))
    return fields
