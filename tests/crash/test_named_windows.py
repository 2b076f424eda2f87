"""Processes that are killed inside named windows, a few times in each. `make crash` does it a thousand times.

A kill leaves the machine and its page cache intact, so only test_power_cut.py shows a missing fsync.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.harness import Tally
from tests.crash.recovery import Faults
from tests.crash.windows import WINDOWS
from tests.support.example_count import draw_seed


@pytest.mark.full
@pytest.mark.row("EV-2", "EV-3", "P-1")
def test_processes_killed_in_each_window_lose_no_acknowledged_record(tmp_path: Path) -> None:
    # In a process of its own, because a process with library threads cannot be forked safely.
    sizes = ["--kills", "11", "--least", "1", "--cuts", "0", "--commands", "0", "--exchanges", "0"]
    command = [sys.executable, "-m", "tests.crash", *sizes, "--folder", str(tmp_path), "--seed", str(draw_seed())]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    print(done.stdout)  # the output names the seed
    assert done.returncode == 0, done.stderr
    rows = {line[:34].strip(): line[34:].split() for line in done.stdout.splitlines()}
    for window in WINDOWS:
        kills, lost, doubled, unreadable, verify = rows[window.name]
        assert int(kills) >= 1
        assert (lost, doubled, unreadable, verify) == ("0", "0", "0", "clean")


def test_the_tally_counts_faults_under_the_window_of_the_kill() -> None:
    tally = Tally()
    tally.kills["curator"] += 1
    tally.take(["curator"], Faults(lost=["one", "two"], broken=["three"]))
    (line,) = [line for line in tally.table().splitlines() if line.startswith("curator")]
    assert line.split() == ["curator", "1", "2", "0", "0", "broken"]
    assert tally.messages == ["lost: one", "lost: two", "broken: three"]
    assert not tally.clean
