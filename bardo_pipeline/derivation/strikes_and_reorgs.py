"""Repair: strike records, record chain reorganisations, and withdraw dependent entries from heirs, all as events.

The next derivation applies the events. The entries that an heir loses are found in its bundles: entries with evidence
in a record that was excluded after the bundle was made, and so on from heir to heir. A kit of the library depends on
all golems that left its rules. Source: EV-8, X-4, canon 20; architecture ("Heirs get `withdrawn` decisions").
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.curator.state.evidence import EVIDENCE_COLUMNS, gather_evidence
from bardo_pipeline.curator.state.structures import Structures
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.record_queries import birth_rows, cycle_of
from bardo_pipeline.derivation.incremental.retraction_tracking import RetractionCursor, without_retracted
from bardo_pipeline.derivation.legacy.bundle_store import load_bundle
from bardo_pipeline.errors import QueryError
from bardo_pipeline.events.life.events import LifeEvent, Reorg, Struck, Withdrawn, life_event
from bardo_pipeline.events.life.retractions import Cause, LeftOut
from bardo_pipeline.grimoire.gas_bands import WIDE_GAS_BANDS
from bardo_pipeline.inheritance.bundle_files import Root, roots_of
from bardo_pipeline.policy import ReorgPolicy
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.log.stream_heads import runs


@dataclass(frozen=True)
class Recorded:
    """Result of a repair.

    Parameters
    ----------
    event_ids : ids of the new events; empty if all ticks were excluded before
    ticks : excluded runs, first and last tick
    heirs : withdrawals from heirs
    """

    golem_id: str
    event_ids: tuple[str, ...]
    ticks: tuple[tuple[int, int], ...]
    heirs: tuple[LifeEvent, ...]


def strike(context: DerivationContext, golem_id: str, tick: int, why: str, *, now: datetime) -> Recorded:
    """Strike the record of a tick and withdraw dependent entries from heirs. A second strike changes nothing.

    Raises QueryError if the golem has no record of the tick.

    Parameters
    ----------
    now : recording time
    """
    if not context.log.read_stretch(["tick"], [golem_id], tick, tick).num_rows:
        raise QueryError(f"golem {golem_id} has no record of tick {tick}: `bardo ticks` shows its records")
    return _exclude(context, golem_id, [Struck(tick=tick, why=why)], now)


def reorg(
    context: DerivationContext,
    golem_id: str,
    chain: str,
    *,
    blocks: tuple[int, int] | None = None,
    ticks: tuple[int, int] | None = None,
    now: datetime,
) -> Recorded:
    """Record a reorganisation of the chain and withdraw dependent entries from heirs.

    Raises QueryError unless exactly one of blocks and ticks is given, and if no record matches.

    Parameters
    ----------
    blocks : first and last block; one event for each run of ticks whose records name one of them
    ticks : first and last tick, for records without a block; the event has the blocks that they name (0 for none)
    """
    if (blocks is None) == (ticks is None):
        raise QueryError("a reorg is named by its blocks or by ticks: give first and last of one of the two")
    rows = _records(context.log, golem_id)
    rows = rows.filter(pc.field("chain") == chain)
    by, (first, last) = ("block", blocks) if blocks is not None else ("tick", ticks or (0, 0))
    rows = rows.filter((pc.field(by) >= first) & (pc.field(by) <= last))
    if not rows.num_rows:
        hint = "; where records name no block, name the ticks" if blocks is not None else ""
        raise QueryError(f"golem {golem_id} has no record on {chain} at {by}s {first} to {last}{hint}")
    ends = pc.min_max(rows["block"]).as_py()
    block_from, block_to = blocks or (ends["min"] or 0, ends["max"] or 0)
    spans = [(first, last)] if blocks is None else runs(np.unique(rows["tick"].to_numpy()))
    payloads = [Reorg(chain=chain, block_from=block_from, block_to=block_to, tick_from=a, tick_to=b) for a, b in spans]
    return _exclude(context, golem_id, payloads, now)


def _records(log: EventLog, golem_id: str) -> pa.Table:
    """Return tick, chain and block of all records of a golem. Raises QueryError without records."""
    columns = {"tick": "tick", "observation.chain": "chain", "observation.block_number": "block"}
    rows = log.read_cycles(list(columns), golems=[golem_id]).rename_columns(columns)
    if not rows.num_rows:
        raise QueryError(f'golem {golem_id} has no record: `bardo sql "from dim_golem"` lists all that have')
    return rows


class Depth(NamedTuple):
    """Required confirmations, and the number of reorgs in the window."""

    confirmations: int
    reorgs: int


def confirmation_depth(head: int, reorged: Int64Array, policy: ReorgPolicy) -> Depth:
    """Return the required depth at this head: two confirmations, or five after frequent reorgs (HB S10).

    Reorgs are frequent if more than 1 per 100 blocks falls into the `window_blocks` newest blocks, head included.

    Parameters
    ----------
    head : newest block
    reorged : first block of each reorg, in any order
    """
    blocks = np.asarray(reorged, np.int64)
    count = int(((blocks > head - policy.window_blocks) & (blocks <= head)).sum())
    frequent = count * 100 > policy.reorgs_per_100_blocks_max * policy.window_blocks
    return Depth(policy.confirmations_deep if frequent else policy.confirmations, count)


def depth_after(context: DerivationContext, chain: str, golem_id: str) -> Depth:
    """Return the confirmation depth that blocks of this chain need now, by the recorded reorgs (HB S10).

    A reorg observed by several golems counts once.

    Parameters
    ----------
    golem_id : golem whose records give the head of the chain
    """
    reorgs = context.life_fields("ReorgObserved", "chain", "block_from", "block_to").to_pylist()
    seen = {(r["block_from"], r["block_to"]) for r in reorgs if r["chain"] == chain}
    rows = _records(context.log, golem_id)
    newest = pc.max(rows.filter(pc.field("chain") == chain)["block"]).as_py() or 0
    head = max([newest, *(last for _, last in seen)])
    return confirmation_depth(head, np.array([first for first, _ in seen], np.int64), context.policy.reorg)


def _exclude(context: DerivationContext, golem_id: str, payloads: Sequence[Struck | Reorg], now: datetime) -> Recorded:
    """Record the events at the golem's last event time, with the withdrawals from heirs, in one commit."""
    retractions, at = context.left_out(), last_moment(context, golem_id)
    excluded = retractions.of_golem(golem_id)[0]
    reorgs = [Reorg.model_validate(reorg) for reorg in context.life("ReorgObserved", [golem_id])["reorg"].to_pylist()]
    runs = tuple((p.tick, p.tick) if isinstance(p, Struck) else (p.tick_from, p.tick_to) for p in payloads)
    fresh, causes = [], set(retractions.causes)
    for payload, (first, last) in zip(payloads, runs, strict=True):
        is_excluded = any(a <= first and last <= b for a, b in excluded)
        # A reorg of other blocks is recorded even if its ticks are excluded, because reorgs are counted.
        if not is_excluded or (isinstance(payload, Reorg) and payload not in reorgs):
            event = life_event(golem_id, at, payload)
            fresh.append(event)
            causes.add(Cause(golem_id, at, event.event_id, event.kind, first, last, ()))
    due = withdrawals_due(context, LeftOut(tuple(sorted(causes))))
    _record(context, fresh, due, now)
    return Recorded(golem_id, tuple(event.event_id for event in fresh), runs, due.events)


def last_moment(context: DerivationContext, golem_id: str) -> datetime:
    """Return the event time of a golem's newest record, or of its birth.

    Later events about the golem get this time, because event time advances with records only.
    """
    newest = context.log.head_of(golem_id).highest
    seen = context.log.read_stretch(["observed_at"], [golem_id], newest, newest)["observed_at"]
    if len(seen):
        return seen[0].as_py()
    born = context.life("GolemBorn", [golem_id])["observed_at"]
    if not len(born):
        raise QueryError(f"golem {golem_id} was never born and has no record")
    return born[0].as_py()


def withdraw(context: DerivationContext, *, now: datetime) -> list[LifeEvent]:
    """Record the missing withdrawals from heirs for all retractions; return the events."""
    retractions = context.left_out()
    if not retractions.causes:
        return []
    due = withdrawals_due(context, retractions)
    _record(context, (), due, now)
    return list(due.events)


class _Loss(NamedTuple):
    """Reason for a withdrawal: event, golem of the excluded record, and its first tick."""

    because: str
    from_golem_id: str
    tick: int


LossT = TypeVar("LossT")
"""Reason for a loss."""


class Withdrawals(NamedTuple):
    """Events to record, and the pairs (event>heir>bundle) that are handled by them."""

    events: tuple[LifeEvent, ...]
    pairs: frozenset[str]


def withdrawals_due(context: DerivationContext, retractions: LeftOut) -> Withdrawals:
    """Return the withdrawals from heirs, and from their heirs, that the retractions require.

    Reads records of a golem only for a retraction that was not yet handled for an heir.
    """
    births, lost = birth_rows(context), _withdrawn_already(context)
    seen = RetractionCursor(context, "heirs").handled_ids()
    heirs = _heirs(context, births)
    causes: dict[str, set[str]] = defaultdict(set)
    for cause in retractions.causes:
        causes[cause.golem_id].add(cause.event_id)
    events: list[LifeEvent] = []
    pairs: set[str] = set()
    order = sorted(heirs, key=lambda g: (births[g]["generation"] if g in births else 0, g))
    waiting = [(golem_id, heir, bundle_hash) for golem_id in order for heir, bundle_hash in heirs[golem_id]]
    before = -1
    while len(pairs) > before:  # a bundle given during life may reach an older golem whose heirs were handled before
        before = len(pairs)
        for golem_id, heir, bundle_hash in waiting:
            new = {f"{event_id}>{heir}>{bundle_hash[:16]}" for event_id in causes[golem_id]} - seen - pairs
            if not new:
                continue
            root = roots_of(load_bundle(context.home, bundle_hash)).get(golem_id)
            losses = {} if root is None else _losses(context, root, retractions, lost[golem_id])
            fresh = {entry: loss for entry, loss in losses.items() if entry not in lost[heir]}
            lost[heir] |= fresh
            withdrawn = _events(context, heir, fresh)
            causes[heir] |= {event.event_id for event in withdrawn}
            events += withdrawn
            pairs |= new
    return Withdrawals(tuple(events), frozenset(pairs))


def _record(context: DerivationContext, first: Sequence[LifeEvent], due: Withdrawals, now: datetime) -> None:
    """Record the events in one commit, so that a strike is never recorded without its withdrawals."""
    context.log.record([*first, *due.events], now)
    RetractionCursor(context, "heirs").mark_handled(due.pairs)


def _losses(context: DerivationContext, root: Root, retractions: LeftOut, lost: dict[str, _Loss]) -> dict[str, _Loss]:
    """Return the entries of a bundle that depend on later retractions of a golem's records, with reasons.

    root: content of the bundle from that golem. lost: entries withdrawn from that golem.
    """
    losses, ids = inherited_losses(root, lost), _ids_by_structure(root)
    causes = [c for c in retractions.causes if c.golem_id == root.golem_id and c.tick_from]
    for structure, cause in _dependent_structures(context, root, causes).items():
        for entry in ids.get(structure, ()):
            losses.setdefault(entry, _Loss(cause.event_id, cause.golem_id, cause.tick_from))
    return losses


def inherited_losses(root: Root, lost: Mapping[str, LossT]) -> dict[str, LossT]:
    """Return the ids of a bundle's entries and evidence that contain what its golem lost after packing, with reasons.

    Evidence contains the sums that the golem had inherited, and so does a rule that was made from it.

    Parameters
    ----------
    lost : id withdrawn from that golem -> reason
    """
    ids = _ids_by_structure(root)
    fresh = lost.keys() - root.made_without.entries(root.golem_id)
    losses = {entry: lost[entry] for entries in ids.values() for entry in entries if entry in fresh}
    for evidence in root.evidence:
        if evidence.received_as in fresh:
            losses |= dict.fromkeys(ids[evidence.structure.key] - losses.keys(), lost[evidence.received_as])
    return losses


def _ids_by_structure(root: Root) -> dict[str, set[str]]:
    """Return the ids of a bundle's entries and evidence by the key of their structure."""
    ids: dict[str, set[str]] = defaultdict(set)
    for structure, entry in zip(*(root.entries[n].to_pylist() for n in ("structure", "entry_id")), strict=True):
        ids[structure].add(entry)
    for evidence in root.evidence:
        ids[evidence.structure.key].add(evidence.entry_id)
    return ids


def _dependent_structures(context: DerivationContext, root: Root, causes: Sequence[Cause]) -> dict[str, Cause]:
    """Return the structures, by key, with evidence in ticks that were excluded after the bundle was made."""
    runs, _ = root.made_without.of_golem(root.golem_id)
    later = [c for c in causes if not any(first <= c.tick_from and c.tick_to <= last for first, last in runs)]
    if not later:
        return {}
    first = min(cause.tick_from for cause in later)
    records = context.log.read_stretch(EVIDENCE_COLUMNS, [root.golem_id], first, root.source_watermark)
    records = without_retracted(records, root.made_without)
    structures, cycle = Structures(), cycle_of(records["tick"].to_numpy(), context.policy.curator.cycle_ticks)
    evidence = gather_evidence(
        records, golem=np.zeros(len(cycle), np.int64), cycle=cycle, structures=structures, policy=context.policy.curator
    )
    cause_of: dict[str, Cause] = {}
    for cause in later:
        is_hit = ((evidence.cause_tick >= cause.tick_from) & (evidence.cause_tick <= cause.tick_to)).any(axis=1)
        groups = np.searchsorted(evidence.first, np.flatnonzero(is_hit), side="right") - 1
        for code in np.unique(evidence.structure[groups]).tolist():
            for key in {structures.rows[code].key, *_wider_structures(structures, code)}:
                cause_of.setdefault(key, cause)
    return cause_of


def _wider_structures(structures: Structures, code: int) -> set[str]:
    """Return the keys of the wider rules that may cover this structure."""
    structure = structures.rows[code]
    wider = (span for span, bands in WIDE_GAS_BANDS.items() if structure.gas_band in bands)
    return {structure._replace(gas_band=span).key for span in wider}


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
    """Return the withdrawn entries by golem, with reasons."""
    losses: defaultdict[str, dict[str, _Loss]] = defaultdict(dict)
    for row in context.life_fields("KnowledgeWithdrawn", *_Loss._fields, "entry_ids").to_pylist():
        loss = _Loss(*(row[name] for name in _Loss._fields))
        losses[row["golem_id"]] |= dict.fromkeys(row["entry_ids"], loss)
    return losses


def _heirs(context: DerivationContext, births: Mapping[str, Mapping[str, Any]]) -> dict[str, list[tuple[str, str]]]:
    """Return by golem the receivers of its knowledge, with bundle hashes: heirs, buyers, golems that were given its
    bundle, and golems equipped with a kit that contains rules it left to the library."""
    receivers: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for golem_id, birth in births.items():
        if birth["predecessor_id"] is not None and birth["bundle_hash"] is not None:
            receivers[birth["predecessor_id"]].append((golem_id, birth["bundle_hash"]))
    sales = context.life_fields("KnowledgeReceived", "source", "from_golem_id", "content_hash").to_pylist()
    for sale in sales:
        if sale["source"] == "purchase":
            receivers[sale["from_golem_id"]].append((sale["golem_id"], sale["content_hash"]))
    kits = set(context.life_fields("KitOrdered", "bundle_hash")["bundle_hash"].to_pylist())
    for delivery in context.arrivals().events:
        is_kit = delivery.content_hash in kits
        roots = roots_of(load_bundle(context.home, delivery.content_hash)) if is_kit else ()
        for golem_id in roots or (delivery.from_golem_id,):
            receivers[golem_id].append((delivery.golem_id, delivery.content_hash))
    return {golem_id: sorted(set(heirs)) for golem_id, heirs in receivers.items()}
