"""Reports enter by the spool and over HTTP, are found by each question, and their rules cross a death."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from bardo_pipeline import (
    Advice,
    EventWriter,
    advice,
    ask,
    birth,
    derive,
    open_home,
    read_records,
    record_of,
    report,
    search,
)
from bardo_pipeline.client import Client
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.record_overrides import grimoire_of
from bardo_pipeline.derivation.death.silence import declarations
from bardo_pipeline.derivation.legacy.bundle_store import load_bundle
from bardo_pipeline.errors import RecordError, ServerError
from bardo_pipeline.events.record.arrow_schema import RECORD_SCHEMA, to_table
from bardo_pipeline.inheritance.bundle_files import ENTRIES
from bardo_pipeline.inheritance.bundle_inspection import faults_of
from bardo_pipeline.inheritance.heir_entries import inherited_entries
from bardo_pipeline.server.recorder import reports_in
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.warehouse.build import build_warehouse, query
from tests.conftest import copy_home
from tests.scenario.api.test_example_agents import KEEPER
from tests.support.homes.served_homes import served
from tests.support.homes.server_routes import compare
from tests.support.homes.spool_homes import Place
from tests.support.homes.tool_homes import ToolHome
from tests.support.processes.bardo_command import bardo
from tests.support.processes.notebook import answers
from tests.support.records.log_queries import died
from tests.unit.curator.test_reports import START, at, fitting_tools, life
from tests.unit.inheritance.test_bundle import resealed

OWNER = "me"
SUM = {"task": "sum", "budget": "wide"}


def spooled(tick: int, **parts: Any) -> bytes:
    """A line of an experience file."""
    plain = {
        "golem_id": "g-1", "tick": tick, "observed_at": at(tick).isoformat(), "situation": {"task": "sum"},
        "action": "calculator", "reward": 0.5,
    }  # fmt: skip
    return json.dumps(plain | parts).encode()


@pytest.mark.row("EV-4")
def test_a_file_of_reports_becomes_records_and_a_bad_report_goes_to_quarantine(place: Place) -> None:
    lines = [spooled(1), spooled(2, reward=57), spooled(3, alternatives={"search": 0.1}, domain="tools"), b"{}",
             spooled(4)[:-1] + b', "tick": 5}']  # fmt: skip
    place.drop("a.experience.jsonl", lines)
    (taken,) = place.take()
    assert (taken.records, taken.written, taken.quarantined) == (5, 2, 3)
    rows = place.log.read_cycles(RECORD_SCHEMA.names).sort_by("tick").to_pylist()
    assert [row["tick"] for row in rows] == [1, 3]
    assert rows[0]["experiences"][0]["reward_ppm"] == 500_000
    assert rows[1]["experiences"][0]["alternatives"] == [{"action": "search", "reward_ppm": 100_000}]
    assert [row["observation"]["protocol"] for row in rows] == ["general", "tools"]
    wrong, empty, twice = sorted(place.refused(), key=lambda item: item.line)
    assert (wrong.line, wrong.golem_id, wrong.tick, wrong.error) == (2, "g-1", 2, "RecordError")
    assert "divide rewards by the largest possible one" in wrong.reason
    assert "action" in empty.reason
    assert "'tick' twice" in twice.reason
    assert place.spool.quarantine.raw_of(wrong) == lines[1]


@pytest.mark.row("EV-4")
def test_a_file_of_reports_that_comes_again_is_repeated(place: Place) -> None:
    place.drop("a.experience.jsonl", [spooled(1), spooled(2)])
    place.take()
    place.drop("b.experience.jsonl", [spooled(1), spooled(2), spooled(3)])
    (taken,) = place.take()
    assert (taken.written, taken.repeated) == (1, 2)


def test_a_body_of_reports_names_the_wrong_one() -> None:
    body = b'{"action": "a", "reward": 1}\n{"action": "b", "reward": 3}\n'
    with pytest.raises(RecordError, match=r"report 2: reward: 3.* divide rewards"):
        reports_in(body, is_lines=True)
    with pytest.raises(RecordError, match="no report"):
        reports_in(b"\n", is_lines=True)
    with pytest.raises(RecordError, match="report 1: an object has the key 'reward' twice: send each key once"):
        reports_in(b'{"action": "a", "reward": 1, "reward": -1}', is_lines=False)
    (one,) = reports_in(b'{"action": "a", "reward": 1, "tick": 4, "domain": "tools"}', is_lines=False)
    assert (one.tick, one.domain, one.verified) == (4, "tools", True)


@dataclass(frozen=True)
class LivedHome:
    """A home with a golem that made 1,000 reports, and was derived."""

    root: Path
    golem: str


def derived_home(root: Path, records: Callable[[str], pa.Table]) -> LivedHome:
    """Make a home with the records of one golem, and derive it."""
    open_home(root)
    golem_id = birth(root, owner=OWNER, lineage="reports/1", at=START)
    with EventLog(Home.open(root)) as log:
        log.append(records(golem_id), writer="life", segment=1, recorded_at=datetime.now(UTC))
    derive(root)
    return LivedHome(root, golem_id)


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> LivedHome:
    """A chooser among tools."""
    root = tmp_path_factory.mktemp("reported") / "home"
    return derived_home(root, lambda golem_id: life(3, 1_000, fitting_tools, golem_id))


@pytest.fixture(scope="module")
def keeper(tmp_path_factory: pytest.TempPathFactory) -> LivedHome:
    """The keeper of loans of examples/keeper, after 1,000 hours at random."""
    root = tmp_path_factory.mktemp("lending") / "home"
    return derived_home(root, lambda golem_id: to_table(KEEPER.explored(golem_id, 1, 1_000), RECORD_SCHEMA))


@pytest.mark.full
@pytest.mark.row("MEM-4", "MEM-9")
def test_each_question_finds_what_was_reported(lived: LivedHome) -> None:
    known = advice(lived.root, lived.golem)
    assert known.best(SUM, ["search", "calculator", "memory"]) == "calculator"
    assert known.best({"task": "chat", "budget": "wide"}, ["search", "calculator", "memory"]) == "memory"
    texts = ask(lived.root, lived.golem, "which tool is right for a sum?", k=5).hits["text"].to_pylist()
    assert any("calculator" in text for text in texts)
    found = search(lived.root, "prefer calculator for a sum", store="entries", golem_id=lived.golem, limit=3)
    assert "when task is sum" in found["text"][0].as_py()
    answer = ask(lived.root, lived.golem, "which tool is right for a sum?", k=5)
    assert set(answer.hits["domain"].to_pylist()) == {"tools"}, "the domain that the runtime stated"
    home = ToolHome(lived.root, lived.golem, lived.golem)
    insights = home.call("memory_get_insights", limit=50).insights
    assert any("prefer calculator" in insight.content for insight in insights)
    archive = json.loads(Path(home.call("memory_export_grimoire", include_decayed=True).path).read_bytes())["grimoire"]
    told = [*archive["insights"], *archive["episodes"], *(insight.document() for insight in insights)]
    assert {(row["chain"], row.get("token_pair", row.get("pair"))) for row in told} == {(None, None)}, (
        "it has no market"
    )


@pytest.mark.full
@pytest.mark.row("MEM-4", "X-13")
@pytest.mark.parametrize(
    ("home", "actions", "action", "situation"),
    [
        ("lived", {"search", "calculator", "memory"}, "search", {"task": "sum"}),
        ("keeper", {"wait", "repay", "add_collateral"}, "repay", {"health": "safe", "trend": "rising", "gas": "cheap"}),
    ],
)
def test_a_thousand_reports_give_an_insight_a_heuristic_and_a_warning_about_own_actions(
    request: pytest.FixtureRequest, home: str, actions: set[str], action: str, situation: dict[str, str]
) -> None:
    made: LivedHome = request.getfixturevalue(home)
    stores = DerivationContext.open(made.root)
    entries = grimoire_of(stores, made.golem).entries.select(["kind", "status", "action_type", "text"]).to_pylist()
    stores.log.close()
    kinds = {entry["kind"] for entry in entries if entry["status"] == "active" and entry["action_type"] in actions}
    assert kinds == {"insight", "heuristic", "warning"}
    with served(made.root, OWNER) as running, Client(running.url, running.tokens[OWNER], golem=made.golem) as client:
        warned = client.warnings_for(action, situation)["warnings"]
        document = httpx.get(f"{running.url}/openapi.json", trust_env=False, timeout=60).json()
        for name, wanted in (("advice", {}), ("warnings", {"action": action})):
            given = {"conditions": json.dumps(situation), **wanted}
            path, headers = f"{running.url}/v1/golems/{made.golem}/{name}", running.headers(OWNER)
            answer = httpx.get(path, params=given, headers=headers, trust_env=False, timeout=60)
            assert all(answer.json()[field] for field in ("rules", "warnings") if field in answer.json())
            compare(answer, document["paths"][f"/v1/golems/{{golem_id}}/{name}"]["get"], document)
    assert warned
    known = {entry["text"] for entry in entries if entry["kind"] == "warning" and entry["action_type"] == action}
    assert {row["text"] for row in warned} <= known
    assert f"avoid {action}" in warned[0]["text"]


@pytest.mark.row("MEM-4")
def test_a_runtime_that_keeps_no_credits_earned_nothing_when_it_fell_silent(tmp_path: Path) -> None:
    home = open_home(tmp_path / "home")
    golem = birth(home, lineage="helper/1", at=START)
    with EventWriter.open(home, golem) as writer:
        writer.append(record_of(golem, 1, at(1), [report(SUM, "search", 0.5)]))
    (declared,) = declarations(DerivationContext.open(home.root), [golem])[golem]
    assert declared.died is not None
    assert (declared.died.credits_micros, declared.died.earned_micros) == (0, 0)


@pytest.mark.full
@pytest.mark.row("P-4", "X-13")
def test_analysts_see_which_warnings_a_reporting_runtime_obeyed(lived: LivedHome, tmp_path: Path) -> None:
    home = open_home(copy_home(lived.root, tmp_path / "home"))
    rules = advice(home, lived.golem).holding(SUM, "search")
    (warning,) = (rule.entry_id for rule in rules if rule.conditions == (("task", "sum"),))
    shown = {"entry_id": warning, "kind": "warning", "score": 0.9, "semantic": 0.9, "recency": 1.0, "importance": 1.0,
             "affect": 0.5}  # fmt: skip
    with EventWriter.open(home, lived.golem, drain="thread") as writer:
        told = report({"task": "chat"}, "memory", 0.25, alternatives={"search": 0.0})
        writer.append(record_of(lived.golem, 1_001, at(1_001), [told], domain="tools", retrieved_entries=[shown]))
    with served(home.root, OWNER) as running, Client(running.url, running.tokens[OWNER], golem=lived.golem) as client:
        read = [row["entry_id"] for row in client.warnings_for("search", {"task": "sum"})["warnings"]]
        assert warning in read
        parts = {"domain": "tools", "observed_at": at(1_002), "entries_read": [warning, "no-entry", warning]}
        client.experience(SUM, "calculator", 0.75, alternatives={"search": -0.5}, **parts)
    spoken = spooled(1_003, golem_id=lived.golem, domain="tools", situation=SUM, action="search", reward=-0.25,
                     alternatives={"calculator": 0.5}, entries_read=[warning])  # fmt: skip
    (home.spool / "c.experience.jsonl").write_bytes(spoken + b"\n")
    bardo("spool", "take", home=home.root)
    context = DerivationContext.open(home.root)
    build_warehouse(context.home, context.derivation_id, context.policy)
    context.log.close()
    assert query(home, "select count(*) from fct_decisions")[1] == [(1_003,)]
    names = "decision, alternatives, warnings, warning_effect, reward, effect_ppm, prevented_loss_ppm, is_verified"
    assert query(home, f"select {names} from fct_decisions where len(entries_shown) > 0 order by tick")[1] == [
        ("memory", ["search"], [], "none", 0.25, 250_000, 0, True),
        ("calculator", ["search"], [warning], "heeded", 0.75, 1_250_000, 1_250_000, True),
        ("search", ["calculator"], [warning], "ignored", -0.25, -750_000, 0, True),
    ]
    assert query(home, "select tick, entry_id, kind, score from fct_retrievals order by tick, rank")[1] == [
        (1_001, warning, "warning", 0.9),
        (1_002, warning, "warning", 0.0),
        (1_002, "no-entry", "unstated", 0.0),
        (1_003, warning, "warning", 0.0),
    ]
    sentences = next(iter(answers(home.root, tmp_path).values())).sentence
    assert "1 of 1 warnings prevented more rewards than they missed: obeying prevented +1.25" in sentences
    assert "acting against a warning had the effect -0.75." in sentences


@pytest.mark.full
@pytest.mark.row("X-13")
def test_a_client_reports_and_asks_over_http(lived: LivedHome, tmp_path: Path) -> None:
    root = copy_home(lived.root, tmp_path / "home")
    with served(root, OWNER) as running, Client(running.url, running.tokens[OWNER], golem=lived.golem) as client:
        told = client.experience(SUM, "search", -0.2, alternatives={"calculator": 0.9}, domain="tools")
        (ack,) = told["acknowledged"]
        assert (ack["tick"], ack["repeated"], told["durable"]) == (1_001, False, True)
        given = {"domain": "tools", "tick": 1_002, "observed_at": datetime(2026, 2, 1, tzinfo=UTC)}
        for is_repeated in (False, True):
            (ack,) = client.experience(SUM, "memory", 0.1, **given)["acknowledged"]
            assert (ack["tick"], ack["repeated"]) == (1_002, is_repeated)
        advised = client.advice(SUM)
        assert advised["worth"]["calculator"] > 0.3
        assert advised["worth"]["search"] < 0
        assert all(set(rule["conditions"].items()) <= set(SUM.items()) for rule in advised["rules"])
        assert {rule["action"] for rule in client.advice(SUM, "search")["rules"]} == {"search"}
        warned = client.warnings_for("search", {"task": "sum"})["warnings"]
        assert "when task is sum, avoid search" in warned[0]["text"]
        assert not any("budget is" in row["text"] for row in warned), "their conditions are not fulfilled"
        for parts, fault in (({"reward": 2.0}, "divide rewards"), ({"situation": {"x": 0.5}}, "band")):
            wrong = {"situation": SUM, "action": "search", "reward": 0.0} | parts
            with pytest.raises(ServerError, match=fault) as refused:
                client.experience(**wrong)
            assert refused.value.status == 400
    last = read_records(root, lived.golem)[-2:]
    assert [record.tick for record in last] == [1_001, 1_002]
    assert last[0].experiences is not None
    assert last[0].experiences[0].alternatives[0].reward_ppm == 900_000


@pytest.fixture
def dead(lived: LivedHome, tmp_path: Path) -> Iterator[DerivationContext]:
    root = copy_home(lived.root, tmp_path / "dead")
    with EventWriter.open(open_home(root), lived.golem, drain="thread") as writer:
        writer.record(died(1_000, lived.golem))
    derive(root)
    context = DerivationContext.open(root)
    yield context
    context.log.close()


@pytest.mark.full
@pytest.mark.row("INH-5", "INH-7")
def test_rules_about_reports_cross_a_death(dead: DerivationContext, lived: LivedHome) -> None:
    (published,) = dead.life("BundlePublished", [lived.golem]).to_pylist()
    bundle = load_bundle(dead.home, published["published"]["bundle_hash"])
    assert faults_of(bundle.files, dead.policy.inheritance) == []
    entries = inherited_entries(bundle, "g-heir", dead.policy)
    crossed = entries.filter(pc.equal(entries["source"], "report"))
    assert crossed.num_rows >= 5
    assert set(crossed["domain"].to_pylist()) == {"tools"}
    of_category, of_another = (
        faults_of(
            resealed(bundle, {ENTRIES: bundle.files[ENTRIES].replace(b'"domain":"tools"', domain)}).files,
            dead.policy.inheritance,
        )
        for domain in (b'"domain":"yield"', b'"domain":"poetry"')
    )
    assert of_category == [], "a bundle of an earlier version has the domain of the category"
    assert "domain is 'poetry', which this version does not know" in of_another[0]
    known = Advice.of(crossed, crossed["confidence_ppm"].to_numpy())
    assert known.best(SUM, ["search", "calculator", "memory"]) == "calculator"
    testament = json.loads(bundle.files["testament.json"])
    assert any("prefer calculator" in item["statement"] for item in testament["worked"])
