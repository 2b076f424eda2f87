"""A cure that a message prints is a command that exists, takes the printed words, and helps."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.project_files import PACKAGE
from tests.conftest import copy_home
from tests.scenario.cli.test_hostile_options import COMMANDS
from tests.support.homes.two_owners import CORAL, PEARL, belongings
from tests.support.processes.bardo_command import bardo
from tests.support.processes.printed_cures import CURE, cure_in, ids

pytestmark = pytest.mark.row("P-4")

ROOT = PACKAGE.parent
SOURCES = sorted(
    path for name in ("bardo_pipeline", "assets", "jobs", "sensors") for path in (ROOT / name).rglob("*.py")
)
VALUE = "g-1"


def messages(tree: ast.Module) -> Iterator[str]:
    """Yield the texts of a module that are no docstrings, with a word in place of each formatted value."""
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else VALUE for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts | documentation:
            yield node.value


def printed_cures() -> set[str]:
    """Return the words of every command in a message of the sources."""
    texts = (text for path in SOURCES for text in messages(ast.parse(path.read_text())))
    return {words for text in texts for words in CURE.findall(text)}


def command_of(words: list[str]) -> tuple[str, ...] | None:
    """Return the command that begins these words; None without one."""
    named = (tuple(words[:count]) for count in (2, 1))
    return next((path for path in named if path in COMMANDS), None)


def is_group(words: list[str]) -> bool:
    return len(words) == 1 and any(path[0] == words[0] for path in COMMANDS)


@pytest.mark.parametrize("cure", sorted(printed_cures()))
def test_the_command_of_a_cure_exists_and_takes_its_words(cure: str) -> None:
    words = shlex.split(cure)
    path = command_of(words)
    if path is None:
        assert is_group(words), f"`bardo {cure}`: there is no such command"
        return
    given = words[len(path) :]
    parameters = {name: p for p in COMMANDS[path].params for name in (*p.opts, *p.secondary_opts)}
    options = [word.partition("=")[0] for word in given if word.startswith("--")]
    assert set(options) <= set(parameters), f"`bardo {cure}`: there is no such option"
    if given:  # a bare command is named, not called
        required = {p.opts[0] for p in COMMANDS[path].params if p.required}
        taken = sum(not parameters[option].is_flag for option in options)
        arguments = [p for p in COMMANDS[path].params if not p.opts[0].startswith("-")]
        assert required & {name for name in parameters if name.startswith("--")} <= set(options), f"`bardo {cure}`"
        assert len(given) - len(options) - taken <= len(arguments), f"`bardo {cure}` has too many words"
        assert len(given) - len(options) - taken >= sum(p.required for p in arguments), f"`bardo {cure}` lacks words"


def test_the_messages_of_the_sources_name_many_commands() -> None:
    assert len(printed_cures()) > 60
    assert command_of(["golem", "raise"]) is None
    assert not is_group(["golems"])


# Each cure helps


def dead_in(home: Path) -> str:
    return DerivationContext.open(home).life("DeathDeclared")["golem_id"][0].as_py()


def living_in(home: Path) -> str:
    return DerivationContext.open(home).life("GolemBorn")["golem_id"][0].as_py()


@pytest.mark.full
def test_a_missing_home_is_made(tmp_path: Path) -> None:
    root = tmp_path / "home"
    cure = cure_in(bardo("status", home=root, expect=2))
    bardo(*cure, home=root)
    bardo("status", home=root)
    assert cure_in(bardo("init", home=root, expect=2), "status") == ["status", "--home", str(root)]


@pytest.mark.full
def test_a_missing_or_unreadable_warehouse_is_built(lived: Path) -> None:
    for spoil in (lambda: None, lambda: (lived / "warehouse.duckdb").write_text("no database")):
        spoil()
        bardo(*cure_in(bardo("sql", "from dim_golem", home=lived, expect=2)), home=lived)
        assert ids(bardo("sql", "from dim_golem", home=lived))


@pytest.mark.full
@pytest.mark.parametrize(
    "words",
    [
        ("ask", "nobody", "why?"),
        ("status", "--owner", "nobody"),
        ("bloodstain", "nobody"),
        ("grimoire", "list", "nobody"),
        ("strike", "nobody", "1", "--why", "test"),
    ],
)
def test_an_unknown_golem_or_owner_leads_to_the_known_ones(words: tuple[str, ...], marts: Path) -> None:
    printed = bardo(*cure_in(bardo(*words, home=marts, expect=2)), home=marts)
    known = {row["golem_id"] for row in DerivationContext.open(marts).life("GolemBorn").to_pylist()}
    assert {key.partition(":")[0] for key in ids(printed)} & known
    if words[0] in ("ask", "status", "grimoire"):
        header, first = (line.split("\t") for line in printed.splitlines()[:2])
        value = first[header.index("owner_id" if "--owner" in words else "golem_id")]
        bardo(*(value if word == "nobody" else word for word in words), home=marts)


@pytest.mark.full
def test_an_unknown_entry_leads_to_known_ones(marts: Path) -> None:
    printed = bardo(*cure_in(bardo("lineage", "zzzz", home=marts, expect=2)), home=marts)
    header, first = (line.split("\t") for line in printed.splitlines()[:2])
    assert first[header.index("entry_id")] in bardo("lineage", first[header.index("entry_id")], home=marts)


@pytest.mark.full
def test_the_graveyard_leads_to_testament_and_successor(marts: Path) -> None:
    printed = bardo("graveyard", home=marts)
    heirless = next(line.split("\t")[0] for line in printed.splitlines()[1:] if line.endswith("\t-"))
    bardo(*cure_in(printed, "golem show", GOLEM=heirless), home=marts)
    alike = bardo(*cure_in(printed, "golem successor", GOLEM=heirless), "--budget", "50", home=marts, expect=2)
    bardo(*cure_in(alike), "--budget", "50", home=marts)
    again = bardo("golem", "successor", heirless, "--budget", "60", home=marts, expect=2)
    bardo(*cure_in(again, "golem found"), "--budget", "50", home=marts)


@pytest.mark.full
def test_an_unknown_bundle_leads_to_the_known_ones(marts: Path) -> None:
    for words in (("bundle", "show", "0" * 16), ("bundle", "waive", "g-none", "novel", "--why", "x")):
        listed = bardo(*cure_in(bardo(*words, home=marts, expect=2)), home=marts)
        assert len(ids(listed)) > 0
    rows = [line.split("\t") for line in bardo("bundle", "show", home=marts).splitlines()]
    shown = rows[1][rows[0].index("bundle")]
    assert shown[:12] in bardo("bundle", "show", shown.rstrip("…"), home=marts)


@pytest.mark.full
def test_unsigned_bundles_become_signed(marts: Path, tmp_path: Path) -> None:
    bundle = DerivationContext.open(marts).life("BundlePublished").to_pylist()[0]
    owner = {
        row["golem_id"]: row["born"]["owner_id"] for row in DerivationContext.open(marts).life("GolemBorn").to_pylist()
    }[bundle["golem_id"]]
    words = ("bundle", "export", bundle["published"]["bundle_hash"], str(tmp_path / "bundle.tar.gz"))
    assert cure_in(bardo("bundle", "sign", home=marts)) == ["keys", "owner"]
    bardo(*cure_in(bardo(*words, home=marts)), owner, home=marts)
    bardo("bundle", "sign", home=marts)
    assert f"signed by {owner}" in bardo(*words, home=marts)


@pytest.mark.full
def test_what_if_lists_its_derivations(lived: Path) -> None:
    printed = bardo(*cure_in(bardo("adopt", "--why", "x", home=lived, expect=2)), home=lived)
    assert printed.strip()
    unknown = bardo("adopt", "nothing", "--why", "x", home=lived, expect=2)
    bardo(*cure_in(unknown), "--set", "decay.tactical_days=14", home=lived)
    (built,) = [row for row in json.loads(bardo("whatif", "--list", "--json", home=lived)) if not row["in_force"]]
    adopted = bardo("adopt", built["name"], "--why", "x", home=lived)
    bardo(*cure_in(adopted), "--why", "back", home=lived)


@pytest.mark.full
def test_unknown_quarantine_items_and_tokens_lead_to_the_lists(lived: Path) -> None:
    (lived / "spool" / "bad.jsonl").write_text("{}\n")
    taken = bardo("spool", "take", home=lived)
    (item,) = ids(bardo(*cure_in(taken), home=lived))
    unknown = bardo("quarantine", "drop", "0" * 16, "--why", "x", home=lived, expect=2)
    assert item in bardo(*cure_in(unknown), home=lived)
    bardo("quarantine", "drop", item, "--why", "x", home=lived)
    refused = bardo("keys", "revoke-token", "0" * 12, home=lived, expect=2)
    bardo("keys", "token", "owner-1", home=lived)
    (token,) = ids(bardo(*cure_in(refused), home=lived))
    bardo("keys", "revoke-token", token, home=lived)


@pytest.mark.full
def test_damaged_tokens_are_deleted_and_issued_again(lived: Path) -> None:
    bardo("keys", "token", "owner-1", home=lived)
    (lived / "keys" / "tokens.json").write_text("no tokens")
    refused = bardo("keys", "tokens", home=lived, expect=2)
    assert f"{lived / 'keys' / 'tokens.json'} does not hold tokens" in refused
    (lived / "keys" / "tokens.json").unlink()
    bardo(*cure_in(refused), "owner-1", home=lived)
    assert len(ids(bardo("keys", "tokens", home=lived))) == 1


@pytest.mark.full
def test_keys_that_are_missing_are_made(living: Path) -> None:
    golem = living_in(living)
    refused = bardo("keys", "revoke", golem, "--why", "x", home=living, expect=2)
    bardo(*cure_in(refused), golem, "--public", "1" * 64, home=living)
    bardo("keys", "revoke", golem, "--why", "x", home=living)
    refused = bardo("keys", "revoke-owner", "owner-1", "--why", "x", home=living, expect=2)
    bardo(*cure_in(refused), "owner-1", home=living)
    bardo("keys", "revoke-owner", "owner-1", "--why", "x", home=living)


@pytest.mark.full
def test_a_backup_becomes_a_home_and_a_home_a_backup(lived: Path, tmp_path: Path) -> None:
    folder, restored = tmp_path / "backup", tmp_path / "restored"
    missing = bardo("restore", str(folder), "--home", str(restored), home=lived, expect=2)
    bardo(*cure_in(missing), home=lived)
    refused = bardo("derive", home=folder, expect=2)
    bardo(*cure_in(refused), str(folder), "--home", str(restored), home=lived)
    assert "clean" in bardo("verify", home=restored)


@pytest.mark.full
def test_an_unreadable_digest_leads_to_the_printed_one(lived: Path) -> None:
    printed = bardo(*cure_in(bardo("verify", "--expect", "x", home=lived, expect=2)), home=lived)
    digest = printed.split("digest of the fleet")[1].split()[0]
    assert "clean" in bardo("verify", "--expect", digest, home=lived)


@pytest.mark.full
def test_a_living_golem_has_no_successor_but_a_state(living: Path) -> None:
    golem = living_in(living)
    refused = bardo("golem", "successor", golem, "--budget", "50", home=living, expect=2)
    assert golem in bardo(*cure_in(refused), home=living)


@pytest.mark.full
def test_an_unknown_kit_or_rule_leads_to_the_library(marts: Path) -> None:
    refused = bardo("library", "show", "zzzz", "--owner", "owner-1", home=marts, expect=2)
    assert "Library of owner-1" in bardo(*cure_in(refused), home=marts)


@pytest.mark.full
def test_a_model_that_was_never_checked_is_checked(tmp_path: Path) -> None:
    root = tmp_path / "home"
    bardo("init", str(root), home=root)
    bardo(*cure_in(bardo("drift", home=root)), home=root)
    assert "was never checked" not in bardo("drift", home=root)


@pytest.mark.full
def test_a_damaged_derived_table_or_index_is_derived_again(lived: Path) -> None:
    for file in (lived / "derivations").rglob("grimoire/**/*.parquet"):  # files of earlier versions too
        file.write_bytes(file.read_bytes()[:-7])
    refused = bardo("status", "--check", home=lived, expect=2)
    bardo(*cure_in(refused, "derive"), "--no-marts", home=lived)
    assert "damaged" not in bardo("golem", "show", dead_in(lived), home=lived)


@pytest.mark.full
def test_a_file_that_waits_in_the_spool_is_taken(lived: Path) -> None:
    file = lived / "spool" / "late.jsonl"
    file.write_text("{}\n")
    os.utime(file, (1, 1))
    printed = bardo("status", home=lived)
    bardo(*cure_in(printed, "spool take"), home=lived)
    assert not file.exists()


@pytest.mark.full
def test_a_missing_conversation_is_begun(living: Path) -> None:
    golem = living_in(living)
    refused = bardo("conversation", "show", golem, "--session", "first", home=living, expect=2)
    bardo(*cure_in(refused), golem, "hello", "--session", "first", home=living)
    bardo("conversation", "show", golem, "--session", "first", home=living)


@pytest.mark.full
def test_a_dead_golems_entry_is_pulled_or_found_in_the_library(marts: Path) -> None:
    dead = dead_in(marts)
    entry = ids(bardo("grimoire", "list", dead, home=marts))[0]
    words = (dead, entry, "--why", "x")
    pull = cure_in(bardo("library", "export", *words, home=marts, expect=2))
    late = bardo(*pull, *words, home=marts, expect=2)
    at = re.search(r"left its testament at (\S+ \S+) UTC", late)
    assert at is not None
    bardo(*pull, *words, "--at", at[1], home=marts)
    owners = {row["born"]["owner_id"] for row in DerivationContext.open(marts).life("GolemBorn").to_pylist()}
    assert any(entry in bardo(*cure_in(late, "library list"), "--owner", owner, home=marts) for owner in owners)


@pytest.mark.full
def test_a_missing_secret_of_a_clade_and_a_missing_seal_key_are_made(living: Path) -> None:
    refused = bardo("clade", "identity", "owner-1", home=living, expect=2)
    bardo(*cure_in(refused), home=living)
    assert "no secret" not in bardo("clade", "identity", "owner-1", home=living)
    golem = living_in(living)
    refused = bardo("seal", "destroy", golem, "--why", "x", home=living, expect=2)
    bardo(*cure_in(refused), golem, home=living)
    bardo("seal", "destroy", golem, "--why", "x", home=living)


@pytest.mark.full
def test_a_refused_gift_of_another_owner_is_consented_to(two_owners_home: Path, tmp_path: Path) -> None:
    home = copy_home(two_owners_home, tmp_path / "home")
    bundle, heir = belongings(home, PEARL).bundle, belongings(home, CORAL).heir
    refused = bardo("bundle", "give", bundle, "--to", heir, home=home, expect=2)
    bardo(*cure_in(refused), "--owner", PEARL, home=home)
    bardo("bundle", "give", bundle, "--to", heir, home=home)


@pytest.mark.full
def test_a_bundle_of_elsewhere_is_imported_before_it_is_given(
    marts: Path, two_owners_home: Path, tmp_path: Path
) -> None:
    home, file = copy_home(two_owners_home, tmp_path / "owners"), tmp_path / "bundle.tar.gz"
    bundle = DerivationContext.open(marts).life("BundlePublished").to_pylist()[0]["published"]["bundle_hash"]
    bardo("bundle", "export", bundle, str(file), home=marts)
    heir = belongings(home, CORAL).heir
    refused = bardo("bundle", "give", str(file), "--to", heir, home=home, expect=2)
    bardo(*cure_in(refused), str(file), "--unsigned", home=home)
    bardo("bundle", "give", bundle, "--to", heir, home=home)
