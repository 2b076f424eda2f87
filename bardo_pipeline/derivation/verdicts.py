"""Verdicts: all candidate bundles go through the expectations at once, and each gets its own verdict.

One run of Great Expectations over one frame; which bundle failed what is read off the rows that failed. The frame holds
measures, not judgements: limits and severities are in quality/expectations.py. Source: P-5, architecture ("one
expectations run judges all candidate bundles and gives a verdict a bundle").
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bardo_pipeline.errors import BundleError, DerivationError
from bardo_pipeline.events.life import FailedExpectation, Judged
from bardo_pipeline.grimoire import confidence as conf
from bardo_pipeline.grimoire.columns import confidence_of, flag, floor_of, micros
from bardo_pipeline.grimoire.entries import DECAY_CLASSES
from bardo_pipeline.inheritance.bundle import ENTRIES, EPISODES, TESTAMENT_PAGE, Bundle, mismatches
from bardo_pipeline.inheritance.weismann import crossing_limit
from bardo_pipeline.katabasis.votes import of_the_dead
from bardo_pipeline.policy import Policy
from bardo_pipeline.quality.expectations import (
    FORBIDDEN_NAMES,
    PROVENANCE_MOMENTS,
    PROVENANCE_NUMBERS,
    PROVENANCE_TEXTS,
    WORDED_FIELDS,
    Expectation,
    bundle_expectations,
)

FRAME = {
    "candidate": "int64",
    "bundle_hash": "string",
    "golem_id": "string",
    "entry_id": "string",
    "entry_count": "Int64",
    "episode_count": "Int64",
    "anti_knowledge_missing": "Int64",
    "hash_mismatches": "Int64",
    "testament_bytes": "Int64",
    "confidence": "Float64",
    "confidence_death_ppm": "Int64",
    "confidence_limit_ppm": "Int64",
    "provenance_missing": "Int64",
    "forbidden_fields": "Int64",
    "words": "string",
}
"""Columns of the judged frame and their pandas types. A row is a candidate (entry_id null) or an entry of one; a
measure that has no meaning there is null, and null is nobody's failure."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class AtDeath(NamedTuple):
    """What is on record of a golem at its death: entry -> (confidence, floor) in ppm, and its anti-knowledge."""

    at_us: int
    confidence: Mapping[str, tuple[int, int]]
    anti_knowledge: frozenset[str]


class Candidate(NamedTuple):
    """A bundle to judge, under the hash by which it would be published, and what is on record of its golem."""

    bundle_hash: str
    bundle: Bundle
    facts: AtDeath


class Verdicts(NamedTuple):
    """One verdict a candidate, in order, and the first page of the Data Docs (None if none were asked for)."""

    judged: tuple[Judged, ...]
    data_docs: Path | None


def at_death(entries: pa.Table, deaths: pa.Table, policy: Policy) -> dict[str, AtDeath]:
    """The facts of every golem that died, by golem.

    entries: ENTRY_SCHEMA with bloodstains left (`leave_bloodstains`). deaths: golem_id and at.
    """
    active = entries.filter(pc.equal(entries.column("status"), "active"))
    dead, at_us = of_the_dead(active, deaths)
    names, ids = dead.column("golem_id").to_pylist(), dead.column("entry_id").to_pylist()
    trusted = confidence_of(dead, at_us, policy.decay).tolist()
    floor, immune = floor_of(dead, policy.decay).tolist(), flag(dead, "is_anti_knowledge").tolist()
    moments = dict(zip(deaths.column("golem_id").to_pylist(), micros(deaths, "at").tolist(), strict=True))
    held: dict[str, dict[str, tuple[int, int]]] = {name: {} for name in moments}
    anti: dict[str, set[str]] = {name: set() for name in moments}
    for row, name in enumerate(names):
        held[name][ids[row]] = (trusted[row], floor[row])
        if immune[row]:
            anti[name].add(ids[row])
    return {name: AtDeath(at, held[name], frozenset(anti[name])) for name, at in moments.items()}


def judge(candidates: Sequence[Candidate], policy: Policy, data_docs_dir: Path | None = None) -> Verdicts:
    """Judge every candidate in one run; a critical failure stops that bundle and no other.

    data_docs_dir: write Great Expectations' Data Docs there. Needs no network and sends nothing. DerivationError if an
    expectation could not be evaluated.
    """
    if not candidates:
        return Verdicts((), None)
    suite = bundle_expectations(policy.inheritance)
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


def bundle_frame(candidates: Sequence[Candidate], policy: Policy) -> Any:
    """The pandas frame that is judged (FRAME): a row per candidate, and one per candidate and entry."""
    import pandas as pd

    parts = []
    for number, candidate in enumerate(candidates):
        rows, unreadable = _rows(candidate.bundle, ENTRIES)
        for measures in (
            {name: [value] for name, value in _measures_of_bundle(candidate, rows, unreadable, policy).items()},
            _measures_of_entries(candidate.facts, rows, policy),
        ):
            part = pd.DataFrame(measures).reindex(columns=list(FRAME))
            part["candidate"], part["bundle_hash"] = number, candidate.bundle_hash
            part["golem_id"] = candidate.bundle.golem_id
            parts.append(part.astype(FRAME))
    return pd.concat(parts, ignore_index=True)


def _rows(bundle: Bundle, name: str) -> tuple[list[dict[str, Any]], int]:
    try:
        return bundle.rows(name), 0
    except (BundleError, KeyError):
        return [], 1


def _measures_of_bundle(
    candidate: Candidate, rows: list[dict[str, Any]], unreadable: int, policy: Policy
) -> dict[str, int]:
    bundle, immune = candidate.bundle, candidate.facts.anti_knowledge
    present = len(immune & {row["entry_id"] for row in rows if isinstance(row.get("entry_id"), str)})
    episodes, lost = _rows(bundle, EPISODES)
    faults = len(mismatches(bundle.files, bundle.manifest)) + (bundle.bundle_hash != candidate.bundle_hash)
    return {
        "entry_count": len(rows),
        "episode_count": len(episodes),
        "anti_knowledge_missing": min(len(immune), policy.inheritance.budget) - present,
        "hash_mismatches": faults + unreadable + lost,
        "testament_bytes": len(bundle.files.get(TESTAMENT_PAGE, b"")),
    }


def _measures_of_entries(facts: AtDeath, rows: list[dict[str, Any]], policy: Policy) -> dict[str, Any]:
    """Measures by entry, as columns; what the dead did not know counts as trusted not at all."""
    ids = [row.get("entry_id") if isinstance(row.get("entry_id"), str) else None for row in rows]
    trusted = np.array([facts.confidence.get(i or "", (0, 0)) for i in ids], np.int64).reshape(-1, 2)
    stated = [row["confidence_ppm"] if _is_number(row.get("confidence_ppm")) else None for row in rows]
    return {
        "entry_id": ids,
        "confidence": [None if ppm is None else ppm / conf.PPM for ppm in stated],
        "confidence_death_ppm": _confidence_then(rows, facts.at_us, policy),
        "confidence_limit_ppm": crossing_limit(trusted[:, 0], trusted[:, 1], policy.inheritance),
        "provenance_missing": [_missing(row) for row in rows],
        "forbidden_fields": [len(FORBIDDEN_NAMES & row.keys()) for row in rows],
        "words": [" ".join(str(row[n]) for n in WORDED_FIELDS if row.get(n) is not None) for row in rows],
    }


def _confidence_then(rows: list[dict[str, Any]], at_us: int, policy: Policy) -> NDArray[np.int64]:
    """Confidence in ppm of these rows at a moment, as an heir would compute it; what does not fit counts as 0."""

    def number(name: str) -> NDArray[np.int64]:
        return np.array([row[name] if _is_number(row.get(name)) else 0 for row in rows], np.int64)

    def flagged(name: str) -> NDArray[np.bool_]:
        return np.array([row.get(name) is True for row in rows], bool)

    codes = {name: code for code, name in enumerate(DECAY_CLASSES)}
    classes = np.array([codes.get(str(row.get("decay_class")), 0) for row in rows], np.int64)
    moments = [_micros(row.get("anchor_at")) for row in rows]
    anchors = np.array([at_us if moment is None else moment for moment in moments], np.int64)
    stained = flagged("is_bloodstain")
    half_life = conf.half_life_us(classes, number("evidence_count"), stained, policy.decay)
    floor = conf.floor_ppm(flagged("is_anti_knowledge"), stained, policy.decay)
    return conf.confidence_at(number("confidence_ppm"), anchors, at_us, half_life, floor)


def _missing(row: Mapping[str, Any]) -> int:
    texts = sum(not (isinstance(row.get(name), str) and row[name]) for name in PROVENANCE_TEXTS)
    numbers = sum(not _is_number(row.get(name)) for name in PROVENANCE_NUMBERS)
    return texts + numbers + sum(_micros(row.get(name)) is None for name in PROVENANCE_MOMENTS)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= 2**53


def _micros(value: Any) -> int | None:
    try:
        moment = datetime.fromisoformat(value)
        return (moment - _EPOCH) // timedelta(microseconds=1)
    except (TypeError, ValueError, OverflowError):
        return None


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
    """Candidate -> how many values failed there, and up to three of them."""
    if (result.exception_info or {}).get("raised_exception", False):
        why = result.exception_info.get("exception_message")
        raise DerivationError(f"expectation {expectation.name} could not be evaluated: {why}")
    seen: dict[int, list[str]] = {}
    for row in () if result.success else result.result["unexpected_index_list"]:
        values = [str(value)[:200] for name, value in row.items() if name not in ("candidate", "bundle_hash")]
        seen.setdefault(int(row["candidate"]), []).append(" / ".join(values))
    return {number: f"{len(values)} failed: {'; '.join(values[:3])}" for number, values in seen.items()}
