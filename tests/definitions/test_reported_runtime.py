"""The curator job over a home of a runtime that reports actions in its own words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest

from bardo_pipeline.events.experience.reported_experience import record_of, report
from bardo_pipeline.storage.warehouse.build import query
from tests.conftest import NOW
from tests.definitions.running import data_version, materializations, metadata_value, run
from tests.support.homes.tool_homes import tool_home
from tests.unit.curator.test_reports import at, table

pytestmark = [pytest.mark.full, pytest.mark.row("P-2")]


def test_reports_reach_the_marts(tmp_path: Path, at_home: Callable[[Path], Path]) -> None:
    home = tool_home(tmp_path / "home")
    at_home(home.context.home.root)
    reports = [report({"task": "sum"}, "calculator", 0.5), report({}, "rest", -0.5)]
    lived = table(*(record_of(home.golem, n, at(n), reports, domain="tools") for n in range(1, 60)))
    home.context.log.append(lived, writer="life", segment=1, recorded_at=NOW)
    with dg.DagsterInstance.ephemeral() as instance:
        made = materializations(run("curator_job", instance))["fct_experiences"]
    assert len(data_version(made)) == 32
    assert metadata_value(made, "dbt_docs") == "http://127.0.0.1:8642/docs/dbt/"
    ((count,),) = query(home.context.home, "select count(*) from fct_experiences where situation['task'] = 'sum'")[1]
    assert count == 59
