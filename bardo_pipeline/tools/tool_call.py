"""A call of a memory tool: the caller, its moment, and the one way by which a tool records facts.

Source: TOOLS ("Ground truth", "Event Fabric"); MEM-21.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.record_queries import require_born
from bardo_pipeline.derivation.memory.free_texts import Stored, known_insights
from bardo_pipeline.errors import RecordError, StoreError, ToolError, UnknownGolemError
from bardo_pipeline.events.experience.stored_text import StoredText, stored_text
from bardo_pipeline.events.life.events import ATTRIBUTE_OF, TEXTS, LifeEvent, life_event
from bardo_pipeline.events.life.tool_events import ToolCalled
from bardo_pipeline.events.record.model import Part
from bardo_pipeline.retrieval.insight_votes import KnownInsight
from bardo_pipeline.tools.schemas import WriteCounts

JSON_BYTES_MAX = 65_536
"""Longest canonical JSON of one argument, the limit of a text in the log."""

_ORDER = ("recorded_at", "observed_at", "event_id")


@dataclass(frozen=True)
class Caller:
    """The golem whose memory is used, and the owner for whom the caller acts (None: the operator of the home)."""

    golem_id: str
    owner: str | None = None


def check_caller(context: DerivationContext, caller: Caller) -> None:
    """Raise UnknownGolemError for a golem that was not born, or that belongs to another owner than the caller's."""
    require_born(context, caller.golem_id)
    if caller.owner is not None and context.ownership().golems.get(caller.golem_id) != caller.owner:
        subject = f"golem {caller.golem_id}: owner {caller.owner!r}"
        raise UnknownGolemError(f"{subject} has no golem of this name: name another one")


@dataclass
class ToolCall:
    """One call of a tool.

    Parameters
    ----------
    context : home and derivation in which the tool works
    tool_name, steps : the called tool, and the steps that its events report
    at : time of the call, UTC; the event time of its facts
    call_id : id that tells this call from others
    params_hash : SHA-256 of the arguments
    clock : source of the time of recording
    duration_ms : duration that the recorded fact of this call states; None before it is recorded
    """

    context: DerivationContext
    caller: Caller
    tool_name: str
    steps: tuple[str, ...]
    at: datetime
    call_id: str
    params_hash: str
    clock: Callable[[], datetime]
    duration_ms: int | None = None

    @property
    def golem_id(self) -> str:
        """Id of the golem whose memory is used."""
        return self.caller.golem_id

    def facts(self, kind: str) -> pa.Table:
        """Return the golem's life events of a kind in order of recording: id, times and content."""
        rows = self.context.life(kind).select(["golem_id", *_ORDER, ATTRIBUTE_OF[kind]])
        rows = rows.filter(pc.equal(rows["golem_id"], self.golem_id))
        return rows.sort_by([(name, "ascending") for name in _ORDER]) if rows.num_rows > 1 else rows

    def contents(self, kind: str, **only: str) -> list[dict[str, Any]]:
        """Return the content of the golem's life events of a kind in order of recording, with `at` and `event_id`.

        Parameters
        ----------
        only : field of the content -> its value in the returned events
        """
        rows, attribute = self.facts(kind), ATTRIBUTE_OF[kind]
        for name, value in only.items():
            rows = rows.filter(pc.equal(pc.struct_field(rows[attribute], name), value))
        listed = rows.select(["observed_at", "event_id", attribute]).to_pylist()
        return [row[attribute] | {"at": row["observed_at"], "event_id": row["event_id"]} for row in listed]

    def insights(self) -> dict[str, KnownInsight]:
        """Return the golem's insights in its own words by id."""
        return known_insights(self.context, self.golem_id, now=self.at)

    def require_alive(self) -> None:
        """Raise ToolError for a golem whose death is on record."""
        died = self.context.log.death_of(self.golem_id)
        if died is not None:
            raise ToolError(
                f"golem {self.golem_id} died at tick {died}, and its memory is closed: call {self.tool_name} for a "
                "living heir"
            )

    def event(self, fact: Part, place: int = 0) -> LifeEvent:
        """Return a fact as an event of the golem. place: microseconds of the event after the call."""
        return life_event(self.golem_id, self.at + timedelta(microseconds=place), fact)

    def record(self, facts: Sequence[Part], summary: str, *, counted: str, beside: int = 0) -> WriteCounts:
        """Record facts and the call in one commit, and compare the number of rows before and after.

        Raises StoreError if the log holds another number of rows than expected. Without a fact nothing is recorded.

        Parameters
        ----------
        summary : result of the call in a few words, for `tool:end`
        counted : kind of life event whose rows are counted
        beside : number of facts that this call recorded in commits of their own
        """
        return self.record_events([self.event(fact) for fact in facts], summary, counted=(counted,), beside=beside)[0]

    def record_events(
        self, events: Sequence[LifeEvent], summary: str, *, counted: Sequence[str], beside: int = 0
    ) -> tuple[WriteCounts, ...]:
        """Record events of the golem as `record` records facts; return the counts of several kinds.

        Rows that another process records meanwhile do not count.
        """
        known = {kind: self._ids(kind) for kind in counted}
        if events or beside:
            now = self.clock()
            called = self.called(summary, len(events) + beside, now)
            self.context.log.record([*events, self.event(called)], now)
        counts = []
        for kind, ids in known.items():
            expected = ids | {event.event_id for event in events if event.kind == kind}
            subject, after = f"{kind} of golem {self.golem_id}", len(expected & self._ids(kind))
            if after != len(expected):
                raise StoreError(f"{subject}: the log holds {after} rows, not {len(expected)}: run `bardo verify`")
            counts.append(WriteCounts(counted=subject, before=len(ids), expected=len(expected), after=after))
        return tuple(counts)

    def _ids(self, kind: str) -> set[str]:
        """Return the ids of the golem's events of a kind in the log."""
        names = ["golem_id", "event_id"]
        rows = self.context.log.texts(columns=names)[1] if kind == TEXTS else self.context.life(kind).select(names)
        return set(rows.filter(pc.equal(rows["golem_id"], self.golem_id))["event_id"].to_pylist())

    def called(self, summary: str, fact_count: int, now: datetime) -> ToolCalled:
        """Return the fact that describes this call. now: recording time of the call's facts."""
        self.duration_ms = self.lasted_ms(now)
        return ToolCalled(
            call_id=self.call_id,
            tool_name=self.tool_name,
            params_hash=self.params_hash,
            tick=self.context.log.head_of(self.golem_id).contiguous or None,
            steps=self.steps,
            fact_count=fact_count,
            duration_ms=self.duration_ms,
            result_summary=summary,
        )

    def lasted_ms(self, now: datetime) -> int:
        """Return the milliseconds from the beginning of the call to `now`."""
        return max(0, round((now - self.at).total_seconds() * 1_000))


def text_counts(golem_id: str, stored: Stored) -> WriteCounts:
    """Return the number of a golem's texts before and after one was stored."""
    return WriteCounts(
        counted=f"TextStored of golem {golem_id}",
        before=stored.count_before,
        expected=stored.count_before + int(stored.is_new),
        after=stored.count_after,
    )


def json_text(value: Any, name: str) -> str:
    """Return a JSON value as canonical text. Raises ToolError for a value that is too long or no JSON."""
    try:
        text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except (TypeError, ValueError) as error:
        raise ToolError(f"{name} is no JSON value ({error}): give numbers, texts, lists and objects") from None
    if len(text) > JSON_BYTES_MAX:
        raise ToolError(f"{name} has {len(text):,} bytes of JSON: give at most {JSON_BYTES_MAX:,}")
    return text.decode()


def hash_of(arguments: dict[str, Any]) -> str:
    """Return the SHA-256 of arguments as canonical JSON. Raises ToolError for a value that JSON cannot hold."""
    try:
        return hashlib.sha256(orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS)).hexdigest()
    except TypeError as error:
        raise ToolError(f"an argument is no JSON value ({error}): give integers of 64 bits and valid Unicode") from None


def text_fact(subject: str, text: str, **fields: Any) -> StoredText:
    """Build a text of the golem. Raises ToolError, which names the subject, for a text that no home takes."""
    try:
        return stored_text(text, **fields)
    except RecordError as error:
        raise ToolError(f"{subject}: {error}") from None
