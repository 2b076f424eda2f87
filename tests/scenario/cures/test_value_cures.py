"""A message about a wrong value gives a right one, or an example, with which the command succeeds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from bardo_pipeline.derivation.context import DerivationContext
from tests.support.homes.two_owners import CORAL, PEARL, belongings
from tests.support.processes.bardo_command import bardo
from tests.support.processes.printed_cures import cure_in, value_in

pytestmark = [pytest.mark.row("P-4"), pytest.mark.full]

WRONG = "WRONG"
"""Stands in a command for the value that is refused, then for the one that the message gives."""


def follow(words: tuple[str, ...], cure: str, home: Path, *, wrong: str = "wrong") -> str:
    """Run a command with a wrong value, then with the value that a pattern finds in the message."""
    refused = bardo(*(word.replace(WRONG, wrong) for word in words), home=home, expect=2)
    value = value_in(refused, cure)
    return bardo(*(word.replace(WRONG, value) for word in words), home=home)


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        (("schema", WRONG), r"use record, (\w+)"),
        (("run", "--market", WRONG, "--bars", "60", "--golems", "1", "--no-marts"), r"use (\w+) or \w+, or give"),
        (("run", "--bars", "60", "--golems", "1", "--no-marts", "--steer", WRONG), r"for example '(.+?)'"),
        (("run", "--bars", "60", "--golems", "1", "--no-marts", "--lifespan", WRONG), r"for example (\d+-\d+)"),
        (("derive", "--bucket", WRONG, "--no-marts"), r"write NUMBER/COUNT, as in (\d/\d)"),
        (("remember", "g-1", "text", "--outcome", WRONG), r"for example '(.+)'"),
        (("report", "g-1", "move", "0.5", "--situation", WRONG), r"for example '(.+)'"),
        (("golem", "observe", "--clock", WRONG), r"use (\w+) or wall"),
        (("status", "--format", WRONG), r"(\w+) or json"),
        (("ticks", "--tier", WRONG), r"there is no tier 'wrong': (\w+)"),
        (("search", "gas", "--store", WRONG), r"there is no store 'wrong': (\w+)"),
        (("search", "gas", "--status", WRONG), r"there are (\w+)"),
        (("grimoire", "list", "g-1", "--status", WRONG), r"is not one of (\w+)"),
        (("reembed", "--model", WRONG), r"there are: \w+, ([\w-]+)"),
        (("conversation", "append", "g-1", "hello", "--role", WRONG), r"the role of a message is (\w+)"),
        (("status", "--embedder", WRONG), r"there are: (\w+)"),
    ],
)
def test_a_wrong_value_gives_way_to_the_one_in_the_message(words: tuple[str, ...], cure: str, founded: Path) -> None:
    follow(words, cure, founded)


def test_an_event_of_a_named_category_is_watched(lived: Path) -> None:
    words = ("watch", "--category", WRONG, "--no-follow", "--format", "json")
    assert follow(words, r"take some of (?:\w+, )*(mortality)", lived)


def test_a_moment_is_written_as_in_the_message(lived: Path) -> None:
    golem = DerivationContext.open(lived).life("GolemBorn")["golem_id"][0].as_py()
    assert "As of cycle" in follow(("ask", golem, "gas", "--at", WRONG), r"for example (\S+)", lived)


def test_a_setting_of_what_if_is_written_as_in_the_message(lived: Path, tmp_path: Path) -> None:
    assert "14" in follow(("whatif", "--set", WRONG), r"for example (\S+)", lived)
    near = follow(("whatif", "--set", f"{WRONG}=15"), r"the nearest are (\S+),", lived, wrong="decay.tactical_dais")
    assert "15" in near
    file = tmp_path / "policy.json"
    for content in ("[", "[1]"):
        file.write_text(content)
        refused = bardo("whatif", "--policy", str(file), home=lived, expect=2)
        file.write_text(value_in(refused, r"write it as (\{.*\})"))
        assert "14" in bardo("whatif", "--policy", str(file), home=lived)


def test_a_setting_without_a_finite_value_takes_a_large_number(lived: Path) -> None:
    refused = bardo("whatif", "--set", "decay.tactical_days=inf", home=lived, expect=2)
    assert "use a large number instead" in refused
    bardo("whatif", "--set", "decay.tactical_days=100000", home=lived)


def test_an_empty_query_is_written_as_in_the_message(owned: Path) -> None:
    assert "\t" in follow(("sql", WRONG), r"try for example `(.+?)`", owned, wrong="")


@pytest.mark.parametrize(
    ("words", "cure", "values"),
    [
        (("golem", "birth", "g-2"), r"(--owner) NAME", {"--owner": "ann"}),
        (("keys", "token"), r"name an owner, or give (--whole-home)", {}),
        (("keys", "token"), r"(name an owner)", {"name an owner": "ann"}),
        (("keys", "register", "g-1"), r"give (--public) HEX", {"--public": "1" * 64}),
        (("whatif",), r"give (--set) NAME=VALUE", {"--set": "decay.tactical_days=14"}),
        (("run", "--golems", "0", "--bars", "60", "--no-marts"), r"give (--golems)", {"--golems": "1"}),
        (("propose",), r"name one golem, or give (--all)", {}),
        (("clade", "key"), r"give OWNER, or (--owner)", {"--owner": "ann"}),
    ],
)
def test_a_missing_option_is_named(words: tuple[str, ...], cure: str, values: Mapping[str, str], founded: Path) -> None:
    option = value_in(bardo(*words, home=founded, expect=2), cure)
    given = [values[option]] if option in values else []
    bardo(*words, *([option] if option.startswith("--") else []), *given, home=founded)


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        (("--pool", "x"), "leave the option out"),
        (("--gas-token-price", "0.5"), "leave the option out"),
    ],
)
def test_an_option_of_recorded_markets_is_left_out(words: tuple[str, ...], cure: str, new_home: Path) -> None:
    plain = ("run", "--bars", "60", "--golems", "1", "--no-marts")
    assert cure in bardo(*plain, *words, home=new_home, expect=2)
    bardo(*plain, home=new_home)


def test_a_report_is_written_as_its_message_says(founded: Path) -> None:
    words = ("report", "g-1", "move")
    assert "give a JSON object" in bardo(*words, "0.5", "--situation", "3", home=founded, expect=2)
    bardo(*words, "0.5", "--situation", "{}", home=founded)
    assert "divide rewards by the largest possible one" in bardo(*words, "5", home=founded, expect=2)
    bardo(*words, str(5 / 5), home=founded)
    refused = bardo(*words, "0.5", "--situation", '{"gas": 0.25}', home=founded, expect=2)
    band = value_in(refused, r"give a band as a word, such as '(\w+)'")
    bardo(*words, "0.5", "--situation", json.dumps({"gas": band}), home=founded)


def test_a_text_of_the_future_is_dated_in_the_past(founded: Path) -> None:
    words = ("remember", "g-1", "text", "--at")
    assert "give a moment that has passed" in bardo(*words, "2999-01-01", home=founded, expect=2)
    bardo(*words, "2020-01-01", home=founded)


def test_an_id_of_another_owner_gives_way_to_another_id(founded: Path) -> None:
    refused = bardo("golem", "birth", "g-1", "--owner", "bob", home=founded, expect=2)
    assert "choose another" in refused
    bardo("golem", "birth", "g-2", "--owner", "bob", home=founded)


def test_a_command_on_the_whole_home_runs_without_an_owner(owned: Path) -> None:
    refused = bardo("maintain", "--dry-run", "--owner", CORAL, home=owned, expect=2)
    assert "run it without --owner and BARDO_OWNER" in refused
    bardo("maintain", "--dry-run", home=owned)


def test_an_argument_and_option_that_name_two_owners_are_made_equal(owned: Path) -> None:
    words = ("clade", "key", CORAL, "--owner")
    assert "change --owner or BARDO_OWNER" in bardo(*words, PEARL, home=owned, expect=2)
    bardo(*words, CORAL, home=owned)


def test_a_library_of_one_of_several_owners_is_named(owned: Path) -> None:
    refused = bardo("library", "list", home=owned, expect=2)
    option = value_in(refused, r"give (--owner)")
    assert f"Library of {CORAL}" in bardo("library", "list", option, CORAL, home=owned)


def test_a_golem_of_another_owner_leads_to_the_golems_of_the_own_one(owned: Path) -> None:
    words = ("grimoire", "list", belongings(owned, PEARL).heir, "--owner", CORAL)
    refused = bardo(*words, home=owned, expect=2)
    assert belongings(owned, CORAL).golem in bardo(*cure_in(refused), "--owner", CORAL, home=owned)
