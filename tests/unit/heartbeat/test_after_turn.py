"""The chain after a turn: its order, what each subsystem reads, and that a failing one stops nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bardo_pipeline.heartbeat import after_turn as chain
from bardo_pipeline.heartbeat.after_turn import SUBSYSTEMS, Turn
from bardo_pipeline.heartbeat.attention_items import WATCHED, readings
from bardo_pipeline.heartbeat.decide import worth_after
from bardo_pipeline.heartbeat.observe import health_now
from tests.support.fleets.gated_fleets import GATED
from tests.support.fleets.memory_fleets import Lived, live, lively_market

NAMES = ("heartbeat", "lifespan", "daimon", "memory", "risk", "dream", "cybernetics", "clade", "telemetry")
BARS = 300


def lived(monkeypatch: pytest.MonkeyPatch, subsystems: Any) -> Lived:
    monkeypatch.setattr(chain, "SUBSYSTEMS", tuple(subsystems))
    return live(lively_market(BARS), policy=GATED)


@pytest.mark.row("HB-29")
def test_nine_subsystems_run_in_the_order_of_the_document_at_every_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def watched(name: str, subsystem: Callable[[Turn], None]) -> tuple[str, Callable[[Turn], None]]:
        def run(turn: Turn) -> None:
            ran.append(name)
            subsystem(turn)

        return name, run

    rows = lived(monkeypatch, [watched(*pair) for pair in SUBSYSTEMS]).rows
    assert tuple(ran[:9]) == NAMES
    assert ran == list(NAMES) * len(rows)


@pytest.mark.row("HB-29")
def test_the_worth_after_a_turn_is_that_of_what_the_golem_then_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    differs: list[bool] = []
    changed: list[bool] = []

    def watched(turn: Turn) -> None:
        SUBSYSTEMS[0][1](turn)
        fleet, tape, t = turn.fleet, turn.tape, turn.t
        held = worth_after(fleet, tape.root[t]), health_now(fleet, tape.pool_tick[t])
        differs.append(not all(map(np.array_equal, (fleet.nav, fleet.health), held, (True, True))))
        changed.append(not np.array_equal(fleet.health, turn.sight.health, True))

    lived(monkeypatch, [("heartbeat", watched), *SUBSYSTEMS[1:]])
    assert any(changed), "a golem acts"
    assert not any(differs)


@pytest.mark.row("HB-29")
def test_each_subsystem_reads_what_those_before_it_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each subsystem, what it reads is already of this tick."""
    seen = {"nav": 0, "life": 0, "mood": 0, "found": 0, "spent": 0, "changes": 0, "digest": 0}
    state: dict[str, Any] = {}

    def watched(name: str, subsystem: Callable[[Turn], None]) -> tuple[str, Callable[[Turn], None]]:
        def run(turn: Turn) -> None:
            fleet = turn.fleet
            if name == "heartbeat":
                state.update(nav=fleet.nav, life=turn.life, pad=fleet.pad, spent=fleet.day_spent.copy())
            if name == "lifespan":
                seen["nav"] += fleet.nav is not state["nav"]
            if name == "daimon":
                seen["life"] += turn.life is not state["life"]
            if name == "memory":
                seen["mood"] += fleet.pad is not state["pad"]
            if name == "dream":
                cost = turn.bill[0] + turn.bill[1]
                seen["spent"] += bool((fleet.day_spent == state["spent"] + cost).all())
            if name == "clade":
                own = fleet.item_level[0, 0], fleet.item_last[0, 0]  # the price is read unless it is dormant
                seen["changes"] += bool(own[0] < WATCHED or own[1] == readings(turn.tape, turn.t)[0])
                at = turn.t % len(fleet.past_found)
                seen["found"] += bool((fleet.past_found[at] == turn.found).all())
            if name == "telemetry":
                seen["digest"] += (turn.digest is not None) == bool((fleet.tick % 50 == 0).any())
            subsystem(turn)

        return name, run

    rows = lived(monkeypatch, [watched(*pair) for pair in SUBSYSTEMS]).rows
    assert seen == dict.fromkeys(seen, len(rows))


@pytest.mark.row("HB-29")
@pytest.mark.parametrize("failing", NAMES)
def test_a_failing_subsystem_is_recorded_and_stops_no_other(monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    ran: list[str] = []

    def planted(name: str, subsystem: Callable[[Turn], None]) -> tuple[str, Callable[[Turn], None]]:
        def run(turn: Turn) -> None:
            if name == failing and turn.t in (3, 7):
                raise ValueError("planted")
            ran.append(name)
            subsystem(turn)

        return name, run

    rows = lived(monkeypatch, [planted(*pair) for pair in SUBSYSTEMS]).rows
    assert {name: ran.count(name) for name in NAMES} == {n: len(rows) - 2 * (n == failing) for n in NAMES}
    for place, row in enumerate(rows):
        expected = [{"subsystem": failing, "error": "ValueError: planted"}] if place in (3, 7) else None
        assert row["failed_subsystems"] == expected
    assert [row["tick"] for row in rows] == list(range(1, len(rows) + 1))
