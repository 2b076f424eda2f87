"""Queries of the log: closed cycles, and the records of cycles and ranges of ticks.

A cycle closes when its golem's ticks are contiguous to its end, or by death. Source: architecture ("Time and order").
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.curator.state.evidence import EVIDENCE_COLUMNS
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.retraction_tracking import without_retracted
from bardo_pipeline.errors import UnknownGolemError
from bardo_pipeline.events.life.events import EVERY_GOLEM
from bardo_pipeline.events.life.proposal_events import Proposal
from bardo_pipeline.events.life.retractions import LeftOut
from bardo_pipeline.events.record.arrow_columns import rows_of_golems
from bardo_pipeline.storage.home import bucket_of


def last_event_time(context: DerivationContext) -> datetime | None:
    """Return the newest event time of records and golems' life events; None before the first.

    Events of the whole home (keys, configurations), texts and tool calls (FREQUENT) carry the clock of an operator or
    a caller and do not count. The marts' `as_of` is the same moment (dbt/models/staging/stg_as_of.sql).
    """
    life, cycles = context.log.life(), context.log.read_cycles(["observed_at"])
    golem_events = life.filter(pc.not_equal(life["golem_id"], EVERY_GOLEM))
    moments = (pc.max(rows["observed_at"]).as_py() for rows in (golem_events, cycles))
    return max((moment for moment in moments if moment is not None), default=None)


def log_moment(context: DerivationContext, kind: str, at: datetime | None = None) -> datetime:
    """Return the time of a new event of this kind: the log's last event time, and after all events of the kind.

    at: result for an empty log; default: creation time of the home.
    """
    earlier = pc.max(context.log.life(kind)["observed_at"]).as_py()
    newest = last_event_time(context) or at or context.home.created_at
    return newest if earlier is None else max(newest, earlier + timedelta(microseconds=1))


def require_born(
    context: DerivationContext, golem_id: str, hint: str = '`bardo sql "from dim_golem"` lists all'
) -> None:
    """Raise UnknownGolemError for a golem whose birth is not on record."""
    if golem_id not in context.golem_ids():
        raise UnknownGolemError(f"golem {golem_id}: no golem of this name was born: {hint}")


def birth_rows(context: DerivationContext, golem_ids: Collection[str] | None = None) -> dict[str, dict[str, Any]]:
    """Return golem -> content of its birth, of all or the given golems."""
    return values_by_golem(context.life("GolemBorn", golem_ids), "born")


def predecessors(context: DerivationContext) -> dict[str, str | None]:
    """Return golem -> the golem that it descends from, None for a founder."""
    return values_by_golem(context.life_fields("GolemBorn", "predecessor_id"), "predecessor_id")


def ancestors(predecessor_of: Mapping[str, str | None], golem_id: str) -> list[str]:
    """Return the lineage of a golem from its founder to itself. predecessor_of: `predecessors` of all golems."""
    lineage: list[str] = []
    current: str | None = golem_id
    while current is not None and current in predecessor_of and current not in lineage:
        lineage.append(current)
        current = predecessor_of[current]
    return lineage[::-1]


def cycle_of(tick: Int64Array, cycle_ticks: int) -> Int64Array:
    """Return the cycle of each tick; ticks 1 to `cycle_ticks` are cycle 1."""
    return (np.asarray(tick) - 1) // cycle_ticks + 1


def born_golems(context: DerivationContext) -> list[str]:
    """Return the golems that were born and that the context derives, in the order of the log."""
    return list(filter(context.holds, context.life("GolemBorn")["golem_id"].to_pylist()))


def closed_through(context: DerivationContext) -> dict[str, int]:
    """Return the last closed cycle of each golem that was born and that the context derives, 0 before the first."""
    cycle_ticks = context.policy.curator.cycle_ticks
    contiguous = values_by_golem(context.source.heads(), "contiguous")
    closed = {g: int(contiguous.get(g, 0)) // cycle_ticks for g in born_golems(context)}
    deaths = context.life_fields("DeathDeclared", "tick")
    for golem_id, tick in zip(deaths["golem_id"].to_pylist(), deaths["tick"].to_pylist(), strict=True):
        if golem_id in closed and contiguous.get(golem_id, 0) >= tick:
            closed[golem_id] = int(cycle_of(np.array(tick), cycle_ticks))
    return closed


def curated_through(context: DerivationContext, golem_id: str) -> int | None:
    """Return a golem's last fully curated cycle, as noted in the grimoire, which a curation writes last."""
    return context.projections.replaceable("grimoire").done(golem_id)


def deduplicated(rows: pa.Table, *, ordered: bool = True) -> tuple[pa.Table, list[str], Int64Array]:
    """Return each record once, the sorted golem ids, and each record's place among them.

    Parameters
    ----------
    ordered : whether to sort by golem and tick, or to keep the order of the rows
    """
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
    """Return the records of the cited ticks, and later ones that may hold the resolutions of their decisions."""
    wanted: dict[str, set[int]] = {}
    for proposal in proposals:
        for tick in proposal.evidence:
            last = min(tick + context.policy.prediction.check_ticks, proposal.tick_seen)
            wanted.setdefault(proposal.golem_id, set()).update(range(tick, last + 1))
    parts = [context.log.read_stretch(EVIDENCE_COLUMNS, [], 1, 1)]
    for golem_id, ticks in sorted(wanted.items()):
        if ticks:
            rows = context.log.read_stretch(EVIDENCE_COLUMNS, [golem_id], min(ticks), max(ticks))
            parts.append(rows.filter(pc.is_in(rows["tick"], value_set=pa.array(sorted(ticks), pa.int64()))))
    return deduplicated(pa.concat_tables(parts))[0]


def closed_records(
    context: DerivationContext,
    columns: tuple[str, ...],
    first: Mapping[str, int],
    upto: Mapping[str, int],
    left_out: LeftOut,
) -> pa.Table:
    """Return the records of each golem's cycles `first` to `upto`, by golem and tick, without retracted ones."""
    span = context.policy.curator.cycle_ticks
    ticks = {g: (max((cycle - 1) * span + 1, 1), upto[g] * span) for g, cycle in first.items()}
    return records_between(context, columns, ticks, left_out)


def records_between(
    context: DerivationContext, columns: tuple[str, ...], ticks: Mapping[str, tuple[int, int]], left_out: LeftOut
) -> pa.Table:
    """Return the records of each golem's first to last tick, by golem and tick, without retracted ones.

    Golems whose ticks overlap share one read, so a fleet in step costs one read, and a late heir does not cause a
    read of early ticks.
    """
    parts = [context.log.read_stretch(columns, [], 0, 0)]
    group: list[str] = []
    last = -1
    for golem_id in [*sorted(ticks, key=lambda g: (ticks[g], g)), None]:
        if group and (golem_id is None or ticks[golem_id][0] > last):
            parts.append(context.log.read_stretch(columns, sorted(group), ticks[group[0]][0], last))
            group, last = [], -1
        if golem_id is not None:
            group.append(golem_id)
            last = max(last, ticks[golem_id][1])
    rows, golems, codes = deduplicated(pa.concat_tables(parts))
    if not golems:
        return rows
    low, high = (np.array([ticks[g][i] for g in golems], np.int64)[codes] for i in (0, 1))
    tick = rows["tick"].to_numpy()
    return without_retracted(rows.filter(pa.array((tick >= low) & (tick <= high))), left_out)


def last_records(context: DerivationContext, columns: Sequence[str], golem_ids: Collection[str]) -> pa.Table:
    """Return the record of each golem's last tick, retracted or not; golems without records are absent.

    Parameters
    ----------
    columns : with golem_id and tick
    """
    highest = values_by_golem(context.log.heads(), "highest")
    last = {g: highest[g] for g in golem_ids if highest.get(g, 0)}
    rows = context.log.read_ticks(columns, last)
    is_last = [last[g] == t for g, t in zip(rows["golem_id"].to_pylist(), rows["tick"].to_pylist(), strict=True)]
    return rows.filter(pa.array(is_last, pa.bool_()))


def values_by_golem(rows: pa.Table, column: str) -> dict[str, Any]:
    """Return a column's value for each golem; of several rows of a golem the last one counts."""
    return dict(zip(rows["golem_id"].to_pylist(), rows[column].to_pylist(), strict=True))


def counts_by_golem(rows: pa.Table) -> dict[str, int]:
    """Return the number of rows of each golem that has any."""
    counts = rows.group_by("golem_id", use_threads=False).aggregate([([], "count_all")])
    return values_by_golem(counts, "count_all")


def rows_derived(context: DerivationContext, rows: pa.Table) -> pa.Table:
    """Return the rows of the golems that the context derives."""
    if context.bucket is None:
        return rows
    return rows_of_golems(rows, filter(context.holds, pc.unique(rows["golem_id"]).to_pylist()))


def last_cycle_by_golem(rows: pa.Table) -> dict[str, int]:
    """Return each golem's highest cycle in these rows (golem_id, cycle)."""
    newest = rows.group_by("golem_id", use_threads=False).aggregate([("cycle", "max")])
    return values_by_golem(newest, "cycle_max")


GOLEMS_AT_ONCE = 128
"""Golems in a batch, so that the entries of many dead golems are never all in memory."""


def in_batches(context: DerivationContext, rows: pa.Table) -> Iterator[pa.Table]:
    """Yield the rows (golem_id and more) of one batch of golems after the other."""
    for golem_ids in golem_batches(context, rows["golem_id"].to_pylist()):
        yield rows_of_golems(rows, golem_ids)


def golem_batches(context: DerivationContext, golem_ids: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield golem ids by bucket and id, batch by batch."""
    count = context.projections.bucket_count
    ordered = sorted(golem_ids, key=lambda golem_id: (bucket_of(golem_id, count), golem_id))
    yield from (tuple(ordered[at : at + GOLEMS_AT_ONCE]) for at in range(0, len(ordered), GOLEMS_AT_ONCE))
