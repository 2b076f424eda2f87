"""A served home of two owners, one copy for each module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import copy_home
from tests.support.homes.served_homes import Served, served
from tests.support.homes.two_owners import CORAL, PEARL, Belongings, belongings


@pytest.fixture(scope="module")
def home(two_owners_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_home(two_owners_home, tmp_path_factory.mktemp("server") / "home")


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Served]:
    with served(home, CORAL, PEARL) as running:
        yield running


@pytest.fixture(scope="module")
def coral(home: Path) -> Belongings:
    return belongings(home, CORAL)


@pytest.fixture(scope="module")
def pearl(home: Path) -> Belongings:
    return belongings(home, PEARL)
