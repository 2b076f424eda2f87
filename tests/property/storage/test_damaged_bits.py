"""Commands never answer wrongly from a damaged home, and never with a traceback (tests/bits.py)."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.bits import KINDS, Bench, Damage, append_ends, damages, furnish
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
    drawn = [(kind, damage) for kind, damage in damages(bench, 22, 22, Random(7)) if kind in QUICK]
    assert {kind for kind, _ in drawn} == QUICK
    assert wrong(bench, drawn[:12]) == []


@pytest.mark.row("X-9", "EV-3", "EV-9")
def test_commands_name_emptied_journals_and_conversations_and_a_cut_sealed_segment(bench: Bench) -> None:
    sealed, last = bench.kinds()["journals"]
    archive, session = bench.kinds()["conversations"]
    between_appends = (bench.root / sealed).read_bytes().rindex(b"FRAM")
    cuts = [("journals", sealed, between_appends), ("journals", last, 0)]
    cuts += [("conversations", archive, 0), ("conversations", session, 0)]
    for kind, path, size in cuts:
        outcome, why = bench.judge(kind, Damage(path, "cut", size))
        assert outcome == "typed error", f"{path} cut to {size} bytes: {outcome} {why}"
    assert append_ends(bench.root / sealed) == append_ends(bench.root / archive) == set()
    assert len(append_ends(bench.root / last)) == 1, "it has one record"
    assert len(append_ends(bench.root / session)) == 2, "one message follows those written with the header"


@pytest.mark.full
@pytest.mark.row("X-9")
def test_commands_detect_damage_of_every_kind_of_file(bench: Bench) -> None:
    assert wrong(bench, list(damages(bench, 110, 44, Random(8)))) == []
