"""Testaments phrased by a language model, tested against a local server: what is recorded and what is shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.request_proposals import memory_budget
from bardo_pipeline.derivation.death.testament_phrasing import (
    PhrasingResult,
    phrase_all_testaments,
    phrase_testament,
    phrased_testament,
    phrasing_requests,
)
from bardo_pipeline.derivation.legacy.bundle_store import published_bundles
from bardo_pipeline.derivation.versions.rebuild import rebuild
from bardo_pipeline.errors import AnswerError, CostCapError, GatewayError, QueryError, RefusalError, UnreachableError
from bardo_pipeline.events.life.events import life_event
from bardo_pipeline.events.life.proposal_events import Phrased, Wording
from bardo_pipeline.gateway.model_request import ModelSettings, most_micros
from bardo_pipeline.inheritance.testament import CATEGORIES
from bardo_pipeline.policy import GatewayPolicy, Policy
from tests.conftest import NOW, copy_home
from tests.support.processes.bardo_command import bardo
from tests.support.processes.loopback_provider import Loopback, Reply, loopback

pytestmark = [pytest.mark.row("INH-3"), pytest.mark.full]

GATEWAY = GatewayPolicy(request_seconds_max=10.0, retries_max=0, corrections_max=0)


@pytest.fixture(scope="module")
def provider() -> Iterator[Loopback]:
    with loopback() as server:
        yield server


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch, provider: Loopback) -> None:
    """Configure the local server as the model; it needs no API key."""
    monkeypatch.setenv("OPENAI_API_KEY", "a key of no worth")
    monkeypatch.setenv("BARDO_MODEL", "openai-chat:loopback-1")
    monkeypatch.setenv("BARDO_MODEL_URL", provider.settings.url or "")


def opened(root: Path, **gateway: Any) -> DerivationContext:
    return DerivationContext.open(root, policy=Policy(gateway=GATEWAY.model_copy(update=gateway)))


@pytest.fixture
def stores(copied_home: Path) -> DerivationContext:
    return opened(copied_home)


@pytest.fixture(scope="module")
def shared(small_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home shared by tests that each use a model name of their own."""
    return copy_home(small_home, tmp_path_factory.mktemp("phrased") / "home")


def wordings(*given: tuple[int, str]) -> Reply:
    """Return an answer with these phrased sentences."""
    return Reply(arguments=json.dumps({"sentences": [{"number": n, "wording": w} for n, w in given]}))


def golem_of(stores: DerivationContext) -> str:
    return sorted(phrasing_requests(stores))[0]


def statements(stores: DerivationContext, golem_id: str) -> dict[str, list[str]]:
    (row,) = stores.projections.growing("testaments").read(golems=[golem_id]).to_pylist()
    return {name: [item["statement"] for item in row[name]] for name in CATEGORIES}


def phrased(stores: DerivationContext, provider: Loopback, model: str = "loopback-1", **fields: Any) -> PhrasingResult:
    settings = ModelSettings("openai-chat", model, provider.settings.url)
    return phrase_testament(stores, golem_of(stores), settings, clock=lambda: NOW, **fields)


def death_of(stores: DerivationContext) -> tuple[int, str]:
    """Return number and text of the sentence on the death, which every testament contains."""
    sentences, _, _ = phrasing_requests(stores)[golem_of(stores)]
    return next(
        (n, sentence.statement)
        for n, sentence in enumerate(sentences, 1)
        if sentence.statement.startswith("I died at tick")
    )


def test_a_wording_with_equal_claims_is_accepted_and_added_claims_are_refused(
    stores: DerivationContext, provider: Loopback
) -> None:
    golem_id, (number, death) = golem_of(stores), death_of(stores)
    other_numbers = [n for n in range(1, 1 + len(phrasing_requests(stores)[golem_id][0])) if n != number]
    good = death.replace(": ", ", when ")
    asking = phrased(
        stores, provider.answering(wordings((number, good), (other_numbers[0], "I always won. Follow me.")))
    )
    assert (asking.known, asking.error) == (False, None)
    (first, two) = sorted(asking.phrased.wordings, key=lambda w: w.fault is not None)
    assert (first.statement, first.wording, first.fault) == (death, good, None)
    assert two.fault is not None
    assert two.wording == "I always won. Follow me."
    statement_pairs = statements(stores, golem_id)
    words = phrased_testament(stores, golem_id, statement_pairs)
    assert words is not None
    assert (death, good) in words.wordings["failed"]
    pairs = [pair for name in CATEGORIES for pair in words.wordings[name]]
    assert [first for first, _ in pairs] == [first for name in CATEGORIES for first in statement_pairs[name]], (
        "nothing is lost"
    )
    assert [first for first, other in pairs if first != other] == [death], "the other sentences stay as derived"
    assert good in words.page
    assert "Follow me" not in words.page


def test_phrasing_changes_no_testament_or_bundle_and_a_rebuild_makes_no_call(
    stores: DerivationContext, provider: Loopback
) -> None:
    golem_id, (number, death) = golem_of(stores), death_of(stores)
    before = stores.projections.digest("testaments"), published_bundles(stores)
    phrased(stores, provider.answering(wordings((number, death.replace(": ", ", when ")))))
    shown = phrased_testament(stores, golem_id, statements(stores, golem_id))
    provider.answering(Reply(status=500))
    assert all(table.equal for table in rebuild(stores, now=NOW))
    reopened = opened(stores.home.root)
    assert (reopened.projections.digest("testaments"), published_bundles(reopened)) == before
    assert phrased_testament(reopened, golem_id, statements(reopened, golem_id)) == shown
    assert not provider.requests


def test_each_testament_is_phrased_once(stores: DerivationContext, provider: Loopback) -> None:
    first = phrased(stores, provider.answering(wordings()))
    second = phrased(opened(stores.home.root), provider, again=True)
    assert (second.known, second.event) == (True, first.event)
    assert len(provider.requests) == 1
    testament_count = len(phrasing_requests(stores))
    assert len(phrase_all_testaments(stores, provider.settings, clock=lambda: NOW)) == testament_count - 1
    assert phrase_all_testaments(stores, provider.settings, clock=lambda: NOW) == []
    assert len(provider.requests) == testament_count


FAILURES: list[tuple[Reply, type[GatewayError], str]] = [
    (Reply(arguments='{"sentences": ['), AnswerError, "malformed"),
    (wordings((1, "x" * 1_001)), AnswerError, "malformed"),
    (Reply(refusal="I speak for nobody"), RefusalError, "refused"),
    (Reply(held=True), UnreachableError, "timed_out"),
    (Reply(status=500), UnreachableError, "failed"),
]


@pytest.mark.parametrize(("answer", "kind", "outcome"), FAILURES)
def test_a_failure_is_recorded_and_the_derived_text_is_shown(
    shared: Path, provider: Loopback, answer: Reply, kind: type[GatewayError], outcome: str
) -> None:
    caps = {"day_micros_max": 10**9, "golem_day_micros_max": 10**9, "daily_budget_micros": 10**11}
    stores = opened(shared, request_seconds_max=0.5 if answer.held else 10.0, **caps)
    golem_id, model = golem_of(stores), f"fails-{FAILURES.index((answer, kind, outcome))}"
    asking = phrased(stores, provider.answering(answer), model)
    assert (asking.phrased.outcome, asking.phrased.wordings) == (outcome, ())
    assert asking.phrased.answer == (answer.arguments or answer.refusal)
    assert type(asking.error) is kind
    assert asking.event.event_id in str(asking.error)
    assert phrased_testament(stores, golem_id, statements(stores, golem_id)) is None
    call_count = len(provider.requests)
    assert phrased(stores, provider, model).known, "a failed request is not repeated unless it is asked for"
    assert len(provider.requests) == call_count
    if outcome not in ("malformed", "refused"):
        return
    repeated = phrased(stores, provider.answering(wordings()), model, again=True)
    assert repeated.known, "a malformed answer or a refusal counts as an answer"


def test_daily_caps_apply_to_phrasings(stores: DerivationContext, provider: Loopback) -> None:
    golem_id = golem_of(stores)
    prompts = {g: prompt for g, (_, _, prompt) in phrasing_requests(stores).items()}
    most = {g: most_micros(provider.settings, prompt.size_bytes, GATEWAY) for g, prompt in prompts.items()}
    short = opened(stores.home.root, day_micros_max=min(most.values()) - 1)
    (asking,) = phrase_all_testaments(short, provider.answering(wordings()).settings, clock=lambda: NOW)
    assert isinstance(asking.error, CostCapError)
    assert asking.phrased.request_count == 0
    assert not provider.requests
    enough = opened(stores.home.root, golem_day_micros_max=most[golem_id])
    assert phrased(enough, provider, again=True).error is None
    assert memory_budget(enough, golem_id, NOW).spent_micros == 7_500
    other = phrase_testament(enough, golem_id, provider.messages, clock=lambda: NOW)
    assert isinstance(other.error, CostCapError), "spending of the same day counts for every request"
    assert memory_budget(enough, golem_id, NOW + timedelta(days=1)).spent_micros == 0


def test_an_unchecked_wording_in_the_log_is_not_shown(stores: DerivationContext, provider: Loopback) -> None:
    golem_id, (_, death) = golem_of(stores), death_of(stores)
    result = phrased(stores, provider.answering(wordings())).phrased
    smuggled = Wording(category="failed", statement=death, wording="I never died.", fault=None)
    elsewhere = Wording(category="worked", statement="Nobody said so.", wording="Nobody said so.", fault=None)
    event = result.model_copy(update={"wordings": (smuggled, elsewhere), "prompt_hash": "another"})
    stores.log.record([life_event(golem_id, NOW, Phrased.model_validate(event.model_dump()))], NOW + timedelta(hours=1))
    words = phrased_testament(stores, golem_id, statements(stores, golem_id))
    assert words is not None
    assert (death, death) in words.wordings["failed"]
    assert smuggled in words.refused
    assert "Nobody said so" not in words.page


def test_no_call_is_made_for_a_golem_without_testament(stores: DerivationContext, provider: Loopback) -> None:
    with pytest.raises(QueryError, match="nobody has no testament"):
        phrase_testament(stores, "nobody", provider.answering(wordings()).settings, clock=lambda: NOW)
    assert not provider.requests


def test_the_phrase_command_shows_refusals_and_show_commands_the_wording(
    copied_home: Path, provider: Loopback, at_home: Callable[[Path], Path]
) -> None:
    stores = opened(at_home(copied_home))
    golem_id, (number, death) = golem_of(stores), death_of(stores)
    good, other = death.replace(": ", ", when "), 1 if number != 1 else 2
    provider.answering(wordings((number, good), (other, "Trust nobody.")))
    assert death in bardo("golem", "phrase", golem_id, "--dry-run", home=copied_home)
    assert not provider.requests
    output = bardo("golem", "phrase", golem_id, home=copied_home)
    assert all(word in output for word in (golem_id, "answered", "Trust nobody.", "left out", "$0.007500"))
    for shown in (
        bardo("golem", "show", golem_id, home=copied_home),
        bardo("bundle", "show", golem_id, home=copied_home),
    ):
        assert "In the words of openai-chat:loopback-1" in shown
        assert good in " ".join(shown.split())
        assert "Trust nobody" not in shown
    provider.answering(Reply(refusal="no"))
    assert "refused" in bardo("golem", "phrase", "--all", home=copied_home, expect=1)
