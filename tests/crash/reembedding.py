"""`bardo reembed` in a process that is killed at a named point."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.versions.embedder_migration import reembed
from tests.crash.windows import Point, Trap, Window

LATER = datetime(2026, 11, 2, tzinfo=UTC)
_VECTORS = r"log/vectors/_delta_log/\d+\.json"
_PROJECTED = r"derivations/[^/]+/[^/]+/_delta_log/\d+\.json"
_WATERMARK = r"index/episodes/.*/watermark\.json"
_EMBEDDING, _LIFE = r"log/embedding/_delta_log/\d+\.json", r"log/life/_delta_log/\d+\.json"
_PUT = "bardo_pipeline.storage.index.episode_index:_put"

POINTS: dict[str, tuple[Point, int, bool]] = {
    "before the migration is recorded": (Point("link", "before", _EMBEDDING), 2, False),
    "before the first vectors": (Point("link", "before", _VECTORS), 1, False),
    "when half of the vectors are on record": (Point("link", "after", _VECTORS), 3, False),
    "while projections are derived": (Point("link", "after", _PROJECTED), 5, False),
    "while the index is filled": (Point(_PUT, "after"), 1, False),
    "before the index counts": (Point("replace", "before", _WATERMARK), 1, False),
    "before the switch": (Point("link", "before", _LIFE), 1, False),
    "after the switch": (Point("link", "after", _LIFE), 1, True),
}
"""Each kill point, the number of the call at which it kills, and whether the new embedder is then in force.

The first commit creates the embedding log, so a migration begins with the second commit.
"""


def migrate(root: str, name: str) -> None:
    """Re-embed a home, killed at the point of that name."""
    point, passing, _ = POINTS[name]
    Trap(Window(name, "reembedding", (point,)), passing, Path(root)).set()
    stores = DerivationContext.open(Path(root))
    few = stores.policy.model_copy(update={"embedding": stores.policy.embedding.model_copy(update={"batch_texts": 8})})
    stores.policy = few
    reembed(stores, "minilm-int8", now=LATER)
