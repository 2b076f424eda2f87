"""Folds the texts and operations of a golem into its insights: content, votes, confidence. Pure.

An insight is a text of the golem with the operations on it and the texts that are its upvotes.
Source: TOOLS (memory_manage_insight), canon 1, 16-18.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa

from bardo_pipeline.events.life.tool_events import Source
from bardo_pipeline.events.record.model import NO_MARKET
from bardo_pipeline.grimoire.confidence import PPM, ppm
from bardo_pipeline.grimoire.entries import CATEGORIES, ENTRY_SCHEMA, TEXT
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.text_index import NONE, Doc, View


class Change(NamedTuple):
    """A change of an insight: its operation, the confidence after it, and the operation's event.

    event: None for the first state of a text that no operation added, and for a preview.
    """

    at: datetime
    operation: str
    confidence_ppm: int
    event: Mapping[str, Any] | None


@dataclass(frozen=True)
class KnownInsight:
    """An insight of a golem's own words, as of the newest event.

    text_ids: of its first content and of each edit, in the order of their moments; the last one has the content.
    changes: from its first state on, in order.
    """

    insight_id: str
    content: str
    category: str
    chain: str | None
    token_pair: str | None
    confidence_ppm: int
    created_at: datetime
    updated_at: datetime
    upvotes: int = 0
    downvotes: int = 0
    source: Source = "self"
    structure: str | None = None
    evidence: tuple[str, ...] = ()
    crossings: int = 0
    text_ids: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()

    @property
    def confidence(self) -> float:
        """Confidence in [0, 1]."""
        return self.confidence_ppm / PPM

    def after(self, operation: str, at: datetime, policy: Policy, row: Mapping[str, Any] | None = None) -> KnownInsight:
        """Return the insight after a vote or an edit. row: content of the event; that of an edit is needed."""
        after = self._after(operation, at, policy, row)
        return replace(after, changes=(*self.changes, Change(at, operation, after.confidence_ppm, row)))

    def _after(self, operation: str, at: datetime, policy: Policy, row: Mapping[str, Any] | None) -> KnownInsight:
        rules = policy.curator
        match operation:
            case "UPVOTE":
                raised = min(self.confidence_ppm + ppm(rules.upvote), PPM)
                return replace(self, confidence_ppm=raised, upvotes=self.upvotes + 1, updated_at=at)
            case "DOWNVOTE":
                lowered = max(self.confidence_ppm - ppm(rules.downvote), 0)
                return replace(self, confidence_ppm=lowered, downvotes=self.downvotes + 1, updated_at=at)
        assert row is not None, "an edit has a content"
        kept = {name: row[name] for name in ("content", "category", "chain", "token_pair") if row[name] is not None}
        text_ids = self.text_ids if row["text_id"] is None else (*self.text_ids, row["text_id"])
        return replace(self, **kept, updated_at=at, text_ids=text_ids)


def insights_in(
    view: View, rows: Iterable[int], operations: Iterable[Mapping[str, Any]], policy: Policy
) -> dict[str, KnownInsight]:
    """Return the insights among the texts of a golem by id.

    Parameters
    ----------
    rows : places of the texts of sort `insight`, in order
    operations : contents of its InsightManaged, each with its moment `at`
    """
    recorded = list(operations)
    added = {row["insight_id"]: row for row in recorded if row["operation"] == "ADD"}
    edited = {row["text_id"]: row["insight_id"] for row in recorded if row["operation"] == "EDIT"}
    changes = [(row["at"], row["number"], row["insight_id"], row) for row in recorded if row["operation"] != "ADD"]
    insights: dict[str, KnownInsight] = {}
    for row in rows:
        doc = view.docs[row]
        if doc.doc_id in edited:
            continue
        first = int(view.stands_for[row])
        if first != NONE and doc.doc_id not in added:
            confirmed = view.docs[first].doc_id
            vote = {"operation": "UPVOTE", "event_id": doc.doc_id, "reason": "stored again in similar words"}
            changes.append((doc.at, 0, edited.get(confirmed, confirmed), vote))
        else:
            insights[doc.doc_id] = _first_state(doc, added.get(doc.doc_id))
    for at, _, insight_id, change in sorted(changes, key=lambda change: change[:2]):
        if insight_id in insights:
            insights[insight_id] = insights[insight_id].after(change["operation"], at, policy, change)
    return insights


def _first_state(doc: Doc, added: Mapping[str, Any] | None) -> KnownInsight:
    """Return an insight before any vote. added: content of its ADD; None for a text that no operation added."""
    stored = doc.stored
    first = KnownInsight(
        doc.doc_id, stored["text"], stored["category"] or "general", stored["chain"], stored["pair"],
        ppm(doc.worth if added is None else added["confidence"]), doc.at, doc.at, text_ids=(doc.doc_id,),
    )  # fmt: skip
    first = replace(first, changes=(Change(doc.at, "ADD", first.confidence_ppm, added),))
    if added is None:
        return first
    kept = {name: added[name] for name in ("source", "structure", "crossings")}
    return replace(first, **kept, evidence=tuple(added["evidence"]))


def insight_entries(insights: Iterable[KnownInsight], golem_id: str) -> pa.Table:
    """Return insights of a golem's own words as entries (ENTRY_SCHEMA) of source TEXT, which only votes change."""
    rows = [
        {
            "golem_id": golem_id, "entry_id": insight.insight_id, "structure": insight.structure or insight.insight_id,
            "category": insight.category, "domain": CATEGORIES.get(insight.category, CATEGORIES["general"]),
            "chain": insight.chain or NO_MARKET, "pair": insight.token_pair or NO_MARKET, "text": insight.content,
            "provenance": "import" if insight.source == "import" else "self", "origin_golem_id": golem_id,
            "confidence_ppm": insight.confidence_ppm, "confidence_origin_ppm": insight.confidence_ppm,
            "validations": insight.upvotes, "contradictions": insight.downvotes,
            "anchor_at": insight.updated_at, "created_at": insight.created_at, "validated_at": insight.updated_at,
        }
        for insight in insights
    ]  # fmt: skip
    return text_entries(rows)


def text_entries(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Return rows with some columns of entries as texts of no market (ENTRY_SCHEMA, source TEXT)."""
    return pa.Table.from_pylist([{**_BLANK, **row} for row in rows], schema=ENTRY_SCHEMA)


_BLANK: dict[str, Any] = {
    **{field.name: 0 for field in ENTRY_SCHEMA if pa.types.is_integer(field.type) and not field.nullable},
    "source": TEXT, "protocol": NO_MARKET, "kind": "insight", "status": "active", "decay_class": "structural",
    "is_anti_knowledge": False, "is_bloodstain": False,
}  # fmt: skip
