"""Events about siblings and strangers: facts that golems of the clade, or anonymous golems, told.

Source: INH S5.1, S6.4; MEM-14; KAT (Styx L1 Publication).
"""

from __future__ import annotations

from typing import Literal

from bardo_pipeline.events.record.model import Name, Part, Text, Whole

NoteKind = Literal["scar", "regime_shift", "residual_digest", "death_reflection"]


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
