"""A message about a relay, a server or a live run names the step with which the command succeeds."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.homes.two_owners import CORAL, belongings
from tests.support.processes.bardo_command import ROOT, bardo
from tests.support.processes.live_processes import awaited
from tests.support.processes.printed_cures import cure_in, value_in
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


def test_a_relay_is_given_files_that_it_can_use(founded: Path, tmp_path: Path) -> None:
    assert "name another file" in bardo("relay", "/", "--port", "0", home=founded, expect=2)
    database, registry = str(tmp_path / "relay.db"), tmp_path / "registry.json"
    words = ("relay", database, "--port", "0", "--registry", str(registry))
    assert "name a JSON file" in bardo(*words, home=founded, expect=2)
    registry.write_text("{}")
    with running(*words, home=founded) as line:
        assert "the relay answers" in line


def test_a_backup_of_a_clade_is_enabled_before_a_birth(new_home: Path, tmp_path: Path) -> None:
    with relay(tmp_path / "relay.db") as (address, _):
        bardo("golem", "birth", "g-1", "--owner", "ann", home=new_home)
        bardo("clade", "key", "ann", home=new_home)
        words = ("clade", "backup", "ann", "--relay", address)
        refused = bardo(*words, home=new_home, expect=2)
        section, key = value_in(refused, r"born with `([\w.]+)`: set it in bardo.toml before a birth").split(".")
        (new_home / "bardo.toml").write_text(f"[{section}]\n{key} = true\n")
        bardo("config", "adopt", "--why", "x", home=new_home)
        bardo("golem", "birth", "g-2", "--owner", "ann", home=new_home)
        assert "backup of the clade of ann: 1 golems" in bardo(*words, home=new_home)


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
    market = ("--bars", "3000", "--golems", "1")
    bardo("live", "--bars", "60", "--speed", "0", "--golems", "1", home=home)
    golem = re.search(r"\bg-[0-9a-f]{8}\b", bardo("status", home=home))
    assert golem is not None
    refused = bardo("steer", golem[0], "hold", home=home, expect=2)
    started = cure_in(refused, "live")
    environment = {**os.environ, "BARDO_HOME": str(home), "PYTHONPATH": str(ROOT)}
    whole = [sys.executable, "-m", "bardo_pipeline.cli.app", *started, "--no-screen", *market, "--speed", "60"]
    process = subprocess.Popen(whole, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        awaited(lambda: (home / "live").exists() and any((home / "live").rglob("*.json")))
        bardo("steer", golem[0], "hold", home=home)
    finally:
        process.kill()
        process.wait()


def test_a_language_model_and_a_webhook_are_named_by_their_variables(
    living: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = bardo("golem", "notices", "--post", home=living, expect=2)
    monkeypatch.setenv(value_in(refused, r"set (\w+) to a URL"), "http://127.0.0.1:9/")
    bardo("golem", "notices", "--post", home=living)
    refused = bardo("propose", "--all", home=living, expect=2)
    monkeypatch.setenv(value_in(refused, r"set (\w+) to PROVIDER:MODEL"), "nothing")
    refused = bardo("propose", "--all", home=living, expect=2)
    monkeypatch.delenv(value_in(refused, r"(\w+) 'nothing'"))
    assert "correct or unset it" in refused
