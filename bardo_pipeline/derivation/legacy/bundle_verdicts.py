"""Judges all candidate bundles in one Great Expectations run and returns one verdict per bundle.

The frames have one row per bundle and one row per entry; failed rows identify the bundle. Limits and severities are in
quality/bundle_expectations.py. Source: P-5, architecture ("one expectations run judges all candidate bundles and
gives a verdict a bundle").
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from bardo_pipeline.derivation.legacy.bundle_metrics import ENTRY_MEASURES, Candidate, Frames, frames_of
from bardo_pipeline.errors import DerivationError
from bardo_pipeline.events.life.events import FailedExpectation, Judged
from bardo_pipeline.policy import Policy
from bardo_pipeline.quality.bundle_expectations import Expectation, bundle_expectations

JUDGED_AT_ONCE = 512
"""Candidates per run, which bounds the memory of the frames."""


class Verdicts(NamedTuple):
    """One verdict per candidate in order, and the index page of the Data Docs, None if not requested."""

    judged: tuple[Judged, ...]
    data_docs: Path | None


def judge(candidates: Iterable[Candidate], policy: Policy, data_docs_dir: Path | None = None) -> Verdicts:
    """Judge every candidate; a critical failure refuses only that bundle.

    Writes Great Expectations' Data Docs to data_docs_dir if given. Uses no network. Raises DerivationError if an
    expectation cannot be evaluated.
    """
    waiting = iter(candidates)
    run: _Run | None = None
    judged: list[Judged] = []
    while (frames := frames_of(islice(waiting, JUDGED_AT_ONCE), policy)).bundles.shape[0]:
        run = run or (_Run(bundle_expectations(policy), data_docs_dir) if data_docs_dir else cached_run(policy))
        judged += _verdicts(frames, run)
    return Verdicts(tuple(judged), run.docs() if run else None)


@lru_cache(maxsize=2)
def cached_run(policy: Policy) -> _Run:
    """Return a run without Data Docs. The first call loads Great Expectations and sets up the suites, in seconds."""
    return _Run(bundle_expectations(policy), None)


def _verdicts(frames: Frames, run: _Run) -> list[Judged]:
    failures = run.failures(frames)
    judged = []
    for number, name in enumerate(frames.bundles["bundle_hash"]):
        failed = tuple(
            FailedExpectation(expectation=expectation.name, severity=expectation.severity, observed=observed[number])
            for expectation, observed in zip(run.suite, failures, strict=True)
            if number in observed
        )
        stopped = any(expectation.severity == "critical" for expectation in failed)
        judged.append(Judged(bundle_hash=name, passed=not stopped, expectations=len(run.suite), failed=failed))
    return judged


class _Run:
    """An in-memory Great Expectations context with one suite per frame, reusable for many frames."""

    def __init__(self, suite: Sequence[Expectation], data_docs_dir: Path | None) -> None:
        os.environ["GX_ANALYTICS_ENABLED"] = "false"
        import great_expectations as gx
        from great_expectations.data_context.types.base import ProgressBarsConfig

        self.suite, self._context = suite, gx.get_context(mode="ephemeral")
        self._context.variables.progress_bars = ProgressBarsConfig(globally=False)
        self._docs = _docs_site(self._context, data_docs_dir) if data_docs_dir else None
        source = self._context.data_sources.add_pandas("candidates")
        self._definitions = {}
        for frame in Frames._fields:
            expected = gx.ExpectationSuite(name=frame)
            for expectation in suite:
                if _frame_of(expectation) == frame:
                    meta = {"name": expectation.name, "notes": expectation.description}
                    gx_class = getattr(gx.expectations, expectation.type)
                    expected.add_expectation(
                        gx_class(**expectation.arguments, severity=expectation.severity, meta=meta)
                    )
            batches = source.add_dataframe_asset(frame).add_batch_definition_whole_dataframe("all")
            definition = gx.ValidationDefinition(name=frame, data=batches, suite=self._context.suites.add(expected))
            self._definitions[frame] = self._context.validation_definitions.add(definition)

    def failures(self, frames: Frames) -> list[dict[int, str]]:
        """Return, for each expectation of the suite, candidate number -> observed value of the failed candidates."""
        result_format: dict[str, Any] = {
            "result_format": "COMPLETE",
            "unexpected_index_column_names": ["candidate", "bundle_hash"],
            "return_unexpected_index_query": False,
        }
        results: dict[str, Any] = {}
        for name, definition in self._definitions.items():
            evaluate = self._evaluate_for_docs if self._docs else self._evaluate
            for result in evaluate(definition, {"dataframe": getattr(frames, name)}, result_format):
                results[result.expectation_config.meta["name"]] = result
        return [_failures(expectation, results[expectation.name]) for expectation in self.suite]

    @staticmethod
    def _evaluate(definition: Any, batch_parameters: dict[str, Any], result_format: dict[str, Any]) -> list[Any]:
        """Evaluate as booleans, then fetch rows of failed expectations only; takes half the time of fetching all."""
        batch = definition.data.get_batch(batch_parameters)
        results = batch.validate(definition.suite, result_format={"result_format": "BOOLEAN_ONLY"}).results
        by_name = {result.meta["name"]: result for result in definition.suite.expectations}
        return [
            result
            if result.success
            else batch.validate(by_name[result.expectation_config.meta["name"]], result_format=result_format)
            for result in results
        ]

    @staticmethod
    def _evaluate_for_docs(
        definition: Any, batch_parameters: dict[str, Any], result_format: dict[str, Any]
    ) -> list[Any]:
        """Evaluate with all failed rows, which the Data Docs show."""
        return list(definition.run(batch_parameters=batch_parameters, result_format=result_format).results)

    def docs(self) -> Path | None:
        """Write the Data Docs of all judged bundles, if requested. Return their index page."""
        if self._docs:
            with _rendering_errors_raised():
                self._context.build_data_docs()
        return self._docs


@contextmanager
def _rendering_errors_raised() -> Iterator[None]:
    """Raise the first exception that Great Expectations logs, with its traceback, while it renders Data Docs."""
    caught: list[BaseException] = []

    def keep(_: logging.LogRecord) -> bool:
        error = sys.exc_info()[1]
        caught.extend([error] if error else [])
        return error is None

    logger = logging.getLogger("great_expectations.render.renderer.site_builder")
    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)
    if caught:
        raise caught[0]


def _frame_of(expectation: Expectation) -> str:
    """The frame that contains an expectation's column; without a column it concerns entries."""
    column = expectation.arguments.get("column", ENTRY_MEASURES[0])
    return "words" if column == "words" else "entries" if column in ENTRY_MEASURES else "bundles"


def _docs_site(context: Any, folder: Path) -> Path:
    """Make the folder the only Data Docs site. Return its index page."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in list(context.get_site_names()):
        context.delete_data_docs_site(name)
    store = {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(folder.resolve())}
    index = {"class_name": "DefaultSiteIndexBuilder"}
    site = {"class_name": "SiteBuilder", "store_backend": store, "site_index_builder": index}
    context.add_data_docs_site(site_name="bundles", site_config=site)
    return folder / "index.html"


def _failures(expectation: Expectation, result: Any) -> dict[int, str]:
    """Candidate number -> its failed measure, or for entry measures the number of failures and up to three values."""
    if (result.exception_info or {}).get("raised_exception", False):
        why = result.exception_info.get("exception_message")
        raise DerivationError(f"expectation {expectation.name} could not be evaluated: {why}")
    values_by_candidate: dict[int, list[str]] = {}
    for row in () if result.success else result.result["unexpected_index_list"]:
        values = [
            f"{value:.4g}" if isinstance(value, float) else str(value)[:200]
            for name, value in row.items()
            if name not in ("candidate", "bundle_hash")
        ]
        values_by_candidate.setdefault(int(row["candidate"]), []).append(" / ".join(values))
    return {
        number: values[0] if _frame_of(expectation) == "bundles" else f"{len(values)} failed: {'; '.join(values[:3])}"
        for number, values in values_by_candidate.items()
    }
