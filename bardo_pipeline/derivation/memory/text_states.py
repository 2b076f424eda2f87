"""States of stored texts: the operations that gave each of them its confidence, in every golem that holds it.

Source: TOOLS (memory_manage_insight, memory_consolidate); ADR 0081.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.memory.shared_texts import shared_texts
from bardo_pipeline.grimoire.confidence import ppm
from bardo_pipeline.retrieval.insight_votes import Change, KnownInsight
from bardo_pipeline.retrieval.text_index import NONE, Doc, View
from bardo_pipeline.storage.log.owner_log import golems_in_view


class TextState(NamedTuple):
    """A stored text in one golem that holds it.

    Parameters
    ----------
    text_id : id of the text; of an insight, that of its first content
    origin_golem_id : the ancestor that stored it, or the golem itself
    text : content after the last change
    changes : at, operation, reason, confidence_before_ppm, confidence_ppm and cause_event of each change, in order
    """

    text_id: str
    golem_id: str
    origin_golem_id: str
    sort: str
    text: str
    changes: tuple[dict[str, Any], ...]


def texts_beginning(context: DerivationContext, start: str, *, now: datetime) -> tuple[list[str], list[TextState]]:
    """Return the ids of stored texts that begin with a text, and the states of the only one, by golem.

    The id of an edit of an insight, or of an upvote by the same words, is that of the insight.

    Parameters
    ----------
    now : time of recording of new vectors
    """
    golems = golems_in_view(context.log, None)
    with shared_texts(context, now) as held:
        keys = held.golem_ids() if golems is None else sorted(golems)
        found = {key: [text_id for text_id in held.index.rows(key) if text_id.startswith(start)] for key in keys}
        ids = sorted({text_id for of_golem in found.values() for text_id in of_golem})
        if len(ids) != 1:
            return ids, []
        keys = [key for key, of_golem in found.items() if of_golem]
        held.embed(context, keys, now)  # an upvote is known by vectors
        states = []
        for view in held.index.views(keys):
            row, insights = held.index.rows(view.key)[ids[0]], held.insights(context, view.key)
            states.append(_state(view, row, insights.values()))
    return ids, states


def _state(view: View, row: int, insights: Collection[KnownInsight]) -> TextState:
    doc, first = view.docs[row], int(view.stands_for[row])
    names = {doc.doc_id} | ({view.docs[first].doc_id} if first != NONE else set())
    insight = next((each for each in insights if names.intersection(each.text_ids)), None)
    if insight is not None:
        doc = next(other for other in view.docs[: view.size] if other.doc_id == insight.insight_id)
        return TextState(
            doc.doc_id, view.key, doc.origin or view.key, doc.sort, insight.content, _changes(doc, insight.changes)
        )
    told = [Change(doc.at, "ADD", ppm(doc.worth), None)]
    for each in insights:
        for change in each.changes:
            if doc.doc_id in _evidence(change):
                event = {**(change.event or {}), "reason": f"evidence of insight {each.insight_id}", "evidence": ()}
                told.append(Change(change.at, "CONSOLIDATED", ppm(doc.worth), event))
    return TextState(doc.doc_id, view.key, doc.origin or view.key, doc.sort, doc.stored_text, _changes(doc, told))


def _evidence(change: Change) -> Sequence[str]:
    """Return the ids of the episodes that a consolidation names for a change."""
    return (change.event or {}).get("evidence", ())


def _changes(doc: Doc, changes: Iterable[Change]) -> tuple[dict[str, Any], ...]:
    """Return the changes of a text, of which the first one stored it or brought it from an ancestor."""
    rows, before = list[dict[str, Any]](), 0
    for change in changes:
        event, is_first = change.event or {}, not rows
        came = f"crossed a death from golem {doc.origin}" if doc.origin else "stored by its runtime"
        evidence = ", ".join(_evidence(change))
        reasons = [event.get("reason"), came if is_first else None, evidence and f"from the episodes {evidence}"]
        rows.append(
            {
                "at": change.at,
                "operation": ("received" if doc.origin else "stored") if is_first else change.operation.lower(),
                "reason": "; ".join(filter(None, reasons)) or "by its runtime",
                "confidence_before_ppm": before,
                "confidence_ppm": change.confidence_ppm,
                "cause_event": event.get("event_id") or doc.doc_id,
            }
        )
        before = change.confidence_ppm
    return tuple(rows)
