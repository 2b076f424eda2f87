"""A message about the file of a bundle names the option or step with which it is imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.homes.two_owners import CORAL, belongings
from tests.support.processes.bardo_command import bardo
from tests.support.processes.printed_cures import value_in

pytestmark = [pytest.mark.row("P-4"), pytest.mark.full]


@pytest.fixture
def archive(owned: Path, tmp_path: Path) -> Path:
    """A signed archive of a bundle."""
    bardo("bundle", "sign", home=owned)
    bardo("bundle", "export", belongings(owned, CORAL).bundle, str(tmp_path / "bundle.tar.gz"), home=owned)
    return tmp_path / "bundle.tar.gz"


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Another home."""
    bardo("init", str(tmp_path / "other"), home=tmp_path / "other")
    return tmp_path / "other"


@pytest.mark.parametrize("option", ["--public", "--unsigned"])
def test_an_import_gets_a_key_or_goes_without(option: str, archive: Path, owned: Path, other: Path) -> None:
    words = ("bundle", "import", str(archive))
    named = value_in(bardo(*words, home=other, expect=2), rf"import needs .*({option})")
    key = value_in(bardo("keys", "owner", CORAL, home=owned), r"\(([0-9a-f]{64})\)")
    bardo(*words, named, *((key,) if option == "--public" else ()), home=other)


def test_a_bundle_at_a_wrong_place_is_named_by_its_folder_or_archive(archive: Path, other: Path) -> None:
    words = ("bundle", "import", "--unsigned")
    refused = bardo(*words, str(archive.parent / "none"), home=other, expect=2)
    assert "name a folder, or an archive that was exported" in refused
    bardo(*words, str(archive), home=other)


@pytest.mark.parametrize("length", [10, 300, -20])
def test_an_archive_that_was_cut_short_is_exported_again(length: int, archive: Path, owned: Path, other: Path) -> None:
    archive.write_bytes(archive.read_bytes()[:length])
    words = ("bundle", "import", str(archive), "--unsigned")
    assert "export it again" in bardo(*words, home=other, expect=2)
    bardo("bundle", "export", belongings(owned, CORAL).bundle, str(archive), home=owned)
    bardo(*words, home=other)
