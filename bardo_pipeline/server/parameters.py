"""Parameters of the routes of the HTTP door, as pydantic models; OpenAPI is made from them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Json, model_validator

from bardo_pipeline.derivation.clade.styx_doors import WrittenWords
from bardo_pipeline.events.experience.reported_experience import GENERAL, Report, Situation
from bardo_pipeline.events.experience.stored_text import Words
from bardo_pipeline.events.life.clade_events import EntryKind, KeptDays, StyxLayer
from bardo_pipeline.events.record.model import LivedTick, Name


def _in_utc(moment: datetime) -> datetime:
    try:
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("is out of range in UTC") from None


def _ordered(bounds: tuple[int, int]) -> tuple[int, int]:
    if bounds[0] > bounds[1]:
        raise ValueError("the first bound is above the second")
    return bounds


Golem = Annotated[str, Field(min_length=1, max_length=200, description="Golem id.")]
EntryId = Annotated[str, Field(min_length=1, max_length=200, description="Entry id, or a unique prefix.")]
Limit = Annotated[int, Field(ge=1, le=100_000)]
Moment = Annotated[datetime, AfterValidator(_in_utc)]
"""A moment, in UTC unless it has an offset."""
Ticks = Annotated[int, Field(ge=1, le=2**32 - 1)]


class Parameters(BaseModel):
    """Parameters of a route; an unknown one is refused."""

    model_config = ConfigDict(extra="forbid")


class AskParameters(Parameters):
    """A question to a golem."""

    golem: Golem
    question: str = Field(min_length=1, max_length=20_000, description="Question in plain words.")
    k: int | None = Field(None, ge=1, le=1_000, description="Number of entries; the policy's five by default.")
    regime: str | None = Field(None, description="Assume this market regime.")
    at: Moment | None = Field(None, description="Event time of the question (ISO 8601); the newest by default.")
    tick: int | None = Field(None, ge=0, description="Tick of the golem's life instead of a moment.")
    clade: bool = Field(False, description="Include entries of the owner's other golems at a discounted score.")
    may_skip: bool = Field(False, description="Let the golem skip retrieval, as in its own ticks.")


class SearchParameters(Parameters):
    """Words to search among entries and episodes."""

    words: str = Field(min_length=1, max_length=20_000, description="Words to search.")
    store: Literal["entries", "episodes", "both"] = Field("both", description="Texts to search.")
    golem: str | None = Field(None, description="Only texts of this golem.")
    kind: str | None = Field(None, description="Only entries of this kind.")
    category: str | None = Field(None, description="Only entries of this category.")
    domain: str | None = Field(None, description="Only entries of this domain.")
    regime: str | None = Field(None, description="Only entries of this regime.")
    status: str = Field("active", description='Only entries with this status; "any" for all.')
    min_confidence: float = Field(0.0, ge=0, le=1, description="Only entries of at least this confidence.")
    chain: str | None = Field(None, description="Only texts about this chain.")
    pair: str | None = Field(None, description="Only texts about this pair.")
    tool: str | None = Field(None, description="Only entries about this tool.")
    limit: int | None = Field(None, ge=1, description="Maximum number of texts; the policy's ten by default.")
    decay: bool = Field(True, description="Rank faded texts lower.")


class LineageParameters(Parameters):
    """An entry or a stored text whose evidence is traced."""

    entry: str = Field(min_length=1, max_length=200, description="Id of an entry or a stored text, or a unique prefix.")
    golem: str | None = Field(None, description="Only this golem and its ancestors.")


class EntriesParameters(Parameters):
    """Filters on the entries of a golem."""

    kind: str | None = Field(None, description="Only entries of this kind, for example insight or warning.")
    status: str = Field("active", description='Only entries with this status; "any" for all.')
    category: str | None = Field(None, description="Only entries of this category.")
    min_confidence: float = Field(0.0, ge=0, le=1, description="Only entries of at least this confidence now.")
    limit: int = Field(100, ge=1, le=100_000, description="Maximum number of entries, highest confidence first.")


class WarningsParameters(Parameters):
    """An action that a golem considers, and its situation."""

    action: str = Field(min_length=1, max_length=200, description="Name of the considered action or tool.")
    situation: str = Field("", max_length=20_000, description="Situation in plain words.")
    conditions: Json[Situation] | None = Field(
        None, description="Situation as a JSON object; warnings whose conditions do not hold in it are left out."
    )
    clade: bool = Field(False, description="Include warnings of siblings, by a paid query of the clade.")
    limit: int = Field(5, ge=1, le=50, description="Maximum number of warnings.")


class AdviceParameters(Parameters):
    """A situation in which a golem chooses an action."""

    conditions: Json[Situation] = Field("{}", validate_default=True, description="Situation as a JSON object.")
    action: str | None = Field(None, max_length=200, description="Only rules about this action.")


class ReportParameters(Report):
    """A report; its record gets the next tick of the golem, and the current time."""

    domain: Name = Field(GENERAL, description="Domain of the actions; rules of different domains are apart.")
    tick: LivedTick | None = Field(
        None, description="Tick of the record, so that a repeated call records it once; the next one by default."
    )
    observed_at: Moment | None = Field(None, description="Time of the action in UTC; now by default.")


class RecordsParameters(Parameters):
    """Range of the ticks of a golem's records."""

    tick_from: int = Field(1, ge=0, description="First tick.")
    tick_to: int | None = Field(None, ge=0, description="Last tick; the newest by default.")
    limit: int = Field(1_000, ge=1, le=100_000, description="Maximum number of records.")


class BirthParameters(Parameters):
    """A golem that an outside runtime runs."""

    golem: Golem
    owner: str | None = Field(None, min_length=1, max_length=200, description="Owner; that of the token by default.")
    lineage: str | None = Field(None, max_length=200, description="Line of descent; the golem's id by default.")
    market: str = Field("-", min_length=1, max_length=200, description="Market that its records observe.")
    budget_dollars: float = Field(50.0, ge=0.01, le=1e9, description="Capital and credits at birth.")
    lifespan_ticks: Annotated[tuple[Ticks, Ticks], AfterValidator(_ordered)] = Field(
        (2_000, 8_000), description="Bounds of the lifespan."
    )
    at: Moment | None = Field(None, description="Moment of birth, not after the first record; now by default.")


class SteerParameters(Parameters):
    """An owner's intervention for a golem of a live run."""

    intent: str = Field(min_length=1, max_length=1_000, description="What the golem shall consider.")
    severity: Literal["high", "low"] = Field("high", description="A low one is a follow-up: it interrupts no call.")


class StyxEntryParameters(Parameters):
    """An entry that a golem writes to the layers of shared memory: one of its grimoire, or words."""

    golem: Golem
    entry: EntryId | None = Field(None, description="Id of an active entry of the golem, or a unique prefix.")
    kind: EntryKind | None = Field(None, description="Kind of an entry in words.")
    text: Words | None = Field(None, description="Text of an entry in words.")
    confidence: float | None = Field(None, ge=0, le=1, description="Confidence of the golem in an entry in words.")
    kept_days: KeptDays = Field(7, description="Days for which the golem pays.")

    @model_validator(mode="after")
    def _check_form(self) -> Self:
        words = [value is not None for value in (self.kind, self.text, self.confidence)]
        if (self.entry is not None) == any(words) or any(words) != all(words):
            raise ValueError("give either an entry, or kind, text and confidence")
        return self

    @property
    def content(self) -> str | WrittenWords:
        """The entry's id, or its words."""
        if self.kind is None or self.text is None or self.confidence is None:
            return self.entry or ""
        return WrittenWords(self.kind, self.text, self.confidence)


class StyxQueryParameters(Parameters):
    """A question of a golem to the layers of shared memory."""

    golem: Golem
    question: str = Field(min_length=1, max_length=20_000, description="Question in plain words.")
    k: int = Field(5, ge=1, le=100, description="Maximum number of results.")
    layer: StyxLayer | None = Field(None, description="Only this layer.")
    min_confidence: float = Field(0.0, ge=0, le=1, description="Lowest confidence of the golem that states a result.")


class GolemParameters(Parameters):
    """A golem."""

    golem: Golem


class GolemOrAllParameters(Parameters):
    """A golem, or all."""

    golem: Golem | None = Field(None, description="Only this golem.")


class ScarsParameters(GolemOrAllParameters):
    """Filters on failures."""

    failures: bool = Field(False, description="Include failures without a scar, with the reason.")


class BloodstainParameters(GolemParameters):
    """A death, or its public part."""

    public: bool = Field(False, description="Only the public part, the echo.")


class GraveyardParameters(Parameters):
    """A line of descent, or all."""

    lineage: Golem | None = Field(None, description="Only golems in this golem's line of descent.")


class GrimoireParameters(GolemParameters):
    """Filters on the entries of a golem at its last closed cycle."""

    kind: str | None = Field(None, description="Only entries of this kind.")
    status: str = Field("active", description='Only entries with this status; "all" for all.')
    text: str | None = Field(None, description="Only entries whose text or category contains this.")
    confidence_min: float = Field(0.0, ge=0, le=1, description="Only entries of at least this confidence.")
    pinned: bool = Field(False, description="Only pinned entries.")
    limit: Limit | None = Field(None, description="Maximum number of entries, highest confidence first.")


class EntryParameters(GolemParameters):
    """An entry of a golem."""

    entry: EntryId


class SimilarParameters(GolemOrAllParameters):
    """A text whose most similar episodes are wanted."""

    text: str = Field(min_length=1, max_length=20_000, description="Text to compare with.")
    limit: Limit = Field(5, description="Maximum number of episodes with distinct texts.")


class BundleParameters(Parameters):
    """A bundle, or all."""

    target: str | None = Field(None, max_length=200, description="Bundle hash, a unique prefix of it, or its golem.")


class LibraryParameters(Parameters):
    """Filters on the entries of a library."""

    channel: str | None = Field(None, description="Only entries from: death, pull, export, overflow or purchase.")
    kind: str | None = Field(None, description="Only entries of this kind.")
    text: str | None = Field(None, description="Only entries that contain this text.")
    limit: Limit | None = Field(None, description="Maximum number of entries, highest confidence first.")


class LibraryItemParameters(Parameters):
    """An item of a library: an entry, a seed kit, or the playbook of a dead golem."""

    entry: EntryId


class NoParameters(Parameters):
    """No parameters."""
