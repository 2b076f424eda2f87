"""Bundles made by hand, through the real bottleneck and barrier."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from bardo_pipeline.curator.views.crossings import links_of
from bardo_pipeline.derivation.legacy.bundle_metrics import Candidate, at_death
from bardo_pipeline.inheritance.bottleneck import bottleneck
from bardo_pipeline.inheritance.bundle_files import Bundle, pack, procedures_of
from bardo_pipeline.inheritance.testament import testaments as written_by
from bardo_pipeline.inheritance.weismann import attenuate, leave_bloodstains, shed
from bardo_pipeline.policy import Policy
from tests.support.knowledge.handmade_grimoires import DIED, POLICY, deaths, decisions, grimoire


def crossing_of(*rows: dict[str, Any], golem_id: str = "g-1", policy: Policy = POLICY) -> pa.Table:
    """Return the entries that cross when their golem dies at DIED."""
    died = deaths(golem_id)
    chosen = bottleneck(leave_bloodstains(grimoire(*rows), died, policy), died, policy)
    return shed(attenuate(chosen, policy), policy)


def book_of(*rows: dict[str, Any]) -> pa.Table:
    """A playbook in which every warning is in force, and every heuristic staged."""
    triples = [(r["golem_id"], r["entry_id"], r["kind"]) for r in rows]
    texts = pa.list_(pa.string())
    schema = pa.schema([("golem_id", pa.string()), ("cause_entries", texts), ("staged_entries", texts)])
    return pa.Table.from_pylist(
        [
            {
                "golem_id": golem_id,
                "cause_entries": sorted(e for g, e, kind in triples if g == golem_id and kind == "warning"),
                "staged_entries": sorted(e for g, e, kind in triples if g == golem_id and kind == "heuristic"),
            }
            for golem_id in sorted({g for g, _, _ in triples})
        ],
        schema=schema,
    )


def bundle_of(*rows: dict[str, Any], golem_id: str = "g-1", policy: Policy = POLICY, **fields: Any) -> Bundle:
    """Return the bundle of a golem that dies with these entries at DIED."""
    known, died = grimoire(*rows), deaths(golem_id)
    crossing = crossing_of(*rows, golem_id=golem_id, policy=policy)
    plain = {
        "golem_id": golem_id, "generation": 0, "lineage_id": "line-1", "lineage": [], "died_at": DIED,
        "entries": crossing, "links": links_of(crossing), "procedures": procedures_of(crossing, book_of(*rows)),
        "learning": {"forecast_variance": {"price": 40, "gas": 900, "health": None}},
        "episodes": pa.table({"episode": ["saw a storm"]}), "playbook": "# PLAYBOOK\n",
        "testament": written_by(known, decisions(), died, policy).to_pylist()[0],
        "derivation_id": "derivation-1", "policy_hash": policy.hash, "source_watermark": 150,
    }  # fmt: skip
    return pack(**(plain | fields))


def candidate_of(*rows: dict[str, Any], golem_id: str = "g-1", **fields: Any) -> Candidate:
    """Return the candidate of that bundle, with the golem's entries at death."""
    bundle = bundle_of(*rows, golem_id=golem_id, **fields)
    died = deaths(golem_id)
    facts = at_death(leave_bloodstains(grimoire(*rows), died, POLICY), died, POLICY)
    return Candidate(bundle.bundle_hash, bundle, facts[golem_id])
