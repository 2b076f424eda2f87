"""The mart of experiences equals the reports in the log, and leaves out what was struck."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.derive_home import derive_home
from bardo_pipeline.derivation.repair.removal_proof import remains
from bardo_pipeline.derivation.strikes_and_reorgs import strike
from bardo_pipeline.events.experience.reported_experience import record_of, report
from bardo_pipeline.storage.journal.event_writer import EventWriter
from bardo_pipeline.storage.warehouse.build import build_warehouse, query
from tests.conftest import NOW
from tests.support.homes.tool_homes import tool_home
from tests.unit.curator.test_reports import at, table

pytestmark = [pytest.mark.full, pytest.mark.row("P-4")]

NAMES = "owner_id, tick, report_tick, number, domain, situation, action, reward, alternatives, best_alternative, regret"


def test_reports_are_rows_until_their_record_or_their_decision_is_struck(tmp_path: Path) -> None:
    home = tool_home(tmp_path / "home")
    context = home.context
    lookup, total = {"task": "lookup", "is_long": True}, {"task": "sum"}
    records = (
        [report(lookup, "search", 0.25, alternatives={"memory": 0.75, "guess": None})],
        [report(total, "calculator", 1.0, decision_tick=1), report({}, "rest", -0.5, verified=False)],
        [report(total, "memory", 0.0)],
    )
    reported = table(
        *(record_of(home.golem, n, at(n), reports, domain="tools") for n, reports in enumerate(records, 1))
    )
    context.log.append(reported, writer="life", segment=1, recorded_at=NOW)
    repeating = record_of(home.golem, 4, at(4), [report({"task": "sum", "tusk": "sort"}, "rest", 0.5)], domain="tools")
    line = repeating.model_dump_json().replace('"tusk"', '"task"')
    with EventWriter.open(home.context.home, home.golem, clock=lambda: NOW, drain="thread") as writer:
        writer.append(line.encode())
    expected = [
        ("coral", 1, 1, 1, "tools", {"is_long": "true", "task": "lookup"}, "search", 0.25, ["guess", "memory"],
         "memory", 0.5),
        ("coral", 1, 2, 1, "tools", total, "calculator", 1.0, [], None, None),
        ("coral", 2, 2, 2, "tools", {}, "rest", -0.5, [], None, None),
        ("coral", 3, 3, 1, "tools", total, "memory", 0.0, [], None, None),
        ("coral", 4, 4, 1, "tools", {"task": "sort"}, "rest", 0.5, [], None, None),
    ]  # fmt: skip
    assert built_rows(context) == expected
    unverified = query(context.home, "select action from fct_experiences where not is_verified")[1]
    assert unverified == [("rest",)]
    long = query(context.home, "select action from fct_experiences where situation['is_long'] = 'true'")[1]
    assert long == [("search",)]
    strike(context, home.golem, 1, "its sensor lied", now=NOW)
    assert "fct_experiences" in {fault.place for fault in remains(context)}
    derive_home(context, clock=lambda: NOW, marts=True)
    assert remains(context) == []
    assert asked(context) == expected[2:], "the report at tick 2 is about the struck decision of tick 1"


def built_rows(context: DerivationContext) -> list[tuple[Any, ...]]:
    build_warehouse(context.home, context.derivation_id, context.policy)
    return asked(context)


def asked(context: DerivationContext) -> list[tuple[Any, ...]]:
    return query(context.home, f"select {NAMES} from fct_experiences order by report_tick, number")[1]
