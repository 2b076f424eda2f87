"""DreamState: the state that golems carry from one dream to the next, and its cache by golem.

The state follows from tables of the derivation. They are read again for a golem whose cached state is missing or does
not match its last dream and its retractions. Source: architecture (law 5).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.state.decision_log import DECISION_SCHEMA
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.golem_cache import GolemCache
from bardo_pipeline.derivation.incremental.record_queries import last_cycle_by_golem, values_by_golem
from bardo_pipeline.derivation.incremental.retraction_tracking import RetractionCursor, is_from_cycle
from bardo_pipeline.dreams.dream_cycle import DREAM_SCHEMA, KNOWN_COLUMNS, decisions_for_later_dreams
from bardo_pipeline.dreams.hypothesis_table import HYPOTHESIS_SCHEMA, live_hypotheses
from bardo_pipeline.dreams.recorded_market import RATES
from bardo_pipeline.events.life.retractions import LeftOut
from bardo_pipeline.events.record.arrow_columns import contiguous, required, rows_of_golems

_SCHEMAS = {
    "dreams": pa.schema([DREAM_SCHEMA.field(n) for n in ("golem_id", "cycle", "tick", "at", *RATES, "replayed")]),
    "hypotheses": HYPOTHESIS_SCHEMA,
    "decisions": pa.schema([DECISION_SCHEMA.field(n) for n in KNOWN_COLUMNS]),
}
_CACHE_SCHEMA = pa.schema(
    [
        required("golem_id", pa.string()),
        required("cycle", pa.int64()),
        required("left", pa.string()),
        pa.field("version", pa.int64()),
        *[pa.field(n, pa.list_(pa.field("element", pa.struct(list(s)), nullable=False))) for n, s in _SCHEMAS.items()],
    ]
)
"""One row per golem, its tables as lists. `left` is the signature of its retractions."""


@dataclass(frozen=True)
class DreamState:
    """The state that some golems carry into their next dream.

    dreams: those within the lookback of the next dream. hypotheses: live ones, or all. decisions: those that state what
    a golem knew at its newest dream, and later ones. last: golem id to the cycle of its newest dream. version: golem id
    to the version of the curation table that `decisions` covers; golems without decisions are absent.
    """

    dreams: pa.Table
    hypotheses: pa.Table
    decisions: pa.Table
    last: dict[str, int]
    version: dict[str, int]

    @classmethod
    def empty(cls) -> Self:
        """Return the state of no golem."""
        return cls(**{name: schema.empty_table() for name, schema in _SCHEMAS.items()}, last={}, version={})

    def decisions_since(self, context: DerivationContext, golem_ids: Iterable[str]) -> pa.Table:
        """Return the decisions (KNOWN_COLUMNS) that state what these golems knew since their newest dream."""
        curation, schema = context.projections.growing("curation"), _SCHEMAS["decisions"]
        cached = {g: self.version[g] for g in golem_ids if g in self.version}
        parts = [rows_of_golems(self.decisions, cached)]
        if uncached := sorted(set(golem_ids) - set(cached)):
            parts.append(curation.read(schema.names, golems=uncached).cast(schema))
        if cached:
            rows = curation.read(schema.names, min(cached.values()), golems=sorted(cached)).cast(schema)
            parts.append(rows.filter(is_from_cycle(rows, {g: self.last.get(g, 0) + 1 for g in cached})))
        return pa.concat_tables(parts)


def load_dream_state(
    context: DerivationContext, golem_ids: Iterable[str], first: Mapping[str, int], left_out: LeftOut
) -> DreamState:
    """Return the state of golems after their committed dreams.

    Parameters
    ----------
    first : golem id to the first cycle that is dreamt again; later dreams are left out
    """
    table = context.projections.growing("dreams")
    done = {g: cycle for g in golem_ids if (cycle := table.done(g)) is not None}
    signatures = _signatures(context, done, left_out)
    cached = GolemCache(context, "nights", _CACHE_SCHEMA).read(done)
    rows = zip(*(cached[n].to_pylist() for n in ("golem_id", "cycle", "left")), strict=True)
    is_current = [g not in first and done.get(g) == cycle and signatures[g] == left for g, cycle, left in rows]
    cached = cached.filter(pa.array(is_current, pa.bool_()))
    dreams, hypotheses, decisions = (_unnest(cached, name) for name in _SCHEMAS)
    missing = sorted(set(done) - set(cached["golem_id"].to_pylist()))
    if missing:
        dreams = pa.concat_tables([dreams, _read_before(context, "dreams", missing, first)])
    last = last_cycle_by_golem(dreams)
    if missing:
        later = {g: last.get(g, 0) + 1 for g in missing}
        hypotheses = pa.concat_tables([hypotheses, _read_before(context, "hypotheses", missing, later)])
    versions = {g: version for g, version in values_by_golem(cached, "version").items() if version is not None}
    return DreamState(dreams, hypotheses, decisions, last, versions)


def save_dream_state(
    context: DerivationContext, before: DreamState, golem_ids: Iterable[str], left_out: LeftOut, *,
    dreams: pa.Table, hypotheses: pa.Table, decisions: pa.Table, last: Mapping[str, int],
) -> None:  # fmt: skip
    """Cache the state of golems after new dreams; dead golems are dropped.

    Parameters
    ----------
    before : the state before these dreams
    dreams, hypotheses : rows of the new dreams
    decisions : result of `decisions_since` for the golems that dreamt
    last : golem id to the cycle of its newest dream
    """
    table, version = context.projections.growing("dreams"), context.projections.growing("curation").table.version
    dead = set(context.life("DeathDeclared")["golem_id"].to_pylist())
    living = sorted(set(golem_ids) - dead)
    dreamers = set(dreams["golem_id"].to_pylist()) & set(living)
    all_dreams = pa.concat_tables([before.dreams, dreams.select(_SCHEMAS["dreams"].names)])
    unchanged = rows_of_golems(before.decisions, set(living) - dreamers)
    tables = {
        "dreams": _within_lookback(all_dreams, context.policy.dreams.lookback_ticks),
        "hypotheses": live_hypotheses(pa.concat_tables([before.hypotheses, hypotheses])),
        "decisions": pa.concat_tables(
            [unchanged, decisions_for_later_dreams(rows_of_golems(decisions, dreamers), last)]
        ),
    }
    signatures = _signatures(context, living, left_out)
    columns: dict[str, Any] = {
        "golem_id": living,
        "cycle": [table.done(g) for g in living],
        "left": [signatures[g] for g in living],
        "version": [version if g in dreamers else before.version.get(g) for g in living],
    }
    columns |= {name: _nest(rows, living) for name, rows in tables.items()}
    GolemCache(context, "nights", _CACHE_SCHEMA).replace(pa.table(columns).cast(_CACHE_SCHEMA), golem_ids)


def _read_before(context: DerivationContext, name: str, golem_ids: list[str], first: Mapping[str, int]) -> pa.Table:
    """Return the standing rows of these golems, of those in `first` only rows before that cycle."""
    rows = context.projections.growing(name).read(_SCHEMAS[name].names, golems=golem_ids).cast(_SCHEMAS[name])
    return rows.filter(pc.invert(is_from_cycle(rows, first)))


def _within_lookback(dreams: pa.Table, ticks: int) -> pa.Table:
    """Return the dreams less than `ticks` before their golem's newest dream, whose episodes the next may replay."""
    newest = dreams.group_by("golem_id", use_threads=False).aggregate([("tick", "max")])
    last = values_by_golem(newest, "tick_max")
    floor = np.array([last[g] - ticks for g in dreams["golem_id"].to_pylist()], np.int64)
    return dreams.filter(pa.array(dreams["tick"].to_numpy() > floor, pa.bool_()))


def _signatures(context: DerivationContext, golem_ids: Iterable[str], left_out: LeftOut) -> dict[str, str]:
    """Return a text for each golem that identifies its retractions and those that the curator has handled."""
    handled_ids = RetractionCursor(context, "curation").handled_ids() if left_out.causes else set()
    handled: dict[str, list[str]] = {}
    for cause in left_out.causes:
        if cause.event_id in handled_ids:
            handled.setdefault(cause.golem_id, []).append(cause.event_id)
    retracted = {g: left_out.of_golem(g) for g in golem_ids}
    return {g: repr((ticks, sorted(entries), sorted(handled.get(g, [])))) for g, (ticks, entries) in retracted.items()}


def _nest(rows: pa.Table, golem_ids: list[str]) -> pa.Array:
    """Return each golem's rows as one list. golem_ids: sorted."""
    index = pc.index_in(rows["golem_id"], value_set=pa.array(golem_ids, pa.string()))
    rows, codes = rows.filter(index.is_valid()), contiguous(index.drop_null()).to_numpy()
    order = np.argsort(codes, kind="stable")
    offsets = pa.array(np.searchsorted(codes[order], np.arange(len(golem_ids) + 1)), pa.int32())
    ordered = rows.take(pa.array(order, pa.int64()))
    structs = pa.StructArray.from_arrays([contiguous(column) for column in ordered.columns], fields=list(rows.schema))
    return pa.ListArray.from_arrays(offsets, structs)


def _unnest(cached: pa.Table, name: str) -> pa.Table:
    rows = contiguous(pc.list_flatten(cached[name]))
    return pa.Table.from_arrays(rows.flatten(), schema=_SCHEMAS[name])
