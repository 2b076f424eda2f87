"""Yielding: a process that others are not to wait for offers its processor to them, whatever it is at.

A kernel that does not preempt leaves who waits behind who computes until its next tick, often 4 ms, even where another
processor is idle by then: on two processors that was the slowest hundredth of all appends beside a drainer.
"""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Iterator
from contextlib import contextmanager

EVERY_SECONDS = 0.001


@contextmanager
def yielding() -> Iterator[None]:
    """Meanwhile, call sched_yield in the main thread a thousand times a second.

    For a process of our own: it takes SIGALRM and the process's timer. The handler is the C library's function itself,
    because one in Python would wait for Arrow to come back; system calls that it interrupts go on (SA_RESTART).
    """
    library = ctypes.CDLL(None)
    library.signal.argtypes, library.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    library.signal(signal.SIGALRM, ctypes.cast(library.sched_yield, ctypes.c_void_p))
    signal.setitimer(signal.ITIMER_REAL, EVERY_SECONDS, EVERY_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)  # the handler stays: an alarm may be on its way
