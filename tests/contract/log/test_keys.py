"""A golem's key ring: the same events give the same ring, in every handle and in every order of arrival."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bardo_pipeline.errors import BardoError, RecordError, SignatureError
from bardo_pipeline.events.custody.hash_chain import KeyRing, rotation_message
from bardo_pipeline.events.life.events import KeyRegistered, KeyRevoked, KeyRotated, LifeEvent, life_event
from bardo_pipeline.events.record.model import Part
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.log.event_log import EventLog
from tests.doubles.memory_event_log import Log, MemoryEventLog
from tests.support.homes.tampered_homes import NOW

GOLEM = "golem-0000"
KEYS = [Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in range(3)]
PUBLIC = [key.public_key().public_bytes_raw().hex() for key in KEYS]


def event(payload: Part) -> LifeEvent:
    return life_event(GOLEM, NOW, payload)


def registered() -> LifeEvent:
    return event(KeyRegistered(key_id="k0", public_key=PUBLIC[0], tick_from=1))


def rotated(to: int, tick: int, *, signed: bool = True) -> LifeEvent:
    previous_key, next_key = f"k{to - 1}", f"k{to}"
    signature = KEYS[to - 1].sign(rotation_message(GOLEM, next_key, PUBLIC[to], tick)).hex() if signed else None
    payload = {
        "key_id": next_key,
        "public_key": PUBLIC[to],
        "previous_key_id": previous_key,
        "tick_from": tick,
        "why": "age",
    }
    return event(KeyRotated.model_validate(payload | {"signature": signature}))


def revoked(key: int, tick: int) -> LifeEvent:
    return event(KeyRevoked(key_id=f"k{key}", tick_from=tick, why="stolen"))


HISTORIES = {
    "a key is revoked after it signed its successor": [registered(), rotated(1, 10), revoked(0, 5)],
    "a key is revoked from its first tick on": [registered(), rotated(1, 10), revoked(1, 10)],
    "a revoked key has an unsigned successor": [registered(), revoked(0, 10), rotated(1, 10, signed=False)],
    "two rotations": [registered(), rotated(1, 10), rotated(2, 20), revoked(0, 3), revoked(2, 20), revoked(2, 25)],
}


@pytest.mark.row("X-9")
@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES.keys())
def test_a_reopened_log_has_the_same_key_ring(history: list[LifeEvent], tmp_path: Path) -> None:
    home = Home.create(tmp_path / "home", Policy(), NOW)
    with EventLog(home) as log:
        for each in history:
            log.record([each], NOW)
        ring = log.ring_of(GOLEM)
    with EventLog(home) as reopened:
        assert reopened.ring_of(GOLEM) == ring


@pytest.mark.row("X-9")
@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES.keys())
def test_recorded_events_give_one_ring_in_every_order(history: list[LifeEvent]) -> None:
    rings = {KeyRing(GOLEM).learned(order) for order in itertools.permutations(history)}
    assert len(rings) == 1
    for cut in range(1, len(history)):
        assert {KeyRing(GOLEM).learned(history[:cut]).learned(history[cut:])} == rings


@pytest.mark.row("X-9")
@pytest.mark.parametrize("kind", ["memory", "disk"])
@pytest.mark.parametrize(
    ("before", "late", "error"),
    [
        ([registered(), revoked(0, 5)], rotated(1, 10), SignatureError),
        ([registered()], rotated(1, 10, signed=False), SignatureError),
        ([registered()], event(KeyRegistered(key_id="k9", public_key=PUBLIC[1], tick_from=1)), RecordError),
        ([registered(), rotated(1, 10)], rotated(1, 12), RecordError),
        ([registered()], revoked(2, 5), RecordError),
        ([], rotated(1, 10), RecordError),
    ],
)
def test_a_key_event_in_an_invalid_sequence_is_refused_and_changes_nothing(
    before: list[LifeEvent], late: LifeEvent, error: type[BardoError], kind: str, tmp_path: Path
) -> None:
    log: Log = MemoryEventLog() if kind == "memory" else EventLog(Home.create(tmp_path / "home", Policy(), NOW))
    for each in before:
        log.record([each], NOW)
    with pytest.raises(error):
        log.record([late], NOW)
    assert log.life().num_rows == len(before)
    log.close()
