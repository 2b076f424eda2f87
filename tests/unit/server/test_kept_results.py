"""Kept results of a warm home: made once for each state, by one of the threads that need them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event

import pytest

from bardo_pipeline.errors import StoreError
from bardo_pipeline.server.warm_home import KeptResults

pytestmark = pytest.mark.row("MEM-9")


def test_threads_that_need_one_result_make_it_once() -> None:
    kept, start, may_end, made = KeptResults(4), Barrier(9), Event(), list[int]()

    def make() -> int:
        made.append(1)
        assert may_end.wait(60)
        return 7

    def ask() -> int:
        start.wait(60)
        return kept.of("golem", (1,), make)

    with ThreadPoolExecutor(8) as threads:
        answers = [threads.submit(ask) for _ in range(8)]
        start.wait(60)
        may_end.set()
        assert [answer.result() for answer in answers] == [7] * 8
    assert len(made) == 1


def test_a_new_state_replaces_the_result_and_the_least_used_one_is_dropped() -> None:
    kept = KeptResults(2)
    assert [kept.of("a", (state,), lambda state=state: state) for state in (1, 1, 2)] == [1, 1, 2]
    assert [kept.of("a", (1,), lambda: "anew"), kept.of("b", (1,), lambda: "b")] == ["anew", "b"]
    assert kept.of("a", (1,), lambda: "kept?") == "anew"
    assert kept.of("c", (1,), lambda: "c") == "c"
    assert kept.of("b", (1,), lambda: "b was dropped") == "b was dropped"


def test_a_failure_is_raised_and_not_kept() -> None:
    kept = KeptResults(2)

    def fail() -> int:
        raise StoreError("the table is gone")

    with pytest.raises(StoreError):
        kept.of("golem", (1,), fail)
    assert kept.of("golem", (1,), lambda: 3) == 3
