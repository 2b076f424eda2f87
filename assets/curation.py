"""Assets of curation: decisions, closed cycles, grimoire, playbooks and retrieval credits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import dagster as dg

from assets.log import CYCLES, LIFE_EVENTS
from assets.metadata import Seen, markdown_table, of_table, projected, projection
from assets.resources import LazyStores
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.derivation.memory.retrieval_credits import derive_credits
from bardo_pipeline.derivation.repair.strikes_and_reorgs import withdraw
from bardo_pipeline.derivation.reports.lineage import surest
from bardo_pipeline.storage.delta.table_digest import Written

LINEAGE_ROWS = 20

_SPECS = [
    dg.AssetSpec(
        "curation",
        deps=[CYCLES, LIFE_EVENTS, "episodes"],
        description="One row per curator decision about an entry of a golem, with its evidence, reason and policy "
        "hash. Key (golem_id, revision, cycle, seq). Confidence in parts per million; effects in ppm of a position's "
        "value, or in the unit of a baseline. Reads the closed cycles past each golem's watermark; appends. Depends on "
        "episodes only for order: a cycle's episodes are stored before the cycle is curated.",
        **of_table("curation", "curation"),
    ),
    dg.AssetSpec(
        "cycles",
        deps=[CYCLES, LIFE_EVENTS],
        description="One row per closed cycle (50 ticks, or fewer at a death) of a golem: its last tick, its records, "
        "and how many entries were pruned, promoted and proposed. Key (golem_id, cycle). Appended with the decisions "
        "of the same cycles.",
        **of_table("cycles", "curation"),
    ),
    dg.AssetSpec(
        "grimoire",
        deps=["curation"],
        description="One row per golem and entry: its state after the newest decision (active, staged or pruned). Key "
        "(golem_id, entry_id). confidence_ppm is the confidence at anchor_at; later confidence is computed from the "
        "half-life of the entry's class, so decay rewrites no row. Replaces the buckets of golems with new cycles.",
        **of_table("grimoire", "curation"),
    ),
    dg.AssetSpec(
        "playbooks",
        deps=["grimoire"],
        description="One row per version of a golem's PLAYBOOK.md: its action thresholds by regime (anomaly score in "
        "[0, 1]), the entries that changed them, and the page. Key (golem_id, version); version 1 is written at birth. "
        "Appends.",
        **of_table("playbooks", "curation", "markdown"),
    ),
]


@dg.multi_asset(specs=_SPECS, name="curate")
def curate(home: dg.ResourceParam[LazyStores]) -> Iterator[dg.MaterializeResult]:
    """Curate every closed cycle that has no decisions yet. A second run finds nothing to do.

    Withdrawals from heirs, caused by strikes and reorgs, are recorded first, so that this run applies them too.
    """
    stores = home.stores
    withdraw(stores, now=home.now())
    seen = Seen.before(stores)
    written = derive_curation(stores)
    for spec in _SPECS:
        name = spec.key.to_user_string()
        more = {"lineage": _lineage(stores)} if name == "grimoire" else None
        yield projected(stores, name, seen, written, more=more)


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
    return dg.MetadataValue.md(f"{markdown_table(rows).value}\n\n{hint}")


@projection("credits", "curation", deps=[CYCLES, "curation", "grimoire"])
def credits(home: LazyStores) -> Iterable[Written]:
    """One row per golem, cycle and retrieved or judged entry: how often it helped and how often it misled.

    Key (golem_id, cycle, entry_id). Counts of ticks that retrieved the entry, and of judged decisions made with it
    whose effect agreed or disagreed with its claim at that time. Appends newly curated cycles.
    """
    return derive_credits(home.stores)
