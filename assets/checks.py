"""Asset checks on derived tables and on the health of the home.

`only_passed_bundles_are_published` blocks downstream assets; the others report. Every job evaluates the health checks
at its end, a sensor between jobs. Dagster's freshness checks measure the age of an asset, which is high in a home
without living golems; the health checks measure overdue work instead. Source: P-5, X-11.
"""

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from assets.legacy import docs_facts, standing_verdicts
from assets.log import CYCLES, VECTORS, standing
from assets.metadata import markdown_table
from assets.resources import LazyStores
from bardo_pipeline.derivation.legacy.bundle_store import invalid_publications
from bardo_pipeline.derivation.legacy.publish_legacies import unjudged_candidates
from bardo_pipeline.derivation.legacy.warning_waivers import bundle_failures
from bardo_pipeline.derivation.reports.home_health import Health, faults, health_of
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.policy import Policy
from bardo_pipeline.quality.reason_checks import REASON_COLUMNS, contradictions
from bardo_pipeline.storage.delta.durable_commits import opened
from bardo_pipeline.storage.delta.parquet_io import scan
from bardo_pipeline.storage.delta.table_specs import TABLES
from bardo_pipeline.storage.verification.check_projections import damaged_tables
from bardo_pipeline.visible_text import visible

_REASON_COMMITS = 50
"""Newest commits of the log whose records `reasons_match_their_records` reads."""


def _warning(passed: bool, **metadata: Any) -> dg.AssetCheckResult:
    """Return a result that reports a failure without blocking downstream assets."""
    return dg.AssetCheckResult(passed=passed, severity=dg.AssetCheckSeverity.WARN, metadata=metadata)


@dg.asset_check(asset="bundles", blocking=True)
def only_passed_bundles_are_published(home: dg.ResourceParam[LazyStores]) -> dg.AssetCheckResult:
    """Every published bundle has a passing verdict, and its bytes are what its hash says.

    A failure stops all downstream assets. Cure: restore the bundle's folder from a backup or from its candidate, then
    run the job again.
    """
    wrong = invalid_publications(home.stores)
    published_count = home.stores.life("BundlePublished").num_rows
    return dg.AssetCheckResult(
        passed=not wrong,
        metadata={"published_count": published_count, "wrong": dg.MetadataValue.json(wrong)},
        description=f"not passed or altered: {', '.join(wrong)}" if wrong else None,
    )


@dg.asset_check(asset="curation")
def derived_tables_are_whole(home: dg.ResourceParam[LazyStores]) -> dg.AssetCheckResult:
    """The files of every derived table match their checksums, row counts and newest commits.

    Cure: `bardo derive` makes the tables again. `bardo verify` also compares every row with the newest digest.
    """
    damaged = [str(error) for error in damaged_tables(home.stores.projections)]
    return dg.AssetCheckResult(
        passed=not damaged, metadata={"damaged": dg.MetadataValue.json(damaged)}, description="; ".join(damaged) or None
    )


@dg.asset_check(asset="verdicts")
def every_candidate_passed(home: dg.ResourceParam[LazyStores]) -> dg.AssetCheckResult:
    """Every candidate has a verdict, and every verdict passed. A refused candidate cannot have a successor."""
    stores = home.stores
    waiting, refused = unjudged_candidates(stores), standing_verdicts(stores)
    refused = refused.filter(pc.invert(refused["passed"]))
    rows = [
        {"golem": r["golem_id"], "bundle": r["bundle_hash"], "failed": ", ".join(r["failed"])}
        for r in refused.to_pylist()
    ]
    return _warning(
        not rows and not waiting, waiting_count=len(waiting), refused_count=len(rows), refused=markdown_table(rows)
    )


@dg.asset_check(asset="verdicts")
def every_warning_is_waived(home: dg.ResourceParam[LazyStores]) -> dg.AssetCheckResult:
    """Every warning about an inheritable bundle has a waiver with a reason.

    Cure: `bardo bundle checks` lists the warnings, `bardo bundle waive` waives one. A critical failure cannot be
    waived: it refuses the bundle.
    """
    stores = home.stores
    warned = [failure for failure in bundle_failures(stores) if failure.severity == "warning"]
    unwaived = [failure for failure in warned if failure.open]
    rows = [
        {"golem": failure.golem_id, "bundle": failure.bundle_hash[:16], "warning": failure.expectation,
         "observed": failure.observed, "waived": failure.why or "no"}
        for failure in sorted(warned, key=lambda failure: not failure.open)
    ]  # fmt: skip
    return _warning(
        not unwaived,
        warning_count=len(warned),
        waived_count=len(warned) - len(unwaived),
        open_count=len(unwaived),
        warnings=markdown_table(rows),
        **docs_facts(stores, None),
    )


@dg.asset_check(asset="grimoire")
def confidence_is_a_probability(home: dg.ResourceParam[LazyStores]) -> dg.AssetCheckResult:
    """The confidence of every entry is between 0 and 1,000,000 ppm."""
    path, schema = home.stores.projections.replaceable("grimoire").path, TABLES["grimoire"].schema
    confidence = scan(opened(path).file_uris(), schema, ["confidence_ppm"])["confidence_ppm"]
    wrong = pc.sum(pc.or_(pc.less(confidence, 0), pc.greater(confidence, PPM))).as_py() or 0
    ends = pc.min_max(confidence).as_py() if len(confidence) else {"min": None, "max": None}
    return _warning(
        wrong == 0, entry_count=len(confidence), out_of_range_count=wrong, range_ppm=dg.MetadataValue.json(ends)
    )


@dg.asset_check(asset="consensus")
def some_proposition_has_its_quorum(home: dg.ResourceParam[LazyStores]) -> dg.AssetCheckResult:
    """At least one proposition meets its quorum, if there are votes. Metadata shows the share that does."""
    counted = home.stores.projections.read("consensus")
    met = pc.sum(counted["quorum_met"]).as_py() or 0
    contradicted = pc.sum(counted["contradicted"]).as_py() or 0
    share = met / counted.num_rows if counted.num_rows else 0.0
    return _warning(
        met > 0 or not counted.num_rows,
        proposition_count=counted.num_rows,
        quorum_share=share,
        contradicted_count=contradicted,
    )


@dg.asset_check(asset="cycles")
def no_cycle_waits_behind_a_gap(home: dg.ResourceParam[LazyStores]) -> dg.AssetCheckResult:
    """No golem has a missing tick. A cycle with a gap is not derived until the tick arrives or the gap is accepted."""
    gaps = home.stores.log.gaps()
    rows = [{"golem": g.golem_id, "from tick": g.tick_from, "to tick": g.tick_to} for g in gaps]
    return _warning(not gaps, golem_count=len({g.golem_id for g in gaps}), gaps=markdown_table(rows))


@dg.asset_check(asset=CYCLES)
def reasons_match_their_records(home: dg.ResourceParam[LazyStores]) -> dg.AssetCheckResult:
    """The reasons of the newest records agree with the numbers of their records: gate, decision and refusals.

    It reads the newest commits. A contradiction names a runtime that writes untrue records: correct the runtime, and
    strike its records with `bardo strike` if they mislead.
    """
    log = home.stores.log
    records = log.read_cycles(list(REASON_COLUMNS), since_version=max(log.version - _REASON_COMMITS, 0))
    problems = contradictions(records)
    return _warning(
        not problems,
        record_count=records.num_rows,
        contradiction_count=len(problems),
        contradictions=markdown_table(problems[:50]),
    )


@dg.asset_check(asset="playbooks")
def playbook_versions_have_no_hole(home: dg.ResourceParam[LazyStores]) -> dg.AssetCheckResult:
    """The playbook versions of each golem are 1, 2, 3, ... without gap or duplicate."""
    rows = home.stores.projections.growing("playbooks").read(["golem_id", "version"])
    summed = rows.group_by("golem_id").aggregate([("version", "max"), ("version", "count")])
    torn = summed.filter(pc.not_equal(summed["version_max"], pc.cast(summed["version_count"], pa.int64())))
    return _warning(
        torn.num_rows == 0, golem_count=summed.num_rows, torn=dg.MetadataValue.json(torn["golem_id"].to_pylist()[:50])
    )


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
        rows = [{"measure": f.measure, "is": f.value, "at most": f.limit} for f in failures]
        measured = standing(health) if asset == CYCLES else {}
        yield dg.AssetCheckResult(
            check_name=name, asset_key=asset, passed=not failures, severity=severity,
            metadata=measured | {"beyond": markdown_table(rows)},
            description=visible("; ".join(fault.says for fault in failures)) or None,
        )  # fmt: skip


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
