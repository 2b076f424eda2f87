"""Waives warnings about bundles: a steward records as an event why a warning is acceptable.

A waiver changes no verdict. Only recorded warnings can be waived; a waiver of a critical failure, or of an expectation
that did not fail, has no effect. Source: P-5.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

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


def bundle_failures(context: DerivationContext, target: str | None = None) -> list[BundleFailure]:
    """Return the failed expectations of each golem's current bundle, by golem and in the order of the suite.

    The current bundle is the one an heir would inherit, or the last judged one if none is published.

    Parameters
    ----------
    target : only the bundle of this golem or with this prefix; QueryError is raised if no judged bundle matches
    """
    if target is not None:
        events = context.life("BundleJudged").to_pylist()
        names = {name for event in events for name in (event["golem_id"], event["judged"]["bundle_hash"])}
        if not any(name.startswith(target) for name in names):
            raise QueryError(f"{target!r}: no judged bundle matches: `bardo bundle checks` lists all")
    waived, failures = _waiver_reasons(context), []
    for row in _current_verdicts(context):
        bundle_hash = row["judged"]["bundle_hash"]
        if target is not None and row["golem_id"] != target and not bundle_hash.startswith(target):
            continue
        for failure in row["judged"]["failed"]:
            expectation, severity = failure["expectation"], failure["severity"]
            why = waived.get((bundle_hash, expectation)) if severity == "warning" else None
            fields = (expectation, severity, failure["observed"], why)
            failures.append(BundleFailure(row["golem_id"], bundle_hash, *fields))
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
    rows = context.life("BundleJudged").select(["golem_id", "observed_at", "judged"]).to_pylist()
    current = {row["golem_id"]: row["judged"]["bundle_hash"] for row in _current_verdicts(context)}
    hashes = {row["judged"]["bundle_hash"] for row in rows}
    matches = {current[target]} if target in current else {h for h in hashes if h.startswith(target)}
    if len(matches) != 1 or not target:
        problem = f"{len(matches)} judged bundles begin so" if matches else "no judged bundle matches"
        raise QueryError(f"{target!r}: {problem}: `bardo bundle checks` lists them")
    verdict = [row for row in rows if row["judged"]["bundle_hash"] in matches][-1]
    return verdict["golem_id"], verdict["judged"], verdict["observed_at"]


def _current_verdicts(context: DerivationContext) -> list[dict[str, Any]]:
    """The verdict on each golem's current bundle (golem_id, judged), by golem."""
    rows = context.life("BundleJudged").sort_by([("recorded_at", "ascending"), ("event_id", "ascending")])
    published, chosen = published_bundles(context), dict[str, dict[str, Any]]()
    for row in rows.select(["golem_id", "judged"]).to_pylist():
        earlier = chosen.get(row["golem_id"])
        if earlier is None or earlier["judged"]["bundle_hash"] != published.get(row["golem_id"]):
            chosen[row["golem_id"]] = row
    return [chosen[golem_id] for golem_id in sorted(chosen)]


def _waiver_reasons(context: DerivationContext) -> dict[tuple[str, str], str]:
    """(bundle hash, expectation) -> reason of the last waiver."""
    rows = context.life("BundleWaived").sort_by([("recorded_at", "ascending"), ("event_id", "ascending")])
    return {(row["bundle_hash"], row["expectation"]): row["why"] for row in rows["waived"].to_pylist()}
