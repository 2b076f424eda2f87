"""Dreams: what golems dream at the close of idle cycles, the hypotheses that come of it, and what life confirmed."""

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
from bardo_pipeline.dreams.hypothesis_table import standing

_SPECS = [
    dg.AssetSpec(
        "hypotheses",
        deps=[CYCLES, LIFE_EVENTS, "curation"],
        description="One row per change of a hypothesis in a dream: imagined, staged, confirmed or refuted by what was "
        "lived since, pushed to the clade, gone. Key (golem_id, hypothesis_id, cycle, seq); the newest row says how it "
        "stands. Effects in ppm of a position's value, confidence in parts per million at anchor_at; cause_ticks names "
        "the decisions behind it. Appends with the dreams.",
        **of_table("hypotheses", "dreams"),
    ),
    dg.AssetSpec(
        "dreams",
        deps=[CYCLES, LIFE_EVENTS, "curation"],
        description="One row per dream of a golem: the idle cycle that it closed, what began it, which episodes and "
        "inherited scars were replayed, what REM left of their arousal, how much of the budget went to failures "
        "imagined otherwise. Key (golem_id, cycle). Reads records since each golem's last dream; appends.",
        **of_table("dreams", "dreams"),
    ),
    dg.AssetSpec(
        "lessons",
        deps=["hypotheses"],
        description="One row per entry that a dream suggested and live outcomes confirmed: what decisions in a "
        "situation would have been worth with one thing changed (`cause`). Key (golem_id, entry_id); provenance "
        "dream_counterfactual; the columns of the grimoire, beside which it is read. Effects in ppm of a position's "
        "value, confidence in parts per million at anchor_at, halved in twice its class's half-life. Renews the "
        "buckets whose hypotheses changed.",
        **of_table("lessons", "dreams"),
    ),
]


@dg.multi_asset(specs=_SPECS, name="dream")
def dream(home: dg.ResourceParam[LazyStores]) -> Iterator[dg.MaterializeResult]:
    """Dream all that is due of curated cycles; whoever comes second finds it dreamt."""
    stores = home.stores
    seen = Seen.before(stores, ["curation"])
    written = derive_dreams(stores)
    more = {"hypotheses": {"fate": _fate(stores)}, "dreams": {"began_by": _began_by(stores)}}
    more["lessons"] = {"taught": _taught(stores)}
    for spec in _SPECS:
        name = spec.key.to_user_string()
        yield projected(stores, name, seen, written, more=more[name])


def _fate(stores: DerivationContext) -> dg.MarkdownMetadataValue:
    """How many hypotheses stand where, with the surest of each."""
    rows = standing(stores.projections.growing("hypotheses").read()).to_pylist()
    told = []
    for state in STATES:
        mine = sorted(
            (r for r in rows if r["state"] == state), key=lambda r: (-r["confidence_ppm"], r["hypothesis_id"])
        )
        if mine:
            told.append({"state": state, "hypotheses": len(mine), "for example": mine[0]["text"]})
    return markdown_table(told)


def _taught(stores: DerivationContext) -> dg.MarkdownMetadataValue:
    """The lessons that are held most surely."""
    rows = stores.projections.read("lessons")
    rows = rows.filter(pc.equal(rows["status"], "active")).sort_by([("confidence_ppm", "descending")])
    names = {"golem_id": "golem", "entry_id": "entry", "text": "what would have been", "confidence_ppm": "confidence"}
    return markdown_table(rows.select(list(names)).rename_columns(list(names.values())).slice(0, 10).to_pylist())


def _began_by(stores: DerivationContext) -> dg.MarkdownMetadataValue:
    """How many dreams began by the clock, by an import, by a tag."""
    counted = pc.value_counts(stores.projections.growing("dreams").read(["began_by"])["began_by"]).to_pylist()
    return markdown_table([{"began by": c["values"], "dreams": c["counts"]} for c in sorted(counted, key=str)])
