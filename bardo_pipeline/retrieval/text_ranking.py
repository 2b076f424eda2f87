"""Filters stored texts, weighs them by age and confidence, and selects those that cross a death. Pure.

Source: TOOLS (memory_search); canon 1, 17; INH S7.2; ADR 0080, 0081.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from bardo_pipeline.arrays import BoolArray, Float64Array
from bardo_pipeline.events.experience.stored_text import SORTS
from bardo_pipeline.grimoire.confidence import DAY_US, retention
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.hybrid_search import Filters, Rows
from bardo_pipeline.retrieval.text_index import FACETS, FOREVER, NONE, Doc, View


def has_facet(view: View, name: str, values: Collection[str], code_of: Mapping[str | None, int]) -> BoolArray:
    """Return which texts have one of these values of a facet."""
    column = view.codes[: view.size, FACETS.index(name)]
    codes = [code_of[value] for value in values if value in code_of]
    has_value = np.zeros(view.size, bool)
    for code in codes:  # there are few; `np.isin` takes longer even for none
        has_value |= column == code
    return has_value


def kept_texts(
    view: View, sorts: Collection[str], facets: Mapping[str, str], code_of: Mapping[str | None, int]
) -> BoolArray:
    """Return which texts stand for themselves, with words that no edit replaced, and pass the filters."""
    kept = _standing(view)
    if {*sorts} != {*SORTS}:
        kept = kept & has_facet(view, "sort", sorts, code_of)
    for name, value in facets.items():
        kept = kept & has_facet(view, name, [value], code_of)
    return kept


def _standing(view: View) -> BoolArray:
    """Return which texts stand for themselves with words that no edit replaced."""
    standing: BoolArray = (view.stands_for[: view.size] == NONE) & (view.until_us[: view.size] == FOREVER)
    return standing


def held_twice(view: View, keys: Collection[str]) -> BoolArray:
    """Return which texts were inherited from a golem whose own texts are in scope too."""
    held = np.zeros(view.size, bool)
    held[[row for row in view.inherited if row < view.size and view.docs[row].origin in keys]] = True
    return held


def retained_of(
    views: Sequence[View], is_insight: BoolArray, last_ticks: Mapping[str, int], policy: Policy
) -> Float64Array:
    """Return the retention of each text, and the confidence of insights (canon 1: 0.6, upvotes add 0.1).

    Age counts from the last tick of the golem, in UTC microseconds, or from its last text. If operations voted on an
    insight, `voted` is its confidence.
    """
    at_us = np.concatenate([view.at_us[: view.size] for view in views])
    newest = [max(last_ticks.get(view.key, 0), int(view.at_us[view.size - 1])) for view in views]
    age = (np.repeat(newest, [view.size for view in views]) - at_us).clip(0) / DAY_US
    strength = np.concatenate([view.strength[: view.size] for view in views]).astype(np.float64)
    upvotes = np.concatenate([view.upvotes[: view.size] for view in views])
    worth = np.concatenate([view.worth[: view.size] for view in views])
    voted = np.concatenate([view.voted[: view.size] for view in views])
    upvoted = np.round(np.minimum(worth + policy.curator.upvote * upvotes, 1.0), 6)
    confidence = np.where(np.isnan(voted), upvoted, voted)
    return np.where(is_insight, confidence, worth * retention(age, strength))


def crossing(view: View, died_us: int, closed_us: int, code_of: Mapping[str | None, int], policy: Policy) -> list[Doc]:
    """Return the texts that an heir receives: the most retained ones at death, attenuated (INH S7.2: x 0.85).

    Insights compete by confidence, other texts by retention; texts that only confirm another one
    and texts that an edit replaced do not cross.

    Parameters
    ----------
    died_us : moment of death in UTC microseconds, from which age counts
    closed_us : moment in UTC microseconds until which the memory was open; later texts do not cross
    """
    is_insight = has_facet(view, "sort", ["insight"], code_of)
    retained = retained_of([view], is_insight, {view.key: died_us}, policy)
    rows = np.flatnonzero(_standing(view) & (view.at_us[: view.size] <= closed_us))
    best = rows[np.lexsort((-rows, -np.round(retained[rows], 9)))][: policy.search.crossing]
    factor = policy.inheritance.attenuation
    return [
        view.docs[row]._replace(
            worth=factor * (float(retained[row]) if is_insight[row] else view.docs[row].worth),
            origin=view.docs[row].origin or view.key,
        )
        for row in sorted(best.tolist())
    ]


def text_rows(
    view: View,
    start: int,
    last_tick_us: int,
    filters: Filters,
    keys: Collection[str],
    code_of: Mapping[str | None, int],
    policy: Policy,
) -> dict[str, Rows]:
    """Return the stored texts of a golem as rows of the stores: insights are entries, other texts episodes.

    Parameters
    ----------
    start : place of its first text among all texts in scope
    keys : golems in scope
    """
    is_insight = has_facet(view, "sort", ["insight"], code_of)
    retained = retained_of([view], is_insight, {view.key: last_tick_us}, policy)
    facets = {n: value for n in ("tool", "category", "chain", "pair") if (value := getattr(filters, n)) is not None}
    passed = kept_texts(view, SORTS, facets, code_of) & ~held_twice(view, keys)
    if filters.domain is not None or filters.regime is not None or filters.status not in ("active", None):
        passed &= False
    if filters.kind is not None:
        passed &= is_insight & (filters.kind == "insight")
    passed &= ~is_insight | (retained >= filters.confidence_min)
    text = view.codes[: view.size, -1].astype(np.int64)

    def describe(row: int) -> tuple[str, str, str, str]:
        doc = view.docs[row]
        return doc.doc_id, view.key, doc.sort, doc.stored_text

    doc = np.arange(start, start + view.size)
    return {
        store: Rows(store, doc, text, passed & of_store, retained, describe, view.key)
        for store, of_store in (("entries", is_insight), ("episodes", ~is_insight))
    }
