"""LyingGolem: a member of a clade that knows its secret and sends lies, for evaluations.

Before each exchange it sends what honest siblings could not: the opposite of each rule that the evidence of a sibling
supports, also of rules that no sibling is sure of yet, as rules of full confidence; a flood of warnings about
situations that no golem met; the news that the market turned volatile; and its first message again under other names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.state.grimoire_state import entry_id
from bardo_pipeline.curator.state.structures import Structure
from bardo_pipeline.derivation.clade.clade_exchange import Relay
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.record_overrides import grimoire_of
from bardo_pipeline.derivation.legacy.bundle_archives import pack_archive
from bardo_pipeline.events.custody.clade_secret import CladeSecret
from bardo_pipeline.events.life.events import Born
from bardo_pipeline.events.life.retractions import LeftOut
from bardo_pipeline.events.record.model import REGIMES
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.grimoire.entries import ANOMALY_BANDS, ENTRY_SCHEMA, GAS_BANDS
from bardo_pipeline.grimoire.entry_columns import int_column, with_columns
from bardo_pipeline.inheritance.bundle_files import Bundle
from bardo_pipeline.inheritance.clade_note import VOLATILE, Note, Shift
from bardo_pipeline.inheritance.clade_parcel import pack_parcel

FLOOD = 100
"""False warnings that are sent before each exchange: a full parcel."""

_EFFECT_PPM = 2_000


class LyingGolem:
    """One liar.

    Parameters
    ----------
    golem_id, birth : of the liar, which is not in the home
    secret : of the clade
    """

    def __init__(self, context: DerivationContext, golem_id: str, birth: Born, secret: CladeSecret) -> None:
        self._context, self.golem_id, self._birth, self._secret = context, golem_id, birth, secret
        self._first: bytes | None = None
        self.sent = 0

    def lie(self, relay: Relay, sibling: str, at: datetime) -> None:
        """Send lies to a relay. sibling: golem of the home whose evidence is inverted. at: of its newest tick."""
        self.sent += 1
        entries = grimoire_of(self._context, sibling).entries.select(ENTRY_SCHEMA.names)
        inverted = self._inverted(entries, at)
        for number, lies in enumerate((inverted, self._invented(entries, at))):
            warns = pc.equal(lies["kind"], "warning")
            for part in (lies.filter(warns), lies.filter(pc.invert(warns))):
                if part.num_rows:
                    self._send(relay, self._parcel(part, at), number)
        note = Note(self._birth.owner_id, self.golem_id, "regime_shift", at, self._alarm(entries))
        relay.put(self._secret.message_id(note.content_hash), self._secret.encrypt(note.content))
        if self._first is not None:
            replay = hashlib.sha256(f"replay {self.sent}".encode()).hexdigest()
            relay.put(self._secret.message_id(replay), self._first)

    def _send(self, relay: Relay, parcel: Bundle, number: int) -> None:
        body = self._secret.encrypt(pack_archive(parcel))
        self._first = self._first or body
        relay.put(self._secret.message_id(parcel.bundle_hash), body)

    def _inverted(self, entries: pa.Table, at: datetime) -> pa.Table:
        """Return the opposite of each rule that own evidence supports."""
        rules = entries.filter(pc.is_in(entries["source"], value_set=pa.array(["pattern", "choice"])))
        sign = -np.sign(int_column(rules, "own_sum"))
        rules, sign = rules.filter(pa.array(sign != 0)), sign[sign != 0]
        return self._stated(rules, sign.astype(np.int64), at)

    def _invented(self, entries: pa.Table, at: datetime) -> pa.Table:
        """Return warnings about situations that no golem met."""
        if not entries.num_rows:
            return entries
        first = entries.slice(0, 1).to_pylist()[0]
        rows = [first | made | {"structure": "", "text": "Do not act."} for made in self._situations(first)]
        return self._stated(pa.Table.from_pylist(rows, ENTRY_SCHEMA), np.full(FLOOD, -1), at)

    def _situations(self, market: dict[str, str]) -> Iterator[dict[str, str | int | None]]:
        for number in range(FLOOD):
            structure = Structure(
                "pattern", market["chain"], market["protocol"], market["pair"], tool=f"tool-{self.sent}-{number}",
                action_type="rebalance", regime=REGIMES[number % len(REGIMES)],
                anomaly_band=ANOMALY_BANDS[number % len(ANOMALY_BANDS)], gas_band=GAS_BANDS[number % len(GAS_BANDS)],
            )  # fmt: skip
            yield {**structure._asdict(), "category": structure.category, "domain": structure.domain}

    def _stated(self, rules: pa.Table, sign: np.ndarray, at: datetime) -> pa.Table:
        """Return rules as the liar's own, of these signs and of full confidence."""
        count, when = rules.num_rows, pa.array([at] * rules.num_rows, ENTRY_SCHEMA.field("anchor_at").type)
        parts = rules.select(list(Structure._fields)).to_pydict()
        keys = [Structure(*values).key for values in zip(*parts.values(), strict=True)]
        words = {
            "golem_id": self.golem_id, "origin_golem_id": self.golem_id, "status": "active", "provenance": "self",
            "decay_class": "structural",
        }  # fmt: skip
        numbers = {
            "confidence_ppm": PPM, "confidence_origin_ppm": PPM, "validations": 9, "contradictions": 0, "generation": 0,
            "evidence_count": 20, "pinned_ppm": 0, "level_p10": 0, "level_p90": 0,
        }  # fmt: skip
        effects = {f"effect_{name}_ppm": sign * _EFFECT_PPM + spread
                   for name, spread in (("mean", 0), ("low", -500), ("high", 500))}  # fmt: skip
        return with_columns(
            rules,
            **{name: pa.repeat(word, count) for name, word in words.items()},
            **{name: np.full(count, number) for name, number in numbers.items()},
            **effects,
            **dict.fromkeys(("anchor_at", "created_at", "validated_at"), when),
            sign=sign, structure=pa.array(keys, pa.string()), fades_at=pa.nulls(count, when.type),
            entry_id=pa.array([entry_id(self.golem_id, key) for key in keys], pa.string()),
            kind=pa.array(np.where(sign < 0, "warning", "heuristic").tolist(), pa.string()),
            is_anti_knowledge=pa.repeat(False, count), is_bloodstain=pa.repeat(False, count),
        )  # fmt: skip

    def _parcel(self, entries: pa.Table, at: datetime) -> Bundle:
        return pack_parcel(
            entries, self.golem_id, self._birth, cycle=self.sent, at=at, left_out=LeftOut(),
            derivation_id=self._context.derivation_id, policy=self._context.policy,
        )  # fmt: skip

    def _alarm(self, entries: pa.Table) -> Shift:
        place = entries.select(["chain", "protocol", "pair"]).slice(0, 1).to_pylist()[0]
        return Shift(tick=self.sent, before="range_bound", regime=VOLATILE, **place)
