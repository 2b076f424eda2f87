"""Which Python `make venv` takes. The interpreters here only answer the Makefile's probe."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[3] / "Makefile"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout without an environment, and on its PATH only the tools that the rule needs."""
    shutil.copy(MAKEFILE, tmp_path)
    for name in ("requirements.lock", "pyproject.toml"):
        (tmp_path / name).touch()
    (tmp_path / "bin").mkdir()
    for tool in ("bash", "make", "sh", "env"):
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool) or tool)
    return tmp_path


def interpreter(folder: Path, name: str, *, accepted: bool) -> Path:
    """An interpreter that the probe accepts or refuses; it cannot make an environment."""
    path = folder / "bin" / name
    path.write_text(f"#!/bin/sh\n[ $1 = -c ] && {f'echo {path}' if accepted else 'exit 1'}\n")
    path.chmod(0o755)
    return path


def make(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [folder / "bin" / "make", ".venv/.stamp", *words],
        cwd=folder,
        env={"PATH": str(folder / "bin")},
        capture_output=True,
        text=True,
    )


def test_make_venv_takes_the_first_new_enough_python_on_the_path(folder: Path) -> None:
    interpreter(folder, "python3", accepted=False)
    newer = interpreter(folder, "python3.12", accepted=True)
    interpreter(folder, "python3.13", accepted=True)
    assert make(folder).stdout == f"{newer} -m venv .venv\n"


@pytest.mark.parametrize("words", [(), ("PYTHON=python3",)])
def test_make_venv_without_a_new_enough_python_names_the_requirement(words: tuple[str, ...], folder: Path) -> None:
    interpreter(folder, "python3", accepted=False)
    made = make(folder, *words)
    assert (made.returncode, made.stdout) == (2, "")
    assert "Bardo needs Python 3.11 or newer, with venv and pip: make PYTHON=/where/it/is venv" in made.stderr
