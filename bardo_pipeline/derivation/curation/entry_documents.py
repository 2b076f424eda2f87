"""Documents of a golem's entries at its last closed cycle, for `bardo grimoire` and for its server. Source: X-8."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from bardo_pipeline.curator.views.crossings import PARTS, crossings_of, links_of
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.grimoire_views import elders
from bardo_pipeline.derivation.curation.record_overrides import (
    Grimoire,
    decisions_about,
    find_entry,
    grimoire_of,
    pending_orders,
    select_entries,
)
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA, MOMENT
from bardo_pipeline.grimoire.entry_columns import confidence_of
from bardo_pipeline.policy import Policy

FADES_DAYS = (0, 1, 7, 30, 90)


def grimoire_document(
    context: DerivationContext,
    golem_id: str,
    *,
    status: str = "active",
    kind: str | None = None,
    text: str | None = None,
    confidence_min: float = 0.0,
    pinned: bool = False,
    limit: int | None = None,
    derives: bool = True,
) -> dict[str, Any]:
    """Return a golem's entries by confidence, and the `waiting` orders about them.

    Raises as `grimoire_of` and `select_entries`, which describe the parameters.
    """
    grimoire = grimoire_of(context, golem_id, derives=derives)
    rows = select_entries(
        grimoire, status=status, kind=kind, text=text, confidence_min=confidence_min, pinned=pinned
    ).slice(0, limit)
    return {**_head(grimoire), "entries": rows.to_pylist(), "waiting": _waiting(context, grimoire)}


def entry_document(context: DerivationContext, golem_id: str, entry: str, *, derives: bool = True) -> dict[str, Any]:
    """Return an entry with its fading, decisions, links, notes and crossing.

    Raises as `grimoire_of` and `find_entry`.
    """
    grimoire = grimoire_of(context, golem_id, derives=derives)
    row, entries = find_entry(grimoire, entry), grimoire.entries.select(ENTRY_SCHEMA.names)
    entry_id = row["entry_id"]
    crossings = {gate["entry_id"]: gate for gate in crossings_of(entries, context.policy, elders(context)).to_pylist()}
    overrides = [order for order in context.overrides().of_golem(golem_id) if order.entry_id == entry_id]
    return {
        **_head(grimoire),
        "entry": row,
        "fading": _fading(row, grimoire, context.policy),
        "decisions": decisions_about(context, golem_id, entry_id),
        "links": _links(entries, entry_id),
        "crossing": _crossing(crossings[entry_id]) if entry_id in crossings else None,
        "notes": [{"at": order.at, "note": order.note} for order in overrides if order.note],
        "waiting": _waiting(context, grimoire, entry_id),
    }


def _head(grimoire: Grimoire) -> dict[str, Any]:
    names = ("golem_id", "cycle", "tick", "at", "died_at_tick")
    return {name: getattr(grimoire, name) for name in names}


def _waiting(context: DerivationContext, grimoire: Grimoire, entry_id: str | None = None) -> list[dict[str, Any]]:
    """Return the orders that have not taken effect, each with the cycle for which it waits."""
    span = context.policy.curator.cycle_ticks
    orders = pending_orders(context, grimoire, entry_id)
    return [{**order._asdict(), "cycle": order.cycle(span)} for order in orders]


def _fading(row: dict[str, Any], grimoire: Grimoire, policy: Policy) -> list[dict[str, Any]]:
    """Return the entry's confidence after FADES_DAYS days without new evidence."""
    moments = [grimoire.at + timedelta(days=days) for days in FADES_DAYS]
    rows = pa.Table.from_pylist([{n: row[n] for n in ENTRY_SCHEMA.names}] * len(moments), schema=ENTRY_SCHEMA)
    at = pa.array(moments, MOMENT).cast(pa.int64()).to_numpy()
    confidence = confidence_of(rows, np.asarray(at), policy.decay).tolist()
    faded = zip(FADES_DAYS, moments, confidence, strict=True)
    return [{"days": days, "at": at, "confidence_ppm": ppm} for days, at, ppm in faded]


def _links(entries: pa.Table, entry_id: str) -> list[dict[str, Any]]:
    """Return the entries that an entry is linked with, each with the relation as seen from the entry."""
    texts = dict(zip(entries["entry_id"].to_pylist(), entries["text"].to_pylist(), strict=True))
    linked = []
    for link in links_of(entries).to_pylist():
        if entry_id in (link["entry_id"], link["other_id"]):
            other = link["other_id"] if link["entry_id"] == entry_id else link["entry_id"]
            turned = {"leads_to": "led_to_by", "told_by": "stands_for"} if other == link["entry_id"] else {}
            relation = turned.get(link["relation"], link["relation"])
            linked.append({"relation": relation, "across": link["across"], "entry_id": other, "text": texts[other]})
    return linked


def _crossing(gate: dict[str, Any]) -> dict[str, Any]:
    return {
        "crosses": gate["crosses"],
        "reason": gate["reason"],
        "admission_ppm": gate["admission_ppm"],
        "parts_ppm": {part: gate[f"{part}_ppm"] for part in PARTS},
    }
