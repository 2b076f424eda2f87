"""Verdicts: all candidate bundles go through the expectations at once, and each gets its own verdict.

One run of Great Expectations over one frame; which bundle failed what is read off the rows that failed. The frame holds
measures, not judgements: limits and severities are in quality/expectations.py. Source: P-5, architecture ("one
expectations run judges all candidate bundles and gives a verdict a bundle").
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bardo_pipeline.derivation.measures import ENTRY_MEASURES, Candidate, bundle_frame
from bardo_pipeline.errors import DerivationError
from bardo_pipeline.events.life import FailedExpectation, Judged
from bardo_pipeline.policy import Policy
from bardo_pipeline.quality.expectations import Expectation, bundle_expectations


class Verdicts(NamedTuple):
    """One verdict a candidate, in order, and the first page of the Data Docs (None if none were asked for)."""

    judged: tuple[Judged, ...]
    data_docs: Path | None


def judge(candidates: Sequence[Candidate], policy: Policy, data_docs_dir: Path | None = None) -> Verdicts:
    """Judge every candidate in one run; a critical failure stops that bundle and no other.

    data_docs_dir: write Great Expectations' Data Docs there. Needs no network and sends nothing. DerivationError if an
    expectation could not be evaluated.
    """
    if not candidates:
        return Verdicts((), None)
    suite = bundle_expectations(policy)
    found, docs = _validated(bundle_frame(candidates, policy), suite, data_docs_dir)
    judged = []
    for number, candidate in enumerate(candidates):
        failed = tuple(
            FailedExpectation(expectation=one.name, severity=one.severity, observed=observed[number])
            for one, observed in zip(suite, found, strict=True)
            if number in observed
        )
        stopped = any(one.severity == "critical" for one in failed)
        verdict = {"passed": not stopped, "expectations": len(suite), "failed": failed}
        judged.append(Judged.model_validate({"bundle_hash": candidate.bundle_hash, **verdict}))
    return Verdicts(tuple(judged), docs)


def _validated(
    frame: Any, suite: Sequence[Expectation], data_docs_dir: Path | None
) -> tuple[list[dict[int, str]], Path | None]:
    """Run Great Expectations in memory. Per expectation: candidate -> what was observed, for those that failed."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    expected = gx.ExpectationSuite(name="bundles")
    for one in suite:
        meta = {"name": one.name, "notes": one.description}
        expected.add_expectation(getattr(gx.expectations, one.type)(**one.arguments, severity=one.severity, meta=meta))
    asset = context.data_sources.add_pandas("candidates").add_dataframe_asset("bundles")
    definition = gx.ValidationDefinition(
        name="bundles", data=asset.add_batch_definition_whole_dataframe("all"), suite=context.suites.add(expected)
    )
    index = {"result_format": "COMPLETE", "unexpected_index_column_names": ["candidate", "bundle_hash"]}
    checkpoint = gx.Checkpoint(
        name="bundles", validation_definitions=[context.validation_definitions.add(definition)], result_format=index
    )
    docs = _docs_site(context, data_docs_dir) if data_docs_dir else None
    outcome = context.checkpoints.add(checkpoint).run(batch_parameters={"dataframe": frame})
    if docs:
        context.build_data_docs()
    (run,) = outcome.run_results.values()
    results: dict[str, Any] = {}
    for result in run.results:
        assert result.expectation_config is not None
        results[result.expectation_config.meta["name"]] = result
    return [_failures(one, results[one.name]) for one in suite], docs


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
    of_bundle = expectation.arguments.get("column", ENTRY_MEASURES[0]) not in ENTRY_MEASURES
    return {
        number: values[0] if of_bundle else f"{len(values)} failed: {'; '.join(values[:3])}"
        for number, values in seen.items()
    }
