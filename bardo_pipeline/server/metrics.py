"""Metrics of a home in the text format of Prometheus: the figures of `bardo status`, and counts of requests."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from bardo_pipeline.derivation.reports.home_health import Fault, Health

CONTENT_TYPE = CONTENT_TYPE_LATEST


class Requests:
    """Counts and durations of answered requests, by route and status."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def add(self, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self.counts[route, str(status)] += 1
        self.seconds[route] += seconds


class HealthCollector(Collector):
    """The measures of a home at one moment as gauges `bardo_PART_MEASURE`."""

    def __init__(self, health: Health, exceeded: list[Fault], log_version: int, requests: Requests) -> None:
        self._health, self._exceeded, self._log_version, self._requests = health, exceeded, log_version, requests

    def collect(self) -> Iterator[Metric]:
        """Yield a gauge for each number of the health, each exceeded threshold, and the requests."""
        yield GaugeMetricFamily("bardo_log_version", "Version of the log's table of cycles.", value=self._log_version)
        for field in fields(self._health):
            yield from _gauges(f"bardo_{field.name}", getattr(self._health, field.name))
        faults = GaugeMetricFamily("bardo_threshold_exceeded", "Value of each measure above its limit.",
                                   labels=["measure"])  # fmt: skip
        for fault in self._exceeded:
            faults.add_metric([fault.measure], fault.value)
        yield faults
        answered = CounterMetricFamily("bardo_requests", "Answered requests.", labels=["route", "status"])
        totals: Counter[str] = Counter()
        for (route, status), count in sorted(self._requests.counts.items()):
            answered.add_metric([route, status], count)
            totals[route] += count
        yield answered
        spent = SummaryMetricFamily("bardo_request_seconds", "Duration of answered requests.", labels=["route"])
        for route, count in totals.items():
            spent.add_metric([route], count, self._requests.seconds[route])
        yield spent


def _gauges(name: str, value: Any) -> Iterator[Metric]:
    """Yield the numbers of a measure; a moment is in seconds since 1970, a text and an absent value are left out."""
    if isinstance(value, bool | int | float):
        yield GaugeMetricFamily(name, f"Measure {name.removeprefix('bardo_')} of `bardo status`.", value=float(value))
    elif isinstance(value, datetime):
        yield GaugeMetricFamily(f"{name}_timestamp_seconds", "Moment.", value=value.timestamp())
    elif isinstance(value, tuple):
        yield GaugeMetricFamily(f"{name}_count", f"Number of {name.removeprefix('bardo_')}.", value=len(value))
    elif is_dataclass(value):
        for field in fields(value):
            yield from _gauges(f"{name}_{field.name}", getattr(value, field.name))


def exposition(health: Health, exceeded: list[Fault], log_version: int, requests: Requests) -> bytes:
    """Return all metrics in the text format of Prometheus."""
    registry = CollectorRegistry()
    registry.register(HealthCollector(health, exceeded, log_version, requests))
    return generate_latest(registry)
