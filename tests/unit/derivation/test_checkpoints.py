"""Checkpoints after a power cut: their files are not synced, so a file may exist and be empty."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.checkpoints import Checkpoint
from bardo_pipeline.derivation.incremental.retraction_tracking import RetractionCursor
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from tests.conftest import NOW

ROWS = pa.table({"tick": [1, 2, 3]})


@pytest.mark.parametrize("left", [b"", b"\0" * 40, b"{}", b"7"])
def test_an_unreadable_checkpoint_counts_as_missing(left: bytes, tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.save(7, waiting=ROWS)
    assert (checkpoint.version, checkpoint.load("waiting").rows) == (7, ROWS)  # type: ignore[union-attr]
    (tmp_path / "place.json").write_bytes(left)
    assert (checkpoint.version, checkpoint.load("waiting")) == (None, None)
    checkpoint.save(8, waiting=ROWS)
    assert checkpoint.version == 8


@pytest.mark.parametrize("left", [b"", b"\0" * 400])
def test_unreadable_rows_of_a_checkpoint_count_as_missing(left: bytes, tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    checkpoint.save(7, waiting=ROWS)
    (tmp_path / "waiting-7.arrow").write_bytes(left)
    assert checkpoint.load("waiting") is None


@pytest.mark.row("X-4")
def test_handled_retractions_are_empty_after_their_file_is_lost(tmp_path: Path) -> None:
    Home.create(tmp_path / "home", Policy(), NOW)
    stores = DerivationContext.open(tmp_path / "home")
    applied = RetractionCursor(stores, "dreams")
    applied.mark_handled(["event-1"])
    assert applied.handled_ids() == {"event-1"}
    (stores.projections.root / "readers" / "dreams" / "heeded.json").write_bytes(b"")
    assert applied.handled_ids() == set()
    applied.mark_handled(["event-2"])
    assert applied.handled_ids() == {"event-2"}
