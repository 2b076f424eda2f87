"""Dying: the four phases of Thanatopsis of every golem whose death is on record, as events, each as soon as it can be.

Acceptance and settlement need the log alone; reflection needs the testament, and legacy the verdict on the bundle.
What a phase says follows from the golem's life and from what was derived of it, so whoever records it records the same,
and of a phase the first on record stands. Source: MEM ("The death moment: Thanatopsis Protocol"), KAT, INH-2, INH-4.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.views.crossings import crossings_of, is_elder
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.golem_batches import golem_batches
from bardo_pipeline.derivation.incremental.record_queries import last_records
from bardo_pipeline.derivation.katabasis.vote_and_consensus import recorded_deaths
from bardo_pipeline.events.life.events import LifeEvent, life_event
from bardo_pipeline.events.life.thanatopsis_events import (
    PHASES_OF_DYING,
    Accepted,
    Bequeathed,
    Dying,
    Reflected,
    Settled,
)
from bardo_pipeline.grimoire.entry_columns import asked
from bardo_pipeline.inheritance.testament import CATEGORIES
from bardo_pipeline.katabasis.propositions import with_claims
from bardo_pipeline.mortality.death_reserve import bears_reflection, legacy_costs, reflection_costs
from bardo_pipeline.policy import Policy

PHASE_WORDS = dict(zip(PHASES_OF_DYING, ("acceptance", "settlement", "reflection", "legacy"), strict=True))
"""The canon's words for the kinds of their events."""

_ATTRIBUTES = ("accepted", "settled", "reflected", "bequeathed")
_ENDS = {
    "economic": "its credits ran out",
    "epistemic": "its predictions stopped holding",
    "stochastic": "its time was up",
    "silence": "it fell silent",
}
_LAST_SEEN = ("golem_id", "tick", "observation.positions", "observation.idle_micros", "sealed")


class Phase(NamedTuple):
    """A phase of dying on record: its kind, its event's id and what it says."""

    kind: str
    event_id: str
    said: dict[str, Any]


def phases_of(context: DerivationContext, golems: Collection[str] | None = None) -> dict[str, list[Phase]]:
    """The phases of dying on record, of all the dead or of these, by golem, in their order."""
    found: dict[str, list[Phase]] = {}
    for kind, attribute in zip(PHASES_OF_DYING, _ATTRIBUTES, strict=True):
        for row in context.life(kind, golems).select(["golem_id", "event_id", attribute]).to_pylist():
            found.setdefault(row["golem_id"], []).append(Phase(kind, row["event_id"], row[attribute]))
    return found


def record_phases(context: DerivationContext, *, now: datetime) -> list[LifeEvent]:
    """Record every phase of dying that is due and can be told. Returns what was recorded, by phase and golem.

    now: the moment of recording, which no content depends on.
    """
    told: list[LifeEvent] = []
    held = _Held(context)
    for tell in (_accept, _settle, partial(_reflect, held=held), partial(_bequeath, held=held)):
        events = tell(context)
        if events and context.log.record(events, now):
            told += events
    return told


class _Holding(NamedTuple):
    """What a golem held when it died: how many active entries, how many claims in them, and those that it may push to
    its clade, the surest first."""

    entry_count: int
    claim_count: int
    offered: list[str]


class _Held:
    """What golems held when they died, looked at once for both phases that ask, slice by slice."""

    def __init__(self, context: DerivationContext) -> None:
        self._context, self._known = context, dict[str, _Holding]()

    def by(self, due: _Due) -> dict[str, _Holding]:
        """Of the golems that are due."""
        for golems in golem_batches(self._context, [g for g in due.golems if g not in self._known]):
            entries = self._context.projections.renewed("grimoire").read(only=golems)
            entries = entries.filter(pc.equal(entries["status"], "active"))
            claims = with_claims(entries).select(["golem_id", "proposition_id"])
            claimed = _counted(claims.group_by(claims.column_names).aggregate([]))  # one vote each (anonymous_votes.py)
            held, offered = _counted(entries), _offers(entries, due.elders(golems), self._context.policy)
            self._known |= {g: _Holding(held.get(g, 0), claimed.get(g, 0), offered.get(g, [])) for g in golems}
        return self._known


_OFFERS = """
    select golem_id, list(entry_id order by confidence_ppm desc, entry_id) as offered
    from crossing join entries using (golem_id, entry_id) where crosses group by golem_id
"""


def _offers(entries: pa.Table, elders: set[str], policy: Policy) -> dict[str, list[str]]:
    """The entries that cross to the clade, by golem, the surest first."""
    crossing = crossings_of(entries, policy, elders).select(["golem_id", "entry_id", "crosses"])
    told = asked(_OFFERS, crossing=crossing, entries=entries.select(["golem_id", "entry_id", "confidence_ppm"]))
    return dict(zip(told["golem_id"].to_pylist(), told["offered"].to_pylist(), strict=True))


def _counted(rows: pa.Table) -> dict[str, int]:
    """How many rows there are of each golem."""
    counts = rows.group_by("golem_id", use_threads=False).aggregate([([], "count_all")])
    return dict(zip(counts["golem_id"].to_pylist(), counts["count_all"].to_pylist(), strict=True))


class _Due:
    """Golems whose next phase is this one: their deaths, births, and what the phases before left of the reserve."""

    def __init__(self, context: DerivationContext, phase: int) -> None:
        self._policy = context.policy
        deaths, here = recorded_deaths(context), context.life(PHASES_OF_DYING[phase])
        due = pc.invert(pc.is_in(deaths["golem_id"], value_set=here["golem_id"].combine_chunks()))
        if phase:
            before = context.life(PHASES_OF_DYING[phase - 1])
            due = pc.and_(due, pc.is_in(deaths["golem_id"], value_set=before["golem_id"].combine_chunks()))
        self.deaths = deaths.filter(due)
        self.golems: list[str] = self.deaths["golem_id"].to_pylist()
        passed = phases_of(context, self.golems)
        self.born = {row["golem_id"]: row["born"] for row in _first(context, "GolemBorn", "born", self.golems)}
        ends = {row["golem_id"]: row for row in _first(context, "DeathDeclared", "died", self.golems)}
        self.died = {g: row["died"] for g, row in ends.items()}
        self._at = {g: row["observed_at"] for g, row in ends.items()}
        self._follows = {g: passed[g][-1].event_id if phase else ends[g]["event_id"] for g in self.golems}
        self._spent = {g: passed[g][-1].said["spent_micros"] if phase else 0 for g in self.golems}

    def only(self, golems: Sequence[str]) -> None:
        """Go on with these alone."""
        self.deaths = self.deaths.filter(pc.is_in(self.deaths["golem_id"], value_set=pa.array(golems, pa.string())))
        self.golems = self.deaths["golem_id"].to_pylist()

    def reserves(self) -> np.ndarray:
        """What was set aside at birth, int64 [golems]."""
        return np.array([self.born[g]["reserve_micros"] for g in self.golems], np.int64)

    def left(self) -> np.ndarray:
        """What the phases so far left of it, int64 [golems]."""
        return self.reserves() - np.array([self._spent[g] for g in self.golems], np.int64)

    def elders(self, golems: Sequence[str]) -> set[str]:
        """Those of these golems that died near the end of their lifespan."""
        age = np.array([self.died[g]["tick"] for g in golems], np.int64)
        lifespan = np.array([self.born[g]["lifespan_ticks"] for g in golems], np.int64)
        old = is_elder(age, lifespan, self._policy.bridge).tolist()
        return {g for g, grown in zip(golems, old, strict=True) if grown}

    def says(self, golem_id: str, cost: int) -> dict[str, Any]:
        """What every phase says of itself."""
        return {
            "follows": self._follows[golem_id],
            "tick": self.died[golem_id]["tick"],
            "reserve_micros": self.born[golem_id]["reserve_micros"],
            "cost_micros": cost,
            "spent_micros": self._spent[golem_id] + cost,
        }

    def event(self, golem_id: str, payload: Dying) -> LifeEvent:
        """The phase as an event, at the moment of the death."""
        return life_event(golem_id, self._at[golem_id], payload)


def _first(context: DerivationContext, kind: str, attribute: str, golems: Sequence[str]) -> list[dict[str, Any]]:
    """Births or deaths of these golems; of two deaths that an older version let in, the earlier tick counts."""
    rows = context.life(kind, golems).select(["golem_id", "event_id", "observed_at", attribute]).to_pylist()
    return sorted(rows, key=lambda row: (-row[attribute].get("tick", 0), row["event_id"]))  # the last one counts


def _accept(context: DerivationContext) -> list[LifeEvent]:
    """Phase 0: the death is taken as it is, and the reserve is opened."""
    due = _Due(context, 0)
    full = bears_reflection(due.reserves(), context.policy.dying)
    return [
        due.event(g, Accepted(**due.says(g, 0), cause=due.died[g]["cause"], means=_means(bears)))
        for g, bears in zip(due.golems, full.tolist(), strict=True)
    ]


def _means(full: bool) -> Any:
    return "full" if full else "cheapest"


def _settle(context: DerivationContext) -> list[LifeEvent]:
    """Phase I: what it held is valued as it was seen last."""
    due = _Due(context, 1)
    seen = {row["golem_id"]: row for row in last_records(context, _LAST_SEEN, due.golems).to_pylist()}
    events = []
    for golem_id in due.golems:
        died, born, last = due.died[golem_id], due.born[golem_id], seen.get(golem_id)
        positions = [] if last is None else last["observation.positions"]
        sealed = last is not None and last["sealed"] is not None
        worth = sum(p["value_micros"] + p["fees_owed_micros"] for p in positions)
        payload = Settled(
            **due.says(golem_id, 0),
            position_count=None if sealed else len(positions),
            position_value_micros=None if sealed else worth,
            idle_micros=born["capital_micros"] if last is None else last["observation.idle_micros"],
            capital_micros=died["capital_micros"],
            credits_micros=died["credits_micros"],
        )
        events.append(due.event(golem_id, payload))
    return events


def _reflect(context: DerivationContext, held: _Held) -> list[LifeEvent]:
    """Phase II: the testament, as it was derived; it costs by what it looks over and how long it is."""
    due, policy = _Due(context, 2), context.policy
    if not due.golems:
        return []
    told = {t["golem_id"]: t for t in context.projections.growing("testaments").read(golems=due.golems).to_pylist()}
    due.only(sorted(told))
    known = {g: holding.entry_count for g, holding in held.by(due).items()}
    pages = {g: str(told[g]["markdown"]).encode() for g in due.golems}
    looked = np.array([known[g] for g in due.golems]) / policy.inheritance.budget
    written = np.array([len(pages[g]) for g in due.golems]) / policy.inheritance.testament_bytes_max
    costs = reflection_costs(due.left(), looked, written, policy.dying)
    events = []
    for i, g in enumerate(due.golems):
        reflection, compression = int(costs.reflection[i]), int(costs.compression[i])
        payload = Reflected(
            **due.says(g, reflection + compression),
            testament_hash=hashlib.sha256(pages[g]).hexdigest(),
            statement_count=sum(len(told[g][name]) for name in CATEGORIES),
            entry_count=known[g],
            reflection_micros=reflection,
            compression_micros=compression,
        )
        events.append(due.event(g, payload))
    return events


def _bequeath(context: DerivationContext, held: _Held) -> list[LifeEvent]:
    """Phase III: the bundle, the last words and what is pushed to the clade; and the notice to the owner."""
    due, policy = _Due(context, 3), context.policy
    if not due.golems:
        return []
    rows = context.projections.growing("candidates").read(golems=due.golems).to_pylist()
    judged = {j["bundle_hash"]: j["passed"] for j in context.life("BundleJudged", due.golems)["judged"].to_pylist()}
    published = context.life("BundlePublished", due.golems)["published"].to_pylist()
    out = {p["bundle_hash"] for p in published}
    left = {r["golem_id"]: r for r in rows if r["bundle_hash"] in judged}
    due.only(sorted(g for g, r in left.items() if not judged[r["bundle_hash"]] or r["bundle_hash"] in out))
    holding = held.by(due)
    needed, pushed = _pushes(due, holding, policy)
    budget = policy.inheritance.budget
    uploaded = np.array([left[g]["entry_count"] for g in due.golems]) / budget
    indexed = np.array([len(pushed[g]) for g in due.golems]) / budget
    costs = legacy_costs(due.left(), uploaded, indexed, policy.dying)
    events = []
    for i, g in enumerate(due.golems):
        upload, indexing = int(costs.upload[i]), int(costs.indexing[i])
        said = {
            **due.says(g, upload + indexing),
            "bundle_hash": left[g]["bundle_hash"],
            "published": left[g]["bundle_hash"] in out,
            "entry_count": left[g]["entry_count"],
            "episode_count": left[g]["episode_count"],
            "vote_count": holding[g].claim_count,
            "push_confidence": needed[g],
            "pushed_entry_ids": tuple(pushed[g]),
            "upload_micros": upload,
            "indexing_micros": indexing,
        }
        payload = Bequeathed(**said, notice=_notice(g, due.died[g], due.born[g], said))
        events.append(due.event(g, payload))
    return events


def _pushes(
    due: _Due, holding: Mapping[str, _Holding], policy: Policy
) -> tuple[dict[str, float], dict[str, list[str]]]:
    """What insights need to be pushed, and the entries that are, by golem. The cheapest death pushes a handful."""
    rules, elders = policy.bridge, due.elders(due.golems)
    needed = {g: rules.legacy_confidence if g in elders else rules.insight_confidence for g in due.golems}
    full = bears_reflection(due.reserves(), policy.dying).tolist()
    return needed, {g: holding[g].offered[: None if bears else policy.dying.cheapest_push_count]
                    for g, bears in zip(due.golems, full, strict=True)}  # fmt: skip


def _notice(golem_id: str, died: dict[str, Any], born: dict[str, Any], left: dict[str, Any]) -> str:
    """What the owner is told: no golem dies silently."""
    bundle = f"bundle {left['bundle_hash'][:12]}" + ("" if left["published"] else ", which was refused")
    return (
        f"{golem_id} (generation {born['generation']}) died at tick {died['tick']}: {_ENDS[died['cause']]}. It leaves "
        f"{left['entry_count']} entries in {bundle}, {left['vote_count']} last votes and "
        f"{len(left['pushed_entry_ids'])} insights for its clade; dying cost ${left['spent_micros'] / 1e6:.2f} of the "
        f"${left['reserve_micros'] / 1e6:.2f} set aside."
    )
