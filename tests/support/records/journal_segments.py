"""Frames of a golem, each linked to its predecessor, and segments of them, for tests of journals."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from bardo_pipeline.events.custody.hash_chain import GENESIS, Signature, content_of, link_of
from bardo_pipeline.storage.journal.frames import Draft, Segment, segment_header

NOW = datetime(2026, 11, 1, tzinfo=UTC)
NOW_US = int(NOW.timestamp() * 1e6)
PATH = Path("00000000000000000007.seg")


class Chain:
    """Frames of one golem, each linked to the one before."""

    def __init__(self, golem_id: str = "golem-1") -> None:
        self.golem_id, self.number, self.tip = golem_id, 0, GENESIS

    def draft(self, payload: bytes = b'{"some": "record"}', signature: Signature | None = None) -> Draft:
        self.number += 1
        previous, self.tip = self.tip, link_of(self.golem_id, self.number, self.tip, content_of(payload))
        return Draft(self.golem_id.encode(), self.number, self.number, previous, self.tip, signature, payload)


def segment_of(groups: list[list[Draft]], number: int = 7) -> bytes:
    """A segment as a journal writes it: each group by one append, durable before the next."""
    raw = segment_header(number)
    for group in groups:
        synced = len(raw)
        for draft in group:
            raw += draft.head(number, synced, NOW_US) + draft.payload
    return raw


def ticks(segment: Segment) -> list[int]:
    return [frame.tick for frame in segment.frames]
