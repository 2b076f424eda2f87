"""Commands never answer wrongly from a damaged home, and never with a traceback (tests/bits.py)."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.bits import KINDS, Bench, Damage, damages, furnish
from tests.conftest import copy_home

QUICK = {"checksum manifests", "tick index", "heads", "keys", "conversations", "quarantine", "leases", "home.json"}
"""Kinds that few and fast commands read."""


@pytest.fixture(scope="module")
def bench(brief_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    root = copy_home(brief_home, tmp_path_factory.mktemp("bits") / "home")
    furnish(root, marts=False)
    return Bench(root)


def wrong(bench: Bench, drawn: list[tuple[str, Damage]]) -> list[str]:
    judged = ((damage, *bench.judge(kind, damage)) for kind, damage in drawn)
    return [f"{d}: {outcome}: {why}" for d, outcome, why in judged if outcome in ("wrong answer", "traceback")]


@pytest.mark.row("X-9")
def test_commands_detect_flipped_bits_and_cut_files(bench: Bench) -> None:
    assert set(bench.kinds()) == set(KINDS) - {"warehouse"}, "the home has every kind of file but the warehouse"
    drawn = list(damages(bench, 66, 22, Random(7)))
    assert wrong(bench, [(kind, damage) for kind, damage in drawn if kind in QUICK][:30]) == []


@pytest.mark.full
@pytest.mark.row("X-9")
def test_commands_detect_damage_of_every_kind_of_file(bench: Bench) -> None:
    assert wrong(bench, list(damages(bench, 110, 44, Random(8)))) == []
