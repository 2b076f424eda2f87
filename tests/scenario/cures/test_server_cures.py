"""A message about a relay, a server or a live run names the step with which the command succeeds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx
import pytest

from bardo_pipeline.client.lethe_client import LetheClient
from bardo_pipeline.errors import ServerError
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.keys.clade_secrets import read_clade_secret
from bardo_pipeline.storage.operations.live_files import read_views
from tests.conftest import copy_home
from tests.support.homes.two_owners import CORAL, PEARL, belongings
from tests.support.processes.bardo_command import ROOT, bardo
from tests.support.processes.live_processes import awaited, living
from tests.support.processes.loopback_provider import loopback, operations
from tests.support.processes.printed_cures import cure_in, value_in
from tests.support.processes.public_boards import belief, put
from tests.support.processes.relays import relay

pytestmark = [pytest.mark.row("P-4"), pytest.mark.full]


@contextmanager
def running(*words: str, home: Path) -> Iterator[str]:
    """Run a command that goes on until the block ends; yield its first line with an address, or its first line."""
    environment = {**os.environ, "BARDO_HOME": str(home), "PYTHONPATH": str(ROOT), "COLUMNS": "160"}
    whole = [sys.executable, "-m", "bardo_pipeline.cli.app", *words]
    process = subprocess.Popen(whole, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "http://" in line:
                break
        else:
            raise AssertionError("".join(lines))
        yield lines[-1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def test_a_relay_is_named_by_its_whole_address(founded: Path, tmp_path: Path) -> None:
    bardo("clade", "key", "ann", home=founded)
    words = ("clade", "sync", "ann")
    option = value_in(bardo(*words, home=founded, expect=2), r"give (--relay) ADDRESS, or set BARDO_RELAY")
    with relay(tmp_path / "relay.db") as (address, _):
        bare = address.removeprefix("http://")
        beginning = value_in(bardo(*words, option, bare, home=founded, expect=2), r"begins with (http://) or https://")
        bardo(*words, option, beginning + bare, home=founded)


def test_a_relay_that_does_not_answer_is_started(founded: Path, tmp_path: Path) -> None:
    bardo("clade", "key", "ann", home=founded)
    words = ("clade", "sync", "ann", "--relay")
    refused = bardo(*words, "http://127.0.0.1:9", home=founded, expect=2)
    started = cure_in(refused, "relay", DATABASE=str(tmp_path / "relay.db"))
    with running(*started, "--port", "0", home=founded) as line:
        bardo(*words, value_in(line, r"(http://\S+)"), home=founded)


class _Senseless(BaseHTTPRequestHandler):
    """Answers each request with an empty object."""

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_GET = do_POST = answer  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


def test_a_relay_whose_answers_have_another_form_gives_way_to_another(founded: Path, tmp_path: Path) -> None:
    bardo("clade", "key", "ann", home=founded)
    words = ("clade", "sync", "ann", "--relay")
    with ThreadingHTTPServer(("127.0.0.1", 0), _Senseless) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        refused = bardo(*words, f"http://127.0.0.1:{server.server_port}", home=founded, expect=2)
        server.shutdown()
    assert "use another relay" in refused
    with relay(tmp_path / "relay.db") as (address, _):
        bardo(*words, address, home=founded)


def test_an_identity_that_a_relay_does_not_know_is_registered(founded: Path, tmp_path: Path) -> None:
    bardo("clade", "key", "ann", home=founded)
    secret = read_clade_secret(Home.open(founded), "ann")
    registry = tmp_path / "registry.json"
    registry.write_text("{}")
    with relay(tmp_path / "relay.db", registry=registry) as (address, _):
        board = LetheClient(address)
        with pytest.raises(ServerError, match="let the relay's operator register it") as refused:
            put(board, secret, [belief("a")])
        printed = bardo(*cure_in(str(refused.value), "clade identity"), "ann", home=founded)
        registry.write_text(json.dumps({value_in(printed, "([0-9a-f]{64})"): 60}))
        assert put(board, secret, [belief("a")])


def test_a_relay_is_given_files_that_it_can_use(founded: Path, tmp_path: Path) -> None:
    assert "name another file" in bardo("relay", "/", "--port", "0", home=founded, expect=2)
    database, registry = str(tmp_path / "relay.db"), tmp_path / "registry.json"
    words = ("relay", database, "--port", "0", "--registry", str(registry))
    assert "name a JSON file" in bardo(*words, home=founded, expect=2)
    registry.write_text("{}")
    with running(*words, home=founded) as line:
        assert "the relay answers" in line


def test_a_backup_of_a_clade_is_enabled_by_the_named_setting(founded: Path, tmp_path: Path) -> None:
    bardo("clade", "key", "ann", home=founded)
    with relay(tmp_path / "relay.db") as (address, _):
        words = ("clade", "backup", "ann", "--relay", address)
        refused = bardo(*words, home=founded, expect=2)
        section, key = value_in(refused, r"has `([\w.]+)`: set it in bardo.toml").split(".")
        (founded / "bardo.toml").write_text(f"[{section}]\n{key} = true\n")
        bardo(*cure_in(refused), "--why", "x", home=founded)
        assert "backup of the clade of ann: 1 golems" in bardo(*words, home=founded)


def test_a_relay_without_a_backup_gives_way_to_the_relay_of_the_home(founded: Path, tmp_path: Path) -> None:
    bardo("clade", "key", "ann", home=founded)
    with relay(tmp_path / "relay.db") as (address, _):
        refused = bardo("clade", "restore", "ann", "--relay", address, home=founded, expect=2)
        assert "name the relay of its homes" in refused


def test_a_taken_port_gives_way_to_any_free_one(new_home: Path) -> None:
    with running("serve", "--port", "0", home=new_home) as line:
        taken = value_in(line, r"http://127\.0\.0\.1:(\d+)")
        other = new_home.parent / "other"
        bardo("init", str(other), home=other)
        port = value_in(bardo("serve", "--port", taken, home=other, expect=2), r"or (0) for any free one")
        with running("serve", "--port", port, home=other) as second:
            assert "Bardo serves" in second


def test_a_request_without_a_token_uses_one_that_the_message_leads_to(owned: Path) -> None:
    with running("serve", "--port", "0", home=owned) as line:
        url = value_in(line, r"(http://127\.0\.0\.1:\d+)")
        for headers in ({}, {"Authorization": "Bearer unknown"}):
            refused = httpx.get(f"{url}/v1/golems", headers=headers, trust_env=False)
            assert refused.status_code == 401
            issued = bardo(*cure_in(refused.json()["message"], "keys token", OWNER=CORAL), *_owner(refused), home=owned)
            token = issued.splitlines()[0]
            answer = httpx.get(f"{url}/v1/golems", headers={"Authorization": f"Bearer {token}"}, trust_env=False)
            assert belongings(owned, CORAL).golem in answer.text
        unknown = httpx.get(f"{url}/v1/golems/none", headers={"Authorization": f"Bearer {token}"}, trust_env=False)
        method, route = value_in(unknown.json()["cure"], r"(GET \S+)").split()
        assert httpx.request(method, url + route, headers={"Authorization": f"Bearer {token}"}, trust_env=False).json()


def _owner(refused: httpx.Response) -> tuple[str, ...]:
    return () if "OWNER" in refused.json()["message"] else (CORAL,)


def test_a_client_without_a_server_starts_one(founded: Path) -> None:
    script = "from bardo_pipeline.client import Client\nprint(Client().golems())"
    environment = {**os.environ, "BARDO_HOME": str(founded), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    started = cure_in(done.stderr, "serve")
    with running(*started, "--port", "0", home=founded):
        done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
        assert "g-1" in done.stdout, done.stderr


def test_a_steer_without_a_live_run_starts_one(tmp_path: Path) -> None:
    home = tmp_path / "home"
    market = ("--bars", "3000", "--latency", "1,1,1,1,2", "--golems", "1", "--speed", "300")
    with living(home, *market):
        awaited(lambda: (home / "home.json").exists() and read_views(Home.open(home)))
        golem = read_views(Home.open(home))[0]["golem_id"]
        bardo("steer", golem, "hold", home=home)
        most = value_in(
            bardo("steer", golem, "x" * 70_000, home=home, expect=2), r"has 1 to ([\d,]+) characters: shorten"
        )
        bardo("steer", golem, "x" * int(most.replace(",", "")), home=home)
    refused = bardo("steer", golem, "hold", home=home, expect=2)
    assert cure_in(refused) == ["live"]
    with living(home, *market):
        awaited(lambda: any(not golem["is_replay"] for golem in read_views(Home.open(home))))
        bardo("steer", golem, "hold", home=home)


def test_a_notice_waits_for_the_named_webhook(founded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = bardo("golem", "notices", "--post", home=founded, expect=2)
    monkeypatch.setenv(value_in(refused, r"set (\w+) to a URL"), "http://127.0.0.1:9/")
    bardo("golem", "notices", "--post", home=founded)


def test_a_language_model_is_named_by_its_variables(
    half_lived: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, words = copy_home(half_lived, tmp_path / "home"), ("propose", "--all")
    bardo("derive", "--no-marts", home=home)
    refused = bardo(*words, home=home, expect=2)
    model, address = (
        value_in(refused, cure) for cure in (r"set (\w+) to PROVIDER:MODEL", r"(\w+) for another address")
    )
    monkeypatch.setenv(model, "nothing")
    wrong = bardo(*words, home=home, expect=2)
    assert "correct or unset it" in wrong
    with loopback() as provider:
        provider.answering(operations())
        monkeypatch.setenv(value_in(wrong, r"(\w+) 'nothing'"), "openai-chat:loopback-1")
        monkeypatch.setenv(address, f"{provider.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "the provider's key")
        bardo(*words, home=home)
        assert provider.requests


def test_a_request_in_another_form_gets_the_named_one(owned: Path) -> None:
    with running("serve", "--port", "0", home=owned) as line:
        url = value_in(line, r"(http://127\.0\.0\.1:\d+)")
        whole, coral = (
            "Bearer " + bardo("keys", "token", owner, home=owned).split()[0] for owner in ("--whole-home", CORAL)
        )

        def post(path: str, content: str, token: str = coral, kind: str = "application/json") -> httpx.Response:
            headers = {"Authorization": token, "Content-Type": kind}
            return httpx.post(url + path, content=content, headers=headers, trust_env=False, timeout=60)

        born = '{"golem": "%s"%s}'
        refused = post("/v1/golems", born % ("new-1", ""), whole)
        assert refused.json()["cure"] == "name the owner"
        assert post("/v1/golems", born % ("new-1", f', "owner": "{CORAL}"'), whole).status_code == 201
        taken = post("/v1/golems", born % (belongings(owned, PEARL).heir, ""))
        assert taken.json()["cure"] == "choose another"
        assert post("/v1/golems", born % ("new-2", "")).status_code == 201
        foreign = post("/v1/golems", born % ("new-3", f', "owner": "{PEARL}"'))
        assert foreign.json()["cure"] == "use a token of that owner"
        pearl = "Bearer " + bardo("keys", "token", PEARL, home=owned).split()[0]
        assert post("/v1/golems", born % ("new-3", f', "owner": "{PEARL}"'), pearl).status_code == 201
        tool = post("/v1/tools/nothing", "{}")
        method, route = tool.json()["cure"].split()[:2]
        listed = httpx.request(method, url + route, headers={"Authorization": coral}, trust_env=False)
        assert listed.json()["tools"]
        record = json.dumps({"golem_id": "unborn", "tick": 1})
        typed = post("/v1/records", record, kind="text/plain")
        kind = value_in(typed.json()["cure"], r"Content-Type: (\S+?)`")
        assert post("/v1/records", record, kind=kind).status_code != 415
