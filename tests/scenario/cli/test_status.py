"""The command `bardo status`: its check, its thresholds and its JSON document."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from tests.conftest import NOW
from tests.support.processes.bardo_command import bardo

pytestmark = pytest.mark.row("X-11")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.create(tmp_path / "home", Policy(), NOW)


def test_a_healthy_home_passes_the_check(home: Home) -> None:
    output = bardo("status", "--check", home=home.root)
    assert "no record yet" in output
    assert "Exceeded" not in output


def test_an_exceeded_threshold_is_shown_and_fails_only_the_check(home: Home) -> None:
    waiting = home.spool / "late.jsonl"
    waiting.write_bytes(b"{}\n")
    os.utime(waiting, (NOW.timestamp() - 3_600,) * 2)
    assert "spool.age" in bardo("status", home=home.root)
    assert "Exceeded thresholds" in bardo("status", "--check", home=home.root, expect=1)
    printed = json.loads(bardo("status", "--check", "--format", "json", home=home.root, expect=1))
    assert [fault["measure"] for fault in printed["faults"]] == ["spool.age"]
    assert printed["faults"][0]["value"] > printed["faults"][0]["limit"] == 300.0


def test_the_json_document_keeps_its_keys(home: Home) -> None:
    printed = json.loads(bardo("status", "--format", "json", home=home.root))
    assert set(printed) == {
        "home", "derivation_id", "policy_hash", "adopted", "frozen", "log", "health", "faults", "projections",
        "warehouse",
    }  # fmt: skip
    assert set(printed["health"]) == {
        "at", "golems", "intake", "silent_seconds", "curation", "episodes", "journals", "leases", "spool",
        "untaken", "quarantine", "judgements", "successions", "marts", "embedder",
    }  # fmt: skip
    assert set(printed["health"]["curation"]) == {
        "ticks", "golem_max", "ticks_max", "cycles", "waiting_seconds", "derived_at",
    }  # fmt: skip


def test_an_unknown_format_is_refused(home: Home) -> None:
    assert "table or json" in bardo("status", "--format", "xml", home=home.root, expect=2)
