"""Shelves: what an owner sees of the library. Derived up to the log before it is looked at.

Owners are apart: who asks names an owner, and sees that owner's rows alone. Source: INH S14.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.derivation.library.derive_library import derive_library
from bardo_pipeline.derivation.versions.adoption import log_moment
from bardo_pipeline.errors import QueryError
from bardo_pipeline.grimoire.entry_columns import confidence_of, with_columns
from bardo_pipeline.inheritance.library.deposits import CHANNELS
from bardo_pipeline.inheritance.library.kits import as_entries


def owner_named(context: DerivationContext, owner: str | None) -> str:
    """The owner of this name, or the only one of this home. Raises QueryError where that says nobody, or not whom."""
    births = context.life("GolemBorn")
    born = births["born"].combine_chunks()
    known = sorted(set(pc.struct_field(born, "owner_id").to_pylist())) if births.num_rows else []
    if owner is None and len(known) == 1:
        return str(known[0])
    if owner is None:
        raise QueryError(f"this home has {len(known)} owners ({', '.join(known[:4]) or 'none'}): give --owner")
    if owner not in known:
        raise QueryError(
            f"nobody's golem here is of owner {owner!r}: {', '.join(known[:4]) or 'there is no owner yet'}"
        )
    return owner


def refreshed(context: DerivationContext) -> None:
    """Bring grimoires and libraries up to the log, where anything may be derived here."""
    if context.frozen is None:
        derive_curation(context)
        derive_library(context)


def library_of(context: DerivationContext, owner: str) -> pa.Table:
    """An owner's library (LIBRARY_SCHEMA) with confidence_now_ppm at the log's last moment, surest first."""
    rows = context.projections.replaceable("library").read(only=[owner])
    now_us = round(log_moment(context, "KitOrdered").timestamp() * 1_000_000)
    now = confidence_of(
        with_columns(as_entries(rows), confidence_ppm=rows["confidence_ppm"]), now_us, context.policy.decay
    )
    rows = rows.append_column("confidence_now_ppm", pa.array(now, pa.int64()))
    return rows.sort_by([("confidence_now_ppm", "descending"), ("entry_id", "ascending")])


def kits_of(context: DerivationContext, owner: str) -> list[dict[str, Any]]:
    """An owner's seed kits, by id."""
    return context.projections.replaceable("kits").read(only=[owner]).to_pylist()


def playbooks_of(context: DerivationContext, owner: str) -> list[dict[str, Any]]:
    """The last playbooks of an owner's dead, by golem."""
    return context.projections.replaceable("shelved_playbooks").read(only=[owner]).to_pylist()


def found(rows: pa.Table, owner: str, entry: str) -> dict[str, Any]:
    """The row that this id, or its beginning, names: of the entry that stands, or of one that is alike.

    Raises QueryError if none or several answer.
    """
    hits = [r for r in rows.to_pylist() if entry and any(e.startswith(entry) for e in r["entry_ids"])]
    if len(hits) == 1:
        return dict(hits[0])
    said = f"{len(hits)} entries begin with {entry!r}; give more of the id" if hits else f"no entry {entry!r}"
    raise QueryError(f"library of {owner}: {said}: `bardo library list --owner {owner}` shows what there is")


def chosen(rows: pa.Table, *, channel: str | None, kind: str | None, text: str | None) -> pa.Table:
    """Those rows that answer. Raises QueryError for a channel that there is not."""
    if channel not in (None, *CHANNELS):
        raise QueryError(f"--channel {channel!r} is none of {', '.join(CHANNELS)}")
    keep = pc.is_valid(rows["entry_id"])
    if channel is not None:
        keep = pa.array([channel in some for some in rows["channels"].to_pylist()], pa.bool_())
    if kind is not None:
        keep = pc.and_(keep, pc.equal(rows["kind"], kind))
    if text is not None:
        keep = pc.and_(keep, pc.match_substring(rows["text"], text, ignore_case=True))
    return rows.filter(keep)
