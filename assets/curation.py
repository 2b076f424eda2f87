"""Curation: closed cycles to decisions, and what follows from them: the grimoire and the playbook."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg

from assets.log import CYCLES, LIFE_EVENTS
from assets.metadata import Seen, of_table, projected
from assets.resources import LazyStores
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.derivation.repair.strikes_and_reorgs import withdraw
from bardo_pipeline.derivation.reports.lineage import surest

LINEAGE_ROWS = 20

_SPECS = [
    dg.AssetSpec(
        "curation",
        deps=[CYCLES, LIFE_EVENTS, "episodes"],
        description="One row per decision of the curator: what happened to which entry of which golem, when, why, on "
        "which evidence, under which policy. Key (golem_id, revision, cycle, seq). Confidence in parts per million; "
        "effects in ppm of a position's value, or a baseline's own unit. Reads records of closed cycles past each "
        "golem's watermark; appends. Episodes come first only so that a cycle is remembered before it is judged.",
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
        description="One row per golem and entry, as its newest decision left it: what the golem knows, suspects or "
        "has forgotten. Key (golem_id, entry_id). confidence_ppm is the confidence at anchor_at; at another moment it "
        "is computed from the half-life of its class, so a quiet grimoire is never rewritten. Renews the buckets of "
        "golems with new cycles.",
        **of_table("grimoire", "curation"),
    ),
    dg.AssetSpec(
        "playbooks",
        deps=["grimoire"],
        description="One row per version of a golem's PLAYBOOK.md: the thresholds by which it acts in each regime "
        "(anomaly score in [0, 1]), the entries that moved them, and the page itself. Key (golem_id, version); version "
        "1 is what it was born with. Appends.",
        **of_table("playbooks", "curation", "markdown"),
    ),
]


@dg.multi_asset(specs=_SPECS, name="curate")
def curate(home: dg.ResourceParam[LazyStores]) -> Iterator[dg.MaterializeResult]:
    """Curate every closed cycle that is not on record; whoever comes second finds it done.

    What heirs lose by what was struck or reorged is recorded first, so that it is withdrawn with the rest.
    """
    stores = home.stores
    withdraw(stores, now=home.now())
    seen = Seen.before(stores)
    written = derive_curation(stores)
    for spec in _SPECS:
        name = spec.key.to_user_string()
        more = {"lineage": dg.MetadataValue.md(_lineage(stores))} if name == "grimoire" else None
        yield projected(stores, name, seen, written, more=more)


def _lineage(stores: DerivationContext) -> str:
    """The surest rules with the ticks and bundles behind them, as a page of the UI; the command traces any other."""
    lines = [
        "| golem | generation | entry | confidence | says | its own ticks | came in bundle |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in surest(stores, LINEAGE_ROWS):
        ticks = ", ".join(str(t) for t in row["ticks"][:12]) + (" …" if len(row["ticks"]) > 12 else "")
        cells = (
            row["golem_id"],
            row["generation"],
            f"`{row['entry_id'][:12]}`",
            f"{row['confidence_ppm'] / 1e4:.0f} %",
            row["text"],
            ticks or "none yet",
            ", ".join(b[:12] for b in row["bundles"]) or "none",
        )
        lines.append(f"| {' | '.join(str(c) for c in cells)} |")
    return "\n".join([*lines, "", "`bardo lineage ENTRY` follows any entry through generations down to its ticks."])
