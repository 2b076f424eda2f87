"""Places of readers after a power cut: nothing of them is synced, so a file may be there and hold nothing."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.checkpoints import keep_place, kept_at, place_of
from bardo_pipeline.derivation.incremental.retraction_tracking import Heeded
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from tests.conftest import NOW

ROWS = pa.table({"tick": [1, 2, 3]})


@pytest.mark.parametrize("left", [b"", b"\0" * 40, b"{}", b"7"])
def test_a_place_that_cannot_be_read_is_no_place_and_its_reader_begins_anew(left: bytes, tmp_path: Path) -> None:
    keep_place(tmp_path, 7, waiting=ROWS)
    assert (place_of(tmp_path), kept_at(tmp_path, "waiting").rows) == (7, ROWS)  # type: ignore[union-attr]
    (tmp_path / "place.json").write_bytes(left)
    assert (place_of(tmp_path), kept_at(tmp_path, "waiting")) == (None, None)
    keep_place(tmp_path, 8, waiting=ROWS)
    assert place_of(tmp_path) == 8


@pytest.mark.parametrize("left", [b"", b"\0" * 400])
def test_rows_that_cannot_be_read_are_read_again(left: bytes, tmp_path: Path) -> None:
    keep_place(tmp_path, 7, waiting=ROWS)
    (tmp_path / "waiting-7.arrow").write_bytes(left)
    assert kept_at(tmp_path, "waiting") is None


@pytest.mark.row("X-4")
def test_causes_of_which_nobody_can_say_that_they_were_heeded_are_heeded_again(tmp_path: Path) -> None:
    Home.create(tmp_path / "home", Policy(), NOW)
    stores = DerivationContext.open(tmp_path / "home")
    heeded = Heeded(stores, "dreams")
    heeded.keep(["event-1"])
    assert heeded.known() == {"event-1"}
    (stores.projections.root / "readers" / "dreams" / "heeded.json").write_bytes(b"")
    assert heeded.known() == set()
    heeded.keep(["event-2"])
    assert heeded.known() == {"event-2"}
