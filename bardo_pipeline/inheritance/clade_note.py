"""Packs and reads a note: a fact that a golem tells its clade beside its entries. Pure.

A note is a scar, the shift of its market to another regime, the residuals of the items that it attends to, a snapshot
of its playbook, an entry in its runtime's own words, or the reflection that its death left. Siblings do not trust a
relay, and they trust each other no further than the values of a note can be checked.
Source: INH S5.1, S6.4; MEM-14; KAT-13; KAT (Styx L1 Publication).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, get_args

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bardo_pipeline.errors import BundleError
from bardo_pipeline.events.experience.stored_text import Words
from bardo_pipeline.events.life.clade_events import EntryKind, KeptDays, NoteKind
from bardo_pipeline.events.record.model import REGIMES, ItemResiduals, Moment, Name, Regime, Tick, Whole
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.grimoire.entries import ANOMALY_BANDS, GAS_BANDS
from bardo_pipeline.inheritance.canonical_json import canonical
from bardo_pipeline.katabasis.scar_rules import FAILURE_SCHEMA, SCAR_REGIMES
from bardo_pipeline.katabasis.scar_text import MECHANISMS

NOTE_BYTES_MAX = 65_536
"""Longest content of a note; a testament's page is the longest, with at most 16,384 characters."""

_WORDS = {
    "regime": REGIMES, "market_regime": SCAR_REGIMES, "anomaly_band": ANOMALY_BANDS, "gas_band": GAS_BANDS,
    "mechanism": tuple(MECHANISMS),
}  # fmt: skip
_RANGES = {
    "confidence_ppm": (0, PPM), "pleasure": (-1.0, 1.0), "arousal": (0.0, 1.0), "dominance": (0.0, 1.0),
    "seq": (1, 2**53), "cycle": (1, 2**53), "tick": (1, 2**53), "confirmed_tick": (1, 2**53),
}  # fmt: skip


class _Facts(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


VOLATILE = "volatile"
"""Regime whose beginning is a threat."""


class Shift(_Facts):
    """A market's change of regime, seen at a tick of the sender."""

    chain: Name
    protocol: Name
    pair: Name
    tick: Tick
    before: Regime
    regime: Regime


class Residuals(_Facts):
    """Residuals of the items of a market that the sender attended to, up to the end of a delta."""

    chain: Name
    protocol: Name
    pair: Name
    tick: Tick
    items: Annotated[tuple[ItemResiduals, ...], Field(min_length=1, max_length=64)]


class Reflection(_Facts):
    """The page of the testament that a dead golem left."""

    bundle_hash: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    page: Words


class End(_Facts):
    """The tick and cycle of the sender's death."""

    tick: Tick
    cycle: Tick


class Scar(_Facts):
    """A confirmed failure (a row of FAILURE_SCHEMA). death: of the sender, if the death published the scar."""

    failure: dict[str, Any]
    death: End | None = None


class Snapshot(_Facts):
    """The page of the sender's playbook, as of the close of a cycle."""

    cycle: Tick
    page: Words


class Told(_Facts):
    """An entry in the words of the sender's runtime.

    confidence_ppm: of the sender, at the time of the note. kept_days: for which the sender paid.
    """

    kind: EntryKind
    text: Words
    confidence_ppm: Annotated[Whole, Field(le=PPM)]
    kept_days: KeptDays


Facts = Scar | Shift | Residuals | Reflection | Snapshot | Told


class _Content(_Facts):
    owner_id: Name
    from_golem_id: Name
    at: Moment
    scar: Scar | None = None
    regime_shift: Shift | None = None
    residual_digest: Residuals | None = None
    death_reflection: Reflection | None = None
    playbook_snapshot: Snapshot | None = None
    entry: Told | None = None


_ABOUT: tuple[NoteKind, ...] = get_args(NoteKind)


@dataclass(frozen=True)
class Note:
    """A note with its sender. at: time of the fact. facts: of the kind `about`."""

    owner_id: str
    from_golem_id: str
    about: NoteKind
    at: datetime
    facts: Facts

    @property
    def content(self) -> bytes:
        """Return the canonical JSON of the note."""
        head = {"owner_id": self.owner_id, "from_golem_id": self.from_golem_id, "at": self.at}
        return canonical({**head, self.about: self.facts.model_dump()})

    @property
    def content_hash(self) -> str:
        """Return the SHA-256 of the content."""
        return hashlib.sha256(self.content).hexdigest()


def read_note(content: bytes, owner_id: str) -> Note:
    """Read and check a note. Raises BundleError for one that is malformed, or of another owner's clade."""
    if len(content) > NOTE_BYTES_MAX:
        raise BundleError(f"a note has {len(content):,} bytes, and {NOTE_BYTES_MAX:,} at most")
    try:
        read = _Content.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise BundleError(f"a note is malformed: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    if read.owner_id != owner_id:
        raise BundleError(f"a note is none of the clade of {owner_id!r}")
    stated = [(about, getattr(read, about)) for about in _ABOUT]
    notes = [
        Note(read.owner_id, read.from_golem_id, about, read.at, facts) for about, facts in stated if facts is not None
    ]
    if len(notes) != 1:
        raise BundleError(f"a note states one fact, not {len(notes)}")
    if read.scar is not None and failure_row(read.scar)["golem_id"].to_pylist() != [read.from_golem_id]:
        raise BundleError("a scar is told by another golem than the one that failed")
    return notes[0]


def failure_row(scar: Scar) -> pa.Table:
    """Return the failure of a scar as one row (FAILURE_SCHEMA). Raises BundleError for invalid values."""
    values = scar.failure
    if unknown := {*values} ^ {*FAILURE_SCHEMA.names}:
        raise BundleError(f"a scar has or lacks the fields {', '.join(sorted(unknown))}")
    moments = {f.name for f in FAILURE_SCHEMA if pa.types.is_timestamp(f.type)}
    try:
        row = {
            name: datetime.fromisoformat(value) if name in moments and isinstance(value, str) else value
            for name, value in values.items()
        }
        table = pa.Table.from_pylist([row], FAILURE_SCHEMA)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise BundleError(f"a scar has a value of another type: {error}") from None
    for field in FAILURE_SCHEMA:
        if not field.nullable and table[field.name].null_count:
            raise BundleError(f"a scar has no {field.name}")
    for name, words in _WORDS.items():
        if table[name][0].as_py() not in words:
            raise BundleError(f"a scar has the unknown {name} {table[name][0].as_py()!r}")
    for name, (low, high) in _RANGES.items():
        if not pc.all(pc.and_(pc.greater_equal(table[name], low), pc.less_equal(table[name], high))).as_py():
            raise BundleError(f"a scar's {name} is {table[name][0].as_py()}, not in [{low:,}, {high:,}]")
    return table


def text_of(note: Note) -> str:
    """Return a note as a sentence."""
    facts = note.facts
    if isinstance(facts, Scar):
        return str(facts.failure["causal_narrative"])
    if isinstance(facts, Shift):
        return f"{facts.pair} on {facts.chain} turned from {facts.before} to {facts.regime} at tick {facts.tick}"
    if isinstance(facts, Residuals):
        moved = ", ".join(f"{item.item} {item.violations} of {item.resolved}" for item in facts.items)
        return f"changes of {facts.pair} on {facts.chain} beyond expectation up to tick {facts.tick}: {moved}"
    return facts.text if isinstance(facts, Told) else facts.page
