"""Waives warnings about bundles: a steward records as an event why a warning is acceptable.

A waiver changes no verdict. Only recorded warnings can be waived; a waiver of a critical failure, or of an expectation
that did not fail, has no effect. Source: P-5.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.legacy.bundle_store import published_bundles
from bardo_pipeline.errors import QueryError, WaiverError
from bardo_pipeline.events.life.bundle_events import BundleWaived
from bardo_pipeline.events.life.events import life_event


class BundleFailure(NamedTuple):
    """An expectation that a judged bundle failed; why is the reason of its waiver, None without a waiver."""

    golem_id: str
    bundle_hash: str
    expectation: str
    severity: str
    observed: str
    why: str | None

    @property
    def open(self) -> bool:
        """True if the failure is not waived."""
        return self.why is None


def bundle_failures(context: DerivationContext) -> list[BundleFailure]:
    """Return the failed expectations of each golem's current bundle, by golem and in the order of the suite.

    The current bundle is the one an heir would inherit, or the last judged one if none is published.
    """
    waived, verdicts = _waiver_reasons(context), _current_verdicts(context)
    failure_counts = pc.list_value_length(pc.struct_field(verdicts["judged"].combine_chunks(), "failed"))
    failures = []
    for row in verdicts.filter(pc.greater(failure_counts, 0)).to_pylist():
        golem_id, verdict = row["golem_id"], row["judged"]
        for failure in verdict["failed"]:
            why = (
                waived.get((verdict["bundle_hash"], failure["expectation"]))
                if failure["severity"] == "warning"
                else None
            )
            fields = (failure["expectation"], failure["severity"], failure["observed"])
            failures.append(BundleFailure(golem_id, verdict["bundle_hash"], *fields, why))
    return failures


def record_waiver(
    context: DerivationContext, target: str, expectation: str, why: str, *, now: datetime
) -> BundleFailure:
    """Record why a warning about a bundle is acceptable. Return the waived failure.

    target is a bundle hash, a prefix of it, or a golem id. Raises QueryError unless it matches exactly one judged
    bundle, WaiverError without a reason and unless the expectation failed with severity warning.
    """
    if not why.strip():
        raise WaiverError(f"{expectation}: a waiver needs a reason: add --why")
    golem_id, judged, at = _find_verdict(context, target)
    failures = {row["expectation"]: row for row in judged["failed"]}
    name = judged["bundle_hash"]
    if expectation not in failures:
        failed = ", ".join(failures) or "nothing"
        raise WaiverError(f"bundle {name[:16]} did not fail {expectation!r}; it failed {failed}")
    failure = failures[expectation]
    if failure["severity"] != "warning":
        raise WaiverError(
            f"bundle {name[:16]} failed {expectation} ({failure['observed']}), which is critical and cannot be waived: "
            "the bundle is not inherited; correct the cause, and the bundle is made again"
        )
    payload = BundleWaived(bundle_hash=name, expectation=expectation, why=why)
    context.log.record([life_event(golem_id, at, payload)], now)
    return BundleFailure(golem_id, name, expectation, failure["severity"], failure["observed"], why)


def _find_verdict(context: DerivationContext, target: str) -> tuple[str, Mapping[str, Any], datetime]:
    """The verdict matching a target, with its golem and the moment of the death."""
    rows, current = context.life("BundleJudged"), _current_verdicts(context)
    hash_of_golem = dict(zip(current["golem_id"].to_pylist(), _hashes(current), strict=True))
    hashes = _hashes(rows)
    matches = {hash_of_golem[target]} if target in hash_of_golem else {h for h in hashes if h.startswith(target)}
    if len(matches) != 1 or not target:
        problem = f"{len(matches)} judged bundles begin so" if matches else "no judged bundle matches"
        raise QueryError(f"{target!r}: {problem}: `bardo bundle checks` lists them")
    last = max(i for i, bundle_hash in enumerate(hashes) if bundle_hash in matches)
    (verdict,) = rows.slice(last, 1).to_pylist()
    return verdict["golem_id"], verdict["judged"], verdict["observed_at"]


def _current_verdicts(context: DerivationContext) -> pa.Table:
    """The verdict on each golem's current bundle (golem_id, judged), by golem."""
    rows = context.life("BundleJudged").sort_by([("recorded_at", "ascending"), ("event_id", "ascending")])
    published = published_bundles(context)
    chosen: dict[str, int] = {}
    hashes = _hashes(rows)
    for i, golem_id in enumerate(rows["golem_id"].to_pylist()):
        if golem_id not in chosen or hashes[chosen[golem_id]] != published.get(golem_id):
            chosen[golem_id] = i
    places = [chosen[golem_id] for golem_id in sorted(chosen)]
    return rows.select(["golem_id", "judged"]).take(pa.array(places, pa.int64()))


def _hashes(verdicts: pa.Table) -> list[str]:
    """The bundle hash of each verdict."""
    return pc.struct_field(verdicts["judged"].combine_chunks(), "bundle_hash").to_pylist()


def _waiver_reasons(context: DerivationContext) -> dict[tuple[str, str], str]:
    """(bundle hash, expectation) -> reason of the last waiver."""
    rows = context.life("BundleWaived").sort_by([("recorded_at", "ascending"), ("event_id", "ascending")])
    return {(row["bundle_hash"], row["expectation"]): row["why"] for row in rows["waived"].to_pylist()}
