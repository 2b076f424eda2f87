"""Hostile values of every option and argument are refused by a typed error or taken; none prints a traceback."""

from __future__ import annotations

import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast, get_args

import pytest
from click import Command
from click.testing import CliRunner

from bardo_pipeline.cli.app import command
from bardo_pipeline.errors import BardoError, ConfigError
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home, disk_error
from tests.conftest import NOW, copy_home

pytestmark = pytest.mark.row("P-4")

NUMBERS = ["", "-1", "nan", "inf", "1e300", "99999999999999999999", "-99999999999999999999", "9" * 400, "0x10", "½"]
TEXTS = [
    "",
    " ",
    "x" * 5_000,
    "a\nb",
    "\x1b[31mred",
    "\u202eevil",
    "../../etc/passwd",
    "/etc/passwd/x",
    "1-99999999999999999999",
    "²-³",
    "s3://bucket/key",
    "'; drop table t",
]
SHARED = ("--home", "--owner", "--embedder", "--config", "--help")
"""Options of most commands, tried with two of them."""
WITH_SHARED = (("status",), ("run",))
UNENDING = {("serve",), ("ui",), ("watch",), ("spool", "watch"), ("demo",), ("mcp",), ("relay",), ("live",)}
"""Commands that end by a signal, or run the whole demo; only their numbers are tried."""
SMALL = {("run",): ("--bars", "60", "--golems", "1", "--no-marts")}
"""Options that keep a command short."""


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    inside = getattr(group, "commands", None)
    if inside is None:
        yield path, group
        return
    for name, part in inside.items():
        yield from commands(part, (*path, name))


COMMANDS = dict(commands(command()))


def is_number(parameter: Any) -> bool:
    annotation = parameter.type_descriptor.annotation
    return bool({int, float} & {annotation, *get_args(annotation)})


def limits_of(parameter: Any) -> list[str]:
    """Return the smallest and the largest value of a numeric option."""
    stated = parameter.type_descriptor.parameter_info
    return [str(stated.min), str(stated.max)]


def is_flag(parameter: Any) -> bool:
    return bool(getattr(parameter, "is_flag", False))


def attempts(path: tuple[str, ...]) -> Iterator[list[str]]:
    """Yield the words of each attempt: one hostile value, and plain ones for what else the command needs."""
    parameters = COMMANDS[path].params
    arguments = [p for p in parameters if not p.opts[0].startswith("-")]
    plain = {p.name: "1" if is_number(p) else "x" for p in arguments if p.required}
    needed = [word for p in parameters if p not in arguments and p.required for word in (p.opts[0], "1")]
    is_long = path in UNENDING or path[0] == "eval"
    for parameter in parameters:
        is_left_out = parameter.opts[0] in SHARED and (path not in WITH_SHARED or parameter.opts[0] == "--help")
        if is_flag(parameter) or is_left_out or (is_long and not is_number(parameter)):
            continue
        limits = [] if is_long or path in SMALL or not is_number(parameter) else limits_of(parameter)
        for value in [*NUMBERS, *limits] if is_number(parameter) else TEXTS:
            if parameter in arguments:
                yield [*path, *SMALL.get(path, ()), *needed, "--", *(plain | {parameter.name: value}).values()]
            else:
                given = f"{parameter.opts[0]}={value}"
                yield [*path, *SMALL.get(path, ()), *needed, given, *plain.values()]


@pytest.mark.full
@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_a_hostile_value_prints_no_traceback(
    path: tuple[str, ...], brief_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BARDO_HOME", str(copy_home(brief_home, tmp_path / "home")))
    monkeypatch.chdir(tmp_path)
    failures = []
    for words in attempts(path):
        error = CliRunner().invoke(cast(Command, command()), words).exception
        is_typed = isinstance(error, SystemExit | BardoError) or (error is not None and disk_error(error) is not None)
        if error is not None and not is_typed:
            failures.append(f"{[word[:60] for word in words]}: {traceback.format_exception(error)[-1].strip()[:300]}")
    assert not failures, "\n".join(failures)
    assert not (tmp_path / "s3:").exists(), "an address became a folder"


@pytest.mark.full
def test_a_home_that_is_a_file_prints_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, stated in COMMANDS.items():
        if not any("--home" in parameter.opts for parameter in stated.params):
            continue
        arguments = [p for p in stated.params if p.required and not p.opts[0].startswith("-")]
        needed = [f"{p.opts[0]}=1" for p in stated.params if p.required and p not in arguments]
        for home in (tmp_path / "file", tmp_path / "file" / "home", Path("/dev/null")):
            words = [*path, *needed, f"--home={home}", *("1" for _ in arguments)]
            error = CliRunner().invoke(cast(Command, command()), words).exception
            assert isinstance(error, SystemExit | BardoError), (words, error)


def test_every_number_of_a_fleet_or_an_evaluation_has_a_bound_of_its_own() -> None:
    numbers = {
        (*path, parameter.opts[0]): float(limits_of(parameter)[1])
        for path, stated in COMMANDS.items()
        if path in {("run",), ("live",), ("demo",), ("spool", "watch")} or path[0] == "eval"
        for parameter in stated.params
        if is_number(parameter) and parameter.opts[0] not in {"--seed", "--budget", "--gas-token-price"}
    }
    assert {name: limit for name, limit in numbers.items() if limit > 1e7} == {}
    assert len(numbers) > 30


@pytest.mark.full
@pytest.mark.parametrize("name", ["", ".", "file", "file/x", "/proc/none/x", "x" * 300])
def test_a_relay_without_a_database_prints_no_traceback(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no database, and longer than the header of one" * 9)
    command_of_relay = [sys.executable, "-m", "bardo_pipeline.cli.entry", "relay", name, "--port", "0"]
    done = subprocess.run(command_of_relay, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("bardo:")
    assert "name another file" in done.stderr


@pytest.mark.parametrize("host", ["no.such.host.invalid", "a..b", "ü" * 300, "a\0b", "192.0.2.1"])
@pytest.mark.parametrize("words", [("ui", "--port", "3999"), ("relay", "r.db", "--port", "0")], ids=" ".join)
def test_an_address_that_is_not_of_this_machine_is_refused(
    words: tuple[str, ...], host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Home.create(tmp_path / "home", Policy(), NOW)
    monkeypatch.setenv("BARDO_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(subprocess, "run", None)
    error = CliRunner().invoke(cast(Command, command()), [*words, f"--host={host}"]).exception
    assert isinstance(error, ConfigError), error
    assert str(error).startswith("--host")


def test_the_ui_refuses_a_port_that_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Home.create(tmp_path / "home", Policy(), NOW)
    monkeypatch.setenv("BARDO_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(subprocess, "run", None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = ["ui", "--port", str(taken.getsockname()[1])]
        error = CliRunner().invoke(cast(Command, command()), words).exception
    assert isinstance(error, ConfigError), error
    assert "give another port" in str(error)
