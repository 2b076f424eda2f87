"""After a simulated power cut each acknowledged record is there once, and each fsync call is needed for that.

`make test-all` draws another sample of cuts and of syncing lines in each run; BARDO_EXAMPLES makes it larger.
`make crash` makes many cuts and tries every line.
"""

from __future__ import annotations

import os
import random

import orjson
import pytest

from tests.crash.outage import WORKLOADS, Life, Workload, lost
from tests.crash.power import MODES, torn
from tests.crash.syncs import NEEDED, lines_of, unneeded
from tests.support.example_count import draw_seed, times

SAMPLE, LINES = times(2), times(4)

Lives = list[tuple[Workload, Life]]


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Lives:
    return [(workload, workload.record(tmp_path_factory.mktemp("life"))) for workload in WORKLOADS]


@pytest.fixture
def rng() -> random.Random:
    return random.Random(draw_seed())


@pytest.mark.row("EV-3")
@pytest.mark.parametrize("at", range(len(WORKLOADS)), ids=[workload.name for workload in WORKLOADS])
def test_a_power_cut_loses_no_acknowledged_record(at: int, lives: Lives, rng: random.Random) -> None:
    workload, life = lives[at]
    moments = [(cut, mode) for cut in life.disk.cuts() for mode in MODES]
    for cut, mode in rng.sample(moments, min(SAMPLE, len(moments))):
        assert lost(life, cut, mode=mode, whole=workload.whole) == [], f"cut {cut}, {mode}"


@pytest.mark.row("EV-3")
def test_every_fsync_is_needed(lives: Lives, rng: random.Random) -> None:
    """The golden file names every syncing line, with a workload, cut and mode in which its absence loses a record."""
    lines = lines_of(lives)
    if os.environ.get("BARDO_GOLDEN") == "write":
        assert unneeded(lives, lines, write=True) == []
    needed = set(orjson.loads(NEEDED.read_bytes()))
    assert set(lines.values()) == needed, "the syncing lines changed"
    some = dict(rng.sample(sorted(lines.items()), min(LINES, len(lines))))
    assert unneeded(lives, some) == [], "these lines sync for nothing"


def test_a_torn_write_keeps_whole_sectors() -> None:
    """The sector in which a file ended also holds the bytes appended to it."""
    before, after = b"a" * 700, b"b" * 3_000
    assert torn(before, after) == b"a" * 512 + b"b" * (1_850 - 512)
    assert torn(before, before + after) == before + after[:1_500]
    assert torn(after, b"a" * 3_000) == b"a" * 1_536 + b"b" * (3_000 - 1_536)
    assert torn(after, after) == after
