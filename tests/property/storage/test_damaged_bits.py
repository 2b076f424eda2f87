"""Commands never answer wrongly from a damaged home, and never with a traceback (tests/bits.py)."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.bits import KINDS, READ_BY, Bench, Damage, append_ends, damages, furnish, kind_of
from tests.conftest import copy_home

QUICK = {"checksum manifests", "tick index", "heads", "keys", "conversations", "quarantine", "leases", "home.json",
         "server.json"}  # fmt: skip
"""Kinds that few and fast commands read."""


@pytest.fixture(scope="module")
def bench(brief_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    root = copy_home(brief_home, tmp_path_factory.mktemp("bits") / "home")
    furnish(root, marts=False)
    return Bench(root)


def wrong(bench: Bench, drawn: list[tuple[str, Damage]]) -> list[str]:
    judged = ((damage, *bench.judge(kind, damage)) for kind, damage in drawn)
    return [f"{d}: {outcome}: {why}" for d, outcome, why in judged if outcome in ("wrong answer", "traceback")]


@pytest.mark.full
@pytest.mark.row("X-9")
def test_commands_detect_flipped_bits_and_cut_files(bench: Bench) -> None:
    assert set(bench.kinds()) == set(KINDS) - {"warehouse"}, "the home has every kind of file but the warehouse"
    drawn = [(kind, damage) for kind, damage in damages(bench, 22, 22, Random(7)) if kind in QUICK]
    assert {kind for kind, _ in drawn} == QUICK
    assert wrong(bench, drawn[:12]) == []


@pytest.mark.full
@pytest.mark.row("X-9")
def test_every_file_of_a_home_has_a_kind(bench: Bench) -> None:
    assert {kind_of(name) for name in ("warehouse.duckdb", "dbt_docs.html")} == {"warehouse", "documents"}
    unknown = bench.root / "index" / "words.arrow"
    unknown.write_bytes(b"ARROW1")
    try:
        with pytest.raises(ValueError, match=r"index/words\.arrow has no kind"):
            bench.kinds()
    finally:
        unknown.unlink()
    assert set(READ_BY) == set(KINDS)
    assert {name for names in READ_BY.values() for name in names} <= {*bench.commands, "sql"}


@pytest.mark.full
@pytest.mark.row("X-9")
def test_an_unreadable_server_file_leaves_the_question_to_the_command(bench: Bench) -> None:
    whole = (bench.root / "server.json").read_bytes()
    port = whole.index(b':9"')
    for damage in (
        Damage("server.json", "cut", 0),
        Damage("server.json", "cut", len(whole) // 2),
        Damage("server.json", "flip", 8 * port),
        Damage("server.json", "flip", 8 * whole.index(b"127")),
    ):
        assert bench.judge("server.json", damage)[0] == "equal", damage


@pytest.mark.full
@pytest.mark.row("X-9")
def test_an_unreadable_list_of_documented_bundles_stops_no_derivation(bench: Bench) -> None:
    (path,) = (name for name in bench.kinds()["documents"] if name.endswith("bundles.txt"))
    outcome, why = bench.judge("documents", Damage(path, "flip", 7))
    assert outcome == "equal", why


@pytest.mark.full
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
