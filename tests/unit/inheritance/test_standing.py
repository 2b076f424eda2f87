"""The state of a succession: its next step, the steps due for a retry, and those that an owner takes over."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from bardo_pipeline.events.life.succession_events import STEPS, Advanced
from bardo_pipeline.inheritance.succession_state import Standing, due_again, standings
from bardo_pipeline.policy import Policy
from tests.support.example_count import some

pytestmark = pytest.mark.row("INH-18")

NOW = datetime(2026, 11, 1, tzinfo=UTC)


def step(name: str, outcome: str = "done", **fields: Any) -> Advanced:
    """One step as it would be on record."""
    answer = dict.fromkeys(
        ("due_at", "bundle_hash", "configuration", "divergence_ppm", "budget_micros", "lifespan_ticks", "place",
         "identity")
    )  # fmt: skip
    whole = {"heir_id": "g-heir", "mode": "automatic", "attempt": 1, "why": "x", **answer, **fields}
    return Advanced.model_validate({**whole, "step": name, "outcome": outcome})


def test_steps_follow_in_order_until_the_birth() -> None:
    assert STEPS == ("exported", "compiled", "compared", "provisioned", "funded", "registered", "booted")
    done: list[Advanced] = []
    for name in STEPS:
        standing = standings([("g", item) for item in done]).get("g", Standing({}))
        assert standing.next_step(NOW) == name
        assert not standing.booted
        done.append(step(name))
    last = standings([("g", item) for item in done])["g"]
    assert last.booted
    assert last.next_step(NOW) is None


def test_a_halted_succession_has_no_next_step() -> None:
    standing = standings([("g", step("exported")), ("g", step("compiled")), ("g", step("compared", "halted"))])["g"]
    assert standing.halted is not None
    assert standing.next_step(NOW + timedelta(days=365)) is None


def test_provisioning_is_retried_after_30_120_480_seconds_and_then_hourly() -> None:
    waits = [(due_again(n, NOW, Policy().succession) - NOW).total_seconds() for n in range(1, 8)]
    assert waits == [30, 120, 480, 3600, 3600, 3600, 3600]
    begun = [step("exported"), step("compiled"), step("compared")]
    failed = step("provisioned", "failed", due_at=NOW + timedelta(seconds=30))
    standing = standings([("g", item) for item in [*begun, failed]])["g"]
    assert standing.next_step(NOW + timedelta(seconds=29)) is None
    assert standing.next_step(NOW + timedelta(seconds=30)) == "provisioned"
    assert standing.attempts("provisioned") == 1


def test_a_failed_registration_does_not_stop_the_birth() -> None:
    rows = [step(name) for name in STEPS[:5]] + [step("registered", "failed")]
    standing = standings([("g", item) for item in rows])["g"]
    assert standing.next_step(NOW) == "booted"
    born = standings([("g", item) for item in [*rows, step("booted")]])["g"]
    assert born.booted
    assert born.unregistered
    later = step("registered", attempt=2, identity="local:1")
    assert not standings([("g", item) for item in [*rows, step("booted"), later]])["g"].unregistered


def test_a_halted_registration_does_not_stop_the_birth_and_is_not_retried() -> None:
    rows = [step(name) for name in STEPS[:5]] + [step("registered", "halted")]
    standing = standings([("g", item) for item in rows])["g"]
    assert standing.halted is None
    assert standing.next_step(NOW) == "booted"
    born = standings([("g", item) for item in [*rows, step("booted")]])["g"]
    assert (born.booted, born.unregistered, born.nameless) == (True, False, True)


def test_manual_steps_replace_automatic_steps() -> None:
    rows = [("g", step("exported")), ("g", step("compiled", "halted")), ("g", step("exported", mode="manual"))]
    standing = standings(rows)["g"]
    assert standing.halted is None
    assert standing.next_step(NOW) == "compiled"


def test_only_a_failed_step_has_a_retry() -> None:
    with pytest.raises(ValidationError, match="has no retry"):
        step("provisioned", "halted", due_at=NOW)


@given(
    st.lists(
        st.tuples(st.sampled_from(["g-1", "g-2"]), st.sampled_from(STEPS), st.sampled_from(["done", "failed"])),
        max_size=12,
    ),
    st.randoms(use_true_random=False),
)
@some(50)
def test_standings_do_not_depend_on_the_order_of_events(steps: list[tuple[str, Any, str]], luck: Any) -> None:
    counts: dict[tuple[str, str], int] = {}
    events = []
    for golem, name, outcome in steps:
        counts[golem, name] = counts.get((golem, name), 0) + 1
        events.append((golem, step(name, outcome, attempt=counts[golem, name])))
    shuffled = list(events)
    luck.shuffle(shuffled)
    state = standings(events)
    assert state == standings(shuffled)
    for golem, standing in state.items():
        for value in standing.last.values():
            assert value.attempt == counts[golem, value.step], "the highest attempt of a step counts"
        assert list(standing.last) == [s for s in STEPS if s in standing.last]
