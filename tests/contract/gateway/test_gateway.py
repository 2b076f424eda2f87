"""The gateway to language models, tested against a local server that speaks each provider's protocol."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bardo_pipeline.curator.model_prompt import Prompt
from bardo_pipeline.curator.state.proposal_schema import Proposals
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.derivation.curation.request_proposals import (
    ProposalRequest,
    living_golems,
    memory_budget,
    propose,
    question,
)
from bardo_pipeline.errors import (
    AnswerError,
    ConfigError,
    CostCapError,
    GatewayError,
    QueryError,
    RefusalError,
    UnreachableError,
)
from bardo_pipeline.events.life.events import Gap, life_event
from bardo_pipeline.gateway.model_request import ModelSettings, ask, cost_micros, most_micros
from bardo_pipeline.policy import GatewayPolicy
from tests.conftest import NOW, copy_home
from tests.property.derivation.test_laws import (
    BRIEF,
    beside,
    birth_of,
    derive_all,
    fingerprints,
    stores_at,
    with_hashes,
)
from tests.support.processes.loopback_provider import INPUT_TOKENS, OUTPUT_TOKENS, Loopback, Reply, loopback, operations
from tests.support.records.handmade_records import GOOD, RALLY, START, STORM, Life, full

pytestmark = pytest.mark.row("MEM-4")

LIFE = Life("g-0", {STORM: (GOOD,) * 6, RALLY: (GOOD,) * 2}, (2,), timedelta(minutes=1), 8)
POLICY = GatewayPolicy(request_seconds_max=10.0, retries_max=1)
PROMPT = Prompt("instructions", "{}")
ADD = {
    "operation": "ADD",
    "situation": {
        **{n: getattr(RALLY.structure, n) for n in ("chain", "protocol", "pair", "tool", "action_type", "regime")},
        "anomaly_band": "broken", "gas_band": "dear",
    },
    "sign": 1, "confidence": 0.6, "reason": "acting has paid", "evidence": [3, 1, 3],
}  # fmt: skip
UPVOTE = {"operation": "UPVOTE", "entry_id": "a" * 24, "reason": "it held again", "evidence": [5]}


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the API keys that the providers read; the local server checks none."""
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "a key of no worth")


@pytest.fixture(scope="module")
def provider() -> Iterator[Loopback]:
    with loopback() as server:
        yield server


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which one golem lived through two cycles, curated."""
    root = tmp_path_factory.mktemp("gateway") / "home"
    stores = stores_at(root)
    stores.log.record([birth_of(LIFE)], NOW)
    stores.log.append(full(LIFE.rows()), writer="w", segment=1, recorded_at=NOW)
    derive_curation(stores)
    stores.log.close()
    return root


@pytest.fixture
def stores(lived: Path, tmp_path: Path) -> DerivationContext:
    return opened(copy_home(lived, tmp_path / "home"))


def opened(root: Path, **gateway: Any) -> DerivationContext:
    policy = BRIEF.model_copy(update={"gateway": POLICY.model_copy(update=gateway)})
    return with_hashes(DerivationContext.open(root, policy=policy))


def proposed(stores: DerivationContext, provider: Loopback, at: datetime = NOW, **fields: Any) -> ProposalRequest:
    return propose(stores, "g-0", provider.settings, clock=lambda: at, **fields)


def on_record(stores: DerivationContext) -> list[dict[str, Any]]:
    return [row["asked"] for row in stores.life("ModelAsked").to_pylist()]


# the provider's behaviour and the reply


@pytest.mark.parametrize("protocol", ["settings", "messages"])
def test_operations_match_the_schema_under_each_protocol(provider: Loopback, protocol: str) -> None:
    reply = ask(PROMPT, getattr(provider.answering(operations(ADD, UPVOTE)), protocol), POLICY)
    assert (reply.outcome, reply.detail) == ("answered", "")
    add, vote = reply.operations
    assert (add.operation, add.sign, add.confidence, add.evidence) == ("ADD", 1, 0.6, (1, 3))
    assert add.situation is not None
    assert add.situation.model_dump() == ADD["situation"]
    assert (vote.operation, vote.entry_id, vote.evidence) == ("UPVOTE", "a" * 24, (5,))
    assert (reply.request_count, reply.input_tokens, reply.output_tokens) == (1, INPUT_TOKENS, OUTPUT_TOKENS)
    assert reply.answer is not None
    assert json.loads(reply.answer)["operations"][0]["evidence"] == [3, 1, 3], "the answer is kept as it came"


def test_the_provider_is_asked_for_the_schema_with_the_limits_of_the_policy(provider: Loopback) -> None:
    ask(PROMPT, provider.answering(operations()).settings, POLICY)
    (request,) = provider.requests
    assert [m["content"] for m in request["messages"]] == [PROMPT.instructions, PROMPT.question]
    (tool,) = request["tools"]
    operations_allowed = {"Add", "Upvote", "Downvote", "Edit"}
    assert operations_allowed <= set(tool["function"]["parameters"]["$defs"])
    assert POLICY.output_tokens_max in (request.get("max_tokens"), request.get("max_completion_tokens"))


def test_a_text_only_answer_counts_if_it_matches_the_schema(provider: Loopback) -> None:
    reply = ask(PROMPT, provider.answering(Reply(text=json.dumps({"operations": [UPVOTE]}))).settings, POLICY)
    assert [item.operation for item in reply.operations] == ["UPVOTE"]


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (Reply(arguments='{"operations": ['), "Invalid JSON"),
        (Reply(arguments='{"operations": {"operation": "ADD"}}'), "operations"),
        (operations({**UPVOTE, "operation": "DELETE"}), "DELETE"),
        (operations({**ADD, "confidence": 1.7}), "confidence: Input should be less than or equal to 1, not 1.7"),
        (operations({**ADD, "sign": 2}), "sign"),
        (operations({**ADD, "situation": {**ADD["situation"], "gas_band": "free"}}), "gas_band"),
        (operations({**UPVOTE, "evidence": []}), "evidence"),
        (operations({**UPVOTE, "evidence": [0]}), "evidence.0"),
        (operations({**UPVOTE, "reason": "x" * 501}), "reason"),
        (operations(*[UPVOTE] * 17), "operations"),
        (operations({**UPVOTE, "verdict": "pays"}), "verdict"),
        (Reply(text="I would rather talk about the weather."), "the weather"),
        (Reply(arguments='{"operations": [{', finish="length"), "token limit"),
        (Reply(body=b"<html>"), "decode"),
    ],
)  # fmt: skip
def test_an_invalid_answer_is_kept_unchanged_with_its_error(provider: Loopback, answer: Reply, named: str) -> None:
    reply = ask(PROMPT, provider.answering(answer).settings, POLICY)
    assert (reply.outcome, reply.operations) == ("malformed", ())
    assert named in reply.detail
    if answer.body is None:
        assert reply.answer == (answer.arguments or answer.text)
        assert len(provider.requests) == 1 + POLICY.corrections_max, "it is sent back as often as the policy allows"
        assert reply.input_tokens == len(provider.requests) * INPUT_TOKENS, "each of them is paid for"
        counted = len(provider.requests) * INPUT_TOKENS, len(provider.requests) * OUTPUT_TOKENS
        assert reply.cost_micros == cost_micros(provider.settings, *counted, POLICY)


@pytest.mark.parametrize("protocol", ["settings", "messages"])
@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b"null", b"7", b'"x"', b"\xff", b'{"content": null, "choices": [{}]}']
)
def test_a_body_without_a_message_is_malformed_and_charged_the_maximum(
    provider: Loopback, protocol: str, body: bytes
) -> None:
    settings = getattr(provider.answering(Reply(body=body)), protocol)
    reply = ask(PROMPT, settings, POLICY)
    assert (reply.outcome, reply.answer, reply.operations) == ("malformed", None, ())
    assert reply.detail
    most = most_micros(settings, PROMPT.size_bytes, POLICY)
    assert reply.cost_micros == most, "its token counts cannot be read"
    late = ask(PROMPT, getattr(provider.answering(Reply(text="no"), Reply(body=body)), protocol), POLICY)
    assert (late.outcome, late.request_count, late.cost_micros) == ("malformed", 1, most)


def test_a_broken_connection_is_charged_the_maximum(provider: Loopback) -> None:
    settings = provider.answering(Reply(text="half an answer", cut=True)).settings
    reply = ask(PROMPT, settings, POLICY)
    assert (reply.outcome, len(provider.requests)) == ("failed", 1 + POLICY.retries_max)
    assert reply.cost_micros == most_micros(settings, PROMPT.size_bytes, POLICY)


def test_a_malformed_answer_is_sent_back_once_for_correction(provider: Loopback) -> None:
    provider.answering(operations({**ADD, "confidence": 1.7}), operations(ADD))
    reply = ask(PROMPT, provider.settings, POLICY)
    assert (reply.outcome, reply.request_count) == ("answered", 2)
    assert "less than or equal to 1" in json.dumps(provider.requests[1]["messages"])


def test_a_refusal_keeps_the_message_of_the_provider(provider: Loopback) -> None:
    reply = ask(PROMPT, provider.answering(Reply(refusal="I give no financial advice")).settings, POLICY)
    assert (reply.outcome, reply.answer) == ("refused", "I give no financial advice")
    assert "I give no financial advice" in reply.detail
    assert len(provider.requests) == 1, "a refusal is not retried"
    reply = ask(PROMPT, provider.answering(Reply(finish="content_filter")).settings, POLICY)
    assert reply.outcome == "refused"
    reply = ask(PROMPT, provider.answering(Reply(text="That is not for me to say.", finish="refusal")).messages, POLICY)
    assert (reply.outcome, reply.answer) == ("refused", "That is not for me to say.")


def test_a_timeout_is_charged_the_maximum(provider: Loopback) -> None:
    swift = POLICY.model_copy(update={"request_seconds_max": 0.3})
    reply = ask(PROMPT, provider.answering(Reply(held=True)).settings, swift)
    assert (reply.outcome, reply.answer, reply.request_count) == ("timed_out", None, 0)
    assert reply.cost_micros == most_micros(provider.settings, PROMPT.size_bytes, swift)
    assert 300 <= reply.latency_ms < 5_000


def test_a_server_error_is_retried_and_then_raised(provider: Loopback) -> None:
    reply = ask(PROMPT, provider.answering(Reply(status=503), operations(UPVOTE)).settings, POLICY)
    assert (reply.outcome, len(provider.requests)) == ("answered", 2)
    reply = ask(PROMPT, provider.answering(Reply(status=500)).settings, POLICY)
    assert (reply.outcome, len(provider.requests), reply.cost_micros) == ("failed", 1 + POLICY.retries_max, 0)
    assert "500" in reply.detail
    assert "a bad day" in reply.detail
    reply = ask(PROMPT, provider.answering(Reply(status=401)).settings, POLICY)
    assert (reply.outcome, len(provider.requests)) == ("failed", 1), "a wrong key is not tried again"


def test_an_api_key_in_an_answer_of_the_provider_is_not_kept(provider: Loopback) -> None:
    body = b'{"error": {"message": "who is a key of no worth?", "type": "auth"}}'
    reply = ask(PROMPT, provider.answering(Reply(status=401, body=body)).settings, POLICY)
    assert reply.outcome == "failed"
    assert "who is (OPENAI_API_KEY)?" in reply.detail.replace("(ANTHROPIC_API_KEY)", "(OPENAI_API_KEY)")
    echo = Reply(text="a key of no worth")
    assert "no worth" not in (ask(PROMPT, provider.answering(echo).settings, POLICY).answer or "")


def test_an_unreachable_address_is_a_failure() -> None:
    with loopback() as closed:
        settings = closed.settings
    reply = ask(PROMPT, settings, POLICY)
    assert (reply.outcome, reply.answer, reply.cost_micros) == ("failed", None, 0)
    assert "onnection" in reply.detail


def test_an_answer_without_usage_is_charged_the_maximum(provider: Loopback) -> None:
    settings = provider.settings
    counted = ask(PROMPT, provider.answering(operations()).settings, POLICY)
    assert counted.cost_micros == cost_micros(settings, INPUT_TOKENS, OUTPUT_TOKENS, POLICY) == 7_500
    answer = Reply(arguments=json.dumps({"operations": []}), usage=False)
    assert ask(PROMPT, provider.answering(answer).settings, POLICY).cost_micros == most_micros(
        settings, PROMPT.size_bytes, POLICY
    )


def test_a_known_model_costs_its_list_price() -> None:
    settings = ModelSettings("openai-chat", "gpt-4o-mini")
    assert cost_micros(settings, 1_000_000, 0, POLICY) == 150_000
    assert cost_micros(settings, 0, 1_000_000, POLICY) == 600_000


# settings


def test_the_environment_names_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ModelSettings.of({}) is None
    assert ModelSettings.of({"BARDO_MODEL": "anthropic:m:1"}) == ModelSettings("anthropic", "m:1")
    assert ModelSettings.of({"BARDO_MODEL": "openai-chat:m", "BARDO_MODEL_URL": "u"}) == ModelSettings(
        "openai-chat", "m", "u"
    )
    for wrong in ("m", ":m", "openai-chat:"):
        with pytest.raises(ConfigError, match="PROVIDER:MODEL"):
            ModelSettings.of({"BARDO_MODEL": wrong})
    with pytest.raises(ConfigError, match="BARDO_MODEL"):
        ModelSettings.wanted({})
    with pytest.raises(ConfigError, match="nobody:m"):
        ask(PROMPT, ModelSettings("nobody", "m"), POLICY)
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        ask(PROMPT, ModelSettings("openai-chat", "m"), POLICY)


def test_fast_commands_do_not_import_the_model_libraries() -> None:
    code = (
        "import sys; from bardo_pipeline.cli.app import app_of; app_of(); "
        "print([name for name in ('pydantic_ai', 'openai', 'anthropic') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# recorded requests


def test_an_answer_is_recorded_and_the_same_question_is_asked_once(
    stores: DerivationContext, provider: Loopback
) -> None:
    first = proposed(stores, provider.answering(operations(ADD)))
    assert (first.cycle, first.known, first.error) == (2, False, None)
    (request,) = on_record(stores)
    assert request["outcome"] == "answered"
    assert (request["provider"], request["model"], request["cycle"], request["tick_seen"]) == (
        "openai-chat",
        "loopback-1",
        2,
        8,
    )
    assert request["prompt_hash"] == question(stores, "g-0")[1].hash  # type: ignore[union-attr]
    assert (request["cost_micros"], request["input_tokens"], request["output_tokens"]) == (
        7_500,
        INPUT_TOKENS,
        OUTPUT_TOKENS,
    )
    assert request["operations"][0]["reason"] == ADD["reason"]
    second = proposed(opened(stores.home.root), provider, again=True)
    assert second.known
    assert second.event == first.event
    assert len(provider.requests) == 1


def test_another_model_or_cycle_is_a_separate_request(stores: DerivationContext, provider: Loopback) -> None:
    proposed(stores, provider.answering(operations(UPVOTE)))
    other = ModelSettings("openai-chat", "loopback-2", provider.settings.url)
    assert not propose(stores, "g-0", other, clock=lambda: NOW).known
    assert not proposed(stores, provider, cycle=1).known
    assert [(row["model"], row["cycle"]) for row in on_record(stores)] == [
        ("loopback-1", 2), ("loopback-2", 2), ("loopback-1", 1),
    ]  # fmt: skip


FAILURES: list[tuple[Reply, type[GatewayError], str]] = [
    (Reply(arguments="{"), AnswerError, "malformed"),
    (operations({**ADD, "confidence": 1.7}), AnswerError, "malformed"),
    (Reply(refusal="no"), RefusalError, "refused"),
    (Reply(held=True), UnreachableError, "timed_out"),
    (Reply(status=500), UnreachableError, "failed"),
]


@pytest.mark.parametrize(("answer", "kind", "outcome"), FAILURES)
def test_a_failure_is_a_typed_error_recorded_with_the_answer(
    stores: DerivationContext, provider: Loopback, answer: Reply, kind: type[GatewayError], outcome: str
) -> None:
    seconds = 1.0 if answer.held else 10.0
    stores = opened(stores.home.root, request_seconds_max=seconds, retries_max=0, golem_day_micros_max=1_000_000)
    asking = proposed(stores, provider.answering(answer))
    (request,) = on_record(stores)
    assert (request["outcome"], request["answer"]) == (outcome, answer.arguments or answer.refusal)
    assert type(asking.error) is kind
    assert asking.event is not None
    assert asking.event.event_id in str(asking.error)
    assert request["detail"] in str(asking.error)
    before = len(provider.requests)
    assert proposed(stores, provider).known
    assert len(provider.requests) == before, "a failed request is not repeated unless it is asked for"
    repeated = proposed(stores, provider.answering(operations(UPVOTE)), again=True)
    assert repeated.known == (outcome in ("malformed", "refused")), (
        "a malformed answer or a refusal counts as an answer"
    )
    assert [row["outcome"] for row in on_record(stores)] == [outcome] + ["answered"] * (not repeated.known)


def test_a_reached_cap_is_recorded_and_no_call_is_made(stores: DerivationContext, provider: Loopback) -> None:
    provider.answering(operations(UPVOTE))
    _, prompt = question(stores, "g-0")
    assert prompt is not None
    most = most_micros(provider.settings, prompt.size_bytes, POLICY)
    for name in ("day_micros_max", "golem_day_micros_max"):
        root = copy_home(stores.home.root, stores.home.root.with_name(name))
        tight = opened(root, **{name: most - 1})
        asking = proposed(tight, provider)
        assert isinstance(asking.error, CostCapError)
        (request,) = on_record(tight)
        assert (request["outcome"], request["request_count"], request["cost_micros"]) == ("over_cap", 0, 0)
    assert not provider.requests
    enough = opened(stores.home.root, day_micros_max=most + 7_499)
    assert proposed(enough, provider, cycle=1).error is None
    assert isinstance(proposed(enough, provider).error, CostCapError), "spending of the same day counts"
    tomorrow = proposed(enough, provider, NOW + timedelta(days=1), again=True)
    assert tomorrow.error is None
    assert len(provider.requests) == 2


@pytest.mark.row("INH-20")
def test_memory_services_get_a_twentieth_of_a_golems_daily_budget(
    stores: DerivationContext, provider: Loopback
) -> None:
    provider.answering(operations(UPVOTE))
    _, prompt = question(stores, "g-0")
    assert prompt is not None
    most = most_micros(provider.settings, prompt.size_bytes, POLICY)
    root = copy_home(stores.home.root, stores.home.root.with_name("short"))
    short = opened(root, daily_budget_micros=20 * most - 1)
    asking = proposed(short, provider)
    assert isinstance(asking.error, CostCapError), "the request would exceed 5 %"
    assert not provider.requests
    enough = opened(stores.home.root, daily_budget_micros=20 * most)
    assert memory_budget(enough, "g-0", NOW).cap_micros == most
    assert proposed(enough, provider, cycle=1).error is None
    budget = memory_budget(enough, "g-0", NOW)
    assert 0 < budget.spent_micros <= budget.cap_micros
    assert isinstance(proposed(enough, provider).error, CostCapError), "spending of the same day counts"
    assert memory_budget(enough, "g-0", NOW + timedelta(days=1)).spent_micros == 0


def test_a_rebuild_makes_no_call_and_derives_equal_tables(
    stores: DerivationContext, provider: Loopback, tmp_path: Path
) -> None:
    proposed(stores, provider.answering(operations(ADD, UPVOTE)))
    derive_all(stores)
    provider.answering(Reply(status=500))
    rebuilt = beside(stores, tmp_path / "again")
    derive_all(rebuilt)
    assert fingerprints(rebuilt) == fingerprints(stores)
    assert not provider.requests


def test_no_call_is_made_for_unknown_golems_or_uncurated_cycles(stores: DerivationContext, provider: Loopback) -> None:
    provider.answering(operations())
    with pytest.raises(QueryError, match="no curated cycle"):
        propose(stores, "nobody", provider.settings, clock=lambda: NOW)
    with pytest.raises(QueryError, match="through cycle 2: cycle 3"):
        proposed(stores, provider, cycle=3)
    assert not provider.requests
    assert not on_record(stores)


def test_no_call_is_made_and_nothing_is_charged_for_a_lost_cycle(stores: DerivationContext, provider: Loopback) -> None:
    gap = Gap(tick_from=9, tick_to=12, why="the disk died")
    stores.log.record([life_event("g-0", START, gap)], NOW)
    derive_curation(stores)
    provider.answering(operations(UPVOTE))
    assert living_golems(stores) == ["g-0"]
    with pytest.raises(QueryError, match="cycle 3 was lost"):
        proposed(stores, provider, cycle=3)
    assert not provider.requests
    assert proposed(stores, provider).cycle == 2, "the last cycle that was not lost"
    (request,) = on_record(stores)
    assert (request["cycle"], request["tick_seen"]) == (2, 12)


# the prompt


def test_the_prompt_shows_learned_entries_with_their_ticks(stores: DerivationContext) -> None:
    cycle, prompt = question(stores, "g-0")
    assert cycle == 2
    assert prompt is not None
    shown = json.loads(prompt.question)
    assert shown["closed_cycle"] == 2
    entries = {e["entry_id"]: e for e in stores.projections.replaceable("grimoire").read().to_pylist()}
    assert {rule["situation"]["regime"] for rule in shown["rules"]} == {"volatile", "trending_up"}
    for rule in shown["rules"]:
        entry = entries[rule["entry_id"]]
        assert (rule["status"], rule["count"], rule["sign"]) == (entry["status"], entry["own_count"], entry["sign"])
        assert rule["evidence"]
        assert set(rule["evidence"]) <= set(range(1, 9))
    assert question(opened(stores.home.root), "g-0") == (cycle, prompt), "the same decisions, the same question"
    assert question(stores, "g-0", 1)[1] != prompt


def test_the_token_count_includes_the_answer_schema() -> None:
    schema = len(json.dumps(Proposals.model_json_schema(), separators=(",", ":")))
    assert PROMPT.size_bytes == len(PROMPT.instructions) + len(PROMPT.question) + schema
