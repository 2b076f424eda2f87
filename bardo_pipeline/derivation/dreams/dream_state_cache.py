"""Nights: what golems bring to their next dream, kept by bucket beside the readers' places.

All of it follows from tables of the derivation. The files only save time: of a golem whose night is not kept, or not as
of its dreams and of what is left out, the tables are read from its birth on. Source: architecture (law 5).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.state.decision_log import DECISION_SCHEMA
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.golem_cache import GolemCache
from bardo_pipeline.derivation.incremental.retraction_tracking import RetractionCursor, is_from_cycle
from bardo_pipeline.dreams.dream_cycle import DREAM_SCHEMA, KNOWN_COLUMNS, known_then
from bardo_pipeline.dreams.hypothesis_table import HYPOTHESIS_SCHEMA, alive
from bardo_pipeline.dreams.recorded_market import RATES
from bardo_pipeline.events.life.retractions import LeftOut
from bardo_pipeline.grimoire.entry_columns import contiguous

_SCHEMAS = {
    "dreams": pa.schema([DREAM_SCHEMA.field(n) for n in ("golem_id", "cycle", "tick", "at", *RATES, "replayed")]),
    "hypotheses": HYPOTHESIS_SCHEMA,
    "known": pa.schema([DECISION_SCHEMA.field(n) for n in KNOWN_COLUMNS]),
}
_KEPT_SCHEMA = pa.schema(
    [
        pa.field("golem_id", pa.string(), nullable=False),
        pa.field("cycle", pa.int64(), nullable=False),
        pa.field("left", pa.string(), nullable=False),
        pa.field("version", pa.int64()),
        *[pa.field(n, pa.list_(pa.field("element", pa.struct(list(s)), nullable=False))) for n, s in _SCHEMAS.items()],
    ]
)


@dataclass(frozen=True)
class DreamState:
    """What some golems bring to their next dream.

    dreams: those that the next may look back to. hypotheses: those that live, or all. known: decisions that said what
    was known at the newest dream, and those that were on record for later. last: the cycle of the newest dream, of
    those who dreamt. version: that of the curation up to which `known` goes; who is not in it has nothing there.
    """

    dreams: pa.Table
    hypotheses: pa.Table
    known: pa.Table
    last: dict[str, int]
    version: dict[str, int]

    @classmethod
    def none(cls) -> DreamState:
        """Those of nobody."""
        return cls(**{name: schema.empty_table() for name, schema in _SCHEMAS.items()}, last={}, version={})

    def known_to(self, context: DerivationContext, golem_ids: Iterable[str]) -> pa.Table:
        """The curator's decisions (KNOWN_COLUMNS) that say what these golems know from their newest dream on."""
        curation, schema = context.projections.growing("curation"), _SCHEMAS["known"]
        begun = {g: self.version[g] for g in golem_ids if g in self.version}
        parts = [_of(self.known, begun)]
        if anew := sorted(set(golem_ids) - set(begun)):
            parts.append(curation.read(schema.names, golems=anew).cast(schema))
        if begun:
            rows = curation.read(schema.names, min(begun.values()), golems=sorted(begun)).cast(schema)
            parts.append(rows.filter(is_from_cycle(rows, {g: self.last.get(g, 0) + 1 for g in begun})))
        return pa.concat_tables(parts)


def load_dream_state(
    context: DerivationContext, golem_ids: Iterable[str], first: Mapping[str, int], left: LeftOut
) -> DreamState:
    """The nights of these golems, as far as what they dreamt stands and was committed to the end.

    first: golem to the first cycle that is to be dreamt again.
    """
    table = context.projections.growing("dreams")
    done = {g: reached for g in golem_ids if (reached := table.done(g)) is not None}
    signed = _signatures(context, done, left)
    kept = GolemCache(context, "nights", _KEPT_SCHEMA).read(done)
    rows = zip(*(kept[n].to_pylist() for n in ("golem_id", "cycle", "left")), strict=True)
    current = [g not in first and done.get(g) == cycle and signed[g] == said for g, cycle, said in rows]
    kept = kept.filter(pa.array(current, pa.bool_()))
    names = kept["golem_id"].to_pylist()
    dreams, hypotheses, known = (_unfolded(kept, name) for name in _SCHEMAS)
    if missing := sorted(set(done) - set(names)):
        dreams = pa.concat_tables([dreams, _stood(context, "dreams", missing, first)])
    newest = dreams.group_by("golem_id", use_threads=False).aggregate([("cycle", "max")])
    last = dict(zip(newest["golem_id"].to_pylist(), newest["cycle_max"].to_pylist(), strict=True))
    if missing:
        later = {g: last.get(g, 0) + 1 for g in missing}
        hypotheses = pa.concat_tables([hypotheses, _stood(context, "hypotheses", missing, later)])
    versions = zip(names, kept["version"].to_pylist(), strict=True)
    return DreamState(dreams, hypotheses, known, last, {g: version for g, version in versions if version is not None})


def save_dream_state(
    context: DerivationContext, before: DreamState, golem_ids: Iterable[str], left: LeftOut, *,
    dreams: pa.Table, hypotheses: pa.Table, known: pa.Table, last: Mapping[str, int],
) -> None:  # fmt: skip
    """Keep the nights of these golems; those of the dead are let go.

    dreams, hypotheses, last: what was dreamt since `before`, and each one's newest dream now. known: what `known_to`
    gave those who dreamt.
    """
    table, version = context.projections.growing("dreams"), context.projections.growing("curation").table.version
    dead = set(context.life("DeathDeclared")["golem_id"].to_pylist())
    mine = sorted(set(golem_ids) - dead)
    slept = set(dreams["golem_id"].to_pylist()) & set(mine)
    held = {
        "dreams": _looked_back_to(
            pa.concat_tables([before.dreams, dreams.select(_SCHEMAS["dreams"].names)]),
            context.policy.dreams.lookback_ticks,
        ),
        "hypotheses": alive(pa.concat_tables([before.hypotheses, hypotheses])),
        "known": pa.concat_tables([_of(before.known, set(mine) - slept), known_then(_of(known, slept), last)]),
    }
    signed = _signatures(context, mine, left)
    columns: dict[str, Any] = {
        "golem_id": mine,
        "cycle": [table.done(g) for g in mine],
        "left": [signed[g] for g in mine],
        "version": [version if g in slept else before.version.get(g) for g in mine],
    }
    columns |= {name: _folded(rows, mine) for name, rows in held.items()}
    GolemCache(context, "nights", _KEPT_SCHEMA).replace(pa.table(columns).cast(_KEPT_SCHEMA), golem_ids)


def _stood(context: DerivationContext, name: str, golem_ids: list[str], first: Mapping[str, int]) -> pa.Table:
    """What the table holds of these golems from before their first cycle on."""
    rows = context.projections.growing(name).read(_SCHEMAS[name].names, golems=golem_ids).cast(_SCHEMAS[name])
    return rows.filter(pc.invert(is_from_cycle(rows, first)))


def _looked_back_to(dreams: pa.Table, ticks: int) -> pa.Table:
    """Of each golem's dreams the newest, and those whose episodes the next may replay."""
    newest = dreams.group_by("golem_id", use_threads=False).aggregate([("tick", "max")])
    last = dict(zip(newest["golem_id"].to_pylist(), newest["tick_max"].to_pylist(), strict=True))
    floor = np.array([last[g] - ticks for g in dreams["golem_id"].to_pylist()], np.int64)
    return dreams.filter(pa.array(dreams["tick"].to_numpy() > floor, pa.bool_()))


def _signatures(context: DerivationContext, golem_ids: Iterable[str], left: LeftOut) -> dict[str, str]:
    """What is left out of each golem's records, and which of its causes the curator has heeded, in words."""
    heeded = RetractionCursor(context, "curation").handled_ids() if left.causes else set()
    causes: dict[str, list[str]] = {}
    for cause in left.causes:
        if cause.event_id in heeded:
            causes.setdefault(cause.golem_id, []).append(cause.event_id)
    said = {g: left.of_golem(g) for g in golem_ids}
    return {g: repr((ticks, sorted(entries), sorted(causes.get(g, [])))) for g, (ticks, entries) in said.items()}


def _of(rows: pa.Table, golem_ids: Iterable[str]) -> pa.Table:
    return rows.filter(pc.is_in(rows["golem_id"], value_set=pa.array(sorted(golem_ids), pa.string())))


def _folded(rows: pa.Table, golem_ids: list[str]) -> pa.Array:
    """For each golem the list of its rows. golem_ids: sorted."""
    place = pc.index_in(rows["golem_id"], value_set=pa.array(golem_ids, pa.string()))
    rows, code = rows.filter(place.is_valid()), contiguous(place.drop_null()).to_numpy()
    order = np.argsort(code, kind="stable")
    offsets = pa.array(np.searchsorted(code[order], np.arange(len(golem_ids) + 1)), pa.int32())
    ordered = rows.take(pa.array(order, pa.int64()))
    parts = pa.StructArray.from_arrays([contiguous(column) for column in ordered.columns], fields=list(rows.schema))
    return pa.ListArray.from_arrays(offsets, parts)


def _unfolded(kept: pa.Table, name: str) -> pa.Table:
    rows = contiguous(pc.list_flatten(kept[name]))
    return pa.Table.from_arrays(rows.flatten(), schema=_SCHEMAS[name])
