"""Builds each owner's library of rules from the deposits of five channels. Pure, a function of sets.

A row is one rule, identified by its structure (canon 17). Deposits with the same side support it, deposits with the
other side refute it. Of several deposits the most validated, then the most reliable channel, then the newest represents
the rule. Libraries of different owners share no data. Source: INH S14, canon 7, 10, 11, 17.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import BoolArray
from bardo_pipeline.events.record.arrow_columns import all_required, contiguous, required
from bardo_pipeline.grimoire.confidence import DAY_US, ppm
from bardo_pipeline.grimoire.entries import ENTRY_SCHEMA, MOMENT
from bardo_pipeline.grimoire.entry_columns import int_column, query_tables, to_bools
from bardo_pipeline.grimoire.gas_bands import split_by_band
from bardo_pipeline.inheritance.library.deposits import CHANNELS, CONTENT, OVERFLOW, deposited
from bardo_pipeline.katabasis.propositions import level_steps
from bardo_pipeline.policy import Policy

_TEXTS = pa.list_(required("element", pa.string()))

LIBRARY_SCHEMA = pa.schema(
    [
        *all_required(pa.string(), "owner_id", "entry_id", "archetype"),
        *[ENTRY_SCHEMA.field(name) for name in CONTENT],
        required("deposited_ppm", pa.int64()),
        required("channel", pa.string()),
        *all_required(_TEXTS, "channels", "golem_ids", "entry_ids", "event_ids"),
        *all_required(MOMENT, "first_at", "last_at"),
        required("validator_ids", _TEXTS),
        *all_required(pa.int64(), "validator_count", "refuter_count", "equipped_lineage_count"),
        *all_required(pa.bool_(), "is_battle_tested", "is_default"),
    ]
)
"""One row per owner and rule; key (owner_id, entry_id), the representing entry.

archetype: protocol and pair. confidence_ppm: at anchor_at, raised for battle-tested rules; deposited_ppm: without the
bonus, used by kits. channel: of the representing deposit. channels, golem_ids, entry_ids, event_ids, first_at, last_at:
over all deposits of its side. validator_ids: the owner's golems whose outcomes confirm the rule. refuter_count: golems
whose outcomes contradict it. equipped_lineage_count: lineages equipped with the rule that confirmed it."""

KIT_SCHEMA = pa.schema(
    [
        *all_required(pa.string(), "owner_id", "kit_id", "name", "archetype", "domain"),
        required("is_published", pa.bool_()),
        *all_required(_TEXTS, "entry_ids", "proposed_ids", "golem_ids"),
        required("proposed_at", MOMENT),
    ]
)
"""One row per seed kit detected by repetition; key (owner_id, kit_id).

A kit groups rules of one archetype and domain that several golems learned independently within `kit_days`. entry_ids:
rules with enough later validators; proposed_ids: rules without; golem_ids: authors; proposed_at: time at which the
first rule had enough authors."""

PLAYBOOK_DEPOSIT_SCHEMA = pa.schema(
    [
        *all_required(pa.string(), "owner_id", "golem_id"),
        required("version", pa.int64()),
        required("at", MOMENT),
        required("entry_ids", _TEXTS),
        required("markdown", pa.string()),
    ]
)
"""One row per dead golem with its last PLAYBOOK.md; key (owner_id, golem_id). entry_ids: its rules in force."""

LIVES_SCHEMA = pa.schema(all_required(pa.string(), "golem_id", "owner_id", "lineage_id"))
"""One row per born golem with owner and lineage."""

EQUIPPED_SCHEMA = pa.schema(all_required(pa.string(), "golem_id", "structure"))
"""One row per golem and rule received from a kit, directly or through an ancestor."""


def libraries(
    deposits: pa.Table, entries: pa.Table, lives: pa.Table, equipped: pa.Table, policy: Policy
) -> tuple[pa.Table, pa.Table]:
    """Build the libraries (LIBRARY_SCHEMA) and their kits (KIT_SCHEMA), each sorted by its key, owner by owner.

    A golem validates a rule if it holds the rule on the same side with own evidence, and confirmations minus
    contradictions are at least 0 for a rule that it learned itself, at least 1 for a received rule. A rule that spans
    several bands is validated by golems that validate each band. The side of a baseline is its 1-2-5 band. An entry
    overflows into the library when `overflow_siblings` golems other than its origin validate it. Golems that validated
    a baseline on one market day count as one, because they watched the same market.

    Parameters
    ----------
    deposits : pa.Table, DEPOSIT_SCHEMA in any order, duplicates allowed
    entries : pa.Table, ENTRY_SCHEMA, current entries of the owners' golems, or their entries at death
    lives : pa.Table, LIVES_SCHEMA of these golems
    equipped : pa.Table, EQUIPPED_SCHEMA
    """
    lives = lives.group_by(LIVES_SCHEMA.names, use_threads=False).aggregate([]).select(LIVES_SCHEMA.names)
    held = _held(entries.filter(pc.equal(entries["status"], "active")), lives)
    # all active entries are candidates; the query keeps those with enough validators
    no_cause = pa.repeat("", held.num_rows)
    overflow = deposited(held, OVERFLOW, owners=held["owner_id"], at=held["anchor_at"], causes=no_cause)
    both = pa.concat_tables([deposits, overflow])
    coming = _query_columns(both, deposits.num_rows)
    sources: dict[str, Any] = {
        "rules": query_tables("select distinct owner_id, structure, side from coming", coming=coming),
        "confirmed": held.select(_CONFIRMED).filter(pa.array(_is_confirmed(held))),
        "rule_parts": _rule_parts(both["structure"]),
    }
    validated = query_tables(_WITNESSES + _VALIDATED, **sources)
    refuted = query_tables(_WITNESSES + _REFUTED, **sources)
    evidence = {"validated": validated, "refuted": refuted, "equipped": equipped}
    rules = policy.library
    numbers = {
        "siblings": rules.overflow_siblings,
        "tested": rules.battle_tested_golems,
        "factor": ppm(rules.battle_tested_factor),
        "most": ppm(rules.battle_tested_confidence_max),
        "defaults": rules.default_lineages,
        "channels": list(CHANNELS),
        "day": DAY_US,
    }
    shelved = query_tables(_LIBRARY, numbers, coming=coming, **evidence)
    content = both.take(shelved["place"]).select(["entry_id", *CONTENT])
    columns: dict[str, Any] = {name: content[name] for name in content.column_names}
    columns |= {"deposited_ppm": content["confidence_ppm"]}
    columns |= {name: shelved[name] for name in shelved.column_names}
    library = pa.table({name: columns[name] for name in LIBRARY_SCHEMA.names}).cast(LIBRARY_SCHEMA)
    library = library.sort_by([("owner_id", "ascending"), ("entry_id", "ascending")])
    made = held.filter(pc.equal(held["golem_id"], held["origin_golem_id"])).select(_MADE)
    shelf = _sided(library).select(["owner_id", "entry_id", "structure", "side", "archetype", "domain"])
    window = round(rules.kit_days * DAY_US)
    numbers = {"authors": rules.kit_golems, "window": window, "validators": rules.kit_validators}
    kits = query_tables(_KITS, numbers, validated=validated, made=made, shelf=shelf)
    return library, kits.select(KIT_SCHEMA.names).cast(KIT_SCHEMA)


_CONFIRMED = ("owner_id", "golem_id", "lineage_id", "structure", "side", "validated_at")
_MADE = ("owner_id", "golem_id", "structure", "side", "created_at")

_WITNESSES = """
with witnesses as (
    select owner_id, golem_id, lineage_id, part, side, max(validated_at) as validated_at
    from confirmed join rule_parts using (structure) group by all
)
"""

_VALIDATED = """
select r.owner_id, r.structure, r.side, w.golem_id, min(w.lineage_id) as lineage_id,
    max(w.validated_at) as validated_at
from rules as r join rule_parts as t using (structure)
join witnesses as w on w.owner_id = r.owner_id and w.part = t.part and w.side = r.side
group by r.owner_id, r.structure, r.side, w.golem_id having count(*) = min(t.parts)
"""

_REFUTED = """
select r.owner_id, r.structure, r.side, count(distinct w.golem_id) as refuter_count
from rules as r join rule_parts as t using (structure)
join witnesses as w on w.owner_id = r.owner_id and w.part = t.part and w.side <> r.side
group by all
"""

_LIBRARY = """
with seen as (
    select *, if(starts_with(structure, 'baseline|'), (epoch_us(validated_at) // $day)::varchar, golem_id) as witness
    from validated
),
flowing as (
    select c.place from coming as c
    join seen as v using (owner_id, structure, side)
    where c.flows and v.golem_id <> c.origin_golem_id
    group by c.place having count(distinct witness) >= $siblings
),
weighed as (
    select v.owner_id, v.structure, v.side, count(*) as validator_count, count(distinct witness) as witness_count,
        list_sort(list(v.golem_id)) as validator_ids,
        count(distinct v.lineage_id) filter (e.golem_id is not null) as equipped_lineage_count
    from seen as v left join equipped as e using (golem_id, structure) group by all
),
shelf as (
    select c.*, coalesce(validator_count, 0) as validator_count, coalesce(witness_count, 0) as witness_count,
        coalesce(validator_ids, []) as validator_ids,
        coalesce(equipped_lineage_count, 0) as equipped_lineage_count
    from coming as c left join weighed using (owner_id, structure, side)
    where not flows or place in (select place from flowing)
),
sides as (
    select owner_id, structure, side, list_sort(list(distinct channel)) as ranks,
        list_sort(list(distinct golem_id)) as golem_ids, list_sort(list(distinct entry_id)) as entry_ids,
        list_sort(list(distinct event_id) filter (event_id <> '')) as event_ids,
        min("at") as first_at, max("at") as last_at
    from shelf group by all
),
represented as (
    select * from shelf qualify row_number() over (
        partition by owner_id, structure
        order by validator_count desc, channel, "at" desc, golem_id, entry_id, confidence_ppm desc, place
    ) = 1
)
select place, owner_id, archetype, $channels[channel + 1] as channel,
    list_transform(ranks, lambda rank: $channels[rank + 1]) as channels, golem_ids, entry_ids,
    coalesce(event_ids, []) as event_ids, first_at, last_at, validator_ids, validator_count,
    coalesce(refuter_count, 0) as refuter_count,
    equipped_lineage_count, witness_count >= $tested as is_battle_tested,
    equipped_lineage_count >= $defaults as is_default,
    if(witness_count >= $tested,
        greatest(confidence_ppm, least((confidence_ppm::hugeint * $factor + 500000) // 1000000, $most))::bigint,
        confidence_ppm) as confidence_ppm
from represented join sides using (owner_id, structure, side) left join refuted using (owner_id, structure, side)
"""

_KITS = """
with spaced as (
    select *, lead(created_at, $authors - 1) over (
        partition by owner_id, structure, side order by created_at, golem_id
    ) as repeated_at from made
),
repeated as (
    select owner_id, structure, side, min(repeated_at) as proposed_at from spaced
    where epoch_us(repeated_at) - epoch_us(created_at) <= $window group by all
),
proven as (
    select r.owner_id, r.structure, r.side, min(proposed_at) as proposed_at, count(v.golem_id) as validators
    from repeated as r left join validated as v on v.owner_id = r.owner_id and v.structure = r.structure
        and v.side = r.side and v.validated_at > r.proposed_at
    group by all
),
authors as (select owner_id, structure, side, list(golem_id) as golem_ids from made group by all)
select owner_id, left(sha256(concat_ws('|', owner_id, archetype, domain)), 12) as kit_id,
    domain || ' on ' || archetype as name, archetype, domain, bool_or(validators >= $validators) as is_published,
    list_sort(coalesce(list(entry_id) filter (validators >= $validators), [])) as entry_ids,
    list_sort(coalesce(list(entry_id) filter (validators < $validators), [])) as proposed_ids,
    list_sort(list_distinct(flatten(list(golem_ids)))) as golem_ids, min(proposed_at) as proposed_at
from shelf join proven using (owner_id, structure, side) join authors using (owner_id, structure, side)
group by owner_id, archetype, domain order by owner_id, kit_id
"""


def _held(active: pa.Table, lives: pa.Table) -> pa.Table:
    """Return the active entries of golems in `lives` with owner, lineage and side."""
    place = pc.index_in(active["golem_id"], value_set=contiguous(lives["golem_id"]))
    active, place = active.filter(pc.is_valid(place)), place.drop_null()
    for name in ("owner_id", "lineage_id"):
        active = active.append_column(name, lives[name].take(place))
    return _sided(active)


def _sided(rows: pa.Table) -> pa.Table:
    """Append the column side: the sign, or for a baseline the index of its 1-2-5 band."""
    level = to_bools(contiguous(pc.equal(rows["source"], "baseline")))
    side = np.where(level, level_steps(int_column(rows, "effect_mean_ppm")), int_column(rows, "sign"))
    return rows.append_column("side", pa.array(side, pa.int64()))


def _is_confirmed(held: pa.Table) -> BoolArray:
    """Return which entries the golem's own outcomes confirm."""
    is_own = to_bools(contiguous(pc.equal(held["golem_id"], held["origin_golem_id"])))
    surplus = int_column(held, "validations") - int_column(held, "contradictions")
    return (int_column(held, "own_count") > 0) & (surplus >= np.where(is_own, 0, 1))


def _query_columns(both: pa.Table, deposit_count: int) -> pa.Table:
    """Return the columns that the query reads; rows from `deposit_count` on are overflow candidates."""
    place = np.arange(both.num_rows)
    rank = pc.index_in(both["channel"], value_set=pa.array(CHANNELS)).to_numpy().astype(np.int64)
    names = ("owner_id", "golem_id", "entry_id", "origin_golem_id", "structure", "event_id", "confidence_ppm", "at")
    columns: dict[str, Any] = {name: both[name] for name in names}
    columns |= {"place": place, "flows": place >= deposit_count, "channel": rank, "side": _sided(both)["side"]}
    return pa.table(columns | {"archetype": pc.binary_join_element_wise(both["protocol"], both["pair"], " ")})


def _rule_parts(structures: pa.ChunkedArray) -> pa.Table:
    """Return each structure with its single-band parts and their number."""
    distinct = structures.unique()
    return query_tables(
        "select whole as structure, structure as part, count(*) over (partition by whole) as parts from bands",
        bands=split_by_band(pa.table({"structure": distinct, "whole": distinct})),
    )
