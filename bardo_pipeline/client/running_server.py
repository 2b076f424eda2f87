"""The file `server.json` of a home: address and token of its running server.

A running server holds the lock `server` of its home, so a file that a killed server left behind is recognized. The file
has mode 0600: its token is for programs of the same user.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path

FILE, LOCK = "server.json", "locks/server.lock"


@dataclass(frozen=True)
class RunningServer:
    """A server of a home. token: opens the whole home; it ends with the process."""

    url: str
    token: str
    pid: int
    instance: str


def running_server(home: Path) -> RunningServer | None:
    """Return the running server of the home in this folder; None without one, or if this user may not use it."""
    if not _is_locked(home / LOCK):
        return None
    try:
        facts = json.loads((home / FILE).read_bytes())
        return RunningServer(**{name: facts[name] for name in ("url", "token", "pid", "instance")})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_locked(path: Path) -> bool:
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return False
