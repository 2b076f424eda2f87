"""The calls of a client: each parameter of a call is a parameter of its route, and reaches it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel

from bardo_pipeline.client.calls import Call, Calls, Document
from bardo_pipeline.server.parameters import (
    AdviceParameters,
    AskParameters,
    BirthParameters,
    GrimoireParameters,
    LineageParameters,
    ReportParameters,
    SearchParameters,
    WarningsParameters,
)
from bardo_pipeline.tools.episode_tools import StoreEpisodeArguments

AT = datetime(2026, 3, 1, tzinfo=UTC)
SITUATION = {"gas": "high"}


class Unsent(Calls[Call]):
    """Calls that return the request in place of its answer."""

    def _send(self, call: Call) -> Call:
        return call

    def _send_both(self, call: Call, following: Callable[[Document], Call]) -> Call:
        return call


CASES: list[tuple[type[BaseModel], Callable[[Unsent], Call]]] = [
    (AskParameters, lambda c: c.ask("why?", k=3, regime="calm", at=AT, tick=9, clade=True, may_skip=True)),
    (
        SearchParameters,
        lambda c: c.search_derived(
            "gas", golem="g-1", store="entries", kind="insight", category="general", domain="tools", regime="calm",
            status="any", min_confidence=0.3, chain="base", pair="WETH/USDC", tool="swap", limit=4, decay=False,
        ),
    ),
    (
        StoreEpisodeArguments,
        lambda c: c.remember(
            "It slipped.", tool="swap", outcome={"pnl": 1}, chain="base", token_pair="WETH/USDC", importance="critical",
            dream_tag="review", sort="insight", tags=["bridge"],
        ),
    ),
    (AdviceParameters, lambda c: c.advice(SITUATION, "swap")),
    (LineageParameters, lambda c: c.lineage("f00d", golem="g-1")),
    (
        GrimoireParameters,
        lambda c: c.report(
            "grimoire-list", golem="g-1", kind="insight", status="any", text="gas", confidence_min=0.3, pinned=True,
            limit=4,
        ),
    ),
    (
        BirthParameters,
        lambda c: c.birth(owner="me", lineage="l", market="m", budget_dollars=7, lifespan_ticks=[5, 9], at=AT),
    ),
    (
        ReportParameters,
        lambda c: c.experience(
            SITUATION, "swap", 0.5, alternatives={"hold": 0.1}, domain="tools", tick=8, observed_at=AT,
            decision_tick=7, verified=False, ground_truth_source="receipt", entries_read=["e-1"],
        ),
    ),
]  # fmt: skip


@pytest.mark.row("X-13")
@pytest.mark.parametrize(("model", "made"), CASES, ids=[model.__name__ for model, _ in CASES])
def test_each_parameter_of_a_route_is_sent_by_its_call(model: type[BaseModel], made: Callable[[Unsent], Call]) -> None:
    call = made(Unsent("g-1"))
    sent: dict[str, Any] = json.loads(call.content) if call.content else dict(call.parameters)
    assert sent.keys() == model.model_fields.keys()
    read = model.model_validate(sent)
    unchanged = [name for name, field in model.model_fields.items() if getattr(read, name) == field.default]
    assert unchanged == [], "a value that equals its default shows nothing"


@pytest.mark.row("X-13")
def test_a_situation_is_sent_as_words_or_as_conditions() -> None:
    by_words = Unsent("g-1").warnings_for("swap", "gas is high", limit=2).parameters
    by_tags = Unsent("g-1").warnings_for("swap", SITUATION).parameters
    assert WarningsParameters.model_validate(by_words).model_dump() == {
        "action": "swap", "situation": "gas is high", "conditions": None, "clade": False, "limit": 2,
    }  # fmt: skip
    assert WarningsParameters.model_validate(by_tags).conditions == SITUATION


@pytest.mark.row("X-13")
def test_a_call_names_the_golem_of_its_own_before_that_of_the_client() -> None:
    assert [Unsent("g-1").remember("x", golem=golem).golem for golem in (None, "g-2")] == ["g-1", "g-2"]
    assert Unsent("g-1").advice({}, golem="a/b").path == "/v1/golems/a%2Fb/advice"
