"""Derives the libraries of owners; only those of owners with changed sources are recomputed.

A library is a function of sets: the entries of the owner's golems as of their last curated cycle, recorded deaths, and
the owner's pulls, exports, purchases and orders. Source: INH S14; architecture ("Cross-golem tables (consensus,
library) are functions of sets, recomputed for the keys that were touched").
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from hashlib import sha256
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.curate import Curation
from bardo_pipeline.curator.state.decision_log import DECISION_SCHEMA, fold
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.incremental_projection import RecomputedProjection
from bardo_pipeline.derivation.incremental.record_queries import birth_rows, curated_through, values_by_golem
from bardo_pipeline.derivation.incremental.retraction_tracking import handled_retractions
from bardo_pipeline.derivation.legacy.bundle_store import load_bundle
from bardo_pipeline.derivation.legacy.death_queries import deaths_with_ticks, owners_of
from bardo_pipeline.events.record.arrow_columns import rows_of_other_golems
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA, MOMENT
from bardo_pipeline.grimoire.entry_columns import query_tables
from bardo_pipeline.inheritance.library.deposits import (
    DEPOSIT_SCHEMA,
    death_deposits,
    export_deposits,
    pull_deposits,
    purchase_deposits,
)
from bardo_pipeline.inheritance.library.library_entries import (
    EQUIPPED_SCHEMA,
    KIT_SCHEMA,
    LIBRARY_SCHEMA,
    LIVES_SCHEMA,
    PLAYBOOK_DEPOSIT_SCHEMA,
    libraries,
)
from bardo_pipeline.storage.delta.table_digest import Written
from bardo_pipeline.storage.home import Home, bucket_of

LIBRARY_TABLES = {"library": LIBRARY_SCHEMA, "kits": KIT_SCHEMA, "shelved_playbooks": PLAYBOOK_DEPOSIT_SCHEMA}
"""Tables of a library, each keyed by owner."""


class _Libraries(RecomputedProjection):
    def write(self, context: DerivationContext) -> list[Written]:
        """Replace the libraries of owners whose sources changed since the last derivation."""
        library = context.projections.replaceable("library")
        signed, seen = _signatures(context), library.noted("owners")
        touched = {owner for owner, sign in signed.items() if seen.get(owner) != sign}
        if not touched:
            return []
        golems = sorted(g for g, owner in owners_of(context).items() if owner in touched)
        grimoire, books = context.projections.replaceable("grimoire"), context.projections.growing("playbooks")
        made = make_libraries(
            context,
            touched,
            entries=grimoire.read(only=golems),
            playbooks=books.read(golems=golems),
            decisions_of=lambda some: context.projections.growing("curation").read(golems=some),
            reached={g: cycle for g in golems if (cycle := curated_through(context, g)) is not None},
        )
        written = []
        for name in reversed(LIBRARY_TABLES):  # library last: its note marks all three tables as written
            note = {"owners": signed} if name == "library" else None
            written.append(context.projections.replaceable(name).replace_keys(made[name], touched, note=note))
        return written


def derive_library(context: DerivationContext) -> list[Written]:
    """Recompute the libraries of owners whose sources changed since the last derivation."""
    return _Libraries().update(context)


def is_current(context: DerivationContext, owner: str) -> bool:
    """Return whether the sources of an owner's library are those that it was derived from."""
    noted = context.projections.replaceable("library").noted("owners")
    return noted.get(owner) == _signatures(context).get(owner)


def make_libraries(
    context: DerivationContext,
    owners: Collection[str],
    *,
    entries: pa.Table,
    playbooks: pa.Table,
    decisions_of: Callable[[list[str]], pa.Table],
    reached: Mapping[str, int],
) -> dict[str, pa.Table]:
    """Return the tables of these owners' libraries by name (LIBRARY_TABLES).

    Parameters
    ----------
    entries, playbooks : pa.Table, of the owners' golems
    decisions_of : returns the curation decisions of some golems
    reached : golem -> last curated cycle; later deaths and exports are ignored
    """
    policy, names = context.policy, pa.array(sorted(owners), pa.string())
    lives = _lives(context)
    lives = lives.filter(pc.is_in(lives["owner_id"], value_set=names))
    golem_ids = set(lives["golem_id"].to_pylist())
    entries = entries.filter(pc.is_in(entries["golem_id"], value_set=lives["golem_id"].combine_chunks()))
    deaths = _deaths(context, golem_ids, reached)
    death_index = pc.index_in(entries["golem_id"], value_set=deaths["golem_id"].combine_chunks())
    pulls = _pulls(context, golem_ids)
    bequeathed = entries.filter(pc.is_valid(death_index))
    deposits = [
        DEPOSIT_SCHEMA.empty_table(),
        death_deposits(bequeathed, deaths, policy),
        pull_deposits(bequeathed, deaths, pulls, policy),
        _exports(context, lives, decisions_of, reached),
        *_purchases(context, owners),
    ]
    equipped = equipped_structures(context, golem_ids)
    library, kits = libraries(pa.concat_tables(deposits), entries, lives, equipped, policy)
    return {"library": library, "kits": kits, "shelved_playbooks": _last_playbooks(playbooks, deaths)}


def remake_libraries(
    context: DerivationContext, golems: Collection[str], entries: pa.Table, made: Curation
) -> dict[str, pa.Table]:
    """Return all libraries (LIBRARY_TABLES by name) with the entries and decisions of these golems replaced."""
    projections, owners = context.projections, owners_of(context)
    curation = projections.growing("curation")
    return make_libraries(
        context,
        set(owners.values()),
        entries=pa.concat_tables([rows_of_other_golems(projections.replaceable("grimoire").read(), golems), entries]),
        playbooks=pa.concat_tables(
            [rows_of_other_golems(projections.growing("playbooks").read(), golems), made.playbooks]
        ),
        decisions_of=lambda golem_ids: pa.concat_tables(
            [rows_of_other_golems(curation.read(golems=golem_ids), golems), made.decisions]
        ),
        reached={g: cycle for g in owners if (cycle := curated_through(context, g)) is not None},
    )


def _lives(context: DerivationContext) -> pa.Table:
    births = context.life_fields("GolemBorn", "owner_id", "lineage_id")
    return births.select(LIVES_SCHEMA.names).cast(LIVES_SCHEMA)


def _deaths(context: DerivationContext, golems: Collection[str], reached: Mapping[str, int]) -> pa.Table:
    """Deaths of these golems with a curated last cycle; of two deaths the earlier tick counts."""
    deaths = deaths_with_ticks(context)
    cycles = values_by_golem(deaths, "cycle").items()
    return deaths.filter(pa.array([g in golems and reached.get(g, -1) >= cycle for g, cycle in cycles], pa.bool_()))


def _pulls(context: DerivationContext, golems: Collection[str]) -> pa.Table:
    pulls = context.life_fields("EntryPulled", "entry_id", golems=golems).sort_by("event_id")
    return pulls.rename_columns({"observed_at": "at"}).select(["golem_id", "entry_id", "event_id", "at"])


def _life_events(context: DerivationContext, kind: str, *fields: str) -> list[dict[str, Any]]:
    return context.life_fields(kind, *fields).sort_by("event_id").to_pylist()


def _exports(
    context: DerivationContext,
    lives: pa.Table,
    decisions_of: Callable[[list[str]], pa.Table],
    reached: Mapping[str, int],
) -> pa.Table:
    """Deposits of exported entries, each in its state at the end of the recorded cycle."""
    owners = values_by_golem(lives, "owner_id")
    exports = [
        e
        for e in _life_events(context, "EntryExported", "entry_id", "cycle_seen")
        if e["golem_id"] in owners and reached.get(e["golem_id"], -1) >= e["cycle_seen"]
    ]
    if not exports:
        return DEPOSIT_SCHEMA.empty_table()
    decisions = decisions_of(sorted({e["golem_id"] for e in exports})).select(DECISION_SCHEMA.names)
    rows, parts = [], [ENTRY_SCHEMA.empty_table()]
    for e in exports:  # few rows; each needs the fold up to its own cycle
        is_entry = (pc.field("golem_id") == e["golem_id"]) & (pc.field("entry_id") == e["entry_id"])
        state = fold(decisions.filter(is_entry & (pc.field("cycle") <= e["cycle_seen"])))
        rows += [e] * state.num_rows
        parts.append(state)
    return export_deposits(
        pa.concat_tables(parts),
        pa.array([owners[e["golem_id"]] for e in rows], pa.string()),
        pa.array([e["observed_at"] for e in rows], MOMENT),
        pa.array([e["event_id"] for e in rows], pa.string()),
        context.policy,
    )


def _purchases(context: DerivationContext, owners: Collection[str]) -> list[pa.Table]:
    return [
        purchase_deposits(
            load_bundle(context.home, e["bundle_hash"]).entries(), e["owner_id"], e["from_golem_id"],
            e["observed_at"], e["event_id"], context.policy,
        )
        for e in _life_events(context, "BundlePurchased", "owner_id", "bundle_hash", "from_golem_id")
        if e["owner_id"] in owners
    ]  # fmt: skip


def _last_playbooks(playbooks: pa.Table, deaths: pa.Table) -> pa.Table:
    last = """
        select owner_id, golem_id, version, deaths.died_at as at, cause_entries as entry_ids, markdown
        from books join deaths using (golem_id)
        qualify row_number() over (partition by golem_id order by version desc) = 1 order by owner_id, golem_id
    """
    return query_tables(last, books=playbooks, deaths=deaths.rename_columns({"at": "died_at"})).cast(
        PLAYBOOK_DEPOSIT_SCHEMA
    )


def equipped_structures(context: DerivationContext, golems: Collection[str]) -> pa.Table:
    """Return the structures that these golems hold from library kits, their own or their ancestors' (EQUIPPED_SCHEMA).

    Withdrawn entries are left out.
    """
    ordered = {e["bundle_hash"] for e in _life_events(context, "KitOrdered", "bundle_hash")}
    kits = defaultdict[str, set[str]](set)
    for event in _life_events(context, "KnowledgeReceived", "content_hash") if ordered else ():
        if event["content_hash"] in ordered:
            kits[event["golem_id"]].add(event["content_hash"])
    if not kits:
        return EQUIPPED_SCHEMA.empty_table()
    structures_of_kit = {kit: _structures(context.home, kit) for kit in set().union(*kits.values())}
    retractions = context.left_out()
    births = birth_rows(context)
    structures: dict[str, set[str]] = {}
    for golem_id in sorted(births, key=lambda g: (births[g]["generation"], g)):  # ancestors first
        inherited = structures.get(births[golem_id]["predecessor_id"] or "", set())
        received = {
            entry: structure for kit in kits.get(golem_id, ()) for entry, structure in structures_of_kit[kit].items()
        }
        structures[golem_id] = inherited.union(
            structure for entry, structure in received.items() if entry not in retractions.entries(golem_id)
        )
    rows = [{"golem_id": g, "structure": s} for g in sorted(golems) for s in sorted(structures.get(g, ()))]
    return pa.Table.from_pylist(rows, schema=EQUIPPED_SCHEMA)


def _structures(home: Home, kit: str) -> dict[str, str]:
    """Entry id -> structure, of a kit's entries."""
    entries = load_bundle(home, kit).entries()
    return dict(zip(entries["entry_id"].to_pylist(), entries["structure"].to_pylist(), strict=True))


def _signatures(context: DerivationContext) -> dict[str, str]:
    """Owner -> hash of the library's sources; equal hashes mean equal sources."""
    grimoire = context.projections.replaceable("grimoire")
    digests = {bucket: f"{d.low:x}{d.high:x}" for bucket, d in grimoire.digests().items()}
    owners, parts = owners_of(context), defaultdict[str, set[str]](set)
    reached = {g: cycle for g in owners if (cycle := curated_through(context, g)) is not None}
    for golem_id, owner in owners.items():
        bucket = bucket_of(golem_id, grimoire.bucket_count)
        parts[owner] |= {f"born {golem_id}", f"bucket {bucket} {digests.get(bucket, '')}"}
    for death in _deaths(context, owners.keys(), reached).to_pylist():
        parts[death["owner_id"]].add(f"died {death['event_id']}")
    retractions = handled_retractions(context, ["curation"])
    for kind in ("EntryPulled", "EntryExported", "KnowledgeReceived"):
        fields = ("cycle_seen",) if kind == "EntryExported" else ()
        for event in _life_events(context, kind, *fields):
            if (golem_id := event["golem_id"]) not in owners:
                continue
            is_reached = reached.get(golem_id, -1) >= event.get("cycle_seen", -1)
            retracted = orjson.dumps(retractions.listing(golem_id)).decode()
            parts[owners[golem_id]].add(f"{event['event_id']} {is_reached} {retracted}")
    for event in _life_events(context, "BundlePurchased", "owner_id"):
        parts[event["owner_id"]].add(event["event_id"])
    return {owner: sha256("\n".join(sorted(words)).encode()).hexdigest()[:16] for owner, words in parts.items()}
