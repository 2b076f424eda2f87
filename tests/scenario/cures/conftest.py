"""Homes on which commands fail and succeed again by the printed cure."""

from __future__ import annotations

from pathlib import Path

import pytest

from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from tests.conftest import NOW, copy_home
from tests.support.processes.bardo_command import bardo


@pytest.fixture
def new_home(tmp_path: Path) -> Path:
    """A home without a golem."""
    root = tmp_path / "home"
    Home.create(root, Policy(), NOW)
    return root


@pytest.fixture
def founded(new_home: Path) -> Path:
    """A home in which golem g-1 is born to owner ann."""
    bardo("golem", "birth", "g-1", "--owner", "ann", home=new_home)
    return new_home


@pytest.fixture
def lived(brief_home: Path, tmp_path: Path) -> Path:
    """A home of dead golems and their heirs, without a warehouse."""
    return copy_home(brief_home, tmp_path / "home")


@pytest.fixture
def living(half_lived: Path, tmp_path: Path) -> Path:
    """A home of living golems."""
    return copy_home(half_lived, tmp_path / "home")


@pytest.fixture
def owned(two_owners_home: Path, tmp_path: Path) -> Path:
    """A home of two owners with a dead golem, a bundle and an heir each."""
    return copy_home(two_owners_home, tmp_path / "home")


@pytest.fixture
def marts(marts_home: Path, tmp_path: Path) -> Path:
    """A home with bundles and a warehouse."""
    return copy_home(marts_home, tmp_path / "home")
