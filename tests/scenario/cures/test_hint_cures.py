"""A hint after a result names a command that goes on from there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.homes import tampered_homes
from tests.support.homes.two_owners import CORAL, belongings
from tests.support.processes.bardo_command import bardo
from tests.support.processes.printed_cures import cure_in, ids, value_in
from tests.support.processes.relays import relay

pytestmark = [pytest.mark.row("P-4"), pytest.mark.full]


def test_a_new_home_is_checked_lived_in_and_given_a_golem(tmp_path: Path) -> None:
    root = tmp_path / "home"
    printed = bardo("init", str(root), home=root)
    assert "all valid" in bardo(*cure_in(printed, "config check"), home=root)
    bardo(*cure_in(printed, "run"), "--bars", "60", "--golems", "1", "--no-marts", home=root)
    bardo(*cure_in(printed, "golem birth"), "g-1", "--owner", "ann", home=root)


def test_an_issued_token_is_revoked(founded: Path) -> None:
    printed = bardo("keys", "token", "ann", home=founded)
    (token,) = ids(bardo("keys", "tokens", home=founded))
    bardo(*cure_in(printed), token, home=founded)
    assert token not in bardo("keys", "tokens", home=founded)


def test_records_that_a_revoked_key_signed_are_struck(founded: Path) -> None:
    bardo("report", "g-1", "move", "0.5", home=founded)
    bardo("keys", "register", "g-1", "--public", "1" * 64, home=founded)
    printed = bardo("keys", "revoke", "g-1", "--from-tick", "1", "--why", "stolen", home=founded)
    tick = value_in(printed, r"ticks (\d+) to \d+ are on record")
    bardo(*cure_in(printed), "g-1", tick, "--why", "stolen", home=founded)


def test_a_restored_home_is_verified_and_rebuilt(tmp_path: Path) -> None:
    home = tampered_homes.make(tmp_path / "home").root
    bardo("backup", str(tmp_path / "backup"), home=home)
    printed = bardo("restore", str(tmp_path / "backup"), "--home", str(tmp_path / "new"), home=home)
    for command in ("verify", "rebuild"):
        bardo(value_in(printed, rf"next: .*bardo ({command})"), home=tmp_path / "new")


def test_a_refused_file_of_the_spool_leads_to_its_reasons_and_to_all_items(founded: Path) -> None:
    (founded / "spool" / "bad.jsonl").write_text("{}\n")
    listed = bardo(*cure_in(bardo("spool", "take", home=founded)), home=founded)
    assert "golem_id" in listed
    words = ("quarantine", "drop", "--why", "x")
    option = value_in(bardo(*words, home=founded, expect=2), r"name items, or give (--all)")
    bardo(*words, option, home=founded)


@pytest.mark.parametrize("report", ["notes", "beliefs", "pheromones"])
def test_a_clade_without_messages_exchanges(report: str, founded: Path, tmp_path: Path) -> None:
    bardo("clade", "key", "ann", home=founded)
    exchange = cure_in(bardo("clade", report, home=founded), "clade sync", OWNER="ann")
    with relay(tmp_path / "relay.db") as (address, _):
        assert "clade of ann" in bardo(*exchange, "--relay", address, home=founded)


def test_a_question_as_of_two_moments_gets_one(owned: Path) -> None:
    words = ("ask", belongings(owned, CORAL).golem, "gas")
    refused = bardo(*words, "--at", "2026-01-02", "--tick", "100", home=owned, expect=2)
    assert "give one of them" in refused
    bardo(*words, "--tick", "100", home=owned)
    bardo(*words, "--at", "2026-01-02", home=owned)


def test_latencies_are_given_as_in_the_message(new_home: Path) -> None:
    words = ("live", "--bars", "60", "--golems", "1", "--speed", "0", "--latency")
    example = value_in(bardo(*words, "1", home=new_home, expect=2), r"for example (\S+)")
    bardo(*words, example, home=new_home)
