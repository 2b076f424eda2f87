"""Waiving: a steward looks at the warnings about bundles and says which may stand, and why.

A waiver is an event. It changes no verdict: a warning stops nothing, and what is critical nobody can waive. A waiver of
anything else than a warning on record, however it came into the log, counts for nothing. Source: P-5.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from bardo_pipeline.derivation.legacy import published_bundles
from bardo_pipeline.derivation.stores import Stores
from bardo_pipeline.errors import QueryError, WaiverError
from bardo_pipeline.events.bundles import BundleWaived
from bardo_pipeline.events.life import life_event


class Failing(NamedTuple):
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


def failing(stores: Stores) -> list[Failing]:
    """What the bundles that count did not meet, by golem and in the order of the suite.

    A golem's bundle that counts is the one that its heir would get; where none is published, the one judged last.
    """
    waived = _waived(stores)
    out = []
    for golem_id, verdict in sorted(_verdicts_that_count(stores).items()):
        for one in verdict["failed"]:
            why = waived.get((verdict["bundle_hash"], one["expectation"])) if one["severity"] == "warning" else None
            named = (one["expectation"], one["severity"], one["observed"])
            out.append(Failing(golem_id, verdict["bundle_hash"], *named, why))
    return out


def waive(stores: Stores, target: str, expectation: str, why: str, *, now: datetime) -> Failing:
    """Record why a warning about a bundle may stand.

    target: the bundle's hash, its beginning, or the golem that left it. Returns what was waived. Raises QueryError
    where no judged bundle, or more than one, answers to the target, and WaiverError for what is critical, for what did
    not fail, and without a reason.
    """
    if not why.strip():
        raise WaiverError(f"{expectation}: a warning is waived for a reason: say it with --why")
    golem_id, judged, at = _judged(stores, target)
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
    stores.log.record([life_event(golem_id, at, payload)], now)
    return Failing(golem_id, name, expectation, one["severity"], one["observed"], why)


def _judged(stores: Stores, target: str) -> tuple[str, Mapping[str, Any], datetime]:
    """The verdict that a target names, with the golem and the moment of its death."""
    rows = stores.life("BundleJudged").select(["golem_id", "observed_at", "judged"]).to_pylist()
    counting = _verdicts_that_count(stores)
    if target in counting:
        wanted = {counting[target]["bundle_hash"]}
    else:
        wanted = {row["judged"]["bundle_hash"] for row in rows if row["judged"]["bundle_hash"].startswith(target)}
    found = [row for row in rows if row["judged"]["bundle_hash"] in wanted]
    if len(wanted) != 1 or not target:
        what = f"{len(wanted)} judged bundles begin so" if wanted else "no judged bundle answers to it"
        raise QueryError(f"{target!r}: {what}: `bardo bundle checks` lists them")
    return found[-1]["golem_id"], found[-1]["judged"], found[-1]["observed_at"]


def _verdicts_that_count(stores: Stores) -> dict[str, Mapping[str, Any]]:
    """Golem to the verdict on the bundle that its heir would get, else to the last one."""
    rows = stores.life("BundleJudged").sort_by([("recorded_at", "ascending"), ("event_id", "ascending")])
    left = published_bundles(stores)
    out: dict[str, Mapping[str, Any]] = {}
    for row in rows.select(["golem_id", "judged"]).to_pylist():
        golem_id, judged = row["golem_id"], row["judged"]
        if golem_id not in out or out[golem_id]["bundle_hash"] != left.get(golem_id):
            out[golem_id] = judged
    return out


def _waived(stores: Stores) -> dict[tuple[str, str], str]:
    """(bundle, expectation) to the reason; of several the last."""
    rows = stores.life("BundleWaived").sort_by([("recorded_at", "ascending"), ("event_id", "ascending")])
    return {(row["bundle_hash"], row["expectation"]): row["why"] for row in rows["waived"].to_pylist()}
