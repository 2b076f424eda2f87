"""A relay as a process: what it stores, whom it answers, what it refuses, and what survives its kill."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.sync.client import connect

from bardo_pipeline.client.relay_client import RelayClient
from bardo_pipeline.errors import ConfigError, NoServerError, ServerError
from bardo_pipeline.events.custody.clade_secret import CladeSecret
from tests.support.processes.relays import relay

OURS, THEIRS = CladeSecret(b"o" * 32), CladeSecret(b"t" * 32)
IDS = ["a" * 64, "b" * 64, "c" * 64]


def client(url: str, secret: CladeSecret = OURS) -> RelayClient:
    return RelayClient(url, secret.topic, secret.token)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with relay(tmp_path_factory.mktemp("relay") / "relay.db", by_command=True) as (url, _):
        yield url


def test_messages_survive_a_kill_and_are_stored_once(tmp_path: Path) -> None:
    with relay(tmp_path / "relay.db") as (url, process):
        with client(url) as topic:
            assert [topic.put(IDS[0], b"one"), topic.put(IDS[1], b"two"), topic.put(IDS[0], b"one")] == [1, 2, 1]
        process.kill()
    with relay(tmp_path / "relay.db") as (url, _), client(url) as topic:
        assert [(m.number, m.message_id, m.body) for m in topic.after(0)] == [(1, IDS[0], b"one"), (2, IDS[1], b"two")]
        assert (topic.after(1)[0].body, topic.after(2), topic.newest()) == (b"two", [], 2)
        with pytest.raises(ServerError, match="another body") as refused:
            topic.put(IDS[0], b"other")
        assert refused.value.status == 409


def test_a_topic_opens_by_its_token_alone(address: str) -> None:
    with client(address) as ours, client(address, THEIRS) as theirs:
        number = ours.put(IDS[0], b"secret")
        assert theirs.after(0) == []
        stranger = RelayClient(address, OURS.topic, THEIRS.token)
        for call in (
            lambda: stranger.after(0), lambda: stranger.put(IDS[1], b"x"), stranger.newest,
            lambda: stranger.keep([IDS[0]], 9),
        ):  # fmt: skip
            with pytest.raises(ServerError, match="another token") as refused:
                call()
            assert refused.value.status == 403
        assert ours.newest() == number


def test_a_new_message_is_pushed(address: str) -> None:
    with client(address) as topic:
        newest = topic.put(IDS[2], b"before")
        assert not topic.wait(newest, 0.3)
        sender = threading.Timer(0.3, lambda: topic.put("d" * 64, b"pushed"))
        sender.start()
        assert topic.wait(newest, 30.0)
        sender.join()
        assert topic.wait(0, 30.0), "the feed begins with what was missed"


@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "status"),
    [
        ("GET", f"/v1/topics/{OURS.topic}/messages", {}, b"", 401),
        ("GET", "/v1/topics/short/messages", {"authorization": "Bearer x"}, b"", 400),
        ("GET", f"/v1/topics/{OURS.topic}/messages?after=-1", {"authorization": "Bearer x"}, b"", 400),
        ("PUT", f"/v1/topics/{OURS.topic}/messages/..%2Fx", {"authorization": "Bearer x"}, b"", 400),
        ("PUT", f"/v1/topics/{OURS.topic}/messages/{IDS[0]}", {"authorization": "Bearer x"}, b"x" * 1_100_000, 413),
        ("POST", "/v1/nowhere", {}, b"", 404),
        ("PUT", f"/v1/topics/{OURS.topic}/messages/{IDS[0]}?days=0", {"authorization": "Bearer x"}, b"x", 400),
        ("PUT", f"/v1/topics/{OURS.topic}/messages/{IDS[0]}?days=367", {"authorization": "Bearer x"}, b"x", 400),
        ("POST", f"/v1/topics/{OURS.topic}/kept?days=9", {"authorization": "Bearer x"}, b'["../x"]', 400),
        ("POST", f"/v1/topics/{OURS.topic}/kept?days=nine", {"authorization": "Bearer x"}, b"[]", 400),
        ("POST", f"/v1/topics/{OURS.topic}/kept", {}, b"[]", 401),
    ],
)
def test_a_wrong_request_is_refused_with_a_cure(
    address: str, method: str, path: str, headers: dict[str, str], body: bytes, status: int
) -> None:
    answer = httpx.request(method, f"{address}{path}", headers=headers, content=body, trust_env=False)
    assert answer.status_code == status or (status == 400 and answer.status_code == 404), answer.text
    assert {"error", "message", "cure"} <= answer.json().keys()


def test_the_feed_refuses_a_stranger(address: str) -> None:
    with client(address) as topic:
        topic.put(IDS[0], b"secret")
    where = f"ws{address.removeprefix('http')}/v1/topics/{OURS.topic}/feed"
    with (
        pytest.raises((InvalidStatus, ConnectionClosedError)),
        connect(where, additional_headers={"authorization": "Bearer x"}) as feed,
    ):
        feed.recv(timeout=10)


def test_an_address_and_an_absent_relay_are_named() -> None:
    with pytest.raises(ConfigError, match="begins with http"):
        RelayClient("relay.example", OURS.topic, OURS.token)
    with client("http://127.0.0.1:9") as absent:
        for call in (absent.newest, lambda: absent.wait(0, 0.1)):
            with pytest.raises(NoServerError, match="does not answer"):
                call()
