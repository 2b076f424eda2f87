"""Verdicts: all candidate bundles go through the expectations at once, and each gets its own verdict.

One run of Great Expectations over frames with a row a bundle and a row an entry; which bundle failed what is read off
the rows that failed. The frames hold measures, not judgements: limits and severities are in
quality/bundle_expectations.py. Source: P-5, architecture ("one expectations run judges all candidate bundles and
gives a verdict a bundle").
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
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
"""Candidates whose measures are held at once."""


class Verdicts(NamedTuple):
    """One verdict a candidate, in order, and the first page of the Data Docs (None if none were asked for)."""

    judged: tuple[Judged, ...]
    data_docs: Path | None


def judge(candidates: Iterable[Candidate], policy: Policy, data_docs_dir: Path | None = None) -> Verdicts:
    """Judge every candidate; a critical failure stops that bundle and no other.

    data_docs_dir: write Great Expectations' Data Docs there. Needs no network and sends nothing. DerivationError if an
    expectation could not be evaluated.
    """
    waiting = iter(candidates)
    run: _Run | None = None
    judged: list[Judged] = []
    while (frames := frames_of(islice(waiting, JUDGED_AT_ONCE), policy)).bundles.shape[0]:
        run = run or (_Run(bundle_expectations(policy), data_docs_dir) if data_docs_dir else _kept(policy))
        judged += _verdicts(frames, run)
    return Verdicts(tuple(judged), run.docs() if run else None)


@lru_cache(maxsize=2)
def _kept(policy: Policy) -> _Run:
    """A run without a page, of which no more is kept than the frames of last time. Golems die one by one, and to set
    a run up is a fourth of judging one.
    """
    return _Run(bundle_expectations(policy), None)


def _verdicts(frames: Frames, run: _Run) -> list[Judged]:
    """One verdict a row of the frame of bundles."""
    found = run.failures(frames)
    judged = []
    for number, name in enumerate(frames.bundles["bundle_hash"]):
        failed = tuple(
            FailedExpectation(expectation=one.name, severity=one.severity, observed=observed[number])
            for one, observed in zip(run.suite, found, strict=True)
            if number in observed
        )
        stopped = any(one.severity == "critical" for one in failed)
        judged.append(Judged(bundle_hash=name, passed=not stopped, expectations=len(run.suite), failed=failed))
    return judged


class _Run:
    """Great Expectations in memory, with a suite for each frame; many frames may be judged in it."""

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
            for one in suite:
                if _frame_of(one) == frame:
                    meta = {"name": one.name, "notes": one.description}
                    made = getattr(gx.expectations, one.type)
                    expected.add_expectation(made(**one.arguments, severity=one.severity, meta=meta))
            batches = source.add_dataframe_asset(frame).add_batch_definition_whole_dataframe("all")
            definition = gx.ValidationDefinition(name=frame, data=batches, suite=self._context.suites.add(expected))
            self._definitions[frame] = self._context.validation_definitions.add(definition)

    def failures(self, frames: Frames) -> list[dict[int, str]]:
        """Per expectation of the suite: candidate -> what was observed, for those that failed."""
        wanted: dict[str, Any] = {
            "result_format": "COMPLETE",
            "unexpected_index_column_names": ["candidate", "bundle_hash"],
            "return_unexpected_index_query": False,
        }
        results: dict[str, Any] = {}
        for name, definition in self._definitions.items():
            look = self._look_whole if self._docs else self._look
            for result in look(definition, {"dataframe": getattr(frames, name)}, wanted):
                results[result.expectation_config.meta["name"]] = result
        return [_failures(one, results[one.name]) for one in self.suite]

    @staticmethod
    def _look(definition: Any, batch_parameters: dict[str, Any], wanted: dict[str, Any]) -> list[Any]:
        """Whether each holds, and the rows of those that do not: half the time of asking all for their rows."""
        batch = definition.data.get_batch(batch_parameters)
        held = batch.validate(definition.suite, result_format={"result_format": "BOOLEAN_ONLY"}).results
        by_name = {one.meta["name"]: one for one in definition.suite.expectations}
        return [
            one if one.success else batch.validate(by_name[one.expectation_config.meta["name"]], result_format=wanted)
            for one in held
        ]

    @staticmethod
    def _look_whole(definition: Any, batch_parameters: dict[str, Any], wanted: dict[str, Any]) -> list[Any]:
        """All with their rows, kept in the context: what a page shows."""
        return list(definition.run(batch_parameters=batch_parameters, result_format=wanted).results)

    def docs(self) -> Path | None:
        """Write the Data Docs of everything that was judged, if any were asked for; returns their first page."""
        if self._docs:
            self._context.build_data_docs()
        return self._docs


def _frame_of(expectation: Expectation) -> str:
    """The frame that an expectation concerns, by its column; the others are about entries."""
    column = expectation.arguments.get("column", ENTRY_MEASURES[0])
    return "words" if column == "words" else "entries" if column in ENTRY_MEASURES else "bundles"


def _docs_site(context: Any, folder: Path) -> Path:
    """Make this folder the only place of the Data Docs; returns their first page."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in list(context.get_site_names()):
        context.delete_data_docs_site(name)
    store = {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(folder.resolve())}
    index = {"class_name": "DefaultSiteIndexBuilder"}
    site = {"class_name": "SiteBuilder", "store_backend": store, "site_index_builder": index}
    context.add_data_docs_site(site_name="bundles", site_config=site)
    return folder / "index.html"


def _failures(expectation: Expectation, result: Any) -> dict[int, str]:
    """Candidate -> its measure, or of a measure by entry how many values failed there, and up to three of them."""
    if (result.exception_info or {}).get("raised_exception", False):
        why = result.exception_info.get("exception_message")
        raise DerivationError(f"expectation {expectation.name} could not be evaluated: {why}")
    seen: dict[int, list[str]] = {}
    for row in () if result.success else result.result["unexpected_index_list"]:
        values = [
            f"{value:.4g}" if isinstance(value, float) else str(value)[:200]
            for name, value in row.items()
            if name not in ("candidate", "bundle_hash")
        ]
        seen.setdefault(int(row["candidate"]), []).append(" / ".join(values))
    return {
        number: values[0] if _frame_of(expectation) == "bundles" else f"{len(values)} failed: {'; '.join(values[:3])}"
        for number, values in seen.items()
    }
