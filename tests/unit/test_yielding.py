"""Who drains offers its processor to others, even in the middle of a long call."""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal

import pytest

from bardo_pipeline.storage.journal.processor_yield import EVERY_SECONDS, yielding
from tests.support.forked_processes import Forked

pytestmark = pytest.mark.row("EV-3")


def compute() -> None:
    """Say what interrupts a long call and what is left of that behind it."""
    with yielding():
        hashlib.pbkdf2_hmac("sha256", b"", b"", 50_000)  # some dozens of alarms
        os.kill(os.getpid(), signal.SIGALRM)
        print(signal.getitimer(signal.ITIMER_REAL)[1])
    print(signal.getitimer(signal.ITIMER_REAL)[1])
    os.kill(os.getpid(), signal.SIGALRM)  # as one that was on its way when it ended
    library = ctypes.CDLL(None)
    library.signal.argtypes, library.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    handler = library.signal(signal.SIGALRM, None)
    print(handler == ctypes.cast(library.sched_yield, ctypes.c_void_p).value)


def test_a_long_call_is_interrupted_to_yield_and_an_alarm_that_comes_late_harms_nobody() -> None:
    assert Forked(compute).rest().split() == [str(EVERY_SECONDS), "0.0", "True"]
