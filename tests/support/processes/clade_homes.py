"""Homes of one owner whose golems form a clade, and a relay in memory."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from bardo_pipeline.client.relay_client import RelayMessage
from tests.support.processes.bardo_command import bardo, run

OWNER = "owner-1"
ENABLED = "[styx]\nclade_enabled = true\n"
RUN = ("run", "--golems", "3", "--bars", "900", "--owner", OWNER, "--no-marts", "--lifespan", "2000-3000")


def made(root: Path, *words: str, secret: bytes | None = None, configuration: str = ENABLED, **variables: str) -> Path:
    """Run a fleet with the clade enabled in a new home, which has this secret of the owner's clade."""
    (root / "keys").mkdir(parents=True)
    (root / "bardo.toml").write_text(configuration)
    if secret is not None:
        (root / "keys" / f"clade-{hashlib.sha256(OWNER.encode()).hexdigest()[:40]}.key").write_bytes(secret)
    environment = {**os.environ, **variables, "BARDO_HOME": str(root)}
    done = run((*RUN, *words), environment)
    assert done.returncode == 0, done.stderr
    return root


def sync(root: Path, url: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(bardo("clade", "sync", OWNER, "--relay", url, "--json", home=root))
    return document


class HeldRelay:
    """A topic in memory, whose messages a test may alter."""

    def __init__(self) -> None:
        self.messages: list[RelayMessage] = []
        self.days: dict[str, int | None] = {}

    def put(self, message_id: str, body: bytes, days: int | None = None) -> int:
        """Store a message unless it is stored."""
        self.days[message_id] = days
        if message_id not in {message.message_id for message in self.messages}:
            self.messages.append(RelayMessage(len(self.messages) + 1, message_id, body))
        return len(self.messages)

    def after(self, number: int) -> list[RelayMessage]:
        """Return the messages behind a number."""
        return [message for message in self.messages if message.number > number]

    def newest(self) -> int:
        """Return the newest number."""
        return len(self.messages)
