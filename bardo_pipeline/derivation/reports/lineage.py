"""Lineage of an entry: its decisions, evidence ticks and bundles through all generations.

Decisions name their evidence ticks; a received entry names its bundle, and the bundle names the golem that left it. A
rule that covers other structures also depends on their ticks. The lineage of a text in a runtime's own words states the
operations on it (`text_lineage`).
Source: X-2; architecture, law 6.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.state.decision_log import DECISION_SCHEMA
from bardo_pipeline.curator.state.evidence import flatten_lists
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.dreams.derive_lessons import dream_decisions, known_entries, retracted_dream_decisions
from bardo_pipeline.derivation.incremental.record_queries import birth_rows
from bardo_pipeline.derivation.legacy.bundle_store import load_bundle
from bardo_pipeline.derivation.legacy.death_queries import deaths_of
from bardo_pipeline.derivation.memory.text_states import TextState, texts_beginning
from bardo_pipeline.errors import QueryError
from bardo_pipeline.grimoire.entries import DREAMT
from bardo_pipeline.grimoire.gas_bands import band_keys
from bardo_pipeline.storage.log.event_log import EventLog


@dataclass(frozen=True)
class TickCause:
    """A record that is evidence for an entry: time, regime, actions, judged effects and transactions."""

    tick: int
    observed_at: datetime
    regime: str
    tier: str
    actions: tuple[str, ...]
    effects_ppm: tuple[int, ...]
    transactions: tuple[str, ...]


DECISION_FIELDS = (
    "cycle", "at", "operation", "reason", "confidence_before_ppm", "confidence_ppm", "cause_ticks", "cause_event",
)  # fmt: skip
"""Fields of a decision about an entry."""


@dataclass(frozen=True)
class Holding:
    """An entry in one golem's grimoire: its decisions, evidence ticks, and the bundle in which it was received.

    Parameters
    ----------
    decisions : DECISION_FIELDS of each; those about a stored text have no cycle
    status : status of the entry; "withdrawn" if it is retracted (decisions and ticks are then the retracted ones)
    because : descriptions of the retractions that affected its decisions
    """

    golem_id: str
    generation: int | None
    entry_id: str
    kind: str
    status: str
    text: str
    confidence_ppm: int
    decisions: tuple[dict[str, Any], ...]
    ticks: tuple[TickCause, ...]
    bundle_hash: str | None
    from_golem_id: str | None
    because: tuple[str, ...] = ()


def lineage_of(context: DerivationContext, entry: str, golem_id: str | None = None, *, now: datetime) -> list[Holding]:
    """Return the holdings of an entry, or of a stored text, in all golems, by generation.

    Raises QueryError if nothing or several entries or texts match.

    Parameters
    ----------
    entry : id or prefix of it
    golem_id : only this golem and its ancestors
    now : time of recording of new vectors
    """
    entry_id = _resolve(context, entry)
    if entry_id is None:
        entry_id, holdings = _text_holdings(context, entry, now)
    else:
        holdings = _entry_holdings(context, entry_id)
    if golem_id is not None:
        holdings = _line(holdings, golem_id)
        if not holdings:
            raise QueryError(f"golem {golem_id} never held entry {entry_id}: omit --golem to list the golems that did")
    return sorted(holdings, key=lambda h: (h.generation or 0, h.golem_id))


def _entry_holdings(context: DerivationContext, entry_id: str) -> list[Holding]:
    only = pc.field("entry_id") == entry_id
    curation = context.projections.growing("curation")
    valid = pa.concat_tables([curation.read(only=only), dream_decisions(context, entry_ids=[entry_id])])
    retracted, names = curation.taken_back(only=only), [*DECISION_SCHEMA.names, "because"]
    dream_rows = retracted_dream_decisions(context).filter(only).select(names)
    retracted = pa.concat_tables([retracted.select(names), dream_rows])
    lost = {g for g in context.left_out().golem_ids if entry_id in context.left_out().entries(g)}
    golems = sorted({*valid["golem_id"].to_pylist(), *retracted["golem_id"].to_pylist(), *lost})
    born = birth_rows(context)
    holdings = []
    for golem in golems:
        own, own_retracted = (rows.filter(pc.equal(rows["golem_id"], golem)) for rows in (valid, retracted))
        because = _reasons(context, {*own_retracted["because"].to_pylist()}, golem, entry_id)
        if own.num_rows:
            holdings.append(replace(_holding(context, own, born.get(golem)), because=because))
        elif own_retracted.num_rows:
            former = _holding(context, own_retracted, born.get(golem))
            holdings.append(replace(former, status=WITHDRAWN, because=because))
        else:
            holdings.append(_never_received(context, golem, entry_id, born[golem], because))
    return holdings


def _text_holdings(context: DerivationContext, text: str, now: datetime) -> tuple[str, list[Holding]]:
    """Return the id and the holdings of a stored text. Raises QueryError unless exactly one id begins with `text`."""
    ids, states = texts_beginning(context, text, now=now)
    if not ids:
        raise QueryError(
            f"no entry begins with {text!r}, and no stored text: `bardo sql 'from fct_knowledge'` shows the ids of "
            "entries, a search those of texts"
        )
    if len(ids) > 1:
        raise QueryError(f"{len(ids)} texts begin with {text!r} ({', '.join(ids[:4])}, …): give more of the id")
    born, died = birth_rows(context), {golem_id: at for golem_id, (_, at) in deaths_of(context).items()}
    return ids[0], [_holding_of_text(state, born.get(state.golem_id, {}), died) for state in states]


def _holding_of_text(state: TextState, born: Mapping[str, Any], died: Mapping[str, datetime]) -> Holding:
    """Return the holding of a stored text. born: content of its golem's birth. died: golem -> moment of its death."""
    is_inherited, (first, *later) = state.origin_golem_id != state.golem_id, state.changes
    if is_inherited:
        first = first | {"at": died.get(born["predecessor_id"], first["at"])}
    return Holding(
        golem_id=state.golem_id,
        generation=born.get("generation"),
        entry_id=state.text_id,
        kind=state.sort,
        status="active",
        text=state.text,
        confidence_ppm=state.changes[-1]["confidence_ppm"],
        decisions=tuple({"cycle": None, "cause_ticks": (), **change} for change in (first, *later)),
        ticks=(),
        bundle_hash=born["bundle_hash"] if is_inherited else None,
        from_golem_id=born["predecessor_id"] if is_inherited else None,
    )


def named_ticks(golem_ids: pa.ChunkedArray, ticks: pa.Array) -> pa.Table:
    """Flatten the ticks that rows name to one row per tick: row, golem_id, tick."""
    row, tick = flatten_lists(ticks)
    place = pa.array(row, pa.int64())
    return pa.table({"row": place, "golem_id": golem_ids.take(place), "tick": tick.cast(pa.int64())})


WITHDRAWN = "withdrawn"
"""Status of an entry without valid decisions."""


_OF_ENTRY = ("entry_id", "kind", "text", "confidence_ppm")
"""Fields of a holding that are columns of its entry."""


def _reasons(context: DerivationContext, events: set[str], golem_id: str, entry_id: str) -> tuple[str, ...]:
    """Describe the retractions of a golem by these events or of this inherited entry."""
    causes = (cause for cause in context.left_out().causes if cause.golem_id == golem_id)
    return tuple(f"{c.summary} ({c.event_id})" for c in causes if c.event_id in events or entry_id in c.entry_ids)


def _never_received(
    context: DerivationContext, golem_id: str, entry_id: str, born: dict[str, Any], because: tuple[str, ...]
) -> Holding:
    """Return the holding of a received entry that was withdrawn before any derivation."""
    given = (arrival.content_hash for arrival in context.arrivals().of_golem(golem_id))
    bundles = (load_bundle(context.home, name) for name in (born["bundle_hash"], *given) if name is not None)
    bundle, row = next((b, r) for b in bundles for r in b.entries().to_pylist() if r["entry_id"] == entry_id)
    return Holding(
        golem_id=golem_id,
        generation=born["generation"],
        **{name: row[name] for name in _OF_ENTRY},
        status=WITHDRAWN,
        decisions=(),
        ticks=(),
        bundle_hash=bundle.bundle_hash,
        from_golem_id=bundle.golem_id,
        because=because,
    )


def surest(context: DerivationContext, limit: int) -> list[dict[str, Any]]:
    """Return the active entries of the highest confidence, rules before baselines.

    One row per entry and golem: golem_id, generation, entry_id, kind, text, confidence_ppm, ticks, bundles.
    """
    rows = known_entries(context)
    rows = rows.filter(pc.equal(rows["status"], "active"))
    order = [
        ("source", "descending"),
        ("confidence_ppm", "descending"),
        ("entry_id", "ascending"),
        ("golem_id", "ascending"),
    ]
    names = ["golem_id", "generation", "entry_id", "kind", "text", "confidence_ppm", "provenance"]
    entries = rows.sort_by(order).slice(0, limit).select(names).to_pylist()
    wanted = pa.array(sorted({entry["entry_id"] for entry in entries}), pa.string())
    columns = ["golem_id", "entry_id", "cause_ticks", "cause_bundle"]
    decisions = context.projections.growing("curation").read(columns, only=pc.field("entry_id").isin(wanted))
    dreamers = {entry["golem_id"] for entry in entries if entry["provenance"] == DREAMT}
    if dreamers:
        decisions = pa.concat_tables([decisions, dream_decisions(context, dreamers).select(columns)])
    causes: dict[tuple[str, str], tuple[set[int], set[str]]] = {}
    for row in decisions.to_pylist():
        ticks, bundles = causes.setdefault((row["golem_id"], row["entry_id"]), (set(), set()))
        ticks.update(row["cause_ticks"])
        bundles.update({row["cause_bundle"]} - {None})
    result = []
    for entry in entries:
        ticks, bundles = causes[entry["golem_id"], entry["entry_id"]]
        del entry["provenance"]
        result.append({**entry, "ticks": sorted(ticks), "bundles": sorted(bundles)})
    return result


def _resolve(context: DerivationContext, entry: str) -> str | None:
    """Return the id of the entry, None if no entry matches."""
    all_ids = set(known_entries(context)["entry_id"].to_pylist())
    all_ids |= set(context.projections.growing("curation").taken_back(["entry_id"])["entry_id"].to_pylist())
    all_ids |= set(retracted_dream_decisions(context)["entry_id"].to_pylist())
    all_ids.update(*(cause.entry_ids for cause in context.left_out().causes))
    ids = sorted({i for i in all_ids if i.startswith(entry)})
    if len(ids) > 1:
        raise QueryError(f"{len(ids)} entries begin with {entry!r} ({', '.join(ids[:4])}, …): give more of the id")
    return ids[0] if ids else None


def _holding(context: DerivationContext, decisions: pa.Table, born: dict[str, Any] | None) -> Holding:
    ordered = decisions.sort_by([("revision", "ascending"), ("cycle", "ascending"), ("seq", "ascending")]).to_pylist()
    last, golem_id = ordered[-1], ordered[-1]["golem_id"]
    bundle_hash = next((d["cause_bundle"] for d in ordered if d["cause_bundle"]), None)
    ticks = sorted({t for d in (*ordered, *_parts(context, last)) for t in d["cause_ticks"]})
    return Holding(
        golem_id=golem_id,
        generation=None if born is None else born["generation"],
        **{name: last[name] for name in _OF_ENTRY},
        status=last["status"],
        decisions=tuple({n: d[n] for n in DECISION_FIELDS} for d in ordered),
        ticks=_ticks(context.log, golem_id, ticks),
        bundle_hash=bundle_hash,
        from_golem_id=None if bundle_hash is None else load_bundle(context.home, bundle_hash).golem_id,
    )


def _parts(context: DerivationContext, last: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the decisions about the structures that a rule covers, up to the rule's last decision."""
    parts = band_keys(last["structure"])
    if not parts:
        return []
    only = pc.field("structure").isin(parts) & (pc.field("cycle") <= last["cycle"])
    return context.projections.growing("curation").read(golems=[last["golem_id"]], only=only).to_pylist()


def _ticks(log: EventLog, golem_id: str, ticks: list[int]) -> tuple[TickCause, ...]:
    columns = ["golem_id", "tick", "observed_at", "regime", "tier", "actions", "resolutions"]
    rows = log.read_cycles(columns, golems=[golem_id])
    rows = rows.filter(pc.is_in(rows["tick"], value_set=pa.array(ticks, pa.int64()))).sort_by("tick")
    return tuple(
        TickCause(
            r["tick"],
            r["observed_at"],
            r["regime"],
            r["tier"],
            tuple(f"{a['action_type']} ({a['status']})" for a in r["actions"]),
            tuple(x["effect_ppm"] for x in r["resolutions"]),
            tuple(a["tx_hash"] for a in r["actions"] if a["tx_hash"]),
        )
        for r in rows.to_pylist()
    )


def _line(holdings: list[Holding], golem_id: str) -> list[Holding]:
    by_golem = {h.golem_id: h for h in holdings}
    line = []
    at: str | None = golem_id
    while at is not None and at in by_golem:
        line.append(by_golem[at])
        at = by_golem[at].from_golem_id
    return line
