"""Assets of dreams: dreams at the close of idle cycles, their hypotheses, and the lessons that outcomes confirmed."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg
import pyarrow.compute as pc

from assets.log import CYCLES, LIFE_EVENTS
from assets.metadata import Seen, markdown_table, of_table, projected
from assets.resources import LazyStores
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.dreams.derive_dreams import derive_dreams
from bardo_pipeline.dreams.hypotheses import STATES
from bardo_pipeline.dreams.hypothesis_table import newest_rows

_SPECS = [
    dg.AssetSpec(
        "hypotheses",
        deps=[CYCLES, LIFE_EVENTS, "curation"],
        description="One row per change of a hypothesis: imagined, staged, confirmed or refuted by later outcomes, "
        "pushed to the clade, expired. Key (golem_id, hypothesis_id, cycle, seq); the newest row holds the current "
        "state. Effects in ppm of a position's value, confidence in parts per million at anchor_at; cause_ticks lists "
        "the decisions behind it. Appends together with dreams.",
        **of_table("hypotheses", "dreams"),
    ),
    dg.AssetSpec(
        "dreams",
        deps=[CYCLES, LIFE_EVENTS, "curation"],
        description="One row per dream of a golem: the idle cycle that it follows, its trigger, the episodes and "
        "inherited scars that were replayed, their arousal after REM, and the budget spent on counterfactuals. Key "
        "(golem_id, cycle). Reads the records since each golem's last dream; appends.",
        **of_table("dreams", "dreams"),
    ),
    dg.AssetSpec(
        "lessons",
        deps=["hypotheses"],
        description="One row per entry that a dream suggested and live outcomes confirmed: the effect of decisions in "
        "a situation with one variable changed (`cause`). Key (golem_id, entry_id); provenance dream_counterfactual; "
        "the columns are those of the grimoire. Effects in ppm of a position's value, confidence in parts per million "
        "at anchor_at, with twice the half-life of its class. Replaces the buckets whose hypotheses changed.",
        **of_table("lessons", "dreams"),
    ),
]


@dg.multi_asset(specs=_SPECS, name="dream")
def dream(home: dg.ResourceParam[LazyStores]) -> Iterator[dg.MaterializeResult]:
    """Derive every due dream of curated cycles. A second run finds nothing to do."""
    stores = home.stores
    seen = Seen.before(stores, ["curation"])
    written = derive_dreams(stores)
    more = {"hypotheses": {"fate": _fate(stores)}, "dreams": {"began_by": _began_by(stores)}}
    more["lessons"] = {"taught": _taught(stores)}
    for spec in _SPECS:
        name = spec.key.to_user_string()
        yield projected(stores, name, seen, written, more=more[name])


def _fate(stores: DerivationContext) -> dg.MarkdownMetadataValue:
    rows = newest_rows(stores.projections.growing("hypotheses").read()).to_pylist()
    summaries = []
    for state in STATES:
        in_state = sorted(
            (r for r in rows if r["state"] == state), key=lambda r: (-r["confidence_ppm"], r["hypothesis_id"])
        )
        if in_state:
            summaries.append({"state": state, "hypotheses": len(in_state), "for example": in_state[0]["text"]})
    return markdown_table(summaries)


def _taught(stores: DerivationContext) -> dg.MarkdownMetadataValue:
    rows = stores.projections.read("lessons")
    rows = rows.filter(pc.equal(rows["status"], "active")).sort_by([("confidence_ppm", "descending")])
    names = {"golem_id": "golem", "entry_id": "entry", "text": "what would have been", "confidence_ppm": "confidence"}
    return markdown_table(rows.select(list(names)).rename_columns(list(names.values())).slice(0, 10).to_pylist())


def _began_by(stores: DerivationContext) -> dg.MarkdownMetadataValue:
    counted = pc.value_counts(stores.projections.growing("dreams").read(["began_by"])["began_by"]).to_pylist()
    return markdown_table([{"began by": c["values"], "dreams": c["counts"]} for c in sorted(counted, key=str)])
