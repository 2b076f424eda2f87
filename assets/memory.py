"""Assets of memory: episodes, their index, decisions, grimoire, playbooks, credits, facts, links, crossings, dreams."""

from collections.abc import Iterable, Iterator

import dagster as dg
import pyarrow.compute as pc

from assets import metadata
from assets.log import CYCLES, LIFE_EVENTS, VECTORS
from assets.resources import BY_GOLEM, DERIVE, LazyStores
from assets.retries import retried
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.derivation.curation.grimoire_views import derive_grimoire_views
from bardo_pipeline.derivation.dreams.derive_dreams import derive_dreams
from bardo_pipeline.derivation.memory.derive_episodes import derive_episodes, refresh_index
from bardo_pipeline.derivation.memory.derive_episodes import episode_index as index_of
from bardo_pipeline.derivation.memory.retrieval_credits import derive_credits
from bardo_pipeline.derivation.reports.lineage import surest
from bardo_pipeline.derivation.strikes_and_reorgs import withdraw
from bardo_pipeline.dreams.hypothesis_staging import STATES
from bardo_pipeline.dreams.hypothesis_table import newest_rows
from bardo_pipeline.storage.delta.table_digest import Written
from bardo_pipeline.storage.index.ivf_tuning import PPM
from bardo_pipeline.storage.index.nearest_episodes import MATCH_SCHEMA

LINEAGE_ROWS = 20

_SPECS = [
    dg.AssetSpec(
        "curation",
        deps=[CYCLES, LIFE_EVENTS, "episodes"],
        description="One row per curator decision about an entry of a golem, with its evidence, reason and policy "
        "hash. Key (golem_id, revision, cycle, seq). Confidence in parts per million; effects in ppm of a position's "
        "value, or in the unit of a baseline. Reads the closed cycles past each golem's watermark; appends. Depends on "
        "episodes only for order: a cycle's episodes are stored before the cycle is curated.",
        **metadata.of_table("curation", "curation"),
    ),
    dg.AssetSpec(
        "cycles",
        deps=[CYCLES, LIFE_EVENTS],
        description="One row per closed cycle (50 ticks, or fewer at a death) of a golem: its last tick, its records, "
        "and how many entries were pruned, promoted and proposed. Key (golem_id, cycle). Appended with the decisions "
        "of the same cycles.",
        **metadata.of_table("cycles", "curation"),
    ),
    dg.AssetSpec(
        "grimoire",
        deps=["curation"],
        description="One row per golem and entry: its state after the newest decision (active, staged or pruned). Key "
        "(golem_id, entry_id). confidence_ppm is the confidence at anchor_at; later confidence is computed from the "
        "half-life of the entry's class, so decay rewrites no row. Replaces the buckets of golems with new cycles.",
        **metadata.of_table("grimoire", "curation"),
    ),
    dg.AssetSpec(
        "playbooks",
        deps=["grimoire"],
        description="One row per version of a golem's PLAYBOOK.md: its action thresholds by regime (anomaly score in "
        "[0, 1]), the entries that changed them, and the page. Key (golem_id, version); version 1 is written at birth. "
        "Appends.",
        **metadata.of_table("playbooks", "curation", "markdown"),
    ),
]


@dg.multi_asset(specs=_SPECS, name="curate", **BY_GOLEM)
@retried
def curate(context: dg.AssetExecutionContext, home: dg.ResourceParam[LazyStores]) -> Iterator[dg.MaterializeResult]:
    """Curate every closed cycle that has no decisions yet. A second run finds nothing to do.

    Withdrawals from heirs, caused by strikes and reorgs, are recorded first, so that this run applies them too.
    """
    stores = home.stores
    withdraw(stores, now=home.now())
    seen = metadata.Seen.before(stores)
    written = [row for part in home.parts(context) for row in derive_curation(part.stores)]
    for spec in _SPECS:
        name = spec.key.to_user_string()
        more = {"lineage": _lineage(stores)} if name == "grimoire" else None
        yield metadata.projected(stores, name, seen, written, more=more)


def _lineage(stores: DerivationContext) -> dg.MarkdownMetadataValue:
    rows = [
        {
            "golem": row["golem_id"],
            "generation": row["generation"],
            "entry": f"`{row['entry_id'][:12]}`",
            "confidence": f"{row['confidence_ppm'] / 1e4:.0f} %",
            "says": row["text"],
            "its own ticks": ", ".join(map(str, row["ticks"][:12])) + (" …" if len(row["ticks"]) > 12 else "")
            or "none yet",
            "came in bundle": ", ".join(b[:12] for b in row["bundles"]) or "none",
        }
        for row in surest(stores, LINEAGE_ROWS)
    ]
    hint = "`bardo lineage ENTRY` follows any entry through generations down to its ticks."
    return dg.MetadataValue.md(f"{metadata.markdown_table(rows).value}\n\n{hint}")


@metadata.projection("credits", "curation", deps=[CYCLES, "curation", "grimoire"], by_golem=True)
def credits(home: LazyStores) -> Iterable[Written]:
    """One row per golem, cycle and retrieved or judged entry: how often it helped and how often it misled.

    Key (golem_id, cycle, entry_id). Counts of ticks that retrieved the entry, and of judged decisions made with it
    whose effect agreed or disagreed with its claim at that time. Appends newly curated cycles.
    """
    return derive_credits(home.stores)


@metadata.projection("episodes", "memory", "onnx", deps=[CYCLES, LIFE_EVENTS, VECTORS], by_golem=True)
def episodes(home: LazyStores) -> Iterable[Written]:
    """One row per episode: a notable tick with its text and vector.

    Key episode_id, "golem:tick" of its record. Importance and curiosity in [0, 1], mood in [-1, 1], money in
    micro-dollars; the vector has L2 norm 1. Reads the closed cycles past each golem's watermark; appends.
    """
    return derive_episodes(home.stores, now=home.now())


@dg.asset(
    pool=DERIVE,
    deps=["episodes"],
    code_version=metadata.CODE_VERSION,
    **metadata.of_schema("memory", MATCH_SCHEMA, ["episode_id"], "lancedb"),
)
@retried
def episode_index(home: dg.ResourceParam[LazyStores]) -> dg.MaterializeResult:
    """One row per episode in LanceDB, for vector and text search. A deleted index is built again.

    Key episode_id; the columns are those of a search result, with cosine distance in [0, 2]. New rows of the episodes
    table are merged by id; the data version is that of the indexed episodes.
    """
    stores = home.stores
    seen = metadata.Seen.before(stores, ["episodes"])
    digest = stores.projections.digest("episodes")
    grown = refresh_index(stores)
    version = metadata.version_of(stores, "episodes")
    return metadata.materialized(
        stores, "episode_index", seen, digest, rows_written=grown, version=version, more=_searched(stores)
    )


def _searched(stores: DerivationContext) -> dict[str, float | int]:
    """Return the number of IVF lists that a search probes and its measured recall."""
    mark = index_of(stores).watermark()
    if mark is None or mark.approximate is None:
        return {}
    return {"lists_looked_at": mark.approximate.looked_at, "recall": mark.approximate.recall_ppm / PPM}


@metadata.projection("facts", "memory", deps=["grimoire", "lessons"], by_golem=True)
def facts(home: LazyStores) -> Iterable[Written]:
    """One row per golem and level: usual gas price, volume or slippage at a protocol.

    Key (golem_id, entry_id). mean, low and high in the unit of the row (low and high bound the mean), confidence in
    parts per million, last_reinforced_at in event time. Replaces the buckets whose grimoire changed.
    """
    return derive_grimoire_views(home.stores, "facts")


@metadata.projection("links", "memory", deps=["grimoire", "lessons"], by_golem=True)
def links(home: LazyStores) -> Iterable[Written]:
    """One row per related pair of a golem's entries: agreeing, differing in one condition, or causal.

    Key (golem_id, entry_id, other_id). strength is the lower of the two confidences in parts per million. Replaces the
    buckets whose grimoire changed.
    """
    return derive_grimoire_views(home.stores, "links")


@metadata.projection("crossings", "memory", deps=["grimoire", "lessons"], by_golem=True)
def crossings(home: LazyStores) -> Iterable[Written]:
    """One row per entry with own evidence: whether it may cross to other golems, by which gate, or why not.

    Key (golem_id, entry_id). The five parts of the admission gate and their mean in parts per million. Replaces the
    buckets whose grimoire or lessons changed, or whose golem neared the end of its lifespan (canon 12).
    """
    return derive_grimoire_views(home.stores, "crossings")


_DREAM_SPECS = [
    dg.AssetSpec(
        "hypotheses",
        deps=[CYCLES, LIFE_EVENTS, "curation"],
        description="One row per change of a hypothesis: imagined, staged, confirmed or refuted by later outcomes, "
        "pushed to the clade, expired. Key (golem_id, hypothesis_id, cycle, seq); the newest row holds the current "
        "state. Effects in ppm of a position's value, confidence in parts per million at anchor_at; cause_ticks lists "
        "the decisions behind it. Appends together with dreams.",
        **metadata.of_table("hypotheses", "dreams"),
    ),
    dg.AssetSpec(
        "dreams",
        deps=[CYCLES, LIFE_EVENTS, "curation"],
        description="One row per dream of a golem: the idle cycle that it follows, its trigger, the episodes and "
        "inherited scars that were replayed, their arousal after REM, and the budget spent on counterfactuals. Key "
        "(golem_id, cycle). Reads the records since each golem's last dream; appends.",
        **metadata.of_table("dreams", "dreams"),
    ),
    dg.AssetSpec(
        "lessons",
        deps=["hypotheses"],
        description="One row per entry that a dream suggested and live outcomes confirmed: the effect of decisions in "
        "a situation with one variable changed (`cause`). Key (golem_id, entry_id); provenance dream_counterfactual; "
        "the columns are those of the grimoire. Effects in ppm of a position's value, confidence in parts per million "
        "at anchor_at, with twice the half-life of its class. Replaces the buckets whose hypotheses changed.",
        **metadata.of_table("lessons", "dreams"),
    ),
]


@dg.multi_asset(specs=_DREAM_SPECS, name="dream", **BY_GOLEM)
@retried
def dream(context: dg.AssetExecutionContext, home: dg.ResourceParam[LazyStores]) -> Iterator[dg.MaterializeResult]:
    """Derive every due dream of curated cycles. A second run finds nothing to do."""
    stores = home.stores
    seen = metadata.Seen.before(stores, ["curation"])
    written = [row for part in home.parts(context) for row in derive_dreams(part.stores)]
    more = {"hypotheses": {"fate": _fate(stores)}, "dreams": {"began_by": _began_by(stores)}}
    more["lessons"] = {"taught": _taught(stores)}
    for spec in _DREAM_SPECS:
        name = spec.key.to_user_string()
        yield metadata.projected(stores, name, seen, written, more=more[name])


def _fate(stores: DerivationContext) -> dg.MarkdownMetadataValue:
    rows = newest_rows(stores.projections.growing("hypotheses").read()).to_pylist()
    summaries = []
    for state in STATES:
        in_state = sorted(
            (r for r in rows if r["state"] == state), key=lambda r: (-r["confidence_ppm"], r["hypothesis_id"])
        )
        if in_state:
            summaries.append({"state": state, "hypotheses": len(in_state), "for example": in_state[0]["text"]})
    return metadata.markdown_table(summaries)


def _taught(stores: DerivationContext) -> dg.MarkdownMetadataValue:
    rows = stores.projections.read("lessons")
    rows = rows.filter(pc.equal(rows["status"], "active")).sort_by([("confidence_ppm", "descending")])
    names = {"golem_id": "golem", "entry_id": "entry", "text": "counterfactual", "confidence_ppm": "confidence"}
    return metadata.markdown_table(
        rows.select(list(names)).rename_columns(list(names.values())).slice(0, 10).to_pylist()
    )


def _began_by(stores: DerivationContext) -> dg.MarkdownMetadataValue:
    counted = pc.value_counts(stores.projections.growing("dreams").read(["began_by"])["began_by"]).to_pylist()
    return metadata.markdown_table([{"began by": c["values"], "dreams": c["counts"]} for c in sorted(counted, key=str)])
