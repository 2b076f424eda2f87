"""Records the four phases of Thanatopsis of each dead golem as events: acceptance, settlement, reflection, legacy.

Acceptance and settlement need the log alone; reflection needs the testament, and legacy the verdict on the bundle.
A phase's content is a function of the log, so two processes record equal events and the first one counts.
Source: MEM ("The death moment: Thanatopsis Protocol"), KAT, INH-2, INH-4.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.arrays import Int64Array
from bardo_pipeline.curator.views.crossings import crossings_of, is_elder
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.record_queries import (
    counts_by_golem,
    golem_batches,
    last_records,
    values_by_golem,
)
from bardo_pipeline.derivation.legacy.death_queries import births_of, deaths_of, deaths_with_ticks
from bardo_pipeline.events.life.events import ATTRIBUTE_OF, Born, Died, LifeEvent, life_event
from bardo_pipeline.events.life.thanatopsis_events import (
    PHASES_OF_DYING,
    Accepted,
    Bequeathed,
    Dying,
    Reflected,
    Settled,
)
from bardo_pipeline.events.record.arrow_columns import rows_of_golems, rows_of_other_golems
from bardo_pipeline.grimoire.entry_columns import query_tables
from bardo_pipeline.inheritance.testament import CATEGORIES
from bardo_pipeline.katabasis.propositions import with_claims
from bardo_pipeline.mortality.death_reserve import bears_reflection, legacy_costs, reflection_costs
from bardo_pipeline.policy import Policy

PHASE_WORDS = dict(zip(PHASES_OF_DYING, ("acceptance", "settlement", "reflection", "legacy"), strict=True))
"""Event kind -> the canon's name of the phase."""

_ENDS = {
    "economic": "its credits ran out",
    "epistemic": "its predictions stopped holding",
    "stochastic": "its time was up",
    "silence": "it fell silent",
}
_LAST_SEEN = ("golem_id", "tick", "observation.positions", "observation.idle_micros", "sealed")


class Phase(NamedTuple):
    """A recorded phase of dying with the payload of its event."""

    kind: str
    event_id: str
    payload: dict[str, Any]


def phases_of(context: DerivationContext, golems: Collection[str] | None = None) -> dict[str, list[Phase]]:
    """Return golem -> its recorded phases in order, for all or the given golems."""
    phases: dict[str, list[Phase]] = {}
    for kind in PHASES_OF_DYING:
        for row in context.life(kind, golems).select(["golem_id", "event_id", ATTRIBUTE_OF[kind]]).to_pylist():
            phases.setdefault(row["golem_id"], []).append(Phase(kind, row["event_id"], row[ATTRIBUTE_OF[kind]]))
    return phases


def record_phases(context: DerivationContext, *, now: datetime) -> list[LifeEvent]:
    """Record each phase whose inputs are complete. Return the recorded events, by phase and golem.

    now is the recording time; no content depends on it.
    """
    recorded: list[LifeEvent] = []
    counts: dict[str, _Counts] = {}
    for phase in (_accept, _settle, partial(_reflect, counts=counts), partial(_bequeath, counts=counts)):
        events = phase(context)
        if events and context.log.record(events, now):
            recorded += events
    return recorded


class _Counts(NamedTuple):
    """A dead golem's active entries, the claims in them, and the ids it may push to its clade, by confidence."""

    entry_count: int
    claim_count: int
    pushable_ids: list[str]


def _add_counts(context: DerivationContext, due: _Due, counts: dict[str, _Counts]) -> None:
    """Count the entries of due golems that are not counted yet, batch by batch; two phases use the counts."""
    for golems in golem_batches(context, [g for g in due.golems if g not in counts]):
        entries = context.projections.replaceable("grimoire").read(only=golems)
        entries = entries.filter(pc.equal(entries["status"], "active"))
        claims = with_claims(entries).select(["golem_id", "proposition_id"])
        distinct = claims.group_by(claims.column_names).aggregate([])  # one vote per claim (anonymous_votes.py)
        claim_counts, entry_counts = counts_by_golem(distinct), counts_by_golem(entries)
        pushable = _pushable_ids(entries, due.elders(golems), context.policy)
        for g in golems:
            counts[g] = _Counts(entry_counts.get(g, 0), claim_counts.get(g, 0), pushable.get(g, []))


_PUSHABLE = """
    select golem_id, list(entry_id order by confidence_ppm desc, entry_id) as entry_ids
    from crossing join entries using (golem_id, entry_id) where crosses group by golem_id
"""


def _pushable_ids(entries: pa.Table, elders: set[str], policy: Policy) -> dict[str, list[str]]:
    """Golem -> ids of the entries that cross to the clade, by descending confidence."""
    crossing = crossings_of(entries, policy, elders).select(["golem_id", "entry_id", "crosses"])
    ids = query_tables(_PUSHABLE, crossing=crossing, entries=entries.select(["golem_id", "entry_id", "confidence_ppm"]))
    return values_by_golem(ids, "entry_ids")


class _Due:
    """The golems whose next phase is `phase` (0 to 3), with births, deaths and reserve spent by earlier phases."""

    def __init__(self, context: DerivationContext, phase: int) -> None:
        self._policy = context.policy
        deaths, recorded = deaths_with_ticks(context), context.life(PHASES_OF_DYING[phase])
        due = rows_of_other_golems(deaths, recorded["golem_id"].to_pylist())
        if phase:
            due = rows_of_golems(due, context.life(PHASES_OF_DYING[phase - 1])["golem_id"].to_pylist())
        self.golems: list[str] = due["golem_id"].to_pylist()
        self.born = {g: born for g, (born, _) in births_of(context, self.golems).items()}
        self.died = {g: died for g, (died, _) in deaths_of(context, self.golems).items()}
        self._at, self._follows = values_by_golem(due, "at"), values_by_golem(due, "event_id")
        self._spent = dict.fromkeys(self.golems, 0)
        if phase:
            last = {g: phases[-1] for g, phases in phases_of(context, self.golems).items()}
            self._follows = {g: last[g].event_id for g in self.golems}
            self._spent = {g: last[g].payload["spent_micros"] for g in self.golems}

    def restrict(self, golems: Collection[str]) -> None:
        """Drop the due golems that are not among these."""
        self.golems = [g for g in self.golems if g in golems]

    def reserves(self) -> Int64Array:
        """Return the death reserve of each due golem at its birth, in micro-dollars."""
        return np.array([self.born[g].reserve_micros for g in self.golems], np.int64)

    def unspent(self) -> Int64Array:
        """Return the rest of each reserve after the earlier phases, in micro-dollars."""
        return self.reserves() - np.array([self._spent[g] for g in self.golems], np.int64)

    def elders(self, golems: Sequence[str]) -> set[str]:
        """Return those of these golems that died near the end of their lifespan."""
        age = np.array([self.died[g].tick for g in golems], np.int64)
        lifespan = np.array([self.born[g].lifespan_ticks for g in golems], np.int64)
        is_old = is_elder(age, lifespan, self._policy.bridge).tolist()
        return {g for g, old in zip(golems, is_old, strict=True) if old}

    def common_fields(self, golem_id: str, cost: int) -> dict[str, Any]:
        """Return the fields that all four phases share."""
        return {
            "follows": self._follows[golem_id],
            "tick": self.died[golem_id].tick,
            "reserve_micros": self.born[golem_id].reserve_micros,
            "cost_micros": cost,
            "spent_micros": self._spent[golem_id] + cost,
        }

    def event(self, golem_id: str, payload: Dying) -> LifeEvent:
        """Return the phase as an event at the moment of the death."""
        return life_event(golem_id, self._at[golem_id], payload)


def _accept(context: DerivationContext) -> list[LifeEvent]:
    """Phase 0: record the cause, and whether the reserve pays for a full reflection."""
    due = _Due(context, 0)
    full = bears_reflection(due.reserves(), context.policy.dying)
    means: list[Literal["full", "cheapest"]] = ["full" if pays else "cheapest" for pays in full.tolist()]
    return [
        due.event(g, Accepted(**due.common_fields(g, 0), cause=due.died[g].cause, means=way))
        for g, way in zip(due.golems, means, strict=True)
    ]


def _settle(context: DerivationContext) -> list[LifeEvent]:
    """Phase I: value the positions of the golem's last record."""
    due = _Due(context, 1)
    records = {row["golem_id"]: row for row in last_records(context, _LAST_SEEN, due.golems).to_pylist()}
    events = []
    for golem_id in due.golems:
        died, born, last = due.died[golem_id], due.born[golem_id], records.get(golem_id)
        positions = [] if last is None else last["observation.positions"]
        sealed = last is not None and last["sealed"] is not None
        worth = sum(p["value_micros"] + p["fees_owed_micros"] for p in positions)
        payload = Settled(
            **due.common_fields(golem_id, 0),
            position_count=None if sealed else len(positions),
            position_value_micros=None if sealed else worth,
            idle_micros=born.capital_micros if last is None else last["observation.idle_micros"],
            capital_micros=died.capital_micros,
            credits_micros=died.credits_micros,
        )
        events.append(due.event(golem_id, payload))
    return events


def _reflect(context: DerivationContext, counts: dict[str, _Counts]) -> list[LifeEvent]:
    """Phase II: record the derived testament; its cost grows with the number of entries and its length."""
    due, policy = _Due(context, 2), context.policy
    if not due.golems:
        return []
    rows = context.projections.growing("testaments").read(golems=due.golems).to_pylist()
    testaments = {row["golem_id"]: row for row in rows}
    due.restrict(testaments)
    _add_counts(context, due, counts)
    pages = {g: str(testaments[g]["markdown"]).encode() for g in due.golems}
    entry_shares = np.array([counts[g].entry_count for g in due.golems]) / policy.inheritance.budget
    length_shares = np.array([len(pages[g]) for g in due.golems]) / policy.inheritance.testament_bytes_max
    costs = reflection_costs(due.unspent(), entry_shares, length_shares, policy.dying)
    events = []
    for g, reflection, compression in zip(due.golems, *(cost.tolist() for cost in costs), strict=True):
        payload = Reflected(
            **due.common_fields(g, reflection + compression),
            testament_hash=hashlib.sha256(pages[g]).hexdigest(),
            statement_count=sum(len(testaments[g][name]) for name in CATEGORIES),
            entry_count=counts[g].entry_count,
            reflection_micros=reflection,
            compression_micros=compression,
        )
        events.append(due.event(g, payload))
    return events


def _bequeath(context: DerivationContext, counts: dict[str, _Counts]) -> list[LifeEvent]:
    """Phase III: record the judged bundle, the entries pushed to the clade and the notice to the owner.

    A bundle that passed is recorded after its publication.
    """
    due, policy = _Due(context, 3), context.policy
    if not due.golems:
        return []
    rows = context.projections.growing("candidates").read(golems=due.golems).to_pylist()
    judged = {j["bundle_hash"]: j["passed"] for j in context.life("BundleJudged", due.golems)["judged"].to_pylist()}
    published = {p["bundle_hash"] for p in context.life("BundlePublished", due.golems)["published"].to_pylist()}
    bundles = {r["golem_id"]: r for r in rows if r["bundle_hash"] in judged}
    due.restrict({g for g, r in bundles.items() if not judged[r["bundle_hash"]] or r["bundle_hash"] in published})
    _add_counts(context, due, counts)
    confidence_min, pushed = _pushes(due, counts, policy)
    budget = policy.inheritance.budget
    uploaded = np.array([bundles[g]["entry_count"] for g in due.golems]) / budget
    indexed = np.array([len(pushed[g]) for g in due.golems]) / budget
    costs = legacy_costs(due.unspent(), uploaded, indexed, policy.dying)
    events = []
    for g, upload, indexing in zip(due.golems, *(cost.tolist() for cost in costs), strict=True):
        content = {
            **due.common_fields(g, upload + indexing),
            "bundle_hash": bundles[g]["bundle_hash"],
            "published": bundles[g]["bundle_hash"] in published,
            "entry_count": bundles[g]["entry_count"],
            "episode_count": bundles[g]["episode_count"],
            "vote_count": counts[g].claim_count,
            "push_confidence": confidence_min[g],
            "pushed_entry_ids": tuple(pushed[g]),
            "upload_micros": upload,
            "indexing_micros": indexing,
        }
        payload = Bequeathed(**content, notice=_notice(g, due.died[g], due.born[g], content))
        events.append(due.event(g, payload))
    return events


def _pushes(due: _Due, counts: Mapping[str, _Counts], policy: Policy) -> tuple[dict[str, float], dict[str, list[str]]]:
    """By golem: the minimum confidence of a pushed insight, and the pushed ids (a limited number for a cheap death)."""
    rules, elders = policy.bridge, due.elders(due.golems)
    confidence_min = {g: rules.legacy_confidence if g in elders else rules.insight_confidence for g in due.golems}
    full = bears_reflection(due.reserves(), policy.dying).tolist()
    limits = [None if pays else policy.dying.cheapest_push_count for pays in full]
    pushed = {g: counts[g].pushable_ids[:limit] for g, limit in zip(due.golems, limits, strict=True)}
    return confidence_min, pushed


def _notice(golem_id: str, died: Died, born: Born, left: dict[str, Any]) -> str:
    """The text of the owner's notice; it is stored in the event."""
    bundle = f"bundle {left['bundle_hash'][:12]}" + ("" if left["published"] else ", which was refused")
    return (
        f"{golem_id} (generation {born.generation}) died at tick {died.tick}: {_ENDS[died.cause]}. It leaves "
        f"{left['entry_count']} entries in {bundle}, {left['vote_count']} last votes and "
        f"{len(left['pushed_entry_ids'])} insights for its clade; dying cost ${left['spent_micros'] / 1e6:.2f} of the "
        f"${left['reserve_micros'] / 1e6:.2f} set aside."
    )
