"""A migration to another embedder is killed at named points: the old embedder stays in force, and a retry completes."""

from __future__ import annotations

import signal
from pathlib import Path

import pyarrow as pa
import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.memory.derive_episodes import refresh_index, similar_episodes
from bardo_pipeline.derivation.versions.embedder_migration import reembed
from bardo_pipeline.storage.delta.table_specs import TABLES
from bardo_pipeline.storage.embedding.embedders import open_embedder
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.verification.verify import verify
from tests.conftest import copy_home
from tests.crash.reembedding import LATER, POINTS, migrate
from tests.support.processes.forked_processes import Forked


def fingerprints(stores: DerivationContext) -> dict[str, str]:
    return {name: stores.projections.digest(name).fingerprint for name in TABLES}


def answers(stores: DerivationContext) -> pa.Table:
    return similar_episodes(stores, "gas spiked while the market fell", limit=9)


@pytest.fixture(scope="module")
def home(brief_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = copy_home(brief_home, tmp_path_factory.mktemp("whole") / "home")
    refresh_index(DerivationContext.open(root))
    open_embedder("minilm-int8", Home.open(root).models)  # built once, not by each killed process
    return root


@pytest.fixture(scope="module")
def whole(home: Path, tmp_path_factory: pytest.TempPathFactory) -> DerivationContext:
    """Return the same home, migrated without a kill."""
    root = copy_home(home, tmp_path_factory.mktemp("migrated") / "home")
    reembed(DerivationContext.open(root), "minilm-int8", now=LATER)
    return DerivationContext.open(root)


@pytest.mark.full
@pytest.mark.row("MEM-12")
def test_a_killed_migration_keeps_the_old_embedder_and_resumes(
    home: Path, whole: DerivationContext, tmp_path: Path
) -> None:
    """Each run continues the work of the run before and is killed at a later point."""
    root, before = copy_home(home, tmp_path / "home"), DerivationContext.open(home)
    old, new = (("minilm", before), ("minilm-int8", whole))
    expected = {name: (fingerprints(stores), answers(stores)) for name, stores in (old, new)}
    for name, (_, _, is_switched) in POINTS.items():
        assert Forked(migrate, str(root), name).wait() == -signal.SIGKILL, name
        left = DerivationContext.open(root)
        assert left.embedder_name == ("minilm-int8" if is_switched else "minilm"), name
        derived, answered = expected[left.embedder_name]
        assert fingerprints(left) == derived, name
        assert answers(left).equals(answered), name
    assert is_switched, "the last kill point is after the switch"
    ended = DerivationContext.open(root)
    keys = [ended.embedder.identity.key, open_embedder("minilm", root / "models").identity.key]
    assert all(ended.log.count_vectors(key) == whole.log.count_vectors(key) for key in keys), (
        "a vector is missing or doubled"
    )
    assert verify(ended.home).clean
