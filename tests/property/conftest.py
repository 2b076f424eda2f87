"""Shared by the laws: a home of two lineages, lived once a session, of which each test takes its own copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.conftest import one_at_a_time
from tests.support.homes.homes_to_repair import lived_home


@pytest.fixture(scope="session")
def two_lineages(session_folder: Path) -> Path:
    """A home of `lived_home`. Only for copying."""
    root = session_folder / "two_lineages"
    with one_at_a_time(session_folder / "two_lineages.lock"):
        if not (root / "done").exists():
            shutil.rmtree(root, ignore_errors=True)
            lived_home(root).log.close()
            (root / "done").touch()
    return root
