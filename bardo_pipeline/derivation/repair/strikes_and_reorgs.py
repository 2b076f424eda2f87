"""Repair: a record is struck, a reorg is observed, and what heirs hold of it is withdrawn, all as events.

The events alone decide what counts as never having been; whoever derives next heeds them. What an heir loses is found
in the bundle that it was born with, or given: the entries that rest on a record which that bundle was not made without,
and so on from heir to heir. A kit from the library is a bundle of many: it rests on the lives of all who left it its
rules. Source: EV-8, X-4, canon 20; architecture ("Heirs get `withdrawn` decisions").
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.state.evidence import EVIDENCE_COLUMNS, gather_evidence
from bardo_pipeline.curator.state.structures import Structures
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.record_queries import cycle_of
from bardo_pipeline.derivation.incremental.retraction_tracking import RetractionCursor, without_retracted
from bardo_pipeline.derivation.legacy.bundle_store import load_bundle
from bardo_pipeline.errors import QueryError
from bardo_pipeline.events.life.events import LifeEvent, Reorg, Struck, Withdrawn, life_event
from bardo_pipeline.events.life.retractions import Cause, LeftOut
from bardo_pipeline.grimoire.gas_bands import WIDE_GAS_BANDS
from bardo_pipeline.inheritance.bundle_provenance import Root, roots_of
from bardo_pipeline.market.confirmation_depth import Depth, depth_at


@dataclass(frozen=True)
class Recorded:
    """What a repair put on record: the ticks that are left out by it, and the entries that heirs lose.

    event_ids: of the strike, or of the reorg's runs of ticks; none where all its ticks were left out already.
    """

    golem_id: str
    event_ids: tuple[str, ...]
    ticks: tuple[tuple[int, int], ...]
    heirs: tuple[LifeEvent, ...]


def strike(context: DerivationContext, golem_id: str, tick: int, why: str, *, now: datetime) -> Recorded:
    """Strike the record of one tick, and withdraw from heirs what came from it. now: the moment of recording.

    Raises QueryError if the golem has no record of that tick. Struck a second time, nothing changes.
    """
    if not context.log.read_stretch(["tick"], [golem_id], tick, tick).num_rows:
        raise QueryError(f"golem {golem_id} has no record of tick {tick}: `bardo ticks` shows what is on record")
    return _leave_out(context, golem_id, [Struck(tick=tick, why=why)], now)


def reorg(
    context: DerivationContext,
    golem_id: str,
    chain: str,
    *,
    blocks: tuple[int, int] | None = None,
    ticks: tuple[int, int] | None = None,
    now: datetime,
) -> Recorded:
    """Record that the chain took back blocks, and withdraw from heirs what came from records of them.

    blocks: first and last; an event for each run of ticks whose records saw the chain at one of them. ticks: first and
    last, for records that do not name their block; the event names the blocks that they do name (0 for none).
    Raises QueryError unless one of the two is given, and where no record answers.
    """
    if (blocks is None) == (ticks is None):
        raise QueryError("a reorg is named by its blocks or by ticks: give first and last of one of the two")
    rows = _records(context, golem_id)
    rows = rows.filter(pc.field("chain") == chain)
    by, (first, last) = ("block", blocks) if blocks is not None else ("tick", ticks or (0, 0))
    rows = rows.filter((pc.field(by) >= first) & (pc.field(by) <= last))
    if not rows.num_rows:
        hint = "; where records name no block, name the ticks" if blocks is not None else ""
        raise QueryError(f"golem {golem_id} has no record on {chain} at {by}s {first} to {last}{hint}")
    ends = pc.min_max(rows["block"]).as_py()
    found = blocks or (ends["min"] or 0, ends["max"] or 0)
    runs = [(first, last)] if blocks is None else _runs(sorted(set(rows["tick"].to_pylist())))
    payloads = [
        Reorg(chain=chain, block_from=found[0], block_to=found[1], tick_from=run[0], tick_to=run[1]) for run in runs
    ]
    return _leave_out(context, golem_id, payloads, now)


def _records(context: DerivationContext, golem_id: str) -> pa.Table:
    """tick, chain and block of all records of a golem. QueryError if there is none."""
    columns = {"tick": "tick", "observation.chain": "chain", "observation.block_number": "block"}
    rows = context.log.read_cycles(list(columns), golems=[golem_id]).rename_columns(columns)
    if not rows.num_rows:
        raise QueryError(f'golem {golem_id} has no record: `bardo sql "from dim_golem"` lists all that have')
    return rows


def _runs(ticks: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of each run of ticks without a hole."""
    starts = [tick for i, tick in enumerate(ticks) if i == 0 or ticks[i - 1] != tick - 1]
    ends = [tick for i, tick in enumerate(ticks) if i + 1 == len(ticks) or ticks[i + 1] != tick + 1]
    return list(zip(starts, ends, strict=True))


def depth_after(context: DerivationContext, chain: str, golem_id: str) -> Depth:
    """How deep a block of this chain must lie now before it counts, by the reorgs on record (HB S10).

    golem_id: whose records say how far the chain has come. What several golems saw taken back is one reorg.
    """
    told = [row["reorg"] for row in context.life("ReorgObserved").select(["reorg"]).to_pylist()]
    seen = {(r["block_from"], r["block_to"]) for r in told if r["chain"] == chain}
    rows = _records(context, golem_id)
    newest = pc.max(rows.filter(pc.field("chain") == chain)["block"]).as_py() or 0
    head = max([newest, *(last for _, last in seen)])
    return depth_at(head, np.array([first for first, _ in seen], np.int64), context.policy.reorg)


def _leave_out(
    context: DerivationContext, golem_id: str, payloads: Sequence[Struck | Reorg], now: datetime
) -> Recorded:
    """Record the events at the golem's own last moment, and what heirs lose by them, together in one commit."""
    left, at = context.left_out(), last_moment(context, golem_id)
    known, said = left.of_golem(golem_id)[0], _said(context, golem_id)
    runs = tuple((p.tick, p.tick) if isinstance(p, Struck) else (p.tick_from, p.tick_to) for p in payloads)
    fresh, causes = [], set(left.causes)
    for payload, (first, last) in zip(payloads, runs, strict=True):
        out = any(a <= first and last <= b for a, b in known)
        # A reorg of other blocks is another reorg, though their records are out already: how often they come counts.
        if not out or (isinstance(payload, Reorg) and payload not in said):
            event = life_event(golem_id, at, payload)
            fresh.append(event)
            causes.add(Cause(golem_id, at, event.event_id, event.kind, first, last, ()))
    due = withdrawals_due(context, LeftOut(tuple(sorted(causes))))
    _record(context, fresh, due, now)
    return Recorded(golem_id, tuple(event.event_id for event in fresh), runs, due.events)


def _said(context: DerivationContext, golem_id: str) -> list[Reorg]:
    """The reorgs that this golem is on record to have seen."""
    told = context.life("ReorgObserved")
    mine = told.filter(pc.equal(told["golem_id"], golem_id))["reorg"].to_pylist()
    return [Reorg.model_validate(payload) for payload in mine]


def last_moment(context: DerivationContext, golem_id: str) -> datetime:
    """The last moment of a golem's stream: of its newest record, or of its birth.

    What is said of a golem later happens there: event time goes on with its records, not with a clock on a wall.
    """
    newest = context.log.head_of(golem_id).highest
    seen = context.log.read_stretch(["observed_at"], [golem_id], newest, newest)["observed_at"]
    if len(seen):
        return seen[0].as_py()
    births = context.life("GolemBorn")
    born = births.filter(pc.equal(births["golem_id"], golem_id))["observed_at"]
    if not len(born):
        raise QueryError(f"golem {golem_id} was never born and has no record")
    return born[0].as_py()


def withdraw(context: DerivationContext, *, now: datetime) -> list[LifeEvent]:
    """Record what heirs lose by all that is left out and was not withdrawn from them yet. Returns the events."""
    left = context.left_out()
    if not left.causes:
        return []
    due = withdrawals_due(context, left)
    _record(context, (), due, now)
    return list(due.events)


class _Loss(NamedTuple):
    """Why an heir loses an entry: the event, whose record it was, and its first tick."""

    because: str
    from_golem_id: str
    tick: int


class Withdrawals(NamedTuple):
    """Events to record, and the causes (event>heir>bundle) that need not be looked at again once they are."""

    events: tuple[LifeEvent, ...]
    pairs: frozenset[str]


def withdrawals_due(context: DerivationContext, left: LeftOut) -> Withdrawals:
    """What must be withdrawn from heirs, and from their heirs, so that nothing is left of what is left out.

    Reads the records of a golem only where something of it is left out that an heir was not looked at for.
    """
    births, seen, lost = _births(context), RetractionCursor(context, "heirs").handled_ids(), _withdrawn_already(context)
    heirs = _heirs(context, births)
    causes: dict[str, set[str]] = defaultdict(set)
    for cause in left.causes:
        causes[cause.golem_id].add(cause.event_id)
    events: list[LifeEvent] = []
    pairs: set[str] = set()
    order = sorted(heirs, key=lambda g: (births[g]["generation"] if g in births else 0, g))
    waiting = [(golem_id, heir, bundle_hash) for golem_id in order for heir, bundle_hash in heirs[golem_id]]
    before = -1
    while len(pairs) > before:  # what is given in life may go to an elder, whose heirs were looked at already
        before = len(pairs)
        for golem_id, heir, bundle_hash in waiting:
            new = {f"{event_id}>{heir}>{bundle_hash[:16]}" for event_id in causes[golem_id]} - seen - pairs
            if not new:
                continue
            root = roots_of(load_bundle(context.home, bundle_hash)).get(golem_id)
            losses = {} if root is None else _losses(context, root, left, lost[golem_id])
            fresh = {entry: loss for entry, loss in losses.items() if entry not in lost[heir]}
            lost[heir] |= fresh
            made = _events(context, heir, fresh)
            causes[heir] |= {event.event_id for event in made}
            events += made
            pairs |= new
    return Withdrawals(tuple(events), frozenset(pairs))


def _record(context: DerivationContext, first: Sequence[LifeEvent], due: Withdrawals, now: datetime) -> None:
    """Record all in one commit: a strike is never on record without what its heirs lose by it."""
    context.log.record([*first, *due.events], now)
    RetractionCursor(context, "heirs").mark_handled(due.pairs)


def _losses(context: DerivationContext, root: Root, left: LeftOut, lost: dict[str, _Loss]) -> dict[str, _Loss]:
    """Entries of a bundle that rest on what is left out of a golem's life since, each with its reason.

    root: what the bundle holds of that golem. lost: what was withdrawn from it.
    """
    ids = root.entries["entry_id"].to_pylist()
    known = root.made_without.entries(root.golem_id)
    out = {entry: lost[entry] for entry in ids if entry in lost and entry not in known}
    causes = [c for c in left.causes if c.golem_id == root.golem_id and c.tick_from]
    for structure, cause in _resting_on(context, root, causes).items():
        for entry in root.entries.filter(pc.equal(root.entries["structure"], structure))["entry_id"].to_pylist():
            out.setdefault(entry, _Loss(cause.event_id, cause.golem_id, cause.tick_from))
    return out


def _resting_on(context: DerivationContext, root: Root, causes: Sequence[Cause]) -> dict[str, Cause]:
    """Structures that the golem had evidence of in ticks which are left out since its bundle was made, by key."""
    runs, _ = root.made_without.of_golem(root.golem_id)
    news = [c for c in causes if not any(first <= c.tick_from and c.tick_to <= last for first, last in runs)]
    if not news:
        return {}
    first = min(cause.tick_from for cause in news)
    records = context.log.read_stretch(EVIDENCE_COLUMNS, [root.golem_id], first, root.source_watermark)
    records = without_retracted(records, root.made_without)
    structures, cycle = Structures(), cycle_of(records["tick"].to_numpy(), context.policy.curator.cycle_ticks)
    found = gather_evidence(
        records, golem=np.zeros(len(cycle), np.int64), cycle=cycle, structures=structures, policy=context.policy.curator
    )
    out: dict[str, Cause] = {}
    for cause in news:
        hit = ((found.cause_tick >= cause.tick_from) & (found.cause_tick <= cause.tick_to)).any(axis=1)
        groups = np.searchsorted(found.first, np.flatnonzero(hit), side="right") - 1
        for code in np.unique(found.structure[groups]).tolist():
            for key in {structures.rows[code].key, *_standing_for(structures, code)}:
                out.setdefault(key, cause)
    return out


def _standing_for(structures: Structures, code: int) -> set[str]:
    """The structures of wider rules that may stand for this one, by key."""
    about = structures.rows[code]
    wider = (span for span, bands in WIDE_GAS_BANDS.items() if about.gas_band in bands)
    return {about._replace(gas_band=span).key for span in wider}


def _events(context: DerivationContext, heir: str, losses: dict[str, _Loss]) -> list[LifeEvent]:
    by_reason: dict[_Loss, list[str]] = defaultdict(list)
    for entry, loss in sorted(losses.items()):
        by_reason[loss].append(entry)
    at = last_moment(context, heir)
    return [
        life_event(heir, at, Withdrawn(**loss._asdict(), entry_ids=tuple(entries)))
        for loss, entries in sorted(by_reason.items())
    ]


def _withdrawn_already(context: DerivationContext) -> defaultdict[str, dict[str, _Loss]]:
    """Golem to the entries that it lost, each with its reason."""
    out: defaultdict[str, dict[str, _Loss]] = defaultdict(dict)
    for row in context.life("KnowledgeWithdrawn").select(["golem_id", "withdrawn"]).to_pylist():
        said = row["withdrawn"]
        loss = _Loss(said["because"], said["from_golem_id"], said["tick"])
        out[row["golem_id"]] |= dict.fromkeys(said["entry_ids"], loss)
    return out


def _heirs(context: DerivationContext, births: Mapping[str, Mapping[str, Any]]) -> dict[str, list[tuple[str, str]]]:
    """Golem to those who have something of it, each with the hash of the bundle: heirs, who was given its bundle, and
    who was equipped with a kit that holds what it left to its owner's library."""
    out: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for golem_id, birth in births.items():
        if birth["predecessor_id"] is not None and birth["bundle_hash"] is not None:
            out[birth["predecessor_id"]].append((golem_id, birth["bundle_hash"]))
    kits = {said["bundle_hash"] for said in context.life("KitOrdered")["kit_ordered"].to_pylist()}
    for one in context.arrivals().deliveries:
        kit = roots_of(load_bundle(context.home, one.content_hash)) if one.content_hash in kits else ()
        for golem_id in kit or (one.from_golem_id,):
            out[golem_id].append((one.golem_id, one.content_hash))
    return {golem_id: sorted(set(heirs)) for golem_id, heirs in out.items()}


def _births(context: DerivationContext) -> dict[str, dict[str, Any]]:
    rows = context.life("GolemBorn").select(["golem_id", "born"]).to_pylist()
    return {row["golem_id"]: row["born"] for row in rows}
