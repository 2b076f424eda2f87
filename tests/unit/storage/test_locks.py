"""A lock ends with the process that took it; a forked child does not hold it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bardo_pipeline.storage import locks


@pytest.mark.row("EV-3")
def test_a_forked_child_does_not_hold_the_lock_of_its_parent(tmp_path: Path) -> None:
    ready, done = os.pipe(), os.pipe()
    with locks.held(tmp_path / "lock"):
        child = os.fork()
        if not child:
            os.close(done[1])
            os.write(ready[1], b"!")
            os.read(done[0], 1)  # runs until its parent kills it
            os._exit(0)
        os.read(ready[0], 1)
        assert locks.is_held(tmp_path / "lock")
    assert not locks.is_held(tmp_path / "lock"), "the child is still there"
    os.close(done[1])
    os.waitpid(child, 0)


@pytest.mark.row("EV-3")
def test_the_lock_of_a_dead_parent_is_free_while_its_child_lives(tmp_path: Path) -> None:
    ready, done = os.pipe(), os.pipe()
    parent = os.fork()
    if not parent:
        handle = locks.open_lock_file(tmp_path / "lock")
        locks.try_acquire(handle)
        if os.fork():
            os._exit(0)  # exits with the lock held, as a killed process does
        os.close(done[1])
        os.write(ready[1], b"!")
        os.read(done[0], 1)
        os._exit(0)
    os.waitpid(parent, 0)
    os.read(ready[0], 1)
    assert not locks.is_held(tmp_path / "lock")
    os.close(done[1])


def test_a_taken_lock_is_reported_without_waiting_or_creating_a_file(tmp_path: Path) -> None:
    with locks.held(tmp_path / "lock", shared=True), locks.held_if_free(tmp_path / "lock") as free:
        assert not free
    with locks.held_if_free(tmp_path / "lock") as free:
        assert free
        handle = locks.open_lock_file(tmp_path / "lock")
        assert not locks.acquire_soon(handle)
        locks.release(handle)
    with pytest.raises(FileNotFoundError):
        locks.is_held(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
