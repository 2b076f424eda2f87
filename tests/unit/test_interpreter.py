"""Which Python the environment is made from, told by interpreters that only say what `.ci/python` asks them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


class Machine:
    """Folders on PATH, each with an interpreter."""

    def __init__(self, root: Path) -> None:
        self._root, self._folders = root, list[Path]()

    def brings(self, folder: str, version: str, seconds: float, *, name: str = "python3", complete: bool = True) -> str:
        """An interpreter of this version that takes so long for the probe, or lacks what an environment needs."""
        python = self._root / folder / name
        python.parent.mkdir(exist_ok=True)
        said = f"printf '{version}\\t{seconds}\\t{python}\\t{python}\\n'" if complete else "exit 1"
        python.write_text(f"#!/bin/sh\n{said}\n")
        python.chmod(0o755)
        if python.parent not in self._folders:
            self._folders.append(python.parent)
        return str(python)

    def chosen(self) -> subprocess.CompletedProcess[str]:
        """What the script says here."""
        path = ":".join(map(str, [*self._folders, self.tools()]))
        return subprocess.run([ROOT / ".ci" / "python"], env={"PATH": path}, capture_output=True, text=True)

    def tools(self) -> Path:
        """What the script needs besides, and no other interpreter."""
        tools = self._root / "tools"
        tools.mkdir(exist_ok=True)
        for tool in ("bash", "cat", "awk", "env", "sh"):
            (tools / tool).unlink(missing_ok=True)
            (tools / tool).symlink_to(subprocess.check_output(["which", tool], text=True).strip())
        return tools


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_first_stays_where_no_other_is_clearly_faster(machine: Machine) -> None:
    first = machine.brings("first", "3.11", 1.1)
    machine.brings("second", "3.11", 1.0)
    assert machine.chosen().stdout == f"{first}\n"


def test_a_build_of_its_version_that_is_clearly_faster_is_taken(machine: Machine) -> None:
    machine.brings("first", "3.11", 1.3)
    machine.brings("second", "3.11", 1.1)
    third = machine.brings("third", "3.11", 1.0)
    assert machine.chosen().stdout == f"{third}\n"


def test_another_version_is_never_taken_however_fast(machine: Machine) -> None:
    first = machine.brings("first", "3.12", 1.3)
    machine.brings("second", "3.11", 0.1)
    machine.brings("second", "3.13", 0.1, name="python3.13")
    assert machine.chosen().stdout == f"{first}\n"


def test_what_is_too_old_or_incomplete_is_passed_over(machine: Machine) -> None:
    machine.brings("first", "3.11", 0.1, complete=False)
    second = machine.brings("second", "3.12", 1.0, name="python3.12")
    assert machine.chosen().stdout == f"{second}\n"


def test_where_there_is_none_the_cure_is_named(machine: Machine) -> None:
    machine.brings("first", "3.11", 0.1, complete=False)
    done = machine.chosen()
    assert (done.returncode, done.stdout) == (1, "")
    assert "make PYTHON=/where/it/is venv" in done.stderr


def test_a_real_interpreter_says_where_it_is_outside_of_its_environment(machine: Machine) -> None:
    path = f"{sys.prefix}/bin:{machine.tools()}"
    done = subprocess.run([ROOT / ".ci" / "python"], env={"PATH": path}, capture_output=True, text=True)
    chosen = Path(done.stdout.strip())
    assert done.returncode == 0, done.stderr
    assert chosen.is_file()
    assert not chosen.is_relative_to(sys.prefix)
