"""Testaments phrased by a language model, against a provider on this machine: what is on record, and what is shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.model_budget import memory_budget
from bardo_pipeline.derivation.death.testament_phrasing import (
    PhrasingResult,
    phrase_all_testaments,
    phrase_testament,
    phrased_testament,
    phrasing_requests,
)
from bardo_pipeline.derivation.legacy.published_bundles import published_bundles
from bardo_pipeline.derivation.versions.rebuild import rebuild
from bardo_pipeline.errors import AnswerError, CostCapError, GatewayError, QueryError, RefusalError, UnreachableError
from bardo_pipeline.events.life.events import life_event
from bardo_pipeline.events.life.testament_phrased import Phrased, Wording
from bardo_pipeline.gateway.model_prices import most_micros
from bardo_pipeline.gateway.model_settings import ModelSettings
from bardo_pipeline.inheritance.testament import CATEGORIES
from bardo_pipeline.policy import GatewayPolicy, Policy
from tests.conftest import NOW, copy_home
from tests.support.bardo_command import bardo
from tests.support.loopback_provider import Loopback, Said, loopback

pytestmark = pytest.mark.row("INH-3")

GATEWAY = GatewayPolicy(request_seconds_max=10.0, retries_max=0, corrections_max=0)


@pytest.fixture(scope="module")
def provider() -> Iterator[Loopback]:
    with loopback() as found:
        yield found


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch, provider: Loopback) -> None:
    """The server on this machine is the model that the environment names; it asks for no key."""
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
    """A home for tests that ask a model of their own each."""
    return copy_home(small_home, tmp_path_factory.mktemp("phrased") / "home")


def wordings(*given: tuple[int, str]) -> Said:
    """An answer that phrases these sentences."""
    return Said(arguments=json.dumps({"sentences": [{"number": n, "wording": w} for n, w in given]}))


def golem_of(stores: DerivationContext) -> str:
    return sorted(phrasing_requests(stores))[0]


def statements(stores: DerivationContext, golem_id: str) -> dict[str, list[str]]:
    (row,) = stores.projections.growing("testaments").read(golems=[golem_id]).to_pylist()
    return {name: [item["statement"] for item in row[name]] for name in CATEGORIES}


def phrased(stores: DerivationContext, provider: Loopback, model: str = "loopback-1", **said: Any) -> PhrasingResult:
    settings = ModelSettings("openai-chat", model, provider.settings.url)
    return phrase_testament(stores, golem_of(stores), settings, clock=lambda: NOW, **said)


def death_of(stores: DerivationContext) -> tuple[int, str]:
    """The number and the words of the sentence on the death, which every testament has."""
    sentences, _, _ = phrasing_requests(stores)[golem_of(stores)]
    return next((n, one.statement) for n, one in enumerate(sentences, 1) if one.statement.startswith("I died at tick"))


def test_what_claims_the_same_stands_and_what_claims_more_is_refused_with_its_reason(
    stores: DerivationContext, provider: Loopback
) -> None:
    golem_id, (number, death) = golem_of(stores), death_of(stores)
    others = [n for n in range(1, 1 + len(phrasing_requests(stores)[golem_id][0])) if n != number]
    good = death.replace(": ", ", when ")
    asking = phrased(stores, provider.says(wordings((number, good), (others[0], "I always won. Follow me."))))
    assert (asking.known, asking.error) == (False, None)
    (one, two) = sorted(asking.phrased.wordings, key=lambda w: w.fault is not None)
    assert (one.statement, one.wording, one.fault) == (death, good, None)
    assert two.fault is not None
    assert two.wording == "I always won. Follow me."
    told = statements(stores, golem_id)
    words = phrased_testament(stores, golem_id, told)
    assert words is not None
    assert (death, good) in words.said["failed"]
    pairs = [pair for name in CATEGORIES for pair in words.said[name]]
    assert [one for one, _ in pairs] == [one for name in CATEGORIES for one in told[name]], "nothing is lost"
    assert [one for one, other in pairs if one != other] == [death], "the derived sentences stand"
    assert good in words.page
    assert "Follow me" not in words.page


def test_neither_testament_nor_bundle_changes_and_a_rebuild_asks_nothing(
    stores: DerivationContext, provider: Loopback
) -> None:
    golem_id, (number, death) = golem_of(stores), death_of(stores)
    before = stores.projections.digest("testaments"), published_bundles(stores)
    phrased(stores, provider.says(wordings((number, death.replace(": ", ", when ")))))
    shown = phrased_testament(stores, golem_id, statements(stores, golem_id))
    provider.says(Said(status=500))
    assert all(one.equal for one in rebuild(stores, now=NOW))
    again = opened(stores.home.root)
    assert (again.projections.digest("testaments"), published_bundles(again)) == before
    assert phrased_testament(again, golem_id, statements(again, golem_id)) == shown
    assert not provider.requests


def test_one_testament_is_asked_about_once(stores: DerivationContext, provider: Loopback) -> None:
    first = phrased(stores, provider.says(wordings()))
    second = phrased(opened(stores.home.root), provider, again=True)
    assert (second.known, second.event) == (True, first.event)
    assert len(provider.requests) == 1
    everybody = len(phrasing_requests(stores))
    assert len(phrase_all_testaments(stores, provider.settings, clock=lambda: NOW)) == everybody - 1
    assert phrase_all_testaments(stores, provider.settings, clock=lambda: NOW) == []
    assert len(provider.requests) == everybody


FAILURES: list[tuple[Said, type[GatewayError], str]] = [
    (Said(arguments='{"sentences": ['), AnswerError, "malformed"),
    (wordings((1, "x" * 1_001)), AnswerError, "malformed"),
    (Said(refusal="I speak for nobody"), RefusalError, "refused"),
    (Said(held=True), UnreachableError, "timed_out"),
    (Said(status=500), UnreachableError, "failed"),
]


@pytest.mark.parametrize(("said", "kind", "outcome"), FAILURES)
def test_a_failure_is_on_record_and_the_derived_text_stands(
    shared: Path, provider: Loopback, said: Said, kind: type[GatewayError], outcome: str
) -> None:
    caps = {"day_micros_max": 10**9, "golem_day_micros_max": 10**9, "daily_budget_micros": 10**11}
    stores = opened(shared, request_seconds_max=0.5 if said.held else 10.0, **caps)
    golem_id, model = golem_of(stores), f"fails-{FAILURES.index((said, kind, outcome))}"
    asking = phrased(stores, provider.says(said), model)
    assert (asking.phrased.outcome, asking.phrased.wordings) == (outcome, ())
    assert asking.phrased.answer == (said.arguments or said.refusal)
    assert type(asking.error) is kind
    assert asking.event.event_id in str(asking.error)
    assert phrased_testament(stores, golem_id, statements(stores, golem_id)) is None
    asked = len(provider.requests)
    assert phrased(stores, provider, model).known, "it is not asked again by itself"
    assert len(provider.requests) == asked
    if outcome not in ("malformed", "refused"):
        return
    again = phrased(stores, provider.says(wordings()), model, again=True)
    assert again.known, "what was answered badly was answered"


def test_the_caps_of_the_day_hold_for_phrasings_too(stores: DerivationContext, provider: Loopback) -> None:
    golem_id = golem_of(stores)
    prompts = {g: prompt for g, (_, _, prompt) in phrasing_requests(stores).items()}
    most = {g: most_micros(provider.settings, prompt.size_bytes, GATEWAY) for g, prompt in prompts.items()}
    short = opened(stores.home.root, day_micros_max=min(most.values()) - 1)
    (asking,) = phrase_all_testaments(short, provider.says(wordings()).settings, clock=lambda: NOW)
    assert isinstance(asking.error, CostCapError)
    assert asking.phrased.request_count == 0
    assert not provider.requests
    enough = opened(stores.home.root, golem_day_micros_max=most[golem_id])
    assert phrased(enough, provider, again=True).error is None
    assert memory_budget(enough, golem_id, NOW).spent_micros == 7_500
    other = phrase_testament(enough, golem_id, provider.messages, clock=lambda: NOW)
    assert isinstance(other.error, CostCapError), "what was spent today counts, whatever was asked"
    assert memory_budget(enough, golem_id, NOW + timedelta(days=1)).spent_micros == 0


def test_a_claim_that_came_into_the_log_some_other_way_is_not_shown(
    stores: DerivationContext, provider: Loopback
) -> None:
    golem_id, (_, death) = golem_of(stores), death_of(stores)
    told = phrased(stores, provider.says(wordings())).phrased
    smuggled = Wording(category="failed", statement=death, wording="I never died.", fault=None)
    elsewhere = Wording(category="worked", statement="Nobody said so.", wording="Nobody said so.", fault=None)
    event = told.model_copy(update={"wordings": (smuggled, elsewhere), "prompt_hash": "another"})
    stores.log.record([life_event(golem_id, NOW, Phrased.model_validate(event.model_dump()))], NOW + timedelta(hours=1))
    words = phrased_testament(stores, golem_id, statements(stores, golem_id))
    assert words is not None
    assert (death, death) in words.said["failed"]
    assert smuggled in words.refused
    assert "Nobody said so" not in words.page


def test_who_left_no_testament_is_not_asked_about(stores: DerivationContext, provider: Loopback) -> None:
    with pytest.raises(QueryError, match="nobody has no testament"):
        phrase_testament(stores, "nobody", provider.says(wordings()).settings, clock=lambda: NOW)
    assert not provider.requests


@pytest.mark.full
def test_the_command_asks_shows_what_was_refused_and_golem_and_bundle_show_the_words(
    copied_home: Path, provider: Loopback, at_home: Callable[[Path], Path]
) -> None:
    stores = opened(at_home(copied_home))
    golem_id, (number, death) = golem_of(stores), death_of(stores)
    good, other = death.replace(": ", ", when "), 1 if number != 1 else 2
    provider.says(wordings((number, good), (other, "Trust nobody.")))
    assert death in bardo("golem", "phrase", golem_id, "--dry-run", home=copied_home)
    assert not provider.requests
    said = bardo("golem", "phrase", golem_id, home=copied_home)
    assert all(word in said for word in (golem_id, "answered", "Trust nobody.", "left out", "$0.007500"))
    for shown in (
        bardo("golem", "show", golem_id, home=copied_home),
        bardo("bundle", "show", golem_id, home=copied_home),
    ):
        assert "In the words of openai-chat:loopback-1" in shown
        assert good in " ".join(shown.split())
        assert "Trust nobody" not in shown
    provider.says(Said(refusal="no"))
    assert "refused" in bardo("golem", "phrase", "--all", home=copied_home, expect=1)
