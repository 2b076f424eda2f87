"""Verdicts: one run judges all bundles independently, and every expectation can fail."""

import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bardo_pipeline.derivation.legacy.bundle_metrics import (
    Candidate,
    entry_facts,
    frames_of,
    largest_gap,
    moved_share,
    row_by_row,
)
from bardo_pipeline.derivation.legacy.bundle_verdicts import Verdicts, judge
from bardo_pipeline.inheritance.bundle_files import (
    ENTRIES,
    EPISODES,
    FILES,
    LINKS,
    MANIFEST,
    TESTAMENT_PAGE,
    Bundle,
    open_bundle,
    seal,
)
from bardo_pipeline.inheritance.canonical_json import canonical
from bardo_pipeline.policy import InheritancePolicy, Policy, StewardPolicy
from bardo_pipeline.quality.bundle_expectations import bundle_expectations
from tests.support.knowledge.handmade_bundles import bundle_of, candidate_of
from tests.support.knowledge.handmade_grimoires import DAY, DIED, POLICY, baseline, entry

SIX = Policy(inheritance=InheritancePolicy(budget=6), steward=StewardPolicy(sample_min=4))
"""A budget of six, so that a seventh entry is one too many; and few entries are enough for shares."""

Rows = list[dict[str, Any]]


def open_questions(golem_id: str) -> list[dict[str, Any]]:
    """Return two candidates, which cross only as questions."""
    sums = {"own_count": 2, "own_sum": 600, "own_sumsq": 200_000}
    return [entry(golem_id, f"open{i}", status="candidate", sign=0, **sums) for i in range(2)]


def known(golem_id: str, count: int = 5, **fields: Any) -> list[dict[str, Any]]:
    """A golem's entries: one anti-knowledge, one fact, the rest heuristics; and two questions."""
    return [
        entry(golem_id, "w", kind="warning", sign=-1, is_anti_knowledge=True),
        entry(golem_id, baseline("gas_price")),
        *(
            entry(golem_id, f"h{i}", **({"kind": "heuristic", "confidence_ppm": 800_000} | fields))
            for i in range(count - 2)
        ),
        *open_questions(golem_id),
    ]


def good(golem_id: str) -> Candidate:
    """An heir's bundle that fails nothing."""
    return candidate_of(*known(golem_id), golem_id=golem_id)._replace(before=BEFORE)


BEFORE = bundle_of(*known("g-0"), golem_id="g-0")
"""The bundle with which the golem was born."""


def founder(*rows: dict[str, Any]) -> Callable[[Candidate], Candidate]:
    """A spoiler: the bundle of a founder with these entries in its place."""
    return lambda c: candidate_of(*({**r, "golem_id": c.bundle.golem_id} for r in rows), golem_id=c.bundle.golem_id)


def heir_of(*rows: dict[str, Any]) -> Callable[[Candidate], Candidate]:
    """A spoiler: born with another bundle."""
    return lambda c: c._replace(before=bundle_of(*rows, golem_id="g-0"))


def with_divergence(**fields: int) -> Callable[[Candidate], Candidate]:
    """Return a change of the manifest's fields about the golem's own entries."""
    whole = {"inherited_count": 5, "divergence_ppm": 150_000, "novel_count": 5, "invalidated_count": 3, "gap_count": 1,
             "question_ratio_ppm": 100_000}  # fmt: skip
    return lambda c: altered(c, {}, divergence=whole | fields)


def altered(candidate: Candidate, files: dict[str, bytes], **fields: Any) -> Candidate:
    """The candidate with other files and another head, sealed as if they had been packed so."""
    head = {n: v for n, v in candidate.bundle.manifest.items() if n not in ("files", "bundle_hash")} | fields
    bundle = seal({n: candidate.bundle.files[n] for n in FILES} | files, head)
    return candidate._replace(bundle_hash=bundle.bundle_hash, bundle=bundle)


def rewritten(change: Callable[[Rows], Rows]) -> Callable[[Candidate], Candidate]:
    """A spoiler that changes the rows of entries.jsonl."""

    def spoil(candidate: Candidate) -> Candidate:
        rows = change(candidate.bundle.rows(ENTRIES))
        return altered(candidate, {ENTRIES: b"".join(canonical(row) for row in rows)})

    return spoil


def first(**fields: Any) -> Callable[[Candidate], Candidate]:
    """A spoiler that changes the first heuristic."""

    def change(rows: Rows) -> Rows:
        place = next(i for i, row in enumerate(rows) if row["kind"] == "heuristic")
        return [row | fields if i == place else row for i, row in enumerate(rows)]

    return rewritten(change)


def one_byte_changed(candidate: Candidate) -> Candidate:
    files = dict(candidate.bundle.files)
    return candidate._replace(
        bundle=Bundle(files | {"playbook.md": files["playbook.md"] + b" "}, candidate.bundle.manifest)
    )


STALE = (DIED - 31 * DAY).isoformat()

SPOILERS: dict[str, Callable[[Candidate], Candidate]] = {
    "entries_within_budget": founder(*known("g", 7)),
    "episodes_within_budget": lambda c: altered(c, {EPISODES: b'{"episode":"again"}\n' * 65}),
    "entry_ids_unique": rewritten(lambda rows: [*rows, rows[-1]]),
    "confidence_in_range": first(confidence_ppm=-1),
    "confidence_attenuated": first(confidence_ppm=800_000),
    "anti_knowledge_present": rewritten(lambda rows: [row for row in rows if not row["is_anti_knowledge"]]),
    "provenance_complete": first(origin_golem_id=None),
    "decay_classes_known": first(decay_class="eternal", confidence_ppm=300_000),
    "link_ends_present": lambda c: altered(c, {LINKS: canonical({"entry_id": "a" * 24, "other_id": "b" * 24})}),
    "hashes_match": one_byte_changed,
    "no_forbidden_field": first(liquidity=3.5),
    "no_forbidden_value": first(text="It was 0x" + "ab" * 20),
    "testament_short": lambda c: altered(c, {TESTAMENT_PAGE: b"x" * 6_000}),
    "knows_something": founder(*open_questions("g")),
    "confidence_spread": founder(*known("g", anchor_at=DIED, confidence_ppm=120_000)[1:]),
    "confidence_earned": founder(
        entry(about=baseline("gas_price"), anchor_at=DIED, confidence_ppm=900_000),
        *known("g", confidence_ppm=60_000)[2:],
    ),
    "knowledge_fades": founder(*known("g", decay_class="structural", confidence_ppm=500_000)),
    "knowledge_fresh": rewritten(
        lambda rows: [row | ({"validated_at": STALE} if row["kind"] == "heuristic" else {}) for row in rows]
    ),
    "domains_covered": founder(*(row for row in known("g") if row["source"] == "pattern")),
    "domains_kept": rewritten(
        lambda rows: [row | ({"domain": "risk"} if row["source"] == "baseline" else {}) for row in rows]
    ),
    "confidence_steady": heir_of(
        *(row | {"confidence_ppm": 990_000, "anchor_at": DIED, "decay_class": "tactical"} for row in known("g-0"))
    ),
    "domains_steady": heir_of(*(row | {"domain": "yield"} for row in known("g-0"))),
    "size_steady": heir_of(*known("g-0", 24)),
    "no_low_divergence": with_divergence(divergence_ppm=149_999),
    "something_novel": with_divergence(novel_count=4),
    "something_invalidated": with_divergence(invalidated_count=2),
    "gaps_named": with_divergence(gap_count=0),
    "questions_asked": with_divergence(question_ratio_ppm=99_999),
}
"""How to fail each expectation and no other."""


def judged(*candidates: Candidate, policy: Policy = SIX) -> Verdicts:
    return judge(candidates, policy)


def failures(verdicts: Verdicts) -> list[list[str]]:
    return [[f.expectation for f in verdict.failed] for verdict in verdicts.judged]


@pytest.mark.row("P-5")
def test_every_expectation_has_a_spoiler_and_a_description() -> None:
    suite = bundle_expectations(POLICY)
    assert [expectation.name for expectation in suite] == list(SPOILERS)
    assert all(expectation.description.endswith(".") for expectation in suite)


@pytest.mark.row("P-5")
@pytest.mark.parametrize("name", ["hashes_match", "knows_something", "no_low_divergence"])
def test_a_spoilt_bundle_in_a_batch_fails_only_its_own_expectation(name: str) -> None:
    candidates = [good(g) for g in ("g-1", "g-2", "g-3")]
    candidates[1] = SPOILERS[name](candidates[1])
    verdicts = judged(*candidates)
    severity = {expectation.name: expectation.severity for expectation in bundle_expectations(SIX)}[name]
    assert failures(verdicts) == [[], [name], []]
    assert [expectation.passed for expectation in verdicts.judged] == [True, severity == "warning", True]
    assert [expectation.bundle_hash for expectation in verdicts.judged] == [c.bundle_hash for c in candidates]
    assert verdicts.judged[1].failed[0].severity == severity


@pytest.mark.row("P-5")
def test_every_spoiler_fails_only_its_expectation_in_one_mixed_batch() -> None:
    intact = good("g-1")
    spoilt = [(name, SPOILERS[name](intact)) for name in SPOILERS]
    given = [("", intact), *spoilt[:5], ("", good("g-2")), *spoilt[5:], ("", good("g-3"))]
    verdicts = judged(*(candidate for _, candidate in given))
    severity = {expectation.name: expectation.severity for expectation in bundle_expectations(SIX)} | {"": "warning"}
    assert failures(verdicts) == [[name] if name else [] for name, _ in given]
    assert [expectation.passed for expectation in verdicts.judged] == [severity[name] == "warning" for name, _ in given]
    assert [expectation.bundle_hash for expectation in verdicts.judged] == [
        candidate.bundle_hash for _, candidate in given
    ]
    assert [expectation.failed[0].severity for expectation in verdicts.judged if expectation.failed] == [
        severity[name] for name, _ in spoilt
    ]


@pytest.mark.row("P-5")
def test_data_docs_are_written_to_their_folder_without_network_access(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a verdict opened a socket")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    spoilt = SPOILERS["no_forbidden_field"](candidate_of(*known("g-1")))
    verdicts = judge([spoilt], SIX, data_docs_dir=tmp_path / "docs")
    assert verdicts.data_docs == tmp_path / "docs" / "index.html"
    pages = "".join(page.read_text() for page in (tmp_path / "docs").rglob("*.html"))
    assert "forbidden_fields" in pages
    assert spoilt.bundle_hash in pages


def test_no_candidates_give_no_verdicts() -> None:
    assert judge([], POLICY) == Verdicts((), None)


def test_a_bundle_under_another_name_does_not_match_its_hash() -> None:
    assert failures(judged(candidate_of(*known("g-1"))._replace(bundle_hash="f" * 64))) == [["hashes_match"]]


def test_an_unreadable_file_fails_the_verdict_without_an_exception() -> None:
    names = (ENTRIES, EPISODES, MANIFEST)
    whole = [candidate_of(*known(name), golem_id=name) for name in names]
    broken = [open_bundle(dict(c.bundle.files) | {n: b"nonsense"}) for n, c in zip(names, whole, strict=True)]
    verdicts = judged(*(c._replace(bundle=b) for c, b in zip(whole, broken, strict=True))).judged
    for name, verdict in zip(names, verdicts, strict=True):
        assert not verdict.passed, name
        assert "hashes_match" in [item.expectation for item in verdict.failed], name


def test_a_field_of_a_wrong_type_fails_provenance_complete() -> None:
    wrong: list[dict[str, Any]] = [
        {"confidence_ppm": "high"}, {"confidence_ppm": None}, {"confidence_ppm": True}, {"confidence_ppm": 2**60},
        {"anchor_at": "yesterday"}, {"anchor_at": 5}, {"entry_id": ["x"]}, {"text": ""}, {"generation": 1.5},
    ]  # fmt: skip
    alone = first(confidence_ppm="high")(candidate_of(*known("g-1")))
    many = [
        first(**provenance)(candidate_of(*known(f"g-{at}"), golem_id=f"g-{at}")) for at, provenance in enumerate(wrong)
    ]
    for provenance, result in zip([wrong[0], *wrong], failures(judged(alone)) + failures(judged(*many)), strict=True):
        assert "provenance_complete" in result, provenance


def test_an_entry_unknown_to_the_dead_golem_fails_confidence_attenuated() -> None:
    assert failures(judged(first(entry_id="f" * 24)(candidate_of(*known("g-1"))))) == [["confidence_attenuated"]]


def test_an_entry_with_too_slow_decay_fails_confidence_attenuated() -> None:
    stained = first(is_bloodstain=True, confidence_ppm=800_000)(candidate_of(*known("g-1")))
    assert failures(judged(stained)) == [["confidence_attenuated"]]


def test_anti_knowledge_above_the_budget_passes_if_it_fills_the_budget() -> None:
    rows = [entry("g-1", f"w{i}", kind="warning", sign=-1, is_anti_knowledge=True) for i in range(7)]
    rows += [
        entry("g-1", baseline("gas_price"), is_anti_knowledge=True, anchor_at=DIED, confidence_ppm=990_000),
        *open_questions("g-1"),
    ]
    full = bundle_of(*rows, policy=SIX)
    assert len(full.rows(ENTRIES)) == 6
    assert failures(judged(candidate_of(*rows)._replace(bundle=full, bundle_hash=full.bundle_hash))) == [[]]


def test_the_reset_switch_is_judged_by_its_own_limit() -> None:
    reset = Policy(inheritance=InheritancePolicy(weismann="reset"))
    made = candidate_of(*known("g-1"))
    flat = bundle_of(*known("g-1"), policy=reset)
    assert failures(judge([made._replace(bundle=flat, bundle_hash=flat.bundle_hash)], reset)) == [[]]
    assert failures(judge([made], reset)) == [["confidence_attenuated"]]


def test_the_frames_have_a_row_for_each_bundle_and_each_of_its_entries() -> None:
    frames = frames_of([candidate_of(*known("g-1")), candidate_of(golem_id="g-2")], POLICY)
    assert frames.bundles["entry_count"].tolist() == [5, 0]
    assert frames.entries["candidate"].tolist() == [0] * 5
    assert frames.entries["entry_id"].notna().all()


@pytest.mark.row("P-5")
def test_largest_gap_and_moved_share_match_examples() -> None:
    assert largest_gap(np.array([1, 2, 3, 4]), np.array([1, 2, 3, 4])) == 0.0
    assert largest_gap(np.array([1, 2]), np.array([3, 4, 5])) == 1.0
    assert largest_gap(np.array([1, 2, 3, 4]), np.array([3, 4])) == 0.5
    assert moved_share(Counter(a=3, b=1), Counter(a=1, b=1)) == 0.25
    assert moved_share(Counter(a=2), Counter(b=5)) == 1.0


@pytest.mark.row("P-5")
def test_shares_are_not_computed_below_the_sample_minimum() -> None:
    frame = frames_of([good("g-1")], POLICY).bundles
    shares = ["confidence_mean", "unsure_share", "lasting_share", "stale_share", "confidence_drift", "domain_drift"]
    assert frame[shares].isna().all(axis=None)
    assert frames_of([good("g-1")], SIX).bundles[shares].notna().any().all()


def test_entry_facts_in_bulk_equal_those_row_by_row() -> None:
    """For valid input; anything else is read row by row."""
    for candidate in (candidate_of(*known("g-1", 7)), first(origin_golem_id="")(candidate_of(*known("g-1")))):
        bundle, at_us = candidate.bundle, candidate.facts.at_us
        assert bundle.plain_entries() is not None
        bulk, rows = entry_facts(bundle, at_us, POLICY), row_by_row(bundle.rows(ENTRIES), at_us, POLICY)
        assert bulk._replace(now=bulk.now.tolist()) == rows._replace(now=rows.now.tolist())
    assert sum(bulk.missing) == 1
    for changed_fields in ({"liquidity": 3.5}, {"origin_golem_id": None}, {"confidence_ppm": 0.5}):
        assert first(**changed_fields)(candidate_of(*known("g-1"))).bundle.plain_entries() is None
