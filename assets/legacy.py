"""Legacy: what the dead leave: testaments, candidate bundles, verdicts, and the bundles that may be inherited."""

import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from assets.log import LIFE_EVENTS
from assets.metadata import (
    CODE_VERSION,
    OWNERS,
    Seen,
    columns_of,
    markdown_table,
    materialized,
    of_table,
    projected,
)
from assets.resources import LazyStores
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.death.death_queries import dead_golems
from bardo_pipeline.derivation.death.graveyard import inheritance_previews
from bardo_pipeline.derivation.legacy.bundle_candidates import candidate_folder
from bardo_pipeline.derivation.legacy.bundle_verdicts import Verdicts, judge
from bardo_pipeline.derivation.legacy.derive_legacies import derive_candidates, derive_testaments
from bardo_pipeline.derivation.legacy.publish_legacies import (
    candidates_of,
    judge_candidates,
    publish_candidates,
    read_unchecked,
)
from bardo_pipeline.events.life.events import Judged
from bardo_pipeline.storage.delta.table_digest import Digest

DOCUMENTED = "bundles.txt"
"""Beside the first page of each run's Data Docs: the hashes of the bundles that they are about."""

VERDICT_SCHEMA = pa.schema(
    [
        pa.field("golem_id", pa.string(), nullable=False),
        pa.field("bundle_hash", pa.string(), nullable=False),
        pa.field("passed", pa.bool_(), nullable=False),
        pa.field("expectations", pa.int64(), nullable=False),
        pa.field("failed", pa.list_(pa.string()), nullable=False),
    ]
)
BUNDLE_SCHEMA = pa.schema(
    [
        pa.field("golem_id", pa.string(), nullable=False),
        pa.field("bundle_hash", pa.string(), nullable=False),
        pa.field("entry_count", pa.int64(), nullable=False),
    ]
)

REPEAT = dg.AssetCheckSpec(
    "verdicts_repeat",
    asset="verdicts",
    description="Judged again for the Data Docs, a candidate gets the verdict that is on record. One that no longer "
    "does was altered since: compare it with its published bundle.",
)

_EVENTS: dict[str, Any] = {"group_name": "legacy", "owners": OWNERS, "code_version": CODE_VERSION}


@dg.asset(deps=["curation", "cycles", "grimoire", LIFE_EVENTS], **of_table("testaments", "legacy", "markdown"))
def testaments(home: dg.ResourceParam[LazyStores]) -> dg.MaterializeResult:
    """One row per dead golem: what it had to say, in nine categories, each sentence with its entries and ticks.

    Key golem_id. Appends the testaments of golems whose death is recorded and whose last cycle is curated.
    """
    stores = home.stores
    seen = Seen.before(stores, ["curation", "cycles", "grimoire"])
    written = derive_testaments(stores)
    return projected(stores, "testaments", seen, written)


@dg.asset(
    deps=["testaments", "cycles", "episodes", "grimoire", "playbooks", LIFE_EVENTS], **of_table("candidates", "legacy")
)
def bundle_candidates(home: dg.ResourceParam[LazyStores]) -> dg.MaterializeResult:
    """One row per dead golem: the bundle that it would leave, before any verdict, as a content-addressed folder.

    Key golem_id. Counts of entries, episodes and anti-knowledge; cause_entries names the entries that crossed. At most
    2,048 entries pass the bottleneck, and each loses confidence at the Weismann barrier. Appends.
    """
    stores = home.stores
    seen = Seen.before(stores, ["testaments", "cycles", "episodes", "grimoire", "playbooks"])
    written = derive_candidates(stores)
    more = {"path": dg.MetadataValue.path(candidate_folder(stores))}
    return projected(stores, "candidates", seen, written, asset="bundle_candidates", more=more)


@dg.asset(
    deps=["bundle_candidates", "grimoire", LIFE_EVENTS],
    kinds={"deltalake", "greatexpectations"},
    metadata=columns_of(VERDICT_SCHEMA, ("bundle_hash",)),
    check_specs=[REPEAT],
    **_EVENTS,
)
def verdicts(
    context: dg.AssetExecutionContext, home: dg.ResourceParam[LazyStores]
) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult]:
    """One row (an event of the log) per candidate bundle: whether it may be inherited, and what it failed.

    Key bundle_hash. One Great Expectations run judges all candidates without a verdict; a bundle that fails stops
    itself and no other. The Data Docs show that run. Bundles that the runtime judged as their golems died get their
    Data Docs here, by being judged once more.
    """
    stores = home.stores
    seen = Seen.before(stores, ["candidates", "grimoire"])
    site = data_docs(stores) / context.run_id
    fresh = judge_candidates(stores, now=home.now(), data_docs_dir=site)
    _document(site, fresh)
    standing = standing_verdicts(stores)
    site = data_docs(stores) / f"{context.run_id}-again"
    again = _judged_again(stores, standing, site)
    _document(site, again)
    facts = _verdict_facts(standing, [*fresh.judged, *again.judged])
    docs = docs_facts(stores, fresh.data_docs or again.data_docs)
    yield materialized(
        stores, "verdicts", seen, Digest.of(standing),
        rows_written=len(fresh.judged), version=stores.log.life_version, more=facts | docs,
    )  # fmt: skip
    changed = [v.bundle_hash for v in again.judged if v.passed != _passed(standing)[v.bundle_hash]]
    yield dg.AssetCheckResult(
        check_name=REPEAT.name,
        asset_key="verdicts",
        passed=not changed,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={"judged_again": len(again.judged), "changed": dg.MetadataValue.json(changed)},
    )


def standing_verdicts(stores: DerivationContext) -> pa.Table:
    """Every verdict on record (VERDICT_SCHEMA), by golem and bundle."""
    rows = [
        {"golem_id": e["golem_id"], **e["judged"], "failed": [f["expectation"] for f in e["judged"]["failed"]]}
        for e in stores.life("BundleJudged").select(["golem_id", "judged"]).to_pylist()
    ]
    return _by_golem(pa.Table.from_pylist(rows, schema=VERDICT_SCHEMA))


def _by_golem(table: pa.Table) -> pa.Table:
    return table.sort_by([("golem_id", "ascending"), ("bundle_hash", "ascending")])


def _passed(standing: pa.Table) -> dict[str, bool]:
    return dict(zip(standing["bundle_hash"].to_pylist(), standing["passed"].to_pylist(), strict=True))


def _verdict_facts(standing: pa.Table, shown: Sequence[Judged]) -> dict[str, Any]:
    whose = dict(zip(standing["bundle_hash"].to_pylist(), standing["golem_id"].to_pylist(), strict=True))
    rows = [
        {
            "golem": whose[v.bundle_hash],
            "bundle": v.bundle_hash[:16],
            "verdict": "passed" if v.passed else "REFUSED",
            "expectations": v.expectations,
            "failed": "; ".join(f"{f.expectation} ({f.severity}: {f.observed})" for f in v.failed) or "none",
        }
        for v in sorted(shown, key=lambda v: (v.passed, whose[v.bundle_hash]))
    ]
    passed = pc.sum(standing["passed"]).as_py() or 0
    return {"passed_count": passed, "refused_count": standing.num_rows - passed, "judged": markdown_table(rows)}


def data_docs(stores: DerivationContext) -> Path:
    """Where the Data Docs of each run lie."""
    return stores.home.root / "data_docs"


def docs_facts(stores: DerivationContext, page: Path | None) -> dict[str, Any]:
    """Links to a first page of Data Docs: of this run, or of the last one that judged something."""
    if page is None:
        older = sorted(data_docs(stores).glob("*/index.html"), key=lambda p: p.stat().st_mtime)
        page = older[-1] if older else None
    if page is None:
        return {}
    return {"data_docs": dg.MetadataValue.url(page.as_uri()), "data_docs_path": dg.MetadataValue.path(page)}


def _document(site: Path, verdicts: Verdicts) -> None:
    """Note which bundles a site is about, and let all sites share their fonts and styles (4 MB)."""
    if verdicts.data_docs is None:
        return
    (site / DOCUMENTED).write_text("".join(f"{v.bundle_hash}\n" for v in verdicts.judged))
    own, shared = site / "static", site.parent / "static"
    if own.is_dir() and not own.is_symlink():
        if shared.exists():
            shutil.rmtree(own)
        else:
            own.rename(shared)
        own.symlink_to(Path("..") / "static", target_is_directory=True)


def _judged_again(stores: DerivationContext, standing: pa.Table, site: Path) -> Verdicts:
    """Verdicts, once more, of candidates that have one but no Data Docs; nothing is recorded."""
    known = {h for page in data_docs(stores).glob(f"*/{DOCUMENTED}") for h in page.read_text().split()}
    wanted = _passed(standing).keys() - known
    rows = [r for r in stores.projections.read("candidates").to_pylist() if r["bundle_hash"] in wanted]
    if not rows:
        return Verdicts((), None)
    return judge(candidates_of(stores, rows, read_unchecked), stores.policy, site)


@dg.asset(
    deps=["verdicts", "bundle_candidates"],
    kinds={"deltalake", "file"},
    metadata=columns_of(BUNDLE_SCHEMA, ("bundle_hash",)),
    **_EVENTS,
)
def bundles(home: dg.ResourceParam[LazyStores]) -> dg.MaterializeResult:
    """One row (an event of the log) and one folder per published bundle: what a successor may inherit.

    Key bundle_hash, the SHA-256 of the manifest, which names the SHA-256 of every file. Publishes the candidates that
    passed and are not published; refused ones stay where they were made.
    """
    stores = home.stores
    seen = Seen.before(stores, ["candidates"])
    fresh = set(publish_candidates(stores, now=home.now()))
    standing = standing_bundles(stores)
    rows = [
        {"golem": r["golem_id"], "bundle": r["bundle_hash"][:16], "entries": r["entry_count"]}
        for r in standing.to_pylist()
        if r["bundle_hash"] in fresh
    ]
    more = {"published": markdown_table(rows), "path": dg.MetadataValue.path(stores.home.bundles)}
    more |= _inheritance(stores, fresh)
    return materialized(
        stores, "bundles", seen, Digest.of(standing),
        rows_written=len(fresh), version=stores.log.life_version, more=more,
    )  # fmt: skip


def _inheritance(stores: DerivationContext, fresh: Collection[str]) -> dict[str, Any]:
    """What the heirs of freshly published bundles would get (INH S12): a table to read, and all of it as JSON."""
    bundles = standing_bundles(stores)
    golems = bundles.filter(pc.is_in(bundles["bundle_hash"], value_set=pa.array(sorted(fresh), pa.string())))[
        "golem_id"
    ]
    dead = [one for one in dead_golems(stores, golems.to_pylist()) if one.bundle_hash in fresh]
    seen = list(inheritance_previews(stores, dead).values())
    rows = [
        {
            "golem": one.golem_id,
            "generation": one.generation,
            "entries": one.entry_count,
            "bloodstains": one.bloodstain_count,
            "confidence": f"{one.mean_before_ppm / 1e4:.0f} % to {one.mean_after_ppm / 1e4:.0f} %",
            "before": " ".join(map(str, one.before)),
            "after": " ".join(map(str, one.after)),
            "domains": ", ".join(f"{name} {count}" for name, count in one.by_domain.items()),
        }
        for one in seen
    ]
    told = dg.MetadataValue.json([asdict(one) for one in seen])
    return {"inheritance": markdown_table(rows), "inheritance_previews": told}


def standing_bundles(stores: DerivationContext) -> pa.Table:
    """Every bundle that was published (BUNDLE_SCHEMA), by golem and bundle."""
    events = stores.life("BundlePublished").select(["golem_id", "published"]).to_pylist()
    rows = [{"golem_id": e["golem_id"], **e["published"]} for e in events]
    kept = [{name: row[name] for name in BUNDLE_SCHEMA.names} for row in rows]
    return _by_golem(pa.Table.from_pylist(kept, schema=BUNDLE_SCHEMA))
