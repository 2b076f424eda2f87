"""Health checks of a home: intake, drain, derivation lag. Every job evaluates them at its end, a sensor between jobs.

Dagster's freshness checks measure the age of an asset, which is high in a home without living golems. These checks
measure overdue work instead. Source: X-11.
"""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from assets.log import CYCLES, VECTORS, standing
from assets.metadata import markdown_table
from assets.resources import LazyStores
from bardo_pipeline.derivation.reports.home_health import Fault, Health, faults, health_of
from bardo_pipeline.policy import Policy

WARN, ERROR = dg.AssetCheckSeverity.WARN, dg.AssetCheckSeverity.ERROR

_CHECKS: tuple[tuple[str, dg.AssetKey, dg.AssetCheckSeverity, tuple[str, ...], str], ...] = (
    ("journals_are_drained", CYCLES, ERROR, ("journal", "leases"),
     "The drainer keeps up with the writers: no journal is half full, and every acknowledged record reaches the log "
     "within a few flushes. Cure: `bardo drain`."),
    ("records_keep_coming", CYCLES, WARN, ("log", "spool"),
     "While a golem lives, its records arrive without gaps, and no file stays in the spool."),
    ("quarantine_is_rare", CYCLES, WARN, ("quarantine",),
     "The share of refused records of a day is low. `bardo quarantine list` gives the reasons."),
    ("episodes_are_fresh", dg.AssetKey("episodes"), WARN, ("episodes",),
     "The episodes of closed cycles are derived in time."),
    ("curation_is_fresh", dg.AssetKey("curation"), WARN, ("curation",),
     "Closed cycles are curated in time."),
    ("vectors_hold_still", VECTORS, ERROR, ("vectors",),
     "The embedding model returns the recorded vectors for the reference texts; checked weekly and before embedding. "
     "Cure: restore the model, or run `bardo reembed`."),
    ("marts_are_fresh", dg.AssetKey("dim_golem"), WARN, ("marts",),
     "Marts are built in time after curation."),
)  # fmt: skip
"""Per check: name, asset, severity, the parts of the health report whose faults fail it, and its description."""


def evaluations(health: Health, policy: Policy) -> Iterator[dg.AssetCheckResult]:
    """Yield the result of every health check."""
    all_faults = faults(health, policy)
    for name, asset, severity, parts, _ in _CHECKS:
        failures = [fault for fault in all_faults if fault.measure.partition(".")[0] in parts]
        yield dg.AssetCheckResult(
            check_name=name, asset_key=asset, passed=not failures, severity=severity,
            metadata=_facts(health, asset, failures), description="; ".join(fault.says for fault in failures) or None,
        )  # fmt: skip


def _facts(health: Health, asset: dg.AssetKey, failures: list[Fault]) -> dict[str, Any]:
    rows = [{"measure": f.measure, "is": f.value, "at most": f.limit} for f in failures]
    measured = standing(health) if asset == CYCLES else {}
    return {**measured, "beyond": markdown_table(rows)}


@dg.multi_asset_check(
    name="health",
    specs=[dg.AssetCheckSpec(name, asset=asset, description=text) for name, asset, _, _, text in _CHECKS],
    can_subset=True,
)
def health(context: dg.AssetCheckExecutionContext, home: dg.ResourceParam[LazyStores]) -> Iterator[dg.AssetCheckResult]:
    """Measure the home once and yield the results of the selected checks."""
    stores = home.stores
    selected = {key.name for key in context.selected_asset_check_keys}
    for result in evaluations(health_of(stores, home.now()), stores.policy):
        if result.check_name in selected:
            yield result
