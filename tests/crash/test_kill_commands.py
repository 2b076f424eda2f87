"""Commands that are killed lose nothing and can be repeated. `make crash` kills them 200 times."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.command_kills import COMMANDS
from tests.support.example_count import draw_seed


@pytest.mark.full
def test_killed_commands_lose_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    # In a process of its own, because a process with library threads cannot be forked safely.
    sizes = ["--kills", "0", "--least", "0", "--cuts", "0", "--exchanges", "0", "--commands", str(2 * len(COMMANDS))]
    command = [sys.executable, "-m", "tests.crash", *sizes, "--folder", str(tmp_path), "--seed", str(draw_seed())]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    print(done.stdout)  # the output names the seed
    assert done.returncode == 0, done.stderr
    rows = {line[:34].strip(): line[34:].split() for line in done.stdout.splitlines()}
    for name in COMMANDS:
        kills, _, faults = rows[name]
        assert (kills, faults) == ("2", "0")
