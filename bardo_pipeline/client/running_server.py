"""The file `server.json` of a home: address and token of its running server.

A running server holds the lock `server` of its home, so a file that a killed server left behind is recognized. The file
has mode 0600: its token is for programs of the same user.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

FILE, LOCK = "server.json", "locks/server.lock"
DEFAULT_PORT = 8642
_ADDRESS = re.compile(r"http://127\.0\.0\.1:[0-9]{1,5}")
_PORT_MAX = 65_535


@dataclass(frozen=True)
class RunningServer:
    """A server of a home. token: opens the whole home; it ends with the process."""

    url: str
    token: str
    pid: int
    instance: str


def running_server(home: Path) -> RunningServer | None:
    """Return the running server of the home in this folder; None without one, or if this user may not use it.

    A file that is damaged counts as no server: its token is sent to no other machine.
    """
    if not is_locked(home / LOCK):
        return None
    try:
        facts = json.loads((home / FILE).read_bytes())
        server = RunningServer(**{name: facts[name] for name in ("url", "token", "pid", "instance")})
        is_usable = _ADDRESS.fullmatch(server.url) is not None and int(server.url.rpartition(":")[2]) <= _PORT_MAX
        return server if is_usable and isinstance(server.token, str) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def server_url(home: Path) -> str:
    """Return the address of the running server of a home; without one, the address that `bardo serve` takes."""
    server = running_server(home)
    return f"http://127.0.0.1:{DEFAULT_PORT}" if server is None else server.url


def is_locked(path: Path) -> bool:
    """Return whether another process holds this lock exclusively; False if this user cannot look."""
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
