"""SiblingNotes: what the golems of a run hear from their clade between chunks.

A scar becomes a prior, as one of an ancestor does. Scars, warnings and a market that turned volatile are threats, if
they concern the golem's own market. A golem hears a note in the first chunk that begins after its receipt, so a
repeated run gives the same records. Source: INH S6.4; KAT (Retrieval in Heartbeat); KAT-3, KAT-9.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.clock import micros_of
from bardo_pipeline.derivation.clade.clade_notes import HeardNote, clade_golems, notes_received
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.legacy.bundle_store import load_bundle
from bardo_pipeline.events.record.arrow_columns import contiguous
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.heartbeat.attention_items import hear_residuals
from bardo_pipeline.heartbeat.threats import hear_threat
from bardo_pipeline.inheritance.bundle_files import Bundle
from bardo_pipeline.inheritance.clade_note import VOLATILE, Residuals, Scar, Shift, failure_row
from bardo_pipeline.inheritance.clade_parcel import is_urgent
from bardo_pipeline.katabasis.scar_rules import FAILURE_SCHEMA
from bardo_pipeline.market.market import Market
from bardo_pipeline.runtime.in_memory_fleet import DEATH_TICKS, Cohort


class _Urgent(NamedTuple):
    """A delivered parcel of warnings. at: event time of its receipt. intensity: of its strongest warning, [0, 1]."""

    golem_id: str
    at: datetime
    content_hash: str
    sent_us: int
    intensity: float


class SiblingNotes:
    """The notes and urgent parcels of a home's clades, for the golems of one run.

    Parameters
    ----------
    market : of the run; threats to other markets do not reach its golems
    """

    def __init__(self, context: DerivationContext, market: Market) -> None:
        self._context, self._market = context, market
        self._version = -1
        self._notes: dict[str, HeardNote] = {}
        self._parcels: dict[str, tuple[int, float | None]] = {}
        self._urgent: list[_Urgent] = []
        self._members: dict[str, dict[str, bool]] = {}
        self._heard: set[tuple[str, str]] = set()

    def forget(self, golem_ids: set[str]) -> None:
        """Let golems hear everything again, for example after a retraction."""
        self._heard = {pair for pair in self._heard if pair[0] not in golem_ids}

    def tell(self, cohort: Cohort, now: datetime) -> None:
        """Let the golems of a fleet hear what was received before a moment and is not older than `kept_days`."""
        self._read()
        if not self._notes and not self._urgent:
            return
        failures = [FAILURE_SCHEMA.empty_table()]
        for i, golem_id in enumerate(cohort.fleet.golem_ids):
            new = list(self._new_notes(golem_id, cohort.fleet.births[i].owner_id, now))
            held = set(cohort.failures.held_by(golem_id)["scar_id"].to_pylist()) if new else set()
            for note in new:
                failures += self._hear(cohort, i, golem_id, note, held)
            self._hear_urgent(cohort, i, golem_id, now)
        rows = pa.concat_tables(failures)
        if rows.num_rows:
            cohort.failures.inherit(rows)

    def _read(self) -> None:
        """Read new notes and urgent parcels if there are new life events."""
        context = self._context
        if context.log.life_version == self._version:
            return
        self._version = context.log.life_version
        self._notes |= {heard.content_hash: heard for heard in notes_received(context, known=self._notes)}
        owners = {heard.note.owner_id for heard in self._notes.values()}
        self._members = {owner: clade_golems(context, owner) for owner in owners}
        self._urgent = list(self._urgent_parcels())

    def _new_notes(self, golem_id: str, owner_id: str, now: datetime) -> Iterator[HeardNote]:
        kept = self._context.policy.clade.kept_days
        for heard in self._notes.values():
            pair, note = (golem_id, heard.content_hash), heard.note
            if (
                pair in self._heard or note.owner_id != owner_id or note.from_golem_id == golem_id
                or not max(heard.at, note.at) < now or (now - note.at).days >= kept
                or golem_id not in self._members[owner_id]
            ):  # fmt: skip
                continue
            self._heard.add(pair)
            yield heard

    def _hear(self, cohort: Cohort, i: int, golem_id: str, heard: HeardNote, held: set[str]) -> list[pa.Table]:
        """Let golem i hear a note; return the failure that it holds from now on."""
        note, policy = heard.note, self._context.policy
        at_us = micros_of(note.at)
        if isinstance(note.facts, Shift):
            if note.facts.regime == VOLATILE and self._concerns(note.facts.model_dump()):
                hear_threat(cohort.fleet, i, policy.clade.shift_threat, at_us, policy)
            return []
        if isinstance(note.facts, Residuals) and self._concerns(note.facts.model_dump()):
            hear_residuals(cohort.fleet, i, note.facts.items, policy)
        if not isinstance(note.facts, Scar):
            return []
        failure = failure_row(note.facts)
        row = failure.to_pylist()[0]
        if note.facts.death is not None:
            end = pa.Table.from_pylist([note.facts.death.model_dump() | {"golem_id": row["golem_id"]}], DEATH_TICKS)
            cohort.ends = pa.concat_tables([cohort.ends, end]).group_by(DEATH_TICKS.names).aggregate([])
        if self._concerns(row):
            intensity = min(row["confidence_ppm"] / PPM, policy.reception.import_confidence)
            hear_threat(cohort.fleet, i, intensity, at_us, policy)
        if row["scar_id"] in held:
            return []
        held.add(row["scar_id"])
        place = FAILURE_SCHEMA.get_field_index("owner_id")
        return [failure.set_column(place, FAILURE_SCHEMA.field(place), pa.array([golem_id]))]

    def _hear_urgent(self, cohort: Cohort, i: int, golem_id: str, now: datetime) -> None:
        for parcel in self._urgent:
            pair = (golem_id, parcel.content_hash)
            if parcel.golem_id == golem_id and parcel.at < now and pair not in self._heard:
                self._heard.add(pair)
                hear_threat(cohort.fleet, i, parcel.intensity, parcel.sent_us, self._context.policy)

    def _urgent_parcels(self) -> Iterator[_Urgent]:
        """Yield the delivered parcels of warnings about the market; each parcel is read once."""
        received = self._context.life_fields("KnowledgeReceived", "source", "content_hash")
        for row in received.filter(pc.equal(received["source"], "clade")).to_pylist():
            content_hash = row["content_hash"]
            if content_hash not in self._parcels:
                bundle = load_bundle(self._context.home, content_hash)
                sent = datetime.fromisoformat(bundle.manifest["died_at"])
                self._parcels[content_hash] = micros_of(sent), self._intensity(bundle)
            sent_us, intensity = self._parcels[content_hash]
            if intensity is not None:
                yield _Urgent(row["golem_id"], row["observed_at"], content_hash, sent_us, intensity)

    def _intensity(self, bundle: Bundle) -> float | None:
        """Return the trust in a parcel's strongest warning about the market, [0, 1]; None without one.

        A warning that own outcomes have not confirmed counts no more here than as an entry.
        """
        if not is_urgent(bundle):
            return None
        entries, market = bundle.entries(), self._market
        here = [pc.equal(contiguous(entries[name]), getattr(market, name)) for name in ("chain", "protocol", "pair")]
        confidence = pc.max(entries.filter(pc.and_(pc.and_(here[0], here[1]), here[2]))["confidence_ppm"]).as_py()
        limit = self._context.policy.reception.import_confidence
        return None if confidence is None else min(confidence / PPM, limit)

    def _concerns(self, place: dict[str, object]) -> bool:
        """Whether a threat at this chain, protocol and pair is one to the run's market."""
        return all(place[name] == getattr(self._market, name) for name in ("chain", "protocol", "pair"))
