"""Verification names every file with a flipped bit, for any number of damaged files."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.verification.verify import verify
from tests.support.homes import tampered_homes

FILES = 12
"""Bits flipped in a round, each in another file."""


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return tampered_homes.make(tmp_path_factory.mktemp("flipped") / "home")


def immutable(home: Home) -> list[Path]:
    """Return every non-empty file of the log, the journals and the bundles, oldest first, because names are random.
    Checksum manifests have their own test, and lock files hold no data.
    """
    folders = (home.cycles.parent, home.journal, home.bundles)
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file() and path.parent.name != "sums")
    return sorted(
        (path for path in files if path.stat().st_size and path.name != "lock"),
        key=lambda path: path.stat().st_mtime_ns,
    )


def flip(path: Path, draw: random.Random) -> str:
    """Flip a random bit of a file and return its position."""
    content = bytearray(path.read_bytes())
    at, bit = draw.randrange(len(content)), draw.randrange(8)
    content[at] ^= 1 << bit
    path.write_bytes(content)
    return f"byte {at}, bit {bit}"


def named(home: Home, path: Path, files: tuple[str, ...]) -> bool:
    place = path.relative_to(home.root)
    return any(place.as_posix() == file or Path(file) == place.parent for file in files)  # a bundle is its folder


@pytest.mark.row("EV-3")
@pytest.mark.parametrize("seed", range(26))
def test_verify_names_every_file_with_a_flipped_bit(kept: Home, tmp_path: Path, seed: int) -> None:
    shutil.copytree(kept.root, tmp_path / "home")
    home, draw = Home.open(tmp_path / "home"), random.Random(seed)
    flipped = {path: flip(path, draw) for path in draw.sample(immutable(home), FILES)}
    report = verify(home)
    missed = {path.name: where for path, where in flipped.items() if not named(home, path, report.files)}
    assert not missed, f"seed {seed}: verify does not name {missed}"


@pytest.mark.row("EV-3")
def test_verify_names_a_table_whose_column_name_is_no_text(kept: Home, tmp_path: Path) -> None:
    shutil.copytree(kept.root, tmp_path / "home")
    home = Home.open(tmp_path / "home")
    altered = [path for path in immutable(home) if path.suffix == ".parquet"]
    for path in altered:
        content, name = path.read_bytes(), pq.read_schema(path).names[0].encode()
        at = content.index(name, len(content) - 8 - int.from_bytes(content[-8:-4], "little"))  # in the footer
        path.write_bytes(content[:at] + b"\xeb" + content[at + 1 :])
    report = verify(home)
    assert altered
    assert not [path for path in altered if not named(home, path, report.files)]


@pytest.mark.row("EV-3")
@pytest.mark.parametrize("seed", range(6))
def test_verify_names_a_checksum_manifest_with_a_flipped_bit(kept: Home, tmp_path: Path, seed: int) -> None:
    shutil.copytree(kept.root, tmp_path / "home")
    home, draw = Home.open(tmp_path / "home"), random.Random(seed)
    lists = sorted((home.cycles.parent / "sums").iterdir())
    flipped = {path: flip(path, draw) for path in lists}
    report = verify(home)
    missed = {path.name: where for path, where in flipped.items() if not named(home, path, report.files)}
    assert not missed, f"seed {seed}: verify does not name {missed}"
