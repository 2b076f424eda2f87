"""The derivation in force: the last recorded adoption in any order of events, and adoptions of another version."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.main import get_command

from bardo_pipeline.cli.app import app_of
from bardo_pipeline.curator.curate import PASSES_EDITION
from bardo_pipeline.derivation.active_derivation import adoptions_of, derivation_id, identity_of, in_force
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.versions.policy_diff import altered
from bardo_pipeline.derivation.versions.side_derivations import open_beside, switch_to
from bardo_pipeline.errors import DerivationError
from bardo_pipeline.events.life.events import EVERY_GOLEM, Adopted, LifeEvent, life_event
from bardo_pipeline.events.life.life_schema import LIFE_SCHEMA
from bardo_pipeline.events.record.arrow_schema import to_table
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.embedding.embedders import embedder_version
from bardo_pipeline.storage.home import Home
from tests.support.example_count import times

pytestmark = pytest.mark.row("X-10")

START = datetime(2026, 1, 1, tzinfo=UTC)
MINILM, NOMIC = embedder_version("minilm"), embedder_version("nomic")


def adoption(
    policy: Policy, at: int, *, edition: str = PASSES_EDITION, content: str | None = None, name: str = "minilm"
) -> LifeEvent:
    payload = Adopted(
        derivation_id=identity_of(policy.hash, edition, embedder_version(name)),
        previous_derivation_id="before",
        policy_hash=policy.hash,
        passes_edition=edition,
        embedder=name,
        policy=content or policy.content,
        why="a test",
    )
    return life_event(EVERY_GOLEM, START + timedelta(seconds=at), payload)


def table(*events: LifeEvent) -> pa.Table:
    return to_table(events, LIFE_SCHEMA)


def days(count: float) -> Policy:
    return altered(Policy(), [f"decay.tactical_days={count}"])


def test_a_home_without_adoptions_uses_the_default_policy() -> None:
    state = in_force(table())
    assert (state.policy, state.embedder, state.frozen) == (Policy(), "minilm", None)
    assert state.derivation_id == derivation_id(Policy(), MINILM)
    assert in_force(table(), "nomic").derivation_id == derivation_id(Policy(), NOMIC)


@settings(max_examples=times(25), deadline=None)
@given(st.permutations(range(5)))
def test_the_last_adoption_counts_for_any_order_of_events(order: list[int]) -> None:
    state = in_force(table(*(adoption(days(10 + i), i) for i in order)))
    assert state.policy == days(14)
    assert state.derivation_id == derivation_id(days(14), MINILM)
    assert state.frozen is None
    assert [a.policy_hash for a in adoptions_of(table(*(adoption(days(10 + i), i) for i in order)))] == [
        days(10 + i).hash for i in range(5)
    ]


def test_the_last_of_several_adoptions_at_one_moment_counts(tmp_path: Path) -> None:
    Home.create(tmp_path / "home", Policy(), START)
    stores = DerivationContext.open(tmp_path / "home")
    for count in (10, 11, 12, 13, 14):
        switch_to(stores, open_beside(stores, days(count)), "a test", now=START)
        assert DerivationContext.open(tmp_path / "home").policy == days(count)


def test_an_adoption_sets_the_embedder_and_each_embedder_has_its_derivation() -> None:
    events = table(adoption(days(14), 1, name="nomic"))
    assert in_force(events).embedder == "nomic"
    assert in_force(events).derivation_id == derivation_id(days(14), NOMIC)
    assert in_force(events, "minilm").derivation_id == derivation_id(days(14), MINILM)


def test_a_derivation_of_another_passes_edition_is_frozen_with_a_hint() -> None:
    state = in_force(table(adoption(days(14), 1, edition="older")))
    assert state.derivation_id == identity_of(days(14).hash, "older", MINILM)
    assert state.policy == days(14)
    assert state.frozen is not None
    assert "edition older" in state.frozen
    assert f"bardo adopt {derivation_id(days(14), MINILM)}" in state.frozen


def test_unknown_settings_of_an_adopted_policy_are_ignored_and_it_is_frozen() -> None:
    document = orjson.loads(days(14).content)
    document["decay"]["an_old_setting"] = 3
    del document["decay"]["ephemeral_days"]
    document["an_old_part"] = {"x": 1}
    event = adoption(days(14), 1, content=orjson.dumps(document).decode())
    assert event.adopted is not None
    renamed = event.adopted.model_copy(update={"policy_hash": "another", "derivation_id": "another-id"})
    state = in_force(table(life_event(EVERY_GOLEM, START, renamed)))
    assert state.policy == days(14)
    assert (state.derivation_id, state.frozen is None) == ("another-id", False)


def test_an_adopted_policy_with_an_invalid_value_is_refused() -> None:
    document = orjson.loads(days(14).content)
    document["decay"]["tactical_days"] = -1
    with pytest.raises(DerivationError, match="tactical_days"):
        in_force(table(adoption(days(14), 1, content=orjson.dumps(document).decode())))


def test_every_embedder_option_defaults_to_the_embedder_in_force() -> None:
    def embedders(command: click.Command, name: str) -> Iterator[tuple[str, object]]:
        for below, first in getattr(command, "commands", {}).items():
            yield from embedders(first, f"{name} {below}")
        yield from ((name, option.default) for option in command.params if option.name == "embedder")

    result = dict(embedders(get_command(app_of()), "bardo"))
    assert {"bardo dreams", "bardo propose", "bardo ask"} <= result.keys()
    assert [name for name, default in result.items() if default is not None] == []
