"""A message about a home, its configuration, a backup or a damaged file names the step that helps."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.storage.home import Home
from tests.support.homes import tampered_homes
from tests.support.processes.bardo_command import bardo
from tests.support.processes.printed_cures import cure_in, ids, value_in

pytestmark = [pytest.mark.row("P-4"), pytest.mark.full]


@pytest.mark.parametrize("beginning", ["init", "run", "golem birth"])
def test_a_missing_home_is_made_by_each_named_command(beginning: str, tmp_path: Path) -> None:
    root = tmp_path / "home"
    made = cure_in(bardo("status", home=root, expect=2), beginning)
    more = {
        "run": ("--bars", "60", "--golems", "1", "--no-marts"),
        "golem birth": ("g-1", "--owner", "ann"),
    }
    bardo(*made, *more.get(beginning, ()), home=root)
    bardo("status", home=root)


def test_a_file_in_place_of_a_home_gives_way_to_a_folder(new_home: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    option = value_in(bardo("status", home=file, expect=2), r"name the folder of a home by (--home) or BARDO_HOME")
    bardo("status", option, str(new_home), home=file)
    bardo("status", home=new_home)


def test_an_address_in_place_of_a_home_gives_way_to_a_folder(new_home: Path) -> None:
    refused = bardo("status", "--home", "s3://bucket/home", home=new_home, expect=2)
    assert "name a local or mounted one" in refused
    bardo("status", "--home", str(new_home), home=new_home)


def test_a_spoilt_description_of_a_home_is_restored_from_a_copy(founded: Path, tmp_path: Path) -> None:
    bardo("backup", str(tmp_path / "backup"), home=founded)
    (founded / "home.json").write_text("{}")
    refused = bardo("status", home=founded, expect=2)
    assert f"{founded / 'home.json'} is not a valid description of a home" in refused
    assert "restore it from a copy of the home" in refused
    restored = tmp_path / "restored"
    bardo("restore", str(tmp_path / "backup"), "--home", str(restored), home=founded)
    shutil.copy(restored / "home.json", founded / "home.json")
    bardo("status", home=founded)


@pytest.mark.parametrize(
    ("text", "cure"),
    [
        ("[death]\nepisodes = 'x'\n", r"for example (\d+)"),
        ("[clock]\ndelta_theta_ticks = 2.5\n", r"for example (\d+)"),
        ("[succession]\nauto = 1\n", r"for example (\w+)"),
    ],
)
def test_a_wrong_value_of_the_configuration_gives_way_to_the_example(text: str, cure: str, new_home: Path) -> None:
    file = new_home / "bardo.toml"
    file.write_text(text)
    example = value_in(bardo("config", "check", home=new_home, expect=2), cure)
    file.write_text(f"{text.rpartition('=')[0]}= {example}\n")
    assert "all valid" in bardo("config", "check", home=new_home)


def test_an_unknown_key_of_the_configuration_gives_way_to_the_nearest(new_home: Path) -> None:
    file = new_home / "bardo.toml"
    file.write_text("[death]\nepisods = 3\n")
    nearest = value_in(bardo("config", "check", home=new_home, expect=2), r"the nearest are ([\w.]+)")
    file.write_text(f"{nearest} = 3\n")
    assert "1 keys, all valid" in bardo("config", "check", home=new_home)


def test_a_section_without_keys_is_written_as_the_message_says(new_home: Path) -> None:
    file = new_home / "bardo.toml"
    file.write_text("clock = 3\n")
    section = value_in(bardo("config", "check", home=new_home, expect=2), r"write (\[\w+\]) and its keys below")
    file.write_text(f"{section}\ndelta_theta_ticks = 50\n")
    bardo("config", "check", home=new_home)


def test_a_line_that_is_no_toml_is_written_as_the_message_says(new_home: Path) -> None:
    file = new_home / "bardo.toml"
    file.write_text("episodes 3\n")
    assert "a line is `key = value` under a [section]" in bardo("config", "check", home=new_home, expect=2)
    file.write_text("[death]\nepisodes = 3\n")
    bardo("config", "check", home=new_home)


def test_a_configuration_in_another_encoding_is_saved_as_utf8(new_home: Path) -> None:
    file = new_home / "bardo.toml"
    text = "# größer\n[death]\nepisodes = 3\n"
    file.write_bytes(text.encode("latin-1"))
    assert "save it as UTF-8" in bardo("config", "check", home=new_home, expect=2)
    file.write_text(text)
    bardo("config", "check", home=new_home)


def test_two_contradicting_values_are_put_in_order(new_home: Path) -> None:
    file = new_home / "bardo.toml"
    file.write_text("[clock]\ntheta_min_interval_secs = 500\n")
    refused = bardo("config", "check", home=new_home, expect=2)
    high = int(value_in(refused, r"is above \S+ = (\d+): lower the first or raise the second"))
    for text in (
        f"[clock]\ntheta_min_interval_secs = {high}\n",
        "[clock]\ntheta_min_interval_secs = 500\ntheta_max_interval_secs = 500\n",
    ):
        file.write_text(text)
        bardo("config", "check", home=new_home)


def test_a_value_that_does_not_fit_the_policy_gives_way_to_another(new_home: Path) -> None:
    file = new_home / "bardo.toml"
    file.write_text("[clock]\ndelta_theta_ticks = 51\n")
    refused = bardo("config", "check", home=new_home, expect=2)
    step = int(value_in(refused, r"witness_ticks (\d+) does not divide cycle_ticks 51 .+: write another value"))
    file.write_text(f"[clock]\ndelta_theta_ticks = {5 * step}\n")
    bardo("config", "check", home=new_home)


def test_an_adoption_gets_a_reason_and_a_file(new_home: Path) -> None:
    (new_home / "bardo.toml").unlink(missing_ok=True)
    refused = bardo("config", "adopt", "--why", "x", home=new_home, expect=2)
    assert "is missing: write it, or give --config FILE" in refused
    (new_home / "bardo.toml").write_text("[death]\nepisodes = 3\n")
    assert "an adoption needs a reason" in bardo("config", "adopt", "--why", "", home=new_home, expect=2)
    assert "switches back" not in bardo("config", "adopt", "--why", "x", home=new_home), "nothing was derived before"


def test_an_adopted_configuration_is_left_by_the_printed_command(lived: Path) -> None:
    (lived / "bardo.toml").write_text("[death]\nepisodes = 3\n")
    before = cure_in(bardo("config", "adopt", "--why", "x", home=lived))
    after = cure_in(bardo(*before, "--why", "back", home=lived))
    assert before != after


def test_a_backup_is_written_to_a_folder_of_its_own(founded: Path, new_home: Path, tmp_path: Path) -> None:
    inside, full, free = founded / "copy", tmp_path / "full", tmp_path / "backup"
    full.mkdir()
    (full / "file").touch()
    assert "give a folder elsewhere" in bardo("backup", str(inside), home=founded, expect=2)
    assert "give an empty folder" in bardo("backup", str(full), home=founded, expect=2)
    bardo("backup", str(free), home=founded)
    other = tmp_path / "other"
    bardo("init", str(other), home=other)
    assert "give another folder" in bardo("backup", str(free), home=other, expect=2)
    bardo("backup", str(tmp_path / "second"), home=other)
    refused = bardo("restore", str(free), "--home", str(other), home=other, expect=2)
    assert "give --home an empty folder" in refused
    bardo("restore", str(free), "--home", str(tmp_path / "restored"), home=other)


def test_an_altered_backup_gives_way_to_another_copy(founded: Path, tmp_path: Path) -> None:
    for name in ("first", "second"):
        bardo("backup", str(tmp_path / name), home=founded)
    for spoil in (lambda file: file.write_bytes(b"x"), lambda file: file.unlink()):
        file = max((tmp_path / "first" / "objects").rglob("*"), key=lambda path: path.is_file() and path.stat().st_size)
        spoil(file)
        refused = bardo("restore", str(tmp_path / "first"), "--home", str(tmp_path / "new"), home=founded, expect=2)
        assert "take another copy of this backup" in refused
    bardo("restore", str(tmp_path / "second"), "--home", str(tmp_path / "new"), home=founded)
    assert "clean" in bardo("verify", home=tmp_path / "new")


def test_a_damaged_log_is_listed_by_verify_and_restored_from_a_backup(lived: Path, tmp_path: Path) -> None:
    bardo("backup", str(tmp_path / "backup"), home=lived)
    file = max((lived / "log" / "life").rglob("*.parquet"), key=lambda path: path.stat().st_size)
    file.write_bytes(file.read_bytes()[:-7])
    refused = bardo("status", home=lived, expect=2)
    assert "restore the home from a backup" in refused
    assert file.name in bardo(*cure_in(refused, "verify"), home=lived, expect=1)
    bardo("restore", str(tmp_path / "backup"), "--home", str(tmp_path / "new"), home=lived)
    bardo("status", home=tmp_path / "new")


def test_a_damaged_conversation_is_restored_from_a_backup(founded: Path, tmp_path: Path) -> None:
    bardo("conversation", "append", "g-1", "hello", home=founded)
    bardo("backup", str(tmp_path / "backup"), home=founded)
    (file,) = (path for path in (founded / "conversations").rglob("*") if path.is_file())
    file.write_bytes(b"{\n" + file.read_bytes())
    refused = bardo("conversation", "show", "g-1", home=founded, expect=2)
    assert "restore it from a backup of the home" in refused
    restored = tmp_path / "restored"
    bardo("restore", str(tmp_path / "backup"), "--home", str(restored), home=founded)
    shutil.copy(restored / file.relative_to(founded), file)
    assert "hello" in bardo("conversation", "show", "g-1", home=founded)


def test_an_index_of_heads_that_differs_from_the_log_is_deleted_and_rebuilt(founded: Path) -> None:
    bardo("report", "g-1", "move", "0.5", home=founded)
    bardo("drain", home=founded)
    bardo("status", home=founded)
    path = tampered_homes.alter_heads(Home.open(founded))
    broken = bardo("verify", home=founded, expect=1)
    assert "delete this file, and it is rebuilt" in " ".join(broken.split())
    path.unlink()
    bardo("report", "g-1", "move", "0.5", home=founded)
    bardo("drain", home=founded)
    assert "clean" in bardo("verify", home=founded)


def test_an_altered_bundle_is_restored_before_the_next_derivation(lived: Path, tmp_path: Path) -> None:
    folder = next(path for path in (lived / "bundles").iterdir() if path.is_dir())
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    with (folder / "testament.md").open("a") as file:
        file.write("altered")
    refused = bardo("derive", home=lived, expect=2)
    assert "restore their folders in" in refused
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    bardo(*cure_in(refused), home=lived)


def test_acknowledged_records_of_a_restored_home_are_drained(tmp_path: Path) -> None:
    home = tampered_homes.make(tmp_path / "home").root
    bardo("backup", str(tmp_path / "backup"), home=home)
    restored = tmp_path / "restored"
    printed = bardo("restore", str(tmp_path / "backup"), "--home", str(restored), home=home)
    assert re.search(r"4 records|records\D+4", bardo(*cure_in(printed, "drain"), home=restored))
    assert "clean" in bardo("verify", home=restored)


def test_a_file_that_is_never_taken_is_renamed_and_taken(founded: Path) -> None:
    file = founded / "spool" / "records.json"
    file.write_text("{}\n")
    os.utime(file, (1, 1))
    printed = " ".join(bardo("doctor", home=founded).split())
    ending = value_in(printed, r"name it \*(\.jsonl) or \*\.arrow, or remove it")
    file.rename(file.with_suffix(ending))
    assert "in quarantine" in bardo("spool", "take", home=founded)


def test_a_short_id_in_quarantine_is_given_as_the_list_shows_it(founded: Path) -> None:
    (founded / "spool" / "bad.jsonl").write_text("{}\n")
    bardo("spool", "take", home=founded)
    refused = bardo("quarantine", "show", "1", home=founded, expect=2)
    digits = int(value_in(refused, r"give at least (\d+) characters of an id"))
    (item,) = ids(bardo(*cure_in(refused), home=founded))
    bardo("quarantine", "show", item[:digits], home=founded)


def test_bytes_in_quarantine_go_to_a_file(founded: Path) -> None:
    (founded / "spool" / "bad.jsonl").write_text("{}\n")
    bardo("spool", "take", home=founded)
    (item,) = ids(bardo("quarantine", "list", home=founded))
    assert "{}" in bardo("quarantine", "show", item, "--raw", home=founded)


def test_a_conversation_names_its_branches_and_messages(founded: Path) -> None:
    first = bardo("conversation", "append", "g-1", "hello", home=founded).strip()
    refused = bardo("conversation", "show", "g-1", "--branch", "other", home=founded, expect=2)
    branch = value_in(refused, r"has no branch other, but (\w+)")
    assert "hello" in bardo("conversation", "show", "g-1", "--branch", branch, home=founded)
    words = ("conversation", "branch", "g-1", "new", "--behind")
    assert first in bardo(*cure_in(bardo(*words, "zz", home=founded, expect=2)), "g-1", home=founded)
    bardo(*words, first, home=founded)
    assert "take another name" in bardo(*words, first, home=founded, expect=2)
    option = value_in(bardo(*words[:3], "newest", home=founded, expect=2), r"give (--behind) MESSAGE")
    bardo(*words[:3], "newest", option, first, home=founded)
    bardo("conversation", "branch", "g-1", "newer", "--behind", first, home=founded)


def test_a_name_of_a_session_follows_the_stated_form(founded: Path) -> None:
    words = ("conversation", "append", "g-1", "hello", "--session")
    refused = bardo(*words, "no name", home=founded, expect=2)
    assert "use up to 64 letters, digits, - and _, a letter or digit first" in refused
    bardo(*words, "a-name_1", home=founded)


def test_a_credit_gets_a_reason(founded: Path) -> None:
    option = value_in(bardo("golem", "credit", "ann", "5", "--why", "", home=founded, expect=2), r"add (--why)")
    bardo("golem", "credit", "ann", "5", option, "for heirs", home=founded)


def test_a_missing_tick_leads_to_the_ticks_on_record(lived: Path) -> None:
    golem = DerivationContext.open(lived).life("GolemBorn")["golem_id"][0].as_py()
    refused = bardo("strike", golem, "99999", "--why", "x", home=lived, expect=2)
    printed = bardo(*cure_in(refused), "--golem", golem, home=lived)
    header, first = (line.split("\t") for line in printed.splitlines()[:2])
    tick = first[header.index("tick")].rpartition(":")[2]
    bardo("strike", golem, tick, "--why", "x", home=lived)
