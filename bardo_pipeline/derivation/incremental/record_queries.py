"""Reading: which cycles are closed, and the records of cycles, ticks and moments.

A cycle closes when its ticks are contiguous to its end, or by death. Source: architecture ("Time and order").
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.state.evidence import EVIDENCE_COLUMNS
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.retraction_tracking import without_retracted
from bardo_pipeline.events.life.events import EVERY_GOLEM
from bardo_pipeline.events.life.proposal_events import Proposal
from bardo_pipeline.events.life.retractions import LeftOut


def last_event_time(context: DerivationContext) -> datetime | None:
    """The newest moment of records and of what befell golems, None before the first.

    What is said of the home as a whole (keys, configurations) comes by the operator's clock, and is no part of it.
    """
    life, cycles = context.log.life(), context.log.read_cycles(["observed_at"])
    of_golems = life.filter(pc.not_equal(life["golem_id"], EVERY_GOLEM))
    moments = (pc.max(rows["observed_at"]).as_py() for rows in (of_golems, cycles))
    return max((moment for moment in moments if moment is not None), default=None)


def cycle_of(tick: np.ndarray, cycle_ticks: int) -> np.ndarray:
    """The cycle of a tick: ticks 1 to 50 are cycle 1."""
    return (np.asarray(tick) - 1) // cycle_ticks + 1


def closed_through(context: DerivationContext) -> dict[str, int]:
    """The last closed cycle of each golem that was born, 0 before the first.

    What a golem knows begins with its birth: records that come before it wait.
    """
    span = context.policy.curator.cycle_ticks
    heads = context.source.heads()
    contiguous = dict(zip(heads["golem_id"].to_pylist(), heads["contiguous"].to_pylist(), strict=True))
    out = {g: int(contiguous.get(g, 0)) // span for g in context.life("GolemBorn")["golem_id"].to_pylist()}
    deaths = context.life("DeathDeclared")
    ticks = pc.struct_field(deaths["died"].combine_chunks(), "tick").to_pylist() if deaths.num_rows else []
    for golem_id, tick in zip(deaths["golem_id"].to_pylist(), ticks, strict=True):
        if golem_id in out and contiguous.get(golem_id, 0) >= tick:
            out[golem_id] = int(cycle_of(np.array(tick), span))
    return out


def curated_through(context: DerivationContext, golem_id: str) -> int | None:
    """The last cycle of a golem that is curated to the end: the grimoire, written last, says so."""
    return context.projections.replaceable("grimoire").done(golem_id)


def deduplicated(rows: pa.Table, *, ordered: bool = True) -> tuple[pa.Table, list[str], np.ndarray]:
    """Rows once each, in (golem, tick) order or as they came, the golems' ids, and each row's code."""
    encoded = rows["golem_id"].combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.unify_dictionaries().combine_chunks()
    golems = encoded.dictionary.to_pylist()
    rank = np.argsort(np.argsort(golems)) if golems else np.zeros(0, np.int64)
    codes = rank[encoded.indices.to_numpy(zero_copy_only=False)] if golems else np.zeros(0, np.int64)
    key = (codes.astype(np.int64) << 40) | rows["tick"].to_numpy().astype(np.int64)
    _, first = np.unique(key, return_index=True)
    first = first if ordered else np.sort(first)
    kept = rows.take(pa.array(first)) if not np.array_equal(first, np.arange(rows.num_rows)) else rows
    return kept, sorted(golems), codes[first]


def cited_records(context: DerivationContext, proposals: Sequence[Proposal]) -> pa.Table:
    """The records that may hold what is cited: of each tick, and those in which a decision of that tick was judged."""
    wanted: dict[str, set[int]] = {}
    for one in proposals:
        for tick in one.evidence:
            last = min(tick + context.policy.prediction.check_ticks, one.tick_seen)
            wanted.setdefault(one.golem_id, set()).update(range(tick, last + 1))
    parts = [context.log.read_stretch(EVIDENCE_COLUMNS, [], 1, 1)]
    for golem_id, ticks in sorted(wanted.items()):
        if ticks:
            rows = context.log.read_stretch(EVIDENCE_COLUMNS, [golem_id], min(ticks), max(ticks))
            parts.append(rows.filter(pc.is_in(rows["tick"], value_set=pa.array(sorted(ticks), pa.int64()))))
    return deduplicated(pa.concat_tables(parts))[0]


def closed_records(
    context: DerivationContext, columns: tuple[str, ...], first: Mapping[str, int], upto: Mapping[str, int]
) -> pa.Table:
    """The records of these golems' cycles, from one to another, once each in order, whatever is left out of them."""
    span = context.policy.curator.cycle_ticks
    ticks = ((min(first.values(), default=0) - 1) * span + 1, max(upto.values(), default=0) * span)
    rows, golems, codes = deduplicated(context.log.read_stretch(columns, sorted(first), *ticks))
    if not golems:
        return rows
    cycle = cycle_of(rows["tick"].to_numpy(), span)
    low, high = (np.array([bounds[g] for g in golems], np.int64)[codes] for bounds in (first, upto))
    return rows.filter(pa.array((cycle >= low) & (cycle <= high)))


def records_between(
    context: DerivationContext, columns: tuple[str, ...], ticks: Mapping[str, tuple[int, int]], left: LeftOut
) -> pa.Table:
    """The records of each golem from one tick to another, once each by golem and tick, without what is left out.

    Golems whose ticks overlap are read together, so that a fleet in step costs one read and an heir none of its elders'
    past.
    """
    parts = [context.log.read_stretch(columns, [], 0, 0)]
    group: list[str] = []
    reach = -1
    for golem_id in [*sorted(ticks, key=lambda g: (ticks[g], g)), None]:
        if group and (golem_id is None or ticks[golem_id][0] > reach):
            parts.append(context.log.read_stretch(columns, sorted(group), ticks[group[0]][0], reach))
            group, reach = [], -1
        if golem_id is not None:
            group.append(golem_id)
            reach = max(reach, ticks[golem_id][1])
    rows, golems, codes = deduplicated(pa.concat_tables(parts))
    if not golems:
        return rows
    low, high = (np.array([ticks[g][i] for g in golems], np.int64)[codes] for i in (0, 1))
    tick = rows["tick"].to_numpy()
    return without_retracted(rows.filter(pa.array((tick >= low) & (tick <= high))), left)


def last_records(context: DerivationContext, columns: Sequence[str], golem_ids: Collection[str]) -> pa.Table:
    """The record of each golem's last tick on record, whatever is left out; none of who has no record.

    columns: golem_id and tick among them. Golems that end in the same cycle are read together, so that nobody's past is
    read for the sake of who lived longer.
    """
    heads, span = context.log.heads(), context.policy.curator.cycle_ticks
    highest = dict(zip(heads["golem_id"].to_pylist(), heads["highest"].to_pylist(), strict=True))
    last = {g: highest[g] for g in golem_ids if highest.get(g, 0)}
    by_cycle: dict[int, list[str]] = {}
    for golem_id, tick in sorted(last.items()):
        by_cycle.setdefault((tick - 1) // span, []).append(golem_id)
    parts = [context.log.read_stretch(columns, [], 0, 0)]
    for golems in by_cycle.values():
        ticks = [last[g] for g in golems]
        parts.append(context.log.read_stretch(columns, golems, min(ticks), max(ticks)))
    rows = pa.concat_tables(parts)
    ends = [last[g] == t for g, t in zip(rows["golem_id"].to_pylist(), rows["tick"].to_pylist(), strict=True)]
    return rows.filter(pa.array(ends, pa.bool_()))


def rows_of_golems(rows: pa.Table, golem_ids: Iterable[str]) -> pa.Table:
    """Return the rows of these golems."""
    return rows.filter(_is_of(rows, golem_ids))


def rows_of_other_golems(rows: pa.Table, golem_ids: Iterable[str]) -> pa.Table:
    """Return the rows of all but these golems."""
    return rows.filter(pc.invert(_is_of(rows, golem_ids)))


def _is_of(rows: pa.Table, golem_ids: Iterable[str]) -> pa.ChunkedArray:
    return pc.is_in(rows["golem_id"], value_set=pa.array(sorted(golem_ids), pa.string()))


def last_cycle_by_golem(rows: pa.Table) -> dict[str, int]:
    """Return each golem's highest cycle in these rows (golem_id, cycle)."""
    newest = rows.group_by("golem_id", use_threads=False).aggregate([("cycle", "max")])
    return dict(zip(newest["golem_id"].to_pylist(), newest["cycle_max"].to_pylist(), strict=True))
