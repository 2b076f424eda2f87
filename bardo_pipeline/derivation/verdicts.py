"""Verdicts: all candidate bundles go through the expectations at once, and each gets its own verdict.

One run of Great Expectations over one frame; which bundle failed what is read off the rows that failed. The frame holds
measures, not judgements: limits and severities are in quality/expectations.py. Source: P-5, architecture ("one
expectations run judges all candidate bundles").
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.errors import BundleError, DerivationError
from bardo_pipeline.events.life import FailedExpectation, Judged
from bardo_pipeline.grimoire import confidence as conf
from bardo_pipeline.grimoire.columns import confidence_of, flag, floor_of, micros
from bardo_pipeline.grimoire.entries import DECAY_CLASSES
from bardo_pipeline.inheritance.bundle import ENTRIES, EPISODES, TESTAMENT_PAGE, Bundle, mismatches
from bardo_pipeline.inheritance.weismann import crossing_limit
from bardo_pipeline.katabasis.votes import of_the_dead
from bardo_pipeline.policy import Policy
from bardo_pipeline.quality.expectations import FORBIDDEN_NAMES, PROVENANCE_FIELDS, Expectation, bundle_expectations

WORDED_FIELDS = ("text", "structure", "category", "chain", "protocol", "pair", "tool", "action_type", "metric")
"""Fields of an entry whose words are searched for what must not cross."""


class AtDeath(NamedTuple):
    """What is on record of a golem at its death: entry -> (confidence in ppm, floor in ppm), and its anti-knowledge."""

    at_us: int
    confidence: Mapping[str, tuple[int, int]]
    anti_knowledge: frozenset[str]


class Candidate(NamedTuple):
    """A bundle to judge, under the hash by which it would be published, and what is on record of its golem."""

    bundle_hash: str
    bundle: Bundle
    facts: AtDeath


class Verdicts(NamedTuple):
    """One verdict a candidate, in order, and where the Data Docs are (None if none were asked for)."""

    judged: tuple[Judged, ...]
    data_docs: Path | None


def at_death(entries: pa.Table, deaths: pa.Table, policy: Policy) -> dict[str, AtDeath]:
    """The facts of every golem that died, by golem.

    entries: ENTRY_SCHEMA with bloodstains left (`leave_bloodstains`). deaths: golem_id and at.
    """
    dead, at_us = of_the_dead(entries, deaths)
    active = pc.equal(dead.column("status"), "active").to_numpy(zero_copy_only=False).astype(bool)
    golem, entry = dead.column("golem_id").to_pylist(), dead.column("entry_id").to_pylist()
    trusted, floor = confidence_of(dead, at_us, policy.decay).tolist(), floor_of(dead, policy.decay).tolist()
    anti = (flag(dead, "is_anti_knowledge") & active).tolist()
    moments = zip(deaths.column("golem_id").to_pylist(), micros(deaths, "at").tolist(), strict=True)
    held: dict[str, tuple[dict[str, tuple[int, int]], set[str]]] = {
        g: ({}, set()) for g in set(deaths.column("golem_id").to_pylist())
    }
    for row in np.flatnonzero(active).tolist():
        known, immune = held[golem[row]]
        known[entry[row]] = (trusted[row], floor[row])
        if anti[row]:
            immune.add(entry[row])
    return {g: AtDeath(at, held[g][0], frozenset(held[g][1])) for g, at in moments}


def judge(candidates: Sequence[Candidate], policy: Policy, data_docs_dir: Path | None = None) -> Verdicts:
    """Judge every candidate in one run; a critical failure stops that bundle and no other.

    data_docs_dir: write Great Expectations' Data Docs there. Needs no network and sends nothing. DerivationError if an
    expectation could not be evaluated.
    """
    if not candidates:
        return Verdicts((), None)
    suite = bundle_expectations(policy.inheritance)
    frame = bundle_frame(candidates, policy)
    results, docs = _validated(frame, suite, data_docs_dir)
    failures: list[list[FailedExpectation]] = [[] for _ in candidates]
    for expectation, found in zip(suite, results, strict=True):
        for number, observed in found.items():
            failures[number].append(
                FailedExpectation(expectation=expectation.name, severity=expectation.severity, observed=observed)
            )
    judged = tuple(
        Judged(
            bundle_hash=candidate.bundle_hash, passed=all(f.severity != "critical" for f in failed),
            expectations=len(suite), failed=tuple(failed),
        )
        for candidate, failed in zip(candidates, failures, strict=True)
    )  # fmt: skip
    return Verdicts(judged, docs)


def bundle_frame(candidates: Sequence[Candidate], policy: Policy) -> Any:
    """The pandas frame that is judged: one row per candidate (grain "bundle"), one per candidate and entry ("entry").

    A measure that has no meaning at a row's grain is null there, and null is nobody's failure.
    """
    import pandas as pd

    wholes, parts = [], []
    for number, candidate in enumerate(candidates):
        rows, unreadable = _rows(candidate.bundle, ENTRIES)
        episodes, unreadable_too = _rows(candidate.bundle, EPISODES)
        key = {"candidate": number, "bundle_hash": candidate.bundle_hash}
        wholes.append(
            {**key, "grain": "bundle", **_whole(candidate, rows, episodes, unreadable + unreadable_too, policy)}
        )
        parts.extend({**key, "grain": "entry", **measure} for measure in _entries(candidate, rows, policy))
    return pd.DataFrame([*wholes, *parts]).convert_dtypes(dtype_backend="numpy_nullable")


def _rows(bundle: Bundle, name: str) -> tuple[list[dict[str, Any]], int]:
    try:
        rows = bundle.rows(name)
    except (BundleError, KeyError):
        return [], 1
    return [row for row in rows if isinstance(row, dict)], sum(not isinstance(row, dict) for row in rows)


def _whole(
    candidate: Candidate, rows: list[dict[str, Any]], episodes: list[dict[str, Any]], unreadable: int, policy: Policy
) -> dict[str, Any]:
    bundle, immune = candidate.bundle, candidate.facts.anti_knowledge
    present = len(immune & {row.get("entry_id") for row in rows})
    return {
        "entry_count": len(rows),
        "episode_count": len(episodes),
        "anti_knowledge_missing": min(len(immune), policy.inheritance.budget) - present,
        "hash_mismatches": len(mismatches(bundle.files, bundle.manifest))
        + unreadable
        + (bundle.bundle_hash != candidate.bundle_hash),
        "testament_bytes": len(bundle.files.get(TESTAMENT_PAGE, b"")),
    }


def _entries(candidate: Candidate, rows: list[dict[str, Any]], policy: Policy) -> list[dict[str, Any]]:
    facts = candidate.facts
    trusted = np.array([facts.confidence.get(row.get("entry_id"), (0, 0)) for row in rows], np.int64).reshape(-1, 2)
    limit = crossing_limit(trusted[:, 0], trusted[:, 1], policy.inheritance).tolist()
    now = _confidence_then(rows, facts.at_us, policy).tolist()
    return [
        {
            "entry_id": row.get("entry_id"),
            "confidence": _number(row, "confidence_ppm", None) and _number(row, "confidence_ppm", 0) / conf.PPM,
            "confidence_death_ppm": now[i],
            "confidence_limit_ppm": limit[i],
            "provenance_missing": sum(row.get(name) in (None, "") for name in PROVENANCE_FIELDS),
            "forbidden_fields": len(FORBIDDEN_NAMES & row.keys()),
            "words": " ".join(str(row[name]) for name in WORDED_FIELDS if row.get(name) is not None),
        }
        for i, row in enumerate(rows)
    ]


def _confidence_then(rows: list[dict[str, Any]], at_us: int, policy: Policy) -> np.ndarray:
    """Confidence in ppm of these rows at a moment, as an heir would compute it; what does not fit counts as 0."""
    classes = {name: code for code, name in enumerate(DECAY_CLASSES)}
    code = np.array([classes.get(row.get("decay_class"), 0) for row in rows], np.int64)
    evidence = np.array([_number(row, "evidence_count", 0) for row in rows], np.int64)
    stained = np.array([row.get("is_bloodstain") is True for row in rows], bool)
    immune = np.array([row.get("is_anti_knowledge") is True for row in rows], bool)
    confidence = np.array([_number(row, "confidence_ppm", 0) for row in rows], np.int64)
    anchors = pa.array(
        [row.get("anchor_at") if isinstance(row.get("anchor_at"), str) else None for row in rows], pa.string()
    )
    try:
        anchored = anchors.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).fill_null(at_us).to_numpy()
    except pa.ArrowInvalid:
        anchored = np.full(len(rows), at_us)
    half = conf.half_life_us(code, evidence, stained, policy.decay)
    return conf.confidence_at(confidence, anchored, at_us, half, conf.floor_ppm(immune, stained, policy.decay))


def _number(row: Mapping[str, Any], name: str, otherwise: Any) -> Any:
    value = row.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise


def _validated(
    frame: Any, suite: Sequence[Expectation], data_docs_dir: Path | None
) -> tuple[list[dict[int, str]], Path | None]:
    """Per expectation: candidate -> what was observed there. Runs Great Expectations in memory."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    import great_expectations as gx

    context = gx.get_context(mode="ephemeral")
    context.enable_analytics(False)
    context.variables.progress_bars = {"globally": False}
    expected = gx.ExpectationSuite(name="bundles")
    for one in suite:
        kind = getattr(gx.expectations, one.type)
        expected.add_expectation(
            kind(**one.arguments, severity=one.severity, meta={"name": one.name, "notes": one.description})
        )
    batch = (
        context.data_sources.add_pandas("candidates")
        .add_dataframe_asset("bundles")
        .add_batch_definition_whole_dataframe("all")
    )
    definition = context.validation_definitions.add(
        gx.ValidationDefinition(name="bundles", data=batch, suite=context.suites.add(expected))
    )
    docs = _docs_site(context, data_docs_dir) if data_docs_dir else None
    checkpoint = context.checkpoints.add(
        gx.Checkpoint(
            name="bundles", validation_definitions=[definition],
            result_format={"result_format": "COMPLETE", "unexpected_index_column_names": ["candidate", "bundle_hash"], "include_unexpected_rows": False},
        )
    )  # fmt: skip
    outcome = checkpoint.run(batch_parameters={"dataframe": frame})
    (run,) = outcome.run_results.values()
    if docs:
        context.build_data_docs()
    by_name = {r.expectation_config.meta["name"]: r for r in run.results}
    return [_failures(one, by_name[one.name]) for one in suite], docs


def _docs_site(context: Any, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    store = {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(folder.resolve())}
    site = {
        "class_name": "SiteBuilder",
        "store_backend": store,
        "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
    }
    for name in list(context.get_site_names()):
        context.delete_data_docs_site(name)
    context.add_data_docs_site(site_name="bundles", site_config=site)
    return folder / "index.html"


def _failures(expectation: Expectation, result: Any) -> dict[int, str]:
    """Candidate -> up to three of the values that failed there."""
    raised = (result.exception_info or {}).get("raised_exception", False)
    if raised:
        raise DerivationError(
            f"expectation {expectation.name} could not be evaluated: {result.exception_info.get('exception_message')}"
        )
    if result.success:
        return {}
    seen: dict[int, list[str]] = {}
    for index in result.result["unexpected_index_list"]:
        values = [str(value) for name, value in index.items() if name not in ("candidate", "bundle_hash")]
        seen.setdefault(int(index["candidate"]), []).append(" / ".join(values))
    return {number: f"{len(values)} failed: " + "; ".join(values[:3]) for number, values in seen.items()}
