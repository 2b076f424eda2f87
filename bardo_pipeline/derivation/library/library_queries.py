"""Queries on one owner's library; owners never see each other's rows. Source: INH S14."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.derivation.incremental.record_queries import log_moment
from bardo_pipeline.derivation.legacy.death_queries import owners_of
from bardo_pipeline.derivation.library.derive_library import derive_library
from bardo_pipeline.errors import QueryError
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


def library_of(context: DerivationContext, owner: str) -> pa.Table:
    """Return an owner's library (LIBRARY_SCHEMA) with confidence_now_ppm at the log's end, by descending confidence."""
    rows = context.projections.replaceable("library").read(only=[owner])
    now_us = round(log_moment(context, "KitOrdered").timestamp() * 1_000_000)
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
