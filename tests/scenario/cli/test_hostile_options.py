"""Hostile values of every option and argument are refused by a typed error or taken; none prints a traceback."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast, get_args

import pytest
from click import Command
from click.testing import CliRunner

from bardo_pipeline.cli.app import command
from bardo_pipeline.errors import BardoError
from bardo_pipeline.storage.home import disk_error
from tests.conftest import copy_home

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
        for value in NUMBERS if is_number(parameter) else TEXTS:
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
