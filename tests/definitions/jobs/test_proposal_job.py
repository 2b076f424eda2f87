"""The proposal job and command: the golems they ask a model about, their reports, and no effect without a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from bardo_pipeline.derivation.configuration import record_configuration
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.request_proposals import living_golems, propose, propose_all, question
from bardo_pipeline.derivation.death.testament_phrasing import phrasing_requests
from bardo_pipeline.gateway.model_request import ModelSettings, most_micros
from bardo_pipeline.heartbeat.fleet import Founding
from bardo_pipeline.policy import Policy
from bardo_pipeline.policy.toml_config import parse
from bardo_pipeline.runtime import fleet_run
from bardo_pipeline.storage.home import Home
from jobs.schedules import proposals_every_four_hours
from tests.conftest import NOW, copy_home
from tests.definitions.running import decision_of, run
from tests.support.fleets.memory_fleets import lively_market
from tests.support.processes.bardo_command import bardo
from tests.support.processes.loopback_provider import INPUT_TOKENS, Loopback, Reply, loopback, operations

pytestmark = [pytest.mark.row("MEM-4"), pytest.mark.full]

EDIT = {"operation": "EDIT", "entry_id": "a" * 24, "note": "mind the gas", "reason": "so it seems", "evidence": [5]}


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which two golems live and have learned something, curated."""
    root = tmp_path_factory.mktemp("proposals") / "home"
    Home.create(root, Policy(), NOW)
    stores = DerivationContext.open(root)
    founding = Founding(credit_share=0.03, lifespan_ticks=(2_000, 2_000))
    fleet_run.FleetRun(stores, fleet_run.Run("run", lively_market(330), 2, 1, founding), lambda: NOW).live()
    stores.log.close()
    assert len(living_golems(stores)) == 2
    return root


@pytest.fixture
def root(lived: Path, tmp_path: Path, at_home: Callable[[Path], Path]) -> Path:
    return at_home(copy_home(lived, tmp_path / "home"))


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    """A provider, which the environment names."""
    with loopback() as server:
        monkeypatch.setenv("BARDO_MODEL", "openai-chat:loopback-1")
        monkeypatch.setenv("BARDO_MODEL_URL", server.settings.url or "")
        monkeypatch.setenv("OPENAI_API_KEY", "a key of no worth")
        yield server


def outputs(result: dg.ExecuteInProcessResult, step: str = "request_model_proposals") -> dict[str, Any]:
    (output,) = [e for e in result.all_events if e.event_type_value == "STEP_OUTPUT" and e.step_key == step]
    return {name: value.value for name, value in output.step_output_data.metadata.items()}


def evaluated(folder: Path) -> dg.RunRequest | dg.SkipReason:
    return decision_of(proposals_every_four_hours, folder)


def on_record(root: Path) -> list[dict[str, Any]]:
    return [row["asked"] for row in DerivationContext.open(root).life("ModelAsked").to_pylist()]


def test_the_proposal_job_asks_once_about_every_living_golem(root: Path, provider: Loopback) -> None:
    provider.answering(operations(EDIT))
    output = outputs(run("proposal_job", dg.DagsterInstance.ephemeral()))
    assert (output["asked"], output["operations"], output["cost_micros"]) == (2, 2, 15_000)
    assert "answered" in output["what_came"]
    assert [row["outcome"] for row in on_record(root)] == ["answered"] * 2
    assert outputs(run("proposal_job", dg.DagsterInstance.ephemeral()))["asked"] == 0
    assert len(provider.requests) == 2


def test_a_golem_over_its_cap_does_not_block_other_golems(root: Path, provider: Loopback) -> None:
    first, second = living_golems(DerivationContext.open(root))

    def asked(settings: ModelSettings, **caps: int) -> list[tuple[str, str]]:
        policy = Policy()
        policy = policy.model_copy(update={"gateway": policy.gateway.model_copy(update=caps)})
        result = propose_all(DerivationContext.open(root, policy=policy), settings, clock=lambda: NOW)
        return [(a.golem_id, a.event.asked.outcome) for a in result if a.event and a.event.asked]

    provider.answering(operations(EDIT))
    stores, settings = DerivationContext.open(root), provider.settings
    for name in ("another-1", "another-2", "another-3"):  # spending on any model counts
        propose(stores, first, ModelSettings("openai-chat", name, settings.url), clock=lambda: NOW)
    prompts = [question(stores, golem)[1] for golem in (first, second)]
    most = max(most_micros(settings, prompt.size_bytes, Policy().gateway) for prompt in prompts if prompt)
    assert asked(settings, golem_day_micros_max=most) == [(first, "over_cap"), (second, "answered")]
    other = ModelSettings("openai-chat", "loopback-2", settings.url)
    assert asked(other, day_micros_max=1) == [(first, "over_cap")], "the daily cap ends the round"


@pytest.mark.row("INH-3")
def test_the_job_phrases_testaments_if_configured(
    copied_home: Path, at_home: Callable[[Path], Path], provider: Loopback
) -> None:
    def phrased() -> dict[str, Any]:
        return outputs(run("proposal_job", dg.DagsterInstance.ephemeral()), "phrase_testaments")

    stores = DerivationContext.open(at_home(copied_home))
    provider.answering(Reply(arguments='{"sentences": [{"number": 1, "wording": "I won."}]}'))
    assert phrased() == {"asked": 0, "why": "gateway.phrases_testaments is off"}
    record_configuration(stores, parse("[death]\nphrased_testaments = true", "x"), now=NOW, why="to read better")
    dead, before = len(phrasing_requests(stores)), len(provider.requests)
    answer = phrased()
    assert (answer["asked"], answer["phrased"], answer["cost_micros"]) == (dead, 0, 7_500 * dead)
    assert "I won." in answer["refused"]
    assert len(provider.requests) == before + dead
    assert phrased()["asked"] == 0
    assert evaluated(copied_home).tags == {"bardo/why": "0 living golems"}  # type: ignore[union-attr]


def test_without_a_model_the_job_does_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BARDO_MODEL", raising=False)
    assert outputs(run("proposal_job", dg.DagsterInstance.ephemeral())) == {"asked": 0, "why": "BARDO_MODEL is not set"}
    assert on_record(root) == []


def test_the_schedule_is_off_and_skips_without_a_model_or_a_home(
    root: Path, tmp_path: Path, provider: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert proposals_every_four_hours.default_status is dg.DefaultScheduleStatus.STOPPED
    assert evaluated(root).tags == {"bardo/why": "2 living golems"}  # type: ignore[union-attr]
    assert isinstance(evaluated(tmp_path / "none"), dg.SkipReason)
    monkeypatch.delenv("BARDO_MODEL")
    assert "BARDO_MODEL" in str(evaluated(root))


# the command


def test_the_propose_command_shows_operations_and_cost(root: Path, provider: Loopback) -> None:
    provider.answering(operations(EDIT))
    golem = living_golems(DerivationContext.open(root))[0]
    output = bardo("propose", golem, home=root)
    assert all(word in output for word in (golem, "answered", "EDIT", "a" * 24, "so it seems", "$0.007500"))
    assert str(INPUT_TOKENS) in output
    assert "on record already" in bardo("propose", golem, home=root)
    assert len(provider.requests) == 1
    assert "answered" in bardo("propose", "--all", home=root)
    assert len(provider.requests) == 2


def test_a_dry_run_prints_the_prompt_and_sends_no_request(root: Path, provider: Loopback) -> None:
    golem = living_golems(DerivationContext.open(root))[0]
    output = bardo("propose", golem, "--dry-run", home=root)
    assert "of $0.2500 spent today (at most 5% of its daily budget of $10.00)" in output
    assert f"# golem {golem}, cycle 6, prompt " in output
    assert '"rules":[' in output
    assert "cycle 3" in bardo("propose", golem, "--dry-run", "--cycle", "3", home=root)
    assert not provider.requests
    assert on_record(root) == []


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (Reply(arguments='{"operations": [{"operation"'), "malformed"),
        (operations({**EDIT, "confidence": 1.7}), "confidence"),
        (Reply(refusal="I give no financial advice"), "no financial advice"),
    ],
)
def test_an_invalid_answer_is_recorded_and_reported_without_traceback(
    root: Path, provider: Loopback, answer: Reply, named: str
) -> None:
    provider.answering(answer)
    golem = living_golems(DerivationContext.open(root))[0]
    output = bardo("propose", golem, home=root, expect=2)
    assert named in output
    assert "on record as" in output
    assert "Traceback" not in output
    (asked,) = on_record(root)
    assert asked["answer"] == (answer.arguments or answer.refusal)
    assert bardo("propose", "--all", home=root, expect=1)


def test_the_propose_command_is_refused_without_a_model_or_a_golem(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BARDO_MODEL", raising=False)
    assert "set BARDO_MODEL to PROVIDER:MODEL" in bardo("propose", "--all", home=root, expect=2)
    assert "name one golem, or give --all" in bardo("propose", home=root, expect=2)
    assert "no curated cycle" in bardo("propose", "nobody", "--dry-run", home=root, expect=2)
