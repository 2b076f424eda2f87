"""Folds the texts and operations of a golem into its insights: content, votes, confidence. Pure.

An insight is a text of the golem with the operations on it and the texts that are its upvotes.
Source: TOOLS (memory_manage_insight), canon 1, 16-18.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from bardo_pipeline.events.life.tool_events import Source
from bardo_pipeline.grimoire.confidence import PPM, ppm
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.text_index import NONE, Doc, View


@dataclass(frozen=True)
class KnownInsight:
    """An insight of a golem's own words, as of the newest event.

    text_ids: of its first content and of each edit, in the order of their moments; the last one has the content.
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

    @property
    def confidence(self) -> float:
        """Confidence in [0, 1]."""
        return self.confidence_ppm / PPM

    def after(self, operation: str, at: datetime, policy: Policy, row: Mapping[str, Any] | None = None) -> KnownInsight:
        """Return the insight after a vote or an edit. row: content of the event of an edit."""
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


def insights_in(view: View, operations: Iterable[Mapping[str, Any]], policy: Policy) -> dict[str, KnownInsight]:
    """Return the insights among the texts of a golem by id.

    Parameters
    ----------
    operations : contents of its InsightManaged, each with its moment `at`
    """
    rows = list(operations)
    added = {row["insight_id"]: row for row in rows if row["operation"] == "ADD"}
    edited = {row["text_id"]: row["insight_id"] for row in rows if row["operation"] == "EDIT"}
    changes = [(row["at"], row["number"], row["insight_id"], row) for row in rows if row["operation"] != "ADD"]
    insights: dict[str, KnownInsight] = {}
    for row, doc in enumerate(view.docs[: view.size]):
        if doc.sort != "insight" or doc.doc_id in edited:
            continue
        first = int(view.stands_for[row])
        if first != NONE and doc.doc_id not in added:
            confirmed = view.docs[first].doc_id
            changes.append((doc.at, 0, edited.get(confirmed, confirmed), {"operation": "UPVOTE"}))
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
    if added is None:
        return first
    kept = {name: added[name] for name in ("source", "structure", "crossings")}
    return replace(first, **kept, evidence=tuple(added["evidence"]))
