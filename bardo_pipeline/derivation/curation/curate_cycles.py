"""Curation of closed cycles: decisions, cycles, playbooks (rows and PLAYBOOK.md files) and the grimoire.

The runtime and Dagster's job call the same code. A cycle that is on record under (golem, cycle) is not written again.
Source: architecture ("Time and order"), MEM-8.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from bardo_pipeline.curator.state.evidence import EVIDENCE_COLUMNS
from bardo_pipeline.curator.state.grimoire_state import to_table
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curator_state import CuratorState, load_state, save_sums, state_before
from bardo_pipeline.derivation.dreams.playbook_pages import write_playbooks
from bardo_pipeline.derivation.incremental import record_queries as queries
from bardo_pipeline.derivation.incremental.cycle_reader import CycleReader
from bardo_pipeline.derivation.incremental.incremental_projection import IncrementalProjection, Retraction
from bardo_pipeline.derivation.incremental.retraction_tracking import RetractionCursor
from bardo_pipeline.errors import DerivationDueError
from bardo_pipeline.events.life.retractions import LeftOut
from bardo_pipeline.events.record.arrow_columns import rows_of_golems
from bardo_pipeline.storage.delta.table_digest import Written

_GROWING_TABLES = ("curation", "cycles", "playbooks")
"""The tables that a commit appends to before it writes the grimoire, in this order."""


def derive_curation(context: DerivationContext) -> list[Written]:
    """Curate all closed cycles that are not on record, and again those that a retraction touches."""
    written = _Curations().update(context)
    if context.bucket is None:
        follow_adoption(context)
    return written


def require_curated(context: DerivationContext, golems: Iterable[str]) -> None:
    """Raise DerivationDueError if a closed cycle or a retraction of these golems waits for its curation."""
    closed, pending = queries.closed_through(context), RetractionCursor(context, "curation").pending(context.left_out())
    touched = {cause.golem_id for cause in pending}
    for golem_id in golems:
        curated = queries.curated_through(context, golem_id)
        if golem_id in touched or curated is None or curated < closed[golem_id]:
            raise DerivationDueError(f"golem {golem_id}: not all of its life is curated: `bardo derive` derives it")


def commit_curation(context: DerivationContext, state: CuratorState, golems: Set[str] | None = None) -> list[Written]:
    """Write the pending decisions, cycles and playbooks, then the grimoire. The caller holds `context.deriving()`.

    golems: those whose curation is written; None for all. The grimoire is written last and notes each golem's last
    cycle. Without that note a cycle is derived again, and its rows that are already on record are not written twice.
    """
    grimoire = context.projections.replaceable("grimoire")
    touched = state.touched if golems is None else state.touched & golems
    upto = {g: state.done[g] for g in sorted(touched)}
    upto = {g: cycle for g, cycle in upto.items() if (done := grimoire.done(g)) is None or done < cycle}
    written = []
    if upto:
        curation = state.pending_curation(golems)
        tables = curation.decisions, curation.cycles, curation.playbooks
        for name, rows in zip(_GROWING_TABLES, tables, strict=True):
            written.append(context.projections.growing(name).append(rows, upto))
        changed = state.state.find_keys(curation.decisions["golem_id"], curation.decisions["structure"])
        entries = to_table(state.state, context.policy.curator, context.policy.decay, changed)
        written.append(grimoire.upsert(rows_of_golems(entries, upto), by=("golem_id", "structure"), upto=upto))
        save_sums(context, state.state, upto, state.left_out)
        write_playbooks(context, curation.playbooks)
    state.discard(set(touched))
    return written


class _Curations(IncrementalProjection):
    name, by_golem = "curation", True

    def retract(self, context: DerivationContext, retraction: Retraction) -> list[Written]:
        """Curate touched golems again from their first touched cycle; the grimoire is written last."""
        upto, committed = _reached(context, retraction.first)
        first = {g: min(cycle, committed[g] + 1) for g, cycle in retraction.first.items() if cycle <= upto.get(g, -1)}
        if not first:
            return []
        upto = {g: upto[g] for g in first}
        state = state_before(context, first, retraction.left_out)
        records = queries.closed_records(context, EVIDENCE_COLUMNS, first, upto, retraction.left_out)
        state.advance(records, queries.cycle_of(records["tick"].to_numpy(), retraction.cycle_ticks), upto)
        curation = state.pending_curation()
        written = []
        tables = curation.decisions, curation.cycles, curation.playbooks
        for name, rows in zip(_GROWING_TABLES, tables, strict=True):
            table = context.projections.growing(name)
            written.append(retraction.correct(table, retraction.touched_rows(table, first), rows))
        entries = rows_of_golems(to_table(state.state, context.policy.curator, context.policy.decay), upto)
        written.append(context.projections.replaceable("grimoire").replace_keys(entries, upto, upto=upto))
        save_sums(context, state.state, upto, retraction.left_out)
        write_playbooks(context, context.projections.growing("playbooks").read(golems=first))
        return written

    def derive(self, context: DerivationContext, left_out: LeftOut) -> list[Written]:
        """Curate newly closed cycles, and begin the lives of newborn golems."""
        grimoire = context.projections.replaceable("grimoire")
        reader = CycleReader(context, self.name, EVIDENCE_COLUMNS, left_out, ordered=False)
        upto, batches = reader.batches(grimoire.done)
        newborn = [g for g in queries.born_golems(context) if grimoire.done(g) is None]
        golems = sorted({*upto, *newborn})
        state = load_state(context, golems, left_out) if golems else None
        for batch in batches:
            if state is not None:
                state.advance(batch.records, batch.cycle, batch.upto)
        written = [] if state is None else commit_curation(context, state)
        reader.advance(batch)
        return written


def _reached(context: DerivationContext, golems: Iterable[str]) -> tuple[dict[str, int], dict[str, int]]:
    """Return each golem's last cycle in any table, and the last committed one, -1 without one.

    After an interrupted commit some tables are ahead of the grimoire. Golems without any cycle are absent.
    """
    furthest: dict[str, int] = {}
    committed: dict[str, int] = {}
    for golem_id in golems:
        grimoire = queries.curated_through(context, golem_id)
        cycles = [grimoire, *(context.projections.growing(name).done(golem_id) for name in _GROWING_TABLES)]
        if any(cycle is not None for cycle in cycles):
            furthest[golem_id] = max(cycle for cycle in cycles if cycle is not None)
            committed[golem_id] = -1 if grimoire is None else grimoire
    return furthest, committed


_MARK = ".derivation"
"""File that names the derivation whose playbooks are written."""


def follow_adoption(context: DerivationContext) -> None:
    """Write all playbooks again if another derivation was adopted since they were written.

    The mark is written last, so an interrupted run is repeated.
    """
    if not context.life("DerivationAdopted").num_rows or not context.is_in_force:
        return
    mark = context.home.playbooks / _MARK
    if mark.exists() and mark.read_text() == context.derivation_id:
        return
    with context.deriving():
        write_playbooks(context, context.projections.growing("playbooks").read())
        draft = mark.with_name(f"{_MARK}.draft")
        draft.write_text(context.derivation_id)
        draft.replace(mark)
