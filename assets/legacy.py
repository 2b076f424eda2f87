"""Assets of what the dead leave: testaments, candidate bundles, verdicts, bundles, phases of death, and the library."""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from assets.log import LIFE_EVENTS
from assets.metadata import CODE_VERSION, Seen, markdown_table, materialized, of_schema, of_table, projected, projection
from assets.resources import DERIVE, LazyStores
from assets.retries import retried
from bardo_pipeline.client.running_server import server_url
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.death.derive_thanatopsis import phases_of, record_phases
from bardo_pipeline.derivation.death.graveyard import inheritance_previews
from bardo_pipeline.derivation.death.owner_notices import post_notices, waiting_notices, webhook_of
from bardo_pipeline.derivation.legacy import publish_legacies
from bardo_pipeline.derivation.legacy.bundle_candidates import candidate_folder
from bardo_pipeline.derivation.legacy.data_docs import judge_with_docs, newest_page
from bardo_pipeline.derivation.legacy.death_queries import dead_golems
from bardo_pipeline.derivation.legacy.derive_legacies import derive_candidates, derive_testaments
from bardo_pipeline.derivation.library.derive_library import LIBRARY_TABLES, derive_library
from bardo_pipeline.errors import NoticeError
from bardo_pipeline.events.life.events import Judged
from bardo_pipeline.events.record.arrow_columns import all_required, required
from bardo_pipeline.storage.delta.table_digest import Digest, Written

VERDICT_SCHEMA = pa.schema(
    [
        *all_required(pa.string(), "golem_id", "bundle_hash"),
        required("passed", pa.bool_()),
        required("expectations", pa.int64()),
        required("failed", pa.list_(pa.string())),
    ]
)
BUNDLE_SCHEMA = pa.schema([*all_required(pa.string(), "golem_id", "bundle_hash"), required("entry_count", pa.int64())])

_BY_GOLEM = [("golem_id", "ascending"), ("bundle_hash", "ascending")]

REPEAT = dg.AssetCheckSpec(
    "verdicts_repeat",
    asset="verdicts",
    description="A candidate that is judged again for the Data Docs gets its recorded verdict. A different verdict "
    "means that the candidate was altered: compare it with its published bundle.",
)


@projection("testaments", "legacy", "markdown", deps=["curation", "cycles", "grimoire", LIFE_EVENTS])
def testaments(home: LazyStores) -> Iterable[Written]:
    """One row per dead golem: its testament in nine categories, each sentence with its entries and ticks.

    Key golem_id. Appends the testaments of golems with a recorded death and a curated last cycle.
    """
    return derive_testaments(home.stores)


@projection(
    "candidates",
    "legacy",
    deps=["testaments", "cycles", "episodes", "grimoire", "playbooks", LIFE_EVENTS],
    more=lambda stores: {"path": dg.MetadataValue.path(candidate_folder(stores))},
)
def bundle_candidates(home: LazyStores) -> Iterable[Written]:
    """One row per dead golem: its candidate bundle before the verdict, a content-addressed folder.

    Key golem_id. Counts of entries, episodes and anti-knowledge; cause_entries lists the selected entries. At most
    2,048 entries pass the bottleneck, and each loses confidence at the Weismann barrier. Appends.
    """
    return derive_candidates(home.stores)


@dg.asset(
    pool=DERIVE,
    deps=["bundle_candidates", "grimoire", LIFE_EVENTS],
    check_specs=[REPEAT],
    code_version=CODE_VERSION,
    **of_schema("legacy", VERDICT_SCHEMA, ["bundle_hash"], "deltalake", "greatexpectations"),
)
@retried
def verdicts(
    context: dg.AssetExecutionContext, home: dg.ResourceParam[LazyStores]
) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult]:
    """One row (an event of the log) per candidate bundle: passed or not, and its failed expectations.

    Key bundle_hash. One Great Expectations run judges all candidates without a verdict; a failed bundle does not affect
    the others. The Data Docs show that run. Bundles that the runtime judged at death are judged once more here for
    their Data Docs.
    """
    stores = home.stores
    seen = Seen.before(stores, ["candidates", "grimoire"])
    fresh, again, changed = judge_with_docs(stores, now=home.now(), run=context.run_id)
    standing = standing_verdicts(stores)
    facts = _verdict_facts(standing, [*fresh.judged, *again.judged])
    docs = docs_facts(stores, fresh.data_docs or again.data_docs)
    yield materialized(
        stores, "verdicts", seen, Digest.of(standing),
        rows_written=len(fresh.judged), version=stores.log.life_version, more=facts | docs,
    )  # fmt: skip
    yield dg.AssetCheckResult(
        check_name=REPEAT.name,
        asset_key="verdicts",
        passed=not changed,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={"judged_again": len(again.judged), "changed": dg.MetadataValue.json(list(changed))},
    )


def standing_verdicts(stores: DerivationContext) -> pa.Table:
    """Return every recorded verdict (VERDICT_SCHEMA), ordered by golem and bundle."""
    rows = [
        {"golem_id": e["golem_id"], **e["judged"], "failed": [f["expectation"] for f in e["judged"]["failed"]]}
        for e in stores.life("BundleJudged").select(["golem_id", "judged"]).to_pylist()
    ]
    return pa.Table.from_pylist(rows, schema=VERDICT_SCHEMA).sort_by(_BY_GOLEM)


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


def docs_facts(stores: DerivationContext, page: Path | None) -> dict[str, Any]:
    """Return links to the Data Docs of this run, or of the newest run that has some. `bardo serve` shows them.

    A browser opens no file from a page of http, so the link is the server's.
    """
    page = page or newest_page(stores.home)
    if page is None:
        return {}
    link = f"{server_url(stores.home.root)}/docs/data/"
    return {"data_docs": dg.MetadataValue.url(link), "data_docs_path": dg.MetadataValue.path(page)}


@dg.asset(
    pool=DERIVE,
    deps=["verdicts", "bundle_candidates"],
    code_version=CODE_VERSION,
    **of_schema("legacy", BUNDLE_SCHEMA, ["bundle_hash"], "deltalake", "file"),
)
@retried
def bundles(home: dg.ResourceParam[LazyStores]) -> dg.MaterializeResult:
    """One row (an event of the log) and one folder per published bundle, which a successor may inherit.

    Key bundle_hash, the SHA-256 of the manifest, which lists the SHA-256 of every file. Publishes the candidates that
    passed; refused candidates stay in the candidate folder.
    """
    stores = home.stores
    seen = Seen.before(stores, ["candidates"])
    fresh = set(publish_legacies.publish_candidates(stores, now=home.now()))
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
    """Return the inheritance previews (INH S12) of newly published bundles, as a Markdown table and as JSON."""
    bundles = standing_bundles(stores)
    golems = bundles.filter(pc.is_in(bundles["bundle_hash"], value_set=pa.array(sorted(fresh), pa.string())))[
        "golem_id"
    ]
    dead = [golem for golem in dead_golems(stores, golems.to_pylist()) if golem.bundle_hash in fresh]
    previews = list(inheritance_previews(stores, dead).values())
    rows = [
        {
            "golem": preview.golem_id,
            "generation": preview.generation,
            "entries": preview.entry_count,
            "bloodstains": preview.bloodstain_count,
            "confidence": f"{preview.mean_before_ppm / 1e4:.0f} % to {preview.mean_after_ppm / 1e4:.0f} %",
            "before": " ".join(map(str, preview.before)),
            "after": " ".join(map(str, preview.after)),
            "domains": ", ".join(f"{name} {count}" for name, count in preview.by_domain.items()),
        }
        for preview in previews
    ]
    as_json = dg.MetadataValue.json([asdict(preview) for preview in previews])
    return {"inheritance": markdown_table(rows), "inheritance_previews": as_json}


def standing_bundles(stores: DerivationContext) -> pa.Table:
    """Return every published bundle (BUNDLE_SCHEMA), ordered by golem and bundle."""
    events = stores.life("BundlePublished").select(["golem_id", "published"]).to_pylist()
    rows = [{"golem_id": e["golem_id"], **e["published"]} for e in events]
    return pa.Table.from_pylist(rows, schema=BUNDLE_SCHEMA).sort_by(_BY_GOLEM)


DYING_SCHEMA = pa.schema(
    [
        *all_required(pa.string(), "golem_id", "phase", "event_id"),
        *all_required(pa.int64(), "tick", "reserve_micros", "cost_micros", "spent_micros"),
    ]
)


@dg.asset(
    pool=DERIVE,
    deps=["bundles", "testaments", "grimoire", LIFE_EVENTS],
    code_version=CODE_VERSION,
    **of_schema("legacy", DYING_SCHEMA, ["golem_id", "phase"]),
)
@retried
def thanatopsis(context: dg.AssetExecutionContext, home: dg.ResourceParam[LazyStores]) -> dg.MaterializeResult:
    """One row (an event of the log) per dead golem and phase of its death, with the cost and the reserve that paid it.

    Key (golem_id, phase). Money in micro-dollars; spent is the sum of the phases so far, at most the reserve. Records
    every due phase; the first record of a phase counts. Notices go to BARDO_WEBHOOK if it is set.
    """
    stores = home.stores
    seen = Seen.before(stores, ["testaments", "candidates", "grimoire"])
    fresh = record_phases(stores, now=home.now())
    notices = [{"notice": e.bequeathed.notice} for e in fresh if e.bequeathed is not None]
    more = {"notices": markdown_table(notices), **posted(stores, context.log.warning)}
    return materialized(
        stores, "thanatopsis", seen, Digest.of(standing_phases(stores)),
        rows_written=len(fresh), version=stores.log.life_version, more=more,
    )  # fmt: skip


def posted(stores: DerivationContext, warn: Callable[[str], None]) -> dict[str, Any]:
    """Post waiting notices and return the counts. A failed post is a warning; its notices stay queued."""
    url = webhook_of(os.environ)
    if url is None:
        return {"posted": 0, "waiting": len(waiting_notices(stores))}
    try:
        sent = len(post_notices(stores, url))
    except NoticeError as error:
        warn(str(error))
        return {"posted": 0, "waiting": len(waiting_notices(stores)), "why": str(error)}
    return {"posted": sent, "waiting": 0}


def standing_phases(stores: DerivationContext) -> pa.Table:
    """Return every recorded phase of death (DYING_SCHEMA), ordered by golem and phase."""
    rows = [
        {**phase.payload, "golem_id": golem_id, "phase": phase.kind, "event_id": phase.event_id}
        for golem_id, phases in sorted(phases_of(stores).items())
        for phase in phases
    ]
    return pa.Table.from_pylist(rows, schema=DYING_SCHEMA)


_SPECS = [
    dg.AssetSpec(
        "library",
        deps=["curation", "grimoire", "playbooks", LIFE_EVENTS],
        description="One row per owner and rule in the owner's library, merged over the golems that left it. Key "
        "(owner_id, entry_id), where entry_id is the representative entry of the rule. Confidence at anchor_at in "
        "parts per million, x 1.10 once if five golems confirmed the rule (at most 0.95); channel: death, pull, "
        "export, overflow or purchase; golem_ids, entry_ids, event_ids: origins; validator_ids: confirming golems. "
        "Replaces the rows of owners whose golems changed.",
        **of_table("library", "library"),
    ),
    dg.AssetSpec(
        "kits",
        deps=["curation", "grimoire", "playbooks", LIFE_EVENTS],
        description="One row per owner and seed kit: rules of one archetype and domain that three golems learned "
        "independently within seven days. Key (owner_id, kit_id). A rule is published after two further golems "
        "confirmed it; until then its id is in proposed_ids.",
        **of_table("kits", "library"),
    ),
    dg.AssetSpec(
        "shelved_playbooks",
        deps=["curation", "grimoire", "playbooks", LIFE_EVENTS],
        description="One row per dead golem: its last PLAYBOOK.md. Key (owner_id, golem_id).",
        **of_table("shelved_playbooks", "library", "markdown"),
    ),
]


@dg.multi_asset(specs=_SPECS, name="shelve", pool=DERIVE)
@retried
def shelve(home: dg.ResourceParam[LazyStores]) -> Iterator[dg.MaterializeResult]:
    """Derive again the libraries of owners whose golems have new decisions, events or retractions."""
    stores = home.stores
    seen = Seen.before(stores, ["curation", "grimoire", "playbooks"])
    written = derive_library(stores)
    for table in LIBRARY_TABLES:
        yield projected(stores, table, seen, written)
