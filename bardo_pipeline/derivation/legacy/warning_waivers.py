"""Waiving: a steward looks at the warnings about bundles and says which may stand, and why.

A waiver is an event. It changes no verdict: a warning stops nothing, and what is critical nobody can waive. A waiver of
anything else than a warning on record, however it came into the log, counts for nothing. Source: P-5.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.legacy.published_bundles import published_bundles
from bardo_pipeline.errors import QueryError, WaiverError
from bardo_pipeline.events.life.bundle_events import BundleWaived
from bardo_pipeline.events.life.events import life_event


class FailedExpectation(NamedTuple):
    """An expectation that a judged bundle did not meet. why: the steward's reason to let it stand, None without one."""

    golem_id: str
    bundle_hash: str
    expectation: str
    severity: str
    observed: str
    why: str | None

    @property
    def open(self) -> bool:
        """Whether somebody should still look at it."""
        return self.why is None


def failed_expectations(context: DerivationContext) -> list[FailedExpectation]:
    """What the bundles that count did not meet, by golem and in the order of the suite.

    A golem's bundle that counts is the one that its heir would get; where none is published, the one judged last.
    """
    waived, verdicts = _waived(context), _verdicts_that_count(context)
    lacking = pc.list_value_length(pc.struct_field(verdicts["judged"].combine_chunks(), "failed"))
    out = []
    for row in verdicts.filter(pc.greater(lacking, 0)).to_pylist():
        golem_id, verdict = row["golem_id"], row["judged"]
        for one in verdict["failed"]:
            why = waived.get((verdict["bundle_hash"], one["expectation"])) if one["severity"] == "warning" else None
            named = (one["expectation"], one["severity"], one["observed"])
            out.append(FailedExpectation(golem_id, verdict["bundle_hash"], *named, why))
    return out


def record_waiver(
    context: DerivationContext, target: str, expectation: str, why: str, *, now: datetime
) -> FailedExpectation:
    """Record why a warning about a bundle may stand.

    target: the bundle's hash, its beginning, or the golem that left it. Returns what was waived. Raises QueryError
    where no judged bundle, or more than one, answers to the target, and WaiverError for what is critical, for what did
    not fail, and without a reason.
    """
    if not why.strip():
        raise WaiverError(f"{expectation}: a warning is waived for a reason: say it with --why")
    golem_id, judged, at = _judged(context, target)
    failed = {one["expectation"]: one for one in judged["failed"]}
    name = judged["bundle_hash"]
    if expectation not in failed:
        told = ", ".join(failed) or "nothing"
        raise WaiverError(f"bundle {name[:16]} did not fail {expectation!r}: what it failed is {told}")
    one = failed[expectation]
    if one["severity"] != "warning":
        raise WaiverError(
            f"bundle {name[:16]} failed {expectation} ({one['observed']}), which is critical and cannot be waived: "
            "nobody inherits it; mend what made it so, and its golem's bundle is made again"
        )
    payload = BundleWaived(bundle_hash=name, expectation=expectation, why=why)
    context.log.record([life_event(golem_id, at, payload)], now)
    return FailedExpectation(golem_id, name, expectation, one["severity"], one["observed"], why)


def _judged(context: DerivationContext, target: str) -> tuple[str, Mapping[str, Any], datetime]:
    """The verdict that a target names, with the golem and the moment of its death."""
    rows, counting = context.life("BundleJudged"), _verdicts_that_count(context)
    of_golem = dict(zip(counting["golem_id"].to_pylist(), _hashes(counting), strict=True))
    hashes = _hashes(rows)
    wanted = {of_golem[target]} if target in of_golem else {h for h in hashes if h.startswith(target)}
    if len(wanted) != 1 or not target:
        what = f"{len(wanted)} judged bundles begin so" if wanted else "no judged bundle answers to it"
        raise QueryError(f"{target!r}: {what}: `bardo bundle checks` lists them")
    last = max(place for place, bundle_hash in enumerate(hashes) if bundle_hash in wanted)
    (found,) = rows.slice(last, 1).to_pylist()
    return found["golem_id"], found["judged"], found["observed_at"]


def _verdicts_that_count(context: DerivationContext) -> pa.Table:
    """The verdict on the bundle that each golem's heir would get, else its last one: golem_id and judged, by golem."""
    rows = context.life("BundleJudged").sort_by([("recorded_at", "ascending"), ("event_id", "ascending")])
    left = published_bundles(context)
    chosen: dict[str, int] = {}
    hashes = _hashes(rows)
    for place, golem_id in enumerate(rows["golem_id"].to_pylist()):
        if golem_id not in chosen or hashes[chosen[golem_id]] != left.get(golem_id):
            chosen[golem_id] = place
    places = [chosen[golem_id] for golem_id in sorted(chosen)]
    return rows.select(["golem_id", "judged"]).take(pa.array(places, pa.int64()))


def _hashes(verdicts: pa.Table) -> list[str]:
    """The bundle of each verdict."""
    return pc.struct_field(verdicts["judged"].combine_chunks(), "bundle_hash").to_pylist()


def _waived(context: DerivationContext) -> dict[tuple[str, str], str]:
    """(bundle, expectation) to the reason; of several the last."""
    rows = context.life("BundleWaived").sort_by([("recorded_at", "ascending"), ("event_id", "ascending")])
    return {(row["bundle_hash"], row["expectation"]): row["why"] for row in rows["waived"].to_pylist()}
