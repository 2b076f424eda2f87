from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.storage.keys.clade_secrets import clade_secret_path
from tests.conftest import one_at_a_time
from tests.support.processes.bardo_command import bardo
from tests.support.processes.clade_homes import OWNER, made
from tests.support.processes.relays import relay


@pytest.fixture(scope="module")
def lived(session_folder: Path) -> tuple[Path, Path]:
    """Two homes of one owner with three living golems each, which know the clade's secret. Copy before writing."""
    roots = session_folder / "clade-a", session_folder / "clade-b"
    with one_at_a_time(session_folder / "clade.lock"):
        if not (session_folder / "clade-done").exists():
            for root in roots:
                shutil.rmtree(root, ignore_errors=True)
            made(roots[0], "--seed", "1")
            made(roots[1], "--seed", "2")
            bardo("clade", "key", OWNER, home=roots[0])
            secret = clade_secret_path(DerivationContext.open(roots[0]).home, OWNER)
            bardo("clade", "key", OWNER, "--file", str(secret), home=roots[1])
            (session_folder / "clade-done").touch()
    return roots


@pytest.fixture
def homes(lived: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    for root in lived:
        shutil.copytree(root, tmp_path / root.name)
    return tmp_path / lived[0].name, tmp_path / lived[1].name


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with relay(tmp_path / "relay.db") as (url, _):
        yield url
