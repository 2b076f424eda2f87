"""The shell completes the commands, groups and options of `bardo`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.row("P-4"),
    pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed"),
]

PROGRAM = """#!/bin/sh
exec {python} -c "from bardo_pipeline.cli.entry import main; main()" "$@"
"""
LINE = """
eval "$(_BARDO_COMPLETE=source_bash bardo)"
complete -p bardo >&2
COMP_WORDS=({words}) COMP_CWORD={last}
_bardo_completion bardo
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        pytest.param("gol", {"golem"}, marks=pytest.mark.full),
        pytest.param("golem s", {"show", "successor", "successions"}, marks=pytest.mark.full),
        pytest.param("status --fo", {"--format"}, marks=pytest.mark.full),
        pytest.param("d", {"demo", "derive", "doctor", "drain", "dreams", "drift"}, marks=pytest.mark.full),
    ],
)
def test_bash_completes_a_line(typed: str, offered: set[str], tmp_path: Path) -> None:
    program = tmp_path / "bardo"
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    words = ["bardo", *typed.split()]
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = LINE.format(words=" ".join(words), last=len(words) - 1)
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert "-F _bardo_completion bardo" in done.stderr
    assert set(done.stdout.split()) == offered
