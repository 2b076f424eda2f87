"""The two doors of shared memory: one writes an entry to its layers, one asks the layers.

A written entry goes to each layer that its golem opened and whose rule it meets. Payment ends the time for which it is
kept, and never changes its decay. A call that reaches a shared layer is an event with its price; a call that would
exceed a budget of the golem is not made. A golem whose layers are off leaves no event.
Source: MEM ("Single endpoint model", "The bridge", "Opt-in model"; x402); KAT-13; MEM-15; ADR 0116.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import pyarrow.compute as pc

from bardo_pipeline.derivation.clade.share_entries import parcel_of_entry
from bardo_pipeline.derivation.clade.styx_budget import able_to_pay
from bardo_pipeline.derivation.clade.styx_layers import LAYERS, Found, StyxQuestion, best
from bardo_pipeline.derivation.configuration import in_force_of
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.record_overrides import Grimoire, find_entry, grimoire_of
from bardo_pipeline.derivation.incremental.record_queries import require_born
from bardo_pipeline.derivation.katabasis.derive_votes import derive_votes
from bardo_pipeline.derivation.legacy.death_queries import owners_of
from bardo_pipeline.derivation.memory.ask import golem_moment
from bardo_pipeline.errors import QueryError
from bardo_pipeline.events.life.bundle_events import EntriesShared
from bardo_pipeline.events.life.clade_events import EntryKind, StyxCalled, StyxLayer, WrittenEntry
from bardo_pipeline.events.life.events import life_event
from bardo_pipeline.grimoire.confidence import ppm
from bardo_pipeline.inheritance.canonical_json import canonical
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.embedder_interface import check_question
from bardo_pipeline.storage.keys.clade_secrets import clade_secret_path

_PAID: tuple[StyxLayer, ...] = ("vault", "clade")
"""Layers to which writing has a price; publishing in Lethe is free (MEM)."""

_ASKED_FOR_PAY: tuple[StyxLayer, ...] = ("clade", "lethe")
"""Layers of which a question has a price."""

OVER_BUDGET = "the golem's budget of a tick or month would be exceeded"


class Reached(NamedTuple):
    """Whether a call reached a layer. reason: why not; None if it did."""

    layer: StyxLayer
    is_reached: bool
    reason: str | None


class WrittenWords(NamedTuple):
    """An entry in the words of a golem's runtime. confidence: of the golem, in [0, 1]."""

    kind: EntryKind
    text: str
    confidence: float


class Receipt(NamedTuple):
    """The result of a call. cost_micros: price. is_new: False if the same call was paid before."""

    layers: tuple[Reached, ...]
    cost_micros: int
    is_new: bool


def write_entry(
    context: DerivationContext, golem_id: str, entry: str | WrittenWords, *, kept_days: int, now: datetime
) -> Receipt:
    """Write an entry of a living golem to each of its layers whose rule it meets.

    A repeated call whose time is not over changes nothing and costs nothing. Raises UnknownGolemError, and QueryError
    for a dead golem or an unknown entry.

    Parameters
    ----------
    entry : id of an active entry of its grimoire, or a unique prefix; or words
    kept_days : days for which the golem pays
    """
    require_born(context, golem_id)
    context = context.whole
    where = golem_moment(context, golem_id)
    if where.died_at_tick is not None:
        raise QueryError(f"golem {golem_id} died at tick {where.died_at_tick}: write for one that lives")
    with context.home.lock("styx"):
        grimoire = grimoire_of(context, golem_id) if isinstance(entry, str) else None
        written, content_hash = _written(grimoire, entry, kept_days)
        at, calls = where.at, _calls(context, golem_id)
        for call in calls:
            is_kept = call["observed_at"] + timedelta(days=kept_days) > at
            if call["written"] is not None and call["content_hash"] == content_hash and is_kept:
                taken = call["layers"]
                reached = tuple(Reached(n, n in taken, None if n in taken else "not taken before") for n in LAYERS)
                return Receipt(reached, 0, is_new=False)
        refusals = _shut(context, golem_id)
        parcel = _parcel(context, golem_id, grimoire, written, refusals)
        if refusals["lethe"] is None:
            refusals["lethe"] = _unvoted(context, golem_id, written)
        price = context.policy.clade.write_day_micros * kept_days
        cost = price * any(refusals[layer] is None for layer in _PAID)
        if cost and not able_to_pay(context, [golem_id], cost):
            over = {layer: refusals[layer] or OVER_BUDGET for layer in _PAID}
            refusals, cost = {**refusals, **over}, 0
        taken_by = tuple(layer for layer in LAYERS if refusals[layer] is None)
        if taken_by:
            payload = StyxCalled(
                number=len(calls) + 1, layers=taken_by, cost_micros=cost, content_hash=content_hash, written=written
            )
            events = [life_event(golem_id, at, payload)]
            if parcel is not None and "clade" in taken_by:
                events.append(life_event(golem_id, at, parcel))
            context.log.record(events, now)
        return Receipt(tuple(Reached(n, refusals[n] is None, refusals[n]) for n in LAYERS), cost, is_new=True)


def _written(grimoire: Grimoire | None, entry: str | WrittenWords, kept_days: int) -> tuple[WrittenEntry, str]:
    """Return the content of a call's event, and the hash by which its repetition is known."""
    if isinstance(entry, WrittenWords):
        facts = {"kind": entry.kind, "text": entry.text, "entry_id": None, "confidence_ppm": ppm(entry.confidence)}
        stated = facts
    else:
        assert grimoire is not None, "an id names an entry of a grimoire"
        row = find_entry(grimoire, entry, active=True)
        stated = {name: row[name] for name in ("kind", "text", "entry_id", "confidence_ppm")}  # as last reinforced
        facts = stated | {"confidence_ppm": row["confidence_now_ppm"]}
    identity = canonical(stated | {"kept_days": kept_days})
    return WrittenEntry.model_validate(facts | {"kept_days": kept_days}), hashlib.sha256(identity).hexdigest()


def _calls(context: DerivationContext, golem_id: str) -> list[dict[str, Any]]:
    """Return the calls of a golem on record."""
    return context.life_fields("StyxCalled", "content_hash", "layers", "written", golems=[golem_id]).to_pylist()


def _shut(context: DerivationContext, golem_id: str) -> dict[StyxLayer, str | None]:
    """Return why each layer is shut for a golem, None for an open one."""
    styx = in_force_of(context, [golem_id])[golem_id].configuration.styx
    is_open = {"vault": styx.vault_enabled, "clade": styx.clade_enabled, "lethe": styx.lethe_enabled}
    return {layer: None if is_open[layer] else f"styx.{layer}_enabled is off" for layer in LAYERS}


def _parcel(
    context: DerivationContext,
    golem_id: str,
    grimoire: Grimoire | None,
    written: WrittenEntry,
    refusals: dict[StyxLayer, str | None],
) -> EntriesShared | None:
    """Apply the rules of the vault and the clade; return the event of the parcel of an entry of the grimoire."""
    owner_id = owners_of(context)[golem_id]
    if not clade_secret_path(context.home, owner_id).exists():
        missing = f"the home has no secret of the clade: run `bardo clade key {owner_id}`"
        for layer in LAYERS:
            refusals[layer] = refusals[layer] or missing
    if refusals["clade"] is not None:
        return None
    if written.entry_id is None or grimoire is None:
        refusals["clade"] = _words_refusal(written, context.policy)
        return None
    parcel = parcel_of_entry(context, grimoire, written.entry_id, written.kept_days)
    if isinstance(parcel, str):
        refusals["clade"] = parcel
        return None
    return parcel


def _words_refusal(written: WrittenEntry, policy: Policy) -> str | None:
    """Return why words do not cross to siblings: rules need outcomes, and other kinds but warnings a confidence."""
    if written.kind in ("heuristic", "causal_link"):
        return f"a {written.kind.replace('_', ' ')} needs outcomes of the golem: name an entry of its grimoire"
    least = policy.bridge.insight_confidence
    if written.kind != "warning" and written.confidence_ppm < ppm(least):
        return f"confidence is below {least:.2f}, which a shared {written.kind.replace('_', ' ')} needs"
    return None


def _unvoted(context: DerivationContext, golem_id: str, written: WrittenEntry) -> str | None:
    """Return why an entry is no vote on a public proposition, which its golem casts at the close of a cycle."""
    if written.entry_id is None:
        return "the board carries no words: name an entry of the golem's grimoire"
    derive_votes(context)
    causes = context.projections.growing("vote_causes").read(["golem_id", "entry_id"], golems=[golem_id])
    if pc.any(pc.equal(causes["entry_id"], written.entry_id)).as_py():
        return None
    return f"no vote states it: a vote needs a confidence of {context.policy.katabasis.vote_confidence_min:.2f}"


class OpenQuery(NamedTuple):
    """A question whose layers are known and paid for. layers: that are asked. archives: whether the vault is open."""

    question: StyxQuestion
    receipt: Receipt
    archives: bool

    @property
    def layers(self) -> tuple[StyxLayer, ...]:
        """The layers to ask."""
        return tuple(reached.layer for reached in self.receipt.layers if reached.is_reached)

    def document(self, found: list[Found]) -> dict[str, Any]:
        """Return the answer of the read door from the results of the layers."""
        results = best(found, self.question.result_count)
        ranked = [{"rank": rank, **row._asdict()} for rank, row in enumerate(results, start=1)]
        return {"golem_id": self.question.where.golem_id, **receipt_document(self.receipt), "results": ranked}


def open_query(
    context: DerivationContext, golem_id: str, words: str, *, count: int, confidence_min: float, now: datetime,
    layers: Collection[StyxLayer] = LAYERS,
) -> OpenQuery:  # fmt: skip
    """Choose the layers that a golem's question reaches, and record its price.

    A golem's own entries are always asked and cost nothing. Raises UnknownGolemError, and QueryError for an empty or
    too long question.

    Parameters
    ----------
    layers : to ask at most
    """
    require_born(context, golem_id)
    words = check_question(words, context.policy.retrieval.question_bytes_max)
    context = context.whole
    where = golem_moment(context, golem_id)
    question = StyxQuestion(where, owners_of(context)[golem_id], words, count, confidence_min)
    with context.home.lock("styx"):
        shut = _shut(context, golem_id)
        archives = shut["vault"] is None
        refusals: dict[StyxLayer, str | None] = {**shut, "vault": None}
        for layer in LAYERS:
            if layer not in layers:
                refusals[layer] = "the question leaves it out"
            elif layer != "vault" and where.died_at_tick is not None:
                refusals[layer] = refusals[layer] or "the golem is dead"
        cost = _price(refusals, context.policy)
        if cost and not able_to_pay(context, [golem_id], cost):
            over = {layer: refusals[layer] or OVER_BUDGET for layer in _ASKED_FOR_PAY}
            refusals, cost = {**refusals, **over}, 0
        reached = tuple(Reached(layer, refusals[layer] is None, refusals[layer]) for layer in LAYERS)
        if cost:
            payload = StyxCalled(
                number=len(_calls(context, golem_id)) + 1, layers=tuple(r.layer for r in reached if r.is_reached),
                cost_micros=cost, content_hash=hashlib.sha256(words.encode()).hexdigest(), written=None,
            )  # fmt: skip
            context.log.record([life_event(golem_id, where.at, payload)], now)
    return OpenQuery(question, Receipt(reached, cost, is_new=True), archives)


def _price(refusals: dict[StyxLayer, str | None], policy: Policy) -> int:
    """Return the price of a question: that of one query if it asks siblings or strangers."""
    is_shared = any(refusals[layer] is None for layer in _ASKED_FOR_PAY)
    return policy.clade.query_micros * is_shared


def receipt_document(receipt: Receipt) -> dict[str, Any]:
    """Return a receipt as JSON: the layers, the price, and whether the call is new."""
    layers = [reached._asdict() for reached in receipt.layers]
    return {"layers": layers, "cost_micros": receipt.cost_micros, "is_new": receipt.is_new}
