"""The row-at-a-time twin of curator/views/surprise_ranking.py; its docstring has the formula."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from fractions import Fraction
from typing import Any

from bardo_pipeline.curator.views.surprise_ranking import PARTS
from bardo_pipeline.grimoire.gas_bands import band_keys
from bardo_pipeline.policy import Policy
from tests.reference.inheritance.bottleneck import confidence_by_row

Row = Mapping[str, Any]


def ranked_by_row(arriving: list[Row], held: list[Row], at: datetime, policy: Policy) -> list[tuple[Any, ...]]:
    """Return (entry, relation, surprise, apart) in ranked order."""
    known = [row for row in held if row["status"] == "active"]
    triples = [(*_judge_row(row, known, at, policy), apart_by_row(row, known), row) for row in arriving]
    order = ("opposed", "unknown", "same")
    triples.sort(key=lambda f: (order.index(f[0]), -f[1], -f[2], -f[3]["confidence_ppm"], f[3]["entry_id"]))
    return [(row["entry_id"], relation, surprise, apart) for relation, surprise, apart, row in triples]


def apart_by_row(row: Row, held: list[Row]) -> int:
    """Return the number of trailing structure parts that no other row shares."""
    shared = 0
    for other in held:
        same = [row[name] == other[name] for name in PARTS]
        shared = max(shared, same.index(False) if False in same else len(PARTS))
    return len(PARTS) - shared


def _judge_row(row: Row, known: list[Row], at: datetime, policy: Policy) -> tuple[str, int]:
    surprises, agreements, met = [], [], []
    for structure in band_keys(row["structure"]) or (row["structure"],):
        about = [
            (-confidence_by_row(other, at, policy), other["entry_id"], other)
            for other in known
            if structure in (band_keys(other["structure"]) or (other["structure"],))
        ]
        met.append(bool(about))
        if not about:
            surprises.append(500_000)
            agreements.append(Fraction(0))
            continue
        trusted, _, other = min(about, key=lambda item: item[:2])
        agreement = _agreement(row, other)
        agreements.append(agreement)
        surprises.append(math.floor(500_000 + agreement * trusted / 2))
    known = all(met) and min(agreements) > 0
    return "opposed" if min(agreements) < 0 else "same" if known else "unknown", sum(surprises) // len(surprises)


def _agreement(row: Row, other: Row) -> Fraction:
    if row["source"] != "baseline":
        return Fraction(row["sign"] * other["sign"])
    spread = max(Fraction(other["effect_high_ppm"] - other["effect_low_ppm"], 2), Fraction(1))
    return 1 - min(abs(row["effect_mean_ppm"] - other["effect_mean_ppm"]) / spread, Fraction(2))
