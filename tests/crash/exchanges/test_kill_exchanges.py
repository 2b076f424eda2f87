"""Exchanges that are killed lose and double nothing. `make crash` kills 200 times."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.exchanges.exchange_kills import VICTIMS, WAYS
from tests.support.example_count import draw_seed


@pytest.mark.full
def test_killed_exchanges_of_a_relay_and_two_homes_lose_and_double_nothing(tmp_path: Path) -> None:
    # In a process of its own, because a process with library threads cannot be forked safely.
    sizes = ["--kills", "0", "--least", "0", "--cuts", "0", "--commands", "0", "--exchanges", "6"]
    command = [sys.executable, "-m", "tests.crash", *sizes, "--folder", str(tmp_path), "--seed", str(draw_seed())]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True)
    print(done.stdout)  # the output names the seed
    assert done.returncode == 0, done.stderr
    rows = {line[:34].strip(): line[34:].split() for line in done.stdout.splitlines()}
    for victim in VICTIMS:
        for way in WAYS:
            kills, _, faults = rows[f"{victim}, by {way}"]
            assert (kills, faults) == ("1", "0")
