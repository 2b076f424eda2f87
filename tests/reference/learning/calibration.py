"""The row-at-a-time twin of quality/calibration.py: each belief, each close, each outcome in turn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from bardo_pipeline.policy import DecayPolicy
from tests.reference.learning.confidence import confidence_at, floor_ppm, half_life_us

Row = Mapping[str, Any]


def _us(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def sureness(entry: Row, at: datetime, policy: DecayPolicy) -> int:
    """Return the confidence in ppm, at a moment, of an entry in the state after a decision."""
    evidence = max(entry["own_count"], entry["evidence_count"])
    half_life = half_life_us(entry["decay_class"], evidence, entry["is_bloodstain"], policy)
    floor = floor_ppm(entry["is_anti_knowledge"], entry["is_bloodstain"], policy)
    return confidence_at(entry["confidence_ppm"], _us(entry["anchor_at"]), _us(at), half_life, floor)


def beliefs_by_row(decisions: Iterable[Row], closes: Iterable[Row], policy: DecayPolicy) -> Iterator[dict[str, Any]]:
    """Return the confidence at each close, by golem, structure and cycle."""
    items = list(decisions)
    for golem_id, structure in sorted({(d["golem_id"], d["structure"]) for d in items}):
        own_rows = [d for d in items if (d["golem_id"], d["structure"]) == (golem_id, structure)]
        for close in sorted((c for c in closes if c["golem_id"] == golem_id), key=lambda c: c["cycle"]):
            known = [d for d in own_rows if d["cycle"] <= close["cycle"]]
            if not known:
                continue
            newest = max(known, key=lambda d: (d["cycle"], d["revision"], d["seq"]))
            if newest["status"] == "active" and newest["sign"]:
                sure = sureness(newest, close["closed_at"], policy)
                names = "golem_id", "entry_id", "structure", "source", "kind", "sign", "regime"
                kept = {name: newest[name] for name in (*names, "own_count", "own_sum", "own_sumsq")}
                yield kept | {"cycle": close["cycle"], "at": close["closed_at"], "confidence_ppm": sure}


def judged_by_row(beliefs: Iterable[Row], outcomes: Iterable[Row], horizon: timedelta) -> Iterator[dict[str, Any]]:
    """Return each belief with the later outcomes of its situation, up to the horizon."""
    items = list(outcomes)
    for belief in beliefs:
        later = [
            o["effect_ppm"]
            for o in items
            if o["structure"] == belief["structure"]
            and o["golem_id"] == belief["golem_id"]
            and belief["at"] < o["at"] <= belief["at"] + horizon
        ]
        agreed = sum(1 for effect in later if effect * belief["sign"] > 0)
        yield dict(belief) | {"outcome_count": len(later), "agreed_count": agreed, "effect_sum_ppm": sum(later)}
