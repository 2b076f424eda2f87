"""Metrics of a home: each exceeded threshold and each request shows in the text for Prometheus."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bardo_pipeline.derivation.reports.home_health import Fault, health_of
from bardo_pipeline.server.metrics import Requests, exposition
from tests.support.homes.tool_homes import tool_home


@pytest.mark.row("X-11")
def test_exceeded_thresholds_and_requests_are_measures_with_their_labels(tmp_path: Path) -> None:
    home, requests = tool_home(tmp_path / "home"), Requests()
    for status, seconds in ((200, 0.25), (200, 0.5), (404, 1.0)):
        requests.add("/v1/ask", status, seconds)
    faults = [Fault("spool.files", 7.0, 5.0, "files wait"), Fault("curation.lag", 3.0, 1.0, "derive")]
    text = exposition(health_of(home.context, home.at), faults, 19, requests).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    measured = {(sample.name, *sorted(sample.labels.values())): sample.value for sample in samples}
    assert measured["bardo_threshold_exceeded", "spool.files"] == 7.0
    assert measured["bardo_threshold_exceeded", "curation.lag"] == 3.0
    assert measured["bardo_log_version",] == 19.0
    assert measured["bardo_golems_born",] == 2.0
    assert measured["bardo_requests_total", "/v1/ask", "200"] == 2.0
    assert measured["bardo_requests_total", "/v1/ask", "404"] == 1.0
    assert measured["bardo_request_seconds_count", "/v1/ask"] == 3.0
    assert measured["bardo_request_seconds_sum", "/v1/ask"] == 1.75
