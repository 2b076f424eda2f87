"""Searches one layer of shared memory for a golem: its own and its line's entries, its siblings', or the public's.

The score of a result depends on its text, the question and the golem's situation alone, so the results of all layers
merge by their scores. Grimoire entries are discounted by their layer, scars and propositions by KAT's modifiers.
Source: MEM ("Single endpoint model", "Knowledge weighting hierarchy"); KAT-13; canon 3, 4, 22, 23; ADR 0116.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.clock import micros_of
from bardo_pipeline.derivation.clade.clade_exchange import paid_days
from bardo_pipeline.derivation.clade.clade_notes import notes_received, told_of
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.dreams.derive_lessons import known_entries
from bardo_pipeline.derivation.incremental.received_posts import posts_received
from bardo_pipeline.derivation.legacy.bundle_store import load_bundle, published_bundles
from bardo_pipeline.derivation.memory.ask import GolemMoment, grimoire_of, text_vectors
from bardo_pipeline.events.life.clade_events import StyxLayer
from bardo_pipeline.events.record.model import NO_MARKET
from bardo_pipeline.grimoire.confidence import DAY_US, PPM, confidence_at, ppm
from bardo_pipeline.grimoire.entries import CATEGORIES, ENTRY_KINDS, ENTRY_SCHEMA
from bardo_pipeline.grimoire.entry_columns import filled_entries
from bardo_pipeline.inheritance.bundle_files import Bundle
from bardo_pipeline.inheritance.clade_note import Reflection, Scar, Shift, Snapshot, Told, text_of
from bardo_pipeline.inheritance.clade_parcel import is_parcel
from bardo_pipeline.katabasis.priors import modifiers
from bardo_pipeline.katabasis.public_consensus import public_consensus
from bardo_pipeline.katabasis.public_posts import Pheromone, Post, strongest
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.insight_votes import text_entries
from bardo_pipeline.retrieval.retrieve import Grimoire
from bardo_pipeline.retrieval.scoring import CLADE, VAULT
from bardo_pipeline.storage.home import Home

LAYERS: tuple[StyxLayer, ...] = get_args(StyxLayer)

_HOUR_US = DAY_US // 24
_BUNDLES_KEPT = 256
_RULE = re.compile(r"- \((\w+), (\d{1,3}) %\) (.+)")
"""A rule of a playbook's page: kind, confidence, text."""


class Found(NamedTuple):
    """A result of a layer.

    Parameters
    ----------
    score : by which results of all layers are ranked, in [0, 1]
    confidence : of the golem that states the text, decayed to the time of the asking golem, in [0, 1]
    trust : highest confidence that the asking golem may have before its own outcomes confirm the text
    golem_id : golem that states the text; None for the public
    entry_id : of the entry, scar, note or proposition
    is_contradicted : whether the votes on a proposition contradict each other
    at : time from which the confidence decays
    """

    layer: StyxLayer
    kind: str
    text: str
    score: float
    confidence: float
    trust: float
    golem_id: str | None
    entry_id: str
    is_contradicted: bool
    at: datetime


@dataclass(frozen=True)
class _Shelf:
    """Texts of one origin. base: highest trust in them, None for the golem's own."""

    grimoire: Grimoire
    base: float | None = None


class StyxQuestion(NamedTuple):
    """A question of a golem. result_count: wanted results. confidence_min: lowest confidence at their authors."""

    where: GolemMoment
    owner_id: str
    words: str
    result_count: int
    confidence_min: float = 0.0


def found_in(
    context: DerivationContext, layer: StyxLayer, question: StyxQuestion, *, archives: bool, now: datetime
) -> list[Found]:
    """Return the results of one layer, the best first.

    Parameters
    ----------
    archives : whether the vault's layer includes the golem's dead siblings and ancestors
    now : recording time of new vectors
    """
    context = context.whole
    (vector,) = context.embedder.embed([question.words])
    found: list[Found] = []
    for shelf in _SHELVES[layer](_Reader(context, question.where, question.owner_id, now), archives):
        grimoire = shelf.grimoire
        wanted = question.result_count if question.confidence_min <= 0 else max(len(grimoire), question.result_count)
        answer = grimoire.retrieve(vector, question.where.situation, wanted, may_skip=False)
        found += _found(layer, shelf, answer.hits, question.confidence_min, context.policy)
    return best(found, question.result_count)


def sibling_texts(context: DerivationContext, question: StyxQuestion, *, now: datetime) -> list[Grimoire]:
    """Return what the layer of the clade holds for a golem, ready for retrieval. now: recording time of new vectors."""
    reader = _Reader(context.whole, question.where, question.owner_id, now)
    return [shelf.grimoire for shelf in _clade(reader, archives=False)]


def best(found: Iterable[Found], count: int) -> list[Found]:
    """Merge results by score; a text that several golems state is one result, of the surest of them."""
    merged: dict[str, Found] = {}
    for one in sorted(found, key=lambda one: (-one.score, -one.confidence, LAYERS.index(one.layer), one.entry_id)):
        merged.setdefault(one.text, one)
    return list(merged.values())[:count]


def _found(layer: StyxLayer, shelf: _Shelf, hits: pa.Table, confidence_min: float, policy: Policy) -> Iterator[Found]:
    entries = shelf.grimoire.entries
    origins = entries.select(["golem_id", "entry_id", "generation", "anchor_at"])
    stated = {(row["golem_id"], row["entry_id"]): row for row in origins.to_pylist()}
    for hit in hits.to_pylist():
        if hit["confidence_ppm"] >= ppm(confidence_min):
            origin, confidence = stated[hit["golem_id"], hit["entry_id"]], hit["confidence_ppm"] / PPM
            limit = 1.0
            if shelf.base is not None:
                limit = shelf.base * policy.inheritance.attenuation ** max(origin["generation"] - 1, 0)
            yield Found(
                layer, hit["kind"], hit["text"], hit["score_ppm"] / PPM, confidence, min(confidence, limit),
                hit["golem_id"] or None, hit["entry_id"],
                hit["kind"] == PROPOSITION and hit["modifier"] == policy.retrieval.proposition_contradicted,
                origin["anchor_at"],
            )  # fmt: skip


PROPOSITION = "proposition"
"""Kind of a public belief; pheromones have the kinds `threat` and `opportunity`."""


class _Reader(NamedTuple):
    """The stores of a home from which a golem of an owner reads, at its moment."""

    context: DerivationContext
    where: GolemMoment
    owner_id: str
    now: datetime

    def grimoire(self, entries: pa.Table, layer: int, modifier: Sequence[float] | None = None) -> Grimoire:
        """Return entries ready for retrieval with the discount of a layer."""
        context = self.context
        vectors, text_of_entry = text_vectors(context, entries["text"], self.now)
        return Grimoire(
            entries, vectors, text_of_entry, context.policy, layer=np.full(entries.num_rows, layer),
            modifier=None if modifier is None else np.array(modifier, np.float64),
        )  # fmt: skip

    def decayed(self, confidence_ppm: int, at: datetime, half_life_us: int) -> int:
        """Return a confidence at the golem's moment."""
        values, anchor, half, floor = (
            np.array([n], np.int64) for n in (confidence_ppm, micros_of(at), half_life_us, 0)
        )
        return int(confidence_at(values, anchor, self.where.situation.at_us, half, floor)[0])


def _vault(reader: _Reader, archives: bool) -> Iterator[_Shelf]:
    """Yield the golem's own entries and words, and the entries that dead golems of its owner left."""
    context = reader.context
    own = grimoire_of(context, reader.where, now=reader.now)
    yield _Shelf(own)
    if not archives:
        return
    written = context.life_fields("StyxCalled", "layers", "written", golems=[reader.where.golem_id]).to_pylist()
    words = [
        _words(reader.where.golem_id, row["event_id"], row["observed_at"], told_of(row["written"]))
        for row in written
        if row["written"] is not None and row["written"]["entry_id"] is None and "vault" in row["layers"]
        and _is_kept(row["observed_at"], row["written"]["kept_days"], reader.where.at)
    ]  # fmt: skip
    yield _Shelf(reader.grimoire(text_entries(words), VAULT))
    dead = published_bundles(context, sorted(context.ownership().golems_of(reader.owner_id)))
    left = [
        filled_entries(_bundle(context.home, bundle_hash).entries(), golem_id=golem_id, status="active")
        for golem_id, bundle_hash in sorted(dead.items())
    ]
    entries = _unheld(left, own.entries, _withdrawn(context))
    yield _Shelf(reader.grimoire(entries, VAULT), context.policy.clade.archive_confidence)


def _clade(reader: _Reader, archives: bool) -> Iterator[_Shelf]:
    """Yield the entries of siblings' parcels and their words, then their scars."""
    context, policy, at = reader.context, reader.context.policy, reader.where.at
    base, own = policy.clade.query_confidence, reader.where.golem_id
    held = known_entries(context, [own])
    held = held.filter(pc.equal(held["status"], "active"))
    words, scars = _noted(reader)
    told = _unheld(_parcels(reader, at), held, _withdrawn(context))
    entries = pa.concat_tables([told, text_entries(words)])
    yield _Shelf(reader.grimoire(entries.filter(pc.not_equal(entries["golem_id"], own)), CLADE), base)
    yield _Shelf(reader.grimoire(text_entries(scars), VAULT, [policy.retrieval.scar_sibling] * len(scars)), base)


def _parcels(reader: _Reader, at: datetime) -> list[pa.Table]:
    """Return the entries of the parcels of an owner's clade that are kept, the newest parcel first."""
    context, tables = reader.context, []
    rows = context.life_fields("BundleImported", "bundle_hash", "from_golem_id", "owner_id").to_pylist()
    for row in sorted(rows, key=lambda row: (row["observed_at"], row["bundle_hash"]), reverse=True):
        if row["owner_id"] != reader.owner_id:
            continue
        days = paid_days(context.home, row["bundle_hash"]) or context.policy.clade.kept_days
        if _is_kept(row["observed_at"], days, at) and is_parcel(parcel := _bundle(context.home, row["bundle_hash"])):
            tables.append(filled_entries(parcel.entries(), golem_id=row["from_golem_id"], status="active"))
    return tables


@lru_cache(maxsize=_BUNDLES_KEPT)
def _bundle(home: Home, bundle_hash: str) -> Bundle:
    """Return a bundle, whose content its hash names; a later question reads and verifies no file again."""
    return load_bundle(home, bundle_hash)


def _noted(reader: _Reader) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the texts of siblings' notes, and their scars apart, as rows of `text_entries`."""
    rules, words, scars = reader.context.policy.clade, [], []
    snapshots: dict[str, tuple[int, list[dict[str, Any]]]] = {}
    for heard in notes_received(reader.context, reader.owner_id):
        note, facts, at = heard.note, heard.note.facts, heard.note.at
        golem_id, text_id = note.from_golem_id, heard.content_hash
        if golem_id == reader.where.golem_id:
            continue
        if isinstance(facts, Scar):
            days = reader.context.policy.katabasis.scar_half_life_days
            confidence = reader.decayed(facts.failure["confidence_ppm"], at, round(days * DAY_US))
            row = _text(golem_id, facts.failure["scar_id"], at, "warning", text_of(note), confidence)
            scars.append(row | {"is_bloodstain": facts.death is not None})
        elif isinstance(facts, Shift):
            half_life = round(rules.threat_half_life_hours * _HOUR_US)
            confidence = reader.decayed(ppm(rules.shift_threat), at, half_life)
            if confidence >= ppm(rules.threat_floor):
                words.append(_text(golem_id, text_id, at, "insight", text_of(note), confidence))
        elif isinstance(facts, Reflection):
            lines = (line.removeprefix("- ").strip() for line in facts.page.splitlines() if line.startswith("- "))
            trust = ppm(reader.context.policy.reception.import_confidence)
            words += [
                _text(golem_id, f"{text_id[:24]}-{n}", at, "insight", line, trust) for n, line in enumerate(lines)
            ]
        elif isinstance(facts, Snapshot) and facts.cycle > snapshots.get(golem_id, (0, []))[0]:
            rules_of_page = (_RULE.fullmatch(line) for line in facts.page.splitlines())
            stated = [
                _text(golem_id, f"{text_id[:24]}-{n}", at, found[1], found[3], int(found[2]) * PPM // 100) | _FADING
                for n, found in enumerate(rules_of_page)
                if found is not None and found[1] in ENTRY_KINDS
            ]
            snapshots[golem_id] = facts.cycle, stated
        elif isinstance(facts, Told) and _is_kept(at, facts.kept_days, reader.where.at):
            words.append(_words(golem_id, text_id, at, facts))
    return words + [row for _, rows in snapshots.values() for row in rows], scars


def _lethe(reader: _Reader, archives: bool) -> Iterator[_Shelf]:
    """Yield the consensus of strangers, and the pheromones of all markets, which the owner's golems received."""
    context, policy = reader.context, reader.context.policy
    received = posts_received(context, reader.owner_id)
    posts = {post.post_id: post for heard in received for post in heard.posts}
    counted = public_consensus(posts.values(), policy).to_pylist()
    half_life = round(policy.katabasis.scar_half_life_days * DAY_US)
    beliefs = [row for row in counted if row["quorum_met"]]
    origins = pa.array(["contradicted" if row["contradicted"] else "quorum" for row in beliefs], pa.string())
    rows = [
        _text("", row["proposition_id"], row["last_vote_at"], PROPOSITION, row["claim"],
              reader.decayed(row["confidence_ppm"], row["last_vote_at"], half_life))
        for row in beliefs
    ]  # fmt: skip
    factors = modifiers(origins, policy.retrieval).tolist() if rows else []
    smelled = list(_pheromones(reader, posts.values(), [heard.at for heard in received]))
    entries, factors = text_entries(rows + smelled), factors + [1.0] * len(smelled)
    yield _Shelf(reader.grimoire(entries, VAULT, factors), policy.clade.lethe_confidence)


def _pheromones(reader: _Reader, posts: Iterable[Post], heard_at: Iterable[datetime]) -> Iterator[dict[str, Any]]:
    """Yield the pheromones of each market that have not faded."""
    posts, policy = list(posts), reader.context.policy
    now = max((reader.where.at, *heard_at))
    places: dict[tuple[Literal["threat", "opportunity"], tuple[str, str, str]], datetime] = {}
    for facts in (post.facts for post in posts):
        if isinstance(facts, Pheromone):
            place = facts.sort, (facts.chain, facts.protocol, facts.pair)
            places[place] = max(facts.hour, places.get(place, facts.hour))
    for (sort, market), hour in sorted(places.items()):
        intensity = strongest(posts, sort, market, now, policy)
        if intensity >= policy.clade.threat_floor:
            chain, protocol, pair = market
            text = f"{sort} at {pair} of {protocol} on {chain}"
            yield _text("", f"{sort}/{'/'.join(market)}", hour, sort, text, ppm(intensity))


_SHELVES: dict[StyxLayer, Callable[[_Reader, bool], Iterator[_Shelf]]] = {
    "vault": _vault, "clade": _clade, "lethe": _lethe,
}  # fmt: skip


def _text(golem_id: str, text_id: str, at: datetime, kind: str, text: str, confidence_ppm: int) -> dict[str, Any]:
    """Return a text as a row of `text_entries` whose confidence is that of now."""
    return {
        "golem_id": golem_id, "entry_id": text_id, "structure": text_id, "kind": kind, "text": text,
        "category": "general", "domain": CATEGORIES["general"], "chain": NO_MARKET, "pair": NO_MARKET,
        "provenance": "import", "origin_golem_id": golem_id,
        "confidence_ppm": confidence_ppm, "confidence_origin_ppm": confidence_ppm,
        "anchor_at": at, "created_at": at, "validated_at": at,
    }  # fmt: skip


_FADING = {"decay_class": "tactical"}
"""Decay of entries in words and of a playbook's rules, whatever was paid for them (KAT-13)."""


def _words(golem_id: str, text_id: str, at: datetime, told: Told) -> dict[str, Any]:
    """Return an entry in words as a row of `text_entries`."""
    return _text(golem_id, text_id, at, told.kind, told.text, told.confidence_ppm) | _FADING


def _withdrawn(context: DerivationContext) -> set[str]:
    """Return the ids of entries that were withdrawn from a golem of the home, because their evidence was excluded."""
    events = context.life_fields("KnowledgeWithdrawn", "entry_ids").to_pylist()
    return {entry_id for row in events for entry_id in row["entry_ids"]}


def _unheld(tables: Sequence[pa.Table], own: pa.Table, withdrawn: set[str]) -> pa.Table:
    """Return the entries of tables that a golem does not hold and that are not withdrawn; of copies the first."""
    left_out, kept = withdrawn | set(own["entry_id"].to_pylist()), [ENTRY_SCHEMA.empty_table()]
    for table in tables:
        is_new = [entry_id not in left_out for entry_id in table["entry_id"].to_pylist()]
        left_out.update(table["entry_id"].to_pylist())
        kept.append(table.filter(pa.array(is_new, pa.bool_())))
    return pa.concat_tables(kept).combine_chunks()


def _is_kept(since: datetime, days: int, now: datetime) -> bool:
    return now < since + timedelta(days=days)
