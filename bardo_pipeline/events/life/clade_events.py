"""Events about siblings and strangers: facts that golems of the clade, or anonymous golems, told, and paid calls.

Source: INH S5.1, S6.4; MEM-14; KAT-13; KAT (Styx L1 Publication).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from bardo_pipeline.events.record.model import Name, Part, Text, Whole

NoteKind = Literal["scar", "regime_shift", "residual_digest", "death_reflection", "playbook_snapshot", "entry"]
EntryKind = Literal["insight", "heuristic", "warning", "causal_link", "strategy_fragment"]
StyxLayer = Literal["vault", "clade", "lethe"]
"""Layers of shared memory: L0 the backup, L1 the owner's golems, L2 the public (MEM)."""

KEPT_DAYS_MAX = 366
KeptDays = Annotated[int, Field(ge=1, le=KEPT_DAYS_MAX)]
"""Days for which a layer keeps what was written."""


class NoteReceived(Part):
    """A golem of the clade, of this home or another, told the others a fact.

    The event time is that of the newest tick of the owner's golems here: a golem hears the note after it.

    Parameters
    ----------
    owner_id : owner of the clade
    key_id : id of the clade's secret
    content_hash : SHA-256 of the content
    content : the note as canonical JSON (inheritance/clade_note.py)
    """

    owner_id: Name
    from_golem_id: Name
    about: NoteKind
    key_id: Name
    content_hash: Name
    content: Text


class PostsReceived(Part):
    """An owner's golems received public posts of a relay's board: anonymous votes and pheromones.

    The event time is that of the newest tick of the owner's golems here: a golem hears the posts after it.

    Parameters
    ----------
    owner_id : owner whose golems hear the posts
    golem_ids : golems that hear the posts, each of which paid `query_micros` for the query
    relay_key : hash of the public keys that verified the posts
    post_count : number of posts
    content_hash : SHA-256 of the content
    content : JSON list of the posts (katabasis/public_posts.py)
    """

    owner_id: Name
    golem_ids: tuple[Name, ...]
    query_micros: Whole
    relay_key: Name
    post_count: Whole
    content_hash: Name
    content: Text


class WrittenEntry(Part):
    """An entry that a golem wrote to the layers of shared memory.

    Parameters
    ----------
    kind, text, confidence_ppm : of the entry at the time of the call
    entry_id : of the golem's grimoire; null for an entry in its runtime's own words
    kept_days : days for which the golem paid; they end its storage and never change its decay
    """

    kind: EntryKind
    text: Text
    confidence_ppm: Annotated[Whole, Field(le=1_000_000)]
    entry_id: Name | None
    kept_days: KeptDays


class StyxCalled(Part):
    """A golem paid for a call of the layers of shared memory: it wrote an entry, or asked a question.

    Parameters
    ----------
    number : of the golem's calls, from 1
    layers : that took the entry, or that were asked
    cost_micros : price in micro-dollars
    content_hash : SHA-256 of the entry's or the question's text
    written : the entry; null for a question
    """

    number: Annotated[int, Field(ge=1)]
    layers: tuple[StyxLayer, ...]
    cost_micros: Whole
    content_hash: Name
    written: WrittenEntry | None
