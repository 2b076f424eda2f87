"""Health checks: is the log fed, drained and read? Evaluated by every job at its end, and by a sensor in between.

Dagster's own freshness checks ask how old an asset is; a home in which nobody lives is old and in order. These ask what
is overdue. Source: X-11.
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

_ASKED: tuple[tuple[str, dg.AssetKey, dg.AssetCheckSeverity, tuple[str, ...], str], ...] = (
    ("journals_are_drained", CYCLES, ERROR, ("journal", "leases"),
     "Writers do not outrun the drainer: no journal is half full, and nothing acknowledged stays out of the log for "
     "more than a few flushes. The cure: `bardo drain`, and what it says."),
    ("records_keep_coming", CYCLES, WARN, ("log", "spool"),
     "While a golem lives, records arrive, without gaps, and no file is left lying in the spool."),
    ("quarantine_is_rare", CYCLES, WARN, ("quarantine",),
     "Few of a day's records are refused. `bardo quarantine list` says why they were."),
    ("episodes_are_fresh", dg.AssetKey("episodes"), WARN, ("episodes",),
     "No closed cycle waits long for its episodes."),
    ("curation_is_fresh", dg.AssetKey("curation"), WARN, ("curation",),
     "No closed cycle waits long to be curated."),
    ("vectors_hold_still", VECTORS, ERROR, ("vectors",),
     "The model still gives the reference texts the vectors that are on record: checked weekly, and before vectors are "
     "made. The cure: put the model back as it was, or `bardo reembed`."),
    ("marts_are_fresh", dg.AssetKey("dim_golem"), WARN, ("marts",),
     "What was curated does not wait long for its marts."),
)  # fmt: skip
"""Each check: its name, asset and severity, the parts whose faults fail it, and what it says of itself."""


def evaluations(health: Health, policy: Policy) -> Iterator[dg.AssetCheckResult]:
    """The result of every health check."""
    found = faults(health, policy)
    for name, asset, severity, parts, _ in _ASKED:
        mine = [fault for fault in found if fault.measure.partition(".")[0] in parts]
        yield dg.AssetCheckResult(
            check_name=name, asset_key=asset, passed=not mine, severity=severity, metadata=_facts(health, asset, mine),
            description="; ".join(fault.says for fault in mine) or None,
        )  # fmt: skip


def _facts(health: Health, asset: dg.AssetKey, found: list[Fault]) -> dict[str, Any]:
    rows = [{"measure": f.measure, "is": f.value, "at most": f.limit} for f in found]
    measured = standing(health) if asset == CYCLES else {}
    return {**measured, "beyond": markdown_table(rows)}


@dg.multi_asset_check(
    name="health",
    specs=[dg.AssetCheckSpec(name, asset=asset, description=says) for name, asset, _, _, says in _ASKED],
    can_subset=True,
)
def health(context: dg.AssetCheckExecutionContext, home: dg.ResourceParam[LazyStores]) -> Iterator[dg.AssetCheckResult]:
    """Measure the home once, and judge by every measure that was asked for."""
    stores = home.stores
    asked = {key.name for key in context.selected_asset_check_keys}
    for result in evaluations(health_of(stores, home.now()), stores.policy):
        if result.check_name in asked:
            yield result
