"""Queries on one owner's library; owners never see each other's rows. Source: INH S14."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.clock import micros_of
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation, require_curated
from bardo_pipeline.derivation.incremental.record_queries import log_moment
from bardo_pipeline.derivation.legacy.death_queries import owners_of
from bardo_pipeline.derivation.library.derive_library import derive_library, is_current
from bardo_pipeline.errors import DerivationDueError, QueryError
from bardo_pipeline.events.life.events import LifeEvent
from bardo_pipeline.grimoire.entry_columns import confidence_of, with_columns
from bardo_pipeline.inheritance.library.deposits import CHANNELS
from bardo_pipeline.inheritance.library.kits import as_entries


def resolve_owner(context: DerivationContext) -> str:
    """Return the owner of the view, or the home's only one. Raises QueryError if there are several."""
    owners = sorted(set(owners_of(context).values()))
    if context.owner is None and len(owners) != 1:
        raise QueryError(f"this home has {len(owners)} owners ({', '.join(owners[:4]) or 'none'}): give --owner")
    return context.owner or owners[0]


def refresh_library(context: DerivationContext) -> None:
    """Derive grimoires and libraries up to the log, unless the derivation is frozen."""
    if context.frozen is None:
        derive_curation(context.whole)
        derive_library(context.whole)


def require_fresh_library(context: DerivationContext, owner: str) -> None:
    """Raise DerivationDueError if `refresh_library` would change an owner's library."""
    if context.frozen is None:
        require_curated(context, [golem_id for golem_id, name in owners_of(context).items() if name == owner])
        if not is_current(context.whole, owner):
            raise DerivationDueError(f"the library of {owner} has changed sources: `bardo derive` derives it")


def library_document(
    context: DerivationContext,
    *,
    channel: str | None = None,
    kind: str | None = None,
    text: str | None = None,
    limit: int | None = None,
    derives: bool = True,
) -> dict[str, Any]:
    """Return the entries of the view's library by confidence, its kits, playbooks and waiting orders.

    `total` counts the entries that pass the filters. Raises as `resolve_owner` and `filter_library`, and
    DerivationDueError without `derives` if the library has to be derived first.
    """
    owner = _fresh_owner(context, derives=derives)
    rows = filter_library(library_of(context, owner), channel=channel, kind=kind, text=text)
    return {
        "owner_id": owner,
        "total": rows.num_rows,
        "entries": rows.slice(0, limit).to_pylist(),
        "kits": kits_of(context, owner),
        "playbooks": playbooks_of(context, owner),
        "waiting": waiting_orders(context, owner),
    }


def library_item(context: DerivationContext, item: str, *, derives: bool = True) -> dict[str, Any]:
    """Return the kit or entry with this id or prefix, or the playbook of this dead golem. Raises QueryError."""
    owner = _fresh_owner(context, derives=derives)
    kit = next((kit for kit in kits_of(context, owner) if item and kit["kit_id"].startswith(item)), None)
    playbook = next((book for book in playbooks_of(context, owner) if book["golem_id"] == item), None)
    return kit or playbook or find_library_row(library_of(context, owner), owner, item)


def _fresh_owner(context: DerivationContext, *, derives: bool) -> str:
    """Return the owner of the view, whose library is up to date."""
    owner = resolve_owner(context)
    if derives:
        refresh_library(context)
    else:
        require_fresh_library(context, owner)
    return owner


def library_of(context: DerivationContext, owner: str) -> pa.Table:
    """Return an owner's library (LIBRARY_SCHEMA) with confidence_now_ppm at the log's end, by descending confidence."""
    rows = context.projections.replaceable("library").read(only=[owner])
    now_us = micros_of(log_moment(context, "KitOrdered"))
    now = confidence_of(
        with_columns(as_entries(rows), confidence_ppm=rows["confidence_ppm"]), now_us, context.policy.decay
    )
    rows = rows.append_column("confidence_now_ppm", pa.array(now, pa.int64()))
    return rows.sort_by([("confidence_now_ppm", "descending"), ("entry_id", "ascending")])


def kits_of(context: DerivationContext, owner: str) -> list[dict[str, Any]]:
    """Return an owner's seed kits, by id."""
    return context.projections.replaceable("kits").read(only=[owner]).to_pylist()


def playbooks_of(context: DerivationContext, owner: str) -> list[dict[str, Any]]:
    """Return the last playbooks of an owner's dead golems, by golem."""
    return context.projections.replaceable("shelved_playbooks").read(only=[owner]).to_pylist()


def find_library_row(rows: pa.Table, owner: str, entry: str) -> dict[str, Any]:
    """Return the row with this entry id or prefix, also among merged equal entries. Raises QueryError if not unique."""
    hits = [r for r in rows.to_pylist() if entry and any(e.startswith(entry) for e in r["entry_ids"])]
    if len(hits) == 1:
        return dict(hits[0])
    problem = f"{len(hits)} entries begin with {entry!r}; give more of the id" if hits else f"no entry {entry!r}"
    raise QueryError(f"library of {owner}: {problem}: `bardo library list --owner {owner}` shows all")


def filter_library(rows: pa.Table, *, channel: str | None, kind: str | None, text: str | None) -> pa.Table:
    """Return the rows that pass the filters. Raises QueryError for an unknown channel."""
    if channel not in (None, *CHANNELS):
        raise QueryError(f"--channel {channel!r} is not one of {', '.join(CHANNELS)}")
    is_kept = pc.is_valid(rows["entry_id"])
    if channel is not None:
        is_kept = pa.array([channel in channels for channels in rows["channels"].to_pylist()], pa.bool_())
    if kind is not None:
        is_kept = pc.and_(is_kept, pc.equal(rows["kind"], kind))
    if text is not None:
        is_kept = pc.and_(is_kept, pc.match_substring(rows["text"], text, ignore_case=True))
    return rows.filter(is_kept)


def waiting_orders(
    context: DerivationContext, owner_id: str, beside: Collection[LifeEvent] = ()
) -> list[dict[str, Any]]:
    """Return an owner's kit orders that no golem has received (fields of `KitOrdered`), oldest first."""
    orders = [o for o in context.life("KitOrdered")["kit_ordered"].to_pylist() if o["owner_id"] == owner_id]
    if not orders:
        return []
    delivered = set(context.life_fields("KnowledgeReceived", "content_hash")["content_hash"].to_pylist())
    delivered |= {event.received.content_hash for event in beside if event.received is not None}
    return sorted((o for o in orders if o["bundle_hash"] not in delivered), key=lambda o: o["number"])
