"""A message about an option or an argument states how the command is called instead, and that call succeeds."""

from __future__ import annotations

import json
import os
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.legacy.warning_waivers import bundle_failures
from tests.support.homes.two_owners import CORAL, PEARL, belongings
from tests.support.processes.bardo_command import bardo, on_terminal
from tests.support.processes.printed_cures import cure_in, ids, value_in

pytestmark = [pytest.mark.row("P-4"), pytest.mark.full]


def test_a_key_is_given_with_its_owner(owned: Path, tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(key)], check=True)
    public = subprocess.run(["openssl", "pkey", "-in", str(key), "-pubout"], check=True, capture_output=True).stdout
    (tmp_path / "public.pem").write_bytes(public)
    bardo("keys", "owner", CORAL, "--file", str(tmp_path / "public.pem"), home=owned)
    option = value_in(bardo("bundle", "sign", "--key", str(key), home=owned, expect=2), r"give (--owner) too")
    assert "signed with" in bardo("bundle", "sign", "--key", str(key), option, CORAL, home=owned)


def test_a_home_without_decisions_is_judged_after_a_run(new_home: Path, tmp_path: Path) -> None:
    words = ("eval", "negentropy", "--out", str(tmp_path / "out"))
    cure = cure_in(bardo(*words, home=new_home, expect=2))
    bardo(*cure, "--golems", "2", "--bars", "1500", "--no-marts", home=new_home)
    assert "Page:" in bardo(*words, home=new_home)


def test_a_moment_of_silence_is_given_with_its_clock(living: Path) -> None:
    words = ("golem", "observe", "--dry-run", "--at", "2027-01-01")
    option, clock = value_in(bardo(*words, home=living, expect=2), r"--at needs (--clock wall)").split()
    silent = {row["golem_id"] for row in DerivationContext.open(living).life("GolemBorn").to_pylist()}
    assert silent & set(bardo(*words, option, clock, home=living).replace("\t", " ").split())


@pytest.mark.parametrize("given", [("--block-from", "5"), ("--tick-from", "3", "--tick-to", "2")])
def test_the_ends_of_a_reorg_are_given_together_in_order(given: tuple[str, ...], lived: Path) -> None:
    records = DerivationContext.open(lived).log.read_cycles(["golem_id", "tick", "observation"]).to_pylist()
    golem, tick, chain = next((r["golem_id"], r["tick"], r["observation"]["chain"]) for r in records)
    words = ("reorg", golem, "--chain", chain, "--no-derive")
    refused = bardo(*words, *given, home=lived, expect=2)
    first, last = value_in(refused, r"(--\S+ and --\S+) must be given together, in ascending order").split(" and ")
    if first == "--tick-from":
        assert "is left out" in bardo(*words, first, str(tick), last, str(tick), home=lived)
    else:
        assert f"at blocks 5 to {2**40}" in bardo(*words, first, "5", last, str(2**40), home=lived, expect=2)


def test_raw_bytes_are_sent_to_a_file(founded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (founded / "spool").mkdir(exist_ok=True)
    (founded / "spool" / "wrong.jsonl").write_text("no record\n")
    bardo("spool", "take", home=founded)
    (item,) = ids(bardo("quarantine", "list", home=founded))
    with pytest.raises(AssertionError, match="send them to a file"):
        on_terminal(("quarantine", "show", item, "--raw"), founded)
    assert "no record" in bardo("quarantine", "show", item, "--raw", home=founded), "the output of this call is a file"


@pytest.mark.parametrize("name", ["", "x" * 257])
def test_a_name_has_the_stated_length(name: str, founded: Path) -> None:
    refused = bardo("keys", "owner", name, home=founded, expect=2)
    most = int(value_in(refused, r"a name has 1 to (\d+) characters"))
    bardo("keys", "owner", "x" * most, home=founded)
    refused = bardo("status", "--owner", name, home=founded, expect=2)
    assert int(value_in(refused, r"give 1 to (\d+) characters, or no --owner")) == most
    bardo("status", home=founded)


def test_an_empty_reason_of_a_waiver_is_written(marts: Path) -> None:
    failures = bundle_failures(DerivationContext.open(marts))
    warning = next(failure for failure in failures if failure.severity == "warning")
    words = ("bundle", "waive", warning.golem_id, warning.expectation, "--why")
    option = value_in(bardo(*words, " ", home=marts, expect=2), r"a waiver needs a reason: add (--why)")
    bardo(*words[:-1], option, "seen", home=marts)
    assert DerivationContext.open(marts).life("BundleWaived").num_rows == 1


def test_an_unknown_bundle_leads_to_the_known_ones(marts: Path) -> None:
    refused = bardo("bundle", "show", "nothing", home=marts, expect=2)
    known = ids(bardo(*cure_in(refused, "bundle show"), home=marts))
    assert known[0] in bardo("bundle", "show", known[0], home=marts)


def test_a_bundle_to_buy_is_taken_in_first(owned: Path) -> None:
    refused = bardo("library", "buy", "nothing", "--why", "x", "--owner", CORAL, home=owned, expect=2)
    listed = bardo(*cure_in(refused, "bundle show"), "--owner", PEARL, home=owned)
    assert belongings(owned, PEARL).bundle[:12] in listed


def test_a_cycle_of_proposals_lies_in_the_stated_range(living: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BARDO_LANGUAGE_MODEL", "openai-chat:none")
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    bardo("derive", "--no-marts", home=living)
    golem = DerivationContext.open(living).life("GolemBorn")["golem_id"][0].as_py()
    refused = bardo("propose", golem, "--cycle", "99", "--dry-run", home=living, expect=2)
    newest = value_in(refused, r"is curated through cycle (\d+)")
    assert f"cycle {newest}" in bardo("propose", golem, "--cycle", newest, "--dry-run", home=living)


def test_a_configuration_of_a_golem_needs_its_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    refused = bardo("config", "show", "--golem", "g-1", home=home, expect=2)
    bardo(*cure_in(refused, "run"), "--golems", "1", "--bars", "60", "--no-marts", home=home)
    golem = DerivationContext.open(home).life("GolemBorn")["golem_id"][0].as_py()
    assert json.loads(bardo("config", "show", "--golem", golem, "--json", home=home))


def test_an_unknown_setting_leads_to_the_parts_of_the_policy(lived: Path) -> None:
    refused = bardo("whatif", "--set", "zzz=1", home=lived, expect=2)
    parts = value_in(refused, r"its parts are (.+)$").split(", ")
    assert "decay" in parts
    near = bardo("whatif", "--set", "decay.tactical=14", home=lived, expect=2)
    setting = value_in(near, r"the nearest are (decay\.tactical\w+)")
    assert "14" in bardo("whatif", "--set", f"{setting}=14", home=lived)


def test_a_library_of_one_of_several_owners_is_named(owned: Path) -> None:
    option = value_in(bardo("library", "list", home=owned, expect=2), r"has 2 owners \(.+\): give (--owner)")
    assert bardo("library", "list", option, CORAL, home=owned)


def test_an_unknown_kit_of_a_library_leads_to_its_list(owned: Path) -> None:
    words = ("library", "equip", "--kit", "nothing", "--why", "x", "--owner", CORAL)
    refused = bardo(*words, home=owned, expect=2)
    assert bardo(*cure_in(refused, "library list"), "--owner", CORAL, home=owned)


def test_a_short_id_of_an_entry_is_given_in_full(lived: Path) -> None:
    rows = DerivationContext.open(lived).projections.read("grimoire")
    golem = rows["golem_id"][0].as_py()
    known = sorted(row["entry_id"] for row in rows.to_pylist() if row["golem_id"] == golem)
    entry = next(one for one, other in pairwise(known) if one[0] == other[0])
    for words in (("grimoire", "show", golem), ("lineage",)):
        assert "give more of the id" in bardo(*words, entry[0], home=lived, expect=2)
        assert entry in bardo(*words, entry, home=lived)


def test_an_unchanged_policy_is_changed_by_the_named_option(lived: Path) -> None:
    option = value_in(bardo("whatif", home=lived, expect=2), r"give (--set) NAME=VALUE")
    assert "decay.tactical_days=15.0" in bardo("whatif", option, "decay.tactical_days=15", home=lived)


def test_a_public_key_is_given_by_either_named_option(founded: Path, tmp_path: Path) -> None:
    key = Ed25519PrivateKey.from_private_bytes(b"k" * 32).public_key()
    file = tmp_path / "public.pem"
    file.write_bytes(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    bardo("golem", "birth", "g-2", "--owner", "ann", home=founded)
    refused = bardo("keys", "register", "g-1", home=founded, expect=2)
    by_text, by_file = (value_in(refused, cure) for cure in (r"give (--public) HEX", r"or (--file) PEM"))
    bardo("keys", "register", "g-1", by_text, key.public_bytes_raw().hex(), home=founded)
    bardo("keys", "register", "g-2", by_file, str(file), home=founded)


def test_an_argument_is_encoded_as_utf8(founded: Path) -> None:
    word = "caf\u00e9".encode("latin-1")
    encoding = value_in(bardo("ask", "g-1", os.fsdecode(word), home=founded, expect=2), r"encode it as (\S+)")
    bardo("ask", "g-1", word.decode("latin-1").encode(encoding).decode(), home=founded)


def test_an_unknown_table_gives_way_to_a_named_one(marts: Path) -> None:
    table = value_in(bardo("sql", "from fct_nothing", home=marts, expect=2), r"The tables are (\w+),")
    assert bardo("sql", f"from {table}", home=marts)
    example = value_in(bardo("sql", " ", home=marts, expect=2), r"try for example `([^`]+)`")
    assert "golem_id" in bardo("sql", example, home=marts)


def test_golems_are_graded_in_a_named_market(new_home: Path, tmp_path: Path) -> None:
    words = ("eval", "memory", "--golems", "1", "--days", "2", "--markets", "1", "--out", str(tmp_path / "out"))
    market = value_in(bardo(*words, "--market", "flat", home=new_home, expect=2), r"use (\w+) or recorded")
    assert "Page:" in bardo(*words, "--market", market, home=new_home, expect=1), "so few golems miss a bound"
