"""Measures: what can be counted of candidate bundles, in two frames for the expectations. No judgement is made here.

There is a row per candidate, and one per entry of it. Of what is beside the record of its golem, each measure is a
number of its own; limits and severities are in quality/bundle_expectations.py. Source: P-5; INH S7, S8.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bardo_pipeline.errors import BundleError
from bardo_pipeline.grimoire import confidence as conf
from bardo_pipeline.grimoire.confidence import DAY_US, PPM
from bardo_pipeline.grimoire.entries import DECAY_CLASSES
from bardo_pipeline.grimoire.entry_columns import bool_column, confidence_of, contiguous, floor_of, int_column, micros
from bardo_pipeline.inheritance.bundle_files import ENTRIES, EPISODES, LINKS, TESTAMENT_PAGE, Bundle, mismatches
from bardo_pipeline.inheritance.weismann import crossing_limit
from bardo_pipeline.katabasis.anonymous_votes import of_the_dead
from bardo_pipeline.policy import Policy
from bardo_pipeline.quality.bundle_expectations import (
    FORBIDDEN_NAMES,
    PROVENANCE_MOMENTS,
    PROVENANCE_NUMBERS,
    PROVENANCE_TEXTS,
    WORDED_FIELDS,
)

BUNDLE_FRAME = {
    "candidate": "int64",
    "bundle_hash": "string",
    "golem_id": "string",
    "entry_count": "Int64",
    "episode_count": "Int64",
    "anti_knowledge_missing": "Int64",
    "hash_mismatches": "Int64",
    "testament_bytes": "Int64",
    "links_loose": "Int64",
    "confidence_mean": "Float64",
    "unsure_share": "Float64",
    "lasting_share": "Float64",
    "stale_share": "Float64",
    "domain_count": "Int64",
    "domains_lost": "Int64",
    "confidence_drift": "Float64",
    "domain_drift": "Float64",
    "size_ratio": "Float64",
    "divergence": "Float64",
    "novel_count": "Int64",
    "invalidated_missing": "Int64",
    "gap_count": "Int64",
    "question_ratio": "Float64",
}
"""A row per candidate: columns and their pandas types. A measure that has no meaning there is null, and null is
nobody's failure."""

ENTRY_FRAME = pa.schema(
    [
        pa.field("candidate", pa.int64()),
        pa.field("bundle_hash", pa.string()),
        pa.field("golem_id", pa.string()),
        pa.field("entry_id", pa.string()),
        pa.field("confidence", pa.float64()),
        pa.field("confidence_death_ppm", pa.int64()),
        pa.field("confidence_limit_ppm", pa.int64()),
        pa.field("decay_class", pa.string()),
        pa.field("provenance_missing", pa.int64()),
        pa.field("forbidden_fields", pa.int64()),
        pa.field("words", pa.string()),
    ]
)
"""A row per entry of a candidate."""

ENTRY_MEASURES = tuple(ENTRY_FRAME.names[3:])

_CODED = ("bundle_hash", "golem_id", "decay_class")
"""Columns that pandas keeps as codes: what is copied with a row is a number."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LASTING = "structural"
_EXACT = 2**53

Row = Mapping[str, Any]
Ints = NDArray[np.int64]


class AtDeath(NamedTuple):
    """What is on record of a golem at its death: entry -> (confidence, floor) in ppm, its anti-knowledge, and the
    domains of what it knew."""

    at_us: int
    confidence: Mapping[str, tuple[int, int]]
    anti_knowledge: frozenset[str]
    domains: frozenset[str]


class Candidate(NamedTuple):
    """A bundle to judge, under the hash by which it would be published, and what is on record of its golem.

    before: the bundle that the golem was born with, None for a founder.
    """

    bundle_hash: str
    bundle: Bundle
    facts: AtDeath
    before: Bundle | None = None


def at_death(entries: pa.Table, deaths: pa.Table, policy: Policy) -> dict[str, AtDeath]:
    """The facts of every golem that died, by golem.

    entries: ENTRY_SCHEMA with bloodstains left (`leave_bloodstains`). deaths: golem_id and at.
    """
    active = entries.filter(pc.equal(entries.column("status"), "active"))
    dead, at_us = of_the_dead(active, deaths)
    names, ids = dead.column("golem_id").to_pylist(), dead.column("entry_id").to_pylist()
    trusted = confidence_of(dead, at_us, policy.decay).tolist()
    floor, immune = floor_of(dead, policy.decay).tolist(), bool_column(dead, "is_anti_knowledge").tolist()
    moments = dict(zip(deaths.column("golem_id").to_pylist(), micros(deaths, "at").tolist(), strict=True))
    held: dict[str, dict[str, tuple[int, int]]] = {name: {} for name in moments}
    anti: dict[str, set[str]] = {name: set() for name in moments}
    domains: dict[str, set[str]] = {name: set() for name in moments}
    for name, entry_id, sure, least, never, domain in zip(
        names, ids, trusted, floor, immune, dead.column("domain").to_pylist(), strict=True
    ):
        held[name][entry_id] = (sure, least)
        domains[name].add(domain)
        if never:
            anti[name].add(entry_id)
    return {
        name: AtDeath(at, held[name], frozenset(anti[name]), frozenset(domains[name])) for name, at in moments.items()
    }


class Frames(NamedTuple):
    """What is judged, as pandas frames: a row per candidate (BUNDLE_FRAME), one per entry of it, and one per entry with
    its words, which weigh most (ENTRY_FRAME)."""

    bundles: Any
    entries: Any
    words: Any


def frames_of(candidates: Iterable[Candidate], policy: Policy) -> Frames:
    """The measures of candidates, numbered from 0. No bundle is held any longer than it is measured."""
    import pandas as pd

    bundles: list[dict[str, Any]] = []
    entries = [ENTRY_FRAME.empty_table()]
    spread = _Spreads(policy)
    for number, candidate in enumerate(candidates):
        told = entries_told(candidate.bundle, candidate.facts.at_us, policy)
        named = {"candidate": number, "bundle_hash": candidate.bundle_hash, "golem_id": candidate.bundle.golem_id}
        measures = _measures_of_bundle(candidate, told, policy)
        bundles.append({**named, **measures, **spread.of(candidate, told), **_mandate(candidate.bundle, policy)})
        columns = {name: pa.repeat(value, len(told.ids)) for name, value in named.items()}
        columns |= _measures_of_entries(candidate.facts, told, policy)
        entries.append(pa.table(columns, schema=ENTRY_FRAME))
    listed, told_of = pd.DataFrame(bundles), pa.concat_tables(entries)
    for name in _CODED:
        place = told_of.schema.get_field_index(name)
        told_of = told_of.set_column(place, name, told_of[name].combine_chunks().dictionary_encode())
    texts = pd.StringDtype(na_value=np.nan)
    return Frames(
        listed.reindex(columns=list(BUNDLE_FRAME)).astype(BUNDLE_FRAME),
        told_of.drop_columns("words").to_pandas(types_mapper={pa.string(): texts}.get),
        told_of.select(["candidate", "bundle_hash", "words"]).to_pandas(types_mapper={pa.string(): texts}.get),
    )


def _rows(bundle: Bundle, name: str) -> tuple[list[dict[str, Any]], int]:
    try:
        return bundle.rows(name), 0
    except (BundleError, KeyError):
        return [], 1


class Told(NamedTuple):
    """What a bundle says of its entries, by entry: ids, stated confidence and the one that follows from it at the
    golem's death (ppm), last validation (microseconds), domains (of those that name one), decay classes, how many parts
    of the provenance are missing, how many forbidden fields there are, all words. unreadable: 1 if it says nothing that
    can be read."""

    ids: pa.Array
    stated: pa.Array
    now: Ints
    validated_us: pa.Array
    domains: pa.Array
    classes: pa.Array
    missing: list[int]
    forbidden: list[int]
    words: pa.Array
    unreadable: int = 0


def entries_told(bundle: Bundle, at_us: int, policy: Policy) -> Told:
    """The entries of a bundle: in bulk where each is as it should be, else row by row, whatever stands there."""
    table = bundle.plain_entries()
    if table is not None and pc.max(pc.abs(table["confidence_ppm"])).as_py() <= _EXACT:
        return _in_bulk(table, at_us, policy)
    rows, unreadable = _rows(bundle, ENTRIES)
    return row_by_row(rows, at_us, policy, unreadable)


def _in_bulk(table: pa.Table, at_us: int, policy: Policy) -> Told:
    empty = [pc.equal(table[name], "").cast(pa.int64()).to_numpy() for name in PROVENANCE_TEXTS]
    classes = pc.index_in(table["decay_class"], value_set=pa.array(DECAY_CLASSES)).fill_null(0)
    codes = classes.to_numpy().astype(np.int64)
    stained = bool_column(table, "is_bloodstain")
    half_life = conf.half_life_us(codes, int_column(table, "evidence_count"), stained, policy.decay)
    floor = conf.floor_ppm(bool_column(table, "is_anti_knowledge"), stained, policy.decay)
    now = conf.confidence_at(int_column(table, "confidence_ppm"), micros(table, "anchor_at"), at_us, half_life, floor)
    words = [table[name].combine_chunks() for name in WORDED_FIELDS]
    return Told(
        ids=contiguous(table["entry_id"]),
        stated=contiguous(table["confidence_ppm"]),
        now=now,
        validated_us=pa.array(micros(table, "validated_at")),
        domains=contiguous(table["domain"]),
        classes=contiguous(table["decay_class"]),
        missing=np.sum(empty, axis=0).tolist(),
        forbidden=[0] * table.num_rows,  # it has the columns that cross, and no other
        words=pc.binary_join_element_wise(*words, " ", null_handling="skip"),
    )


def row_by_row(rows: Sequence[Row], at_us: int, policy: Policy, unreadable: int = 0) -> Told:
    """The same of rows that may hold anything."""
    ids = [row.get("entry_id") if isinstance(row.get("entry_id"), str) else None for row in rows]
    stated = [row["confidence_ppm"] if _is_number(row.get("confidence_ppm")) else None for row in rows]
    words = [" ".join(str(row[n]) for n in WORDED_FIELDS if row.get(n) is not None) for row in rows]
    return Told(
        ids=pa.array(ids, pa.string()),
        stated=pa.array(stated, pa.int64()),
        now=_confidence_then(rows, at_us, policy),
        validated_us=pa.array([_micros(row.get("validated_at")) for row in rows], pa.int64()),
        domains=pa.array(_words(rows, "domain"), pa.string()),
        classes=pa.array([str(row.get("decay_class")) for row in rows], pa.string()),
        missing=[_missing(row) for row in rows],
        forbidden=[len(FORBIDDEN_NAMES & row.keys()) for row in rows],
        words=pa.array(words, pa.string()),
        unreadable=unreadable,
    )


def _measures_of_bundle(candidate: Candidate, told: Told, policy: Policy) -> dict[str, int | None]:
    bundle, immune, known = candidate.bundle, candidate.facts.anti_knowledge, {*told.ids.drop_null().to_pylist()}
    episodes, lost = _rows(bundle, EPISODES)
    faults = len(mismatches(bundle.files, bundle.manifest)) + (bundle.bundle_hash != candidate.bundle_hash)
    links, torn = _rows(bundle, LINKS) if LINKS in bundle.files else ([], 0)
    return {
        "entry_count": len(told.ids),
        "episode_count": len(episodes),
        "anti_knowledge_missing": min(len(immune), policy.inheritance.budget) - len(immune & known),
        "hash_mismatches": faults + told.unreadable + lost + torn,
        "testament_bytes": len(bundle.files.get(TESTAMENT_PAGE, b"")),
        "links_loose": sum(str(row.get(end)) not in known for row in links for end in ("entry_id", "other_id")),
    }


def _mandate(bundle: Bundle, policy: Policy) -> dict[str, float | None]:
    """What the golem made of what it was given, as the manifest says (divergence.py); null where that means nothing."""
    said = bundle.manifest.get("divergence")
    told: Mapping[str, Any] = said if isinstance(said, dict) else {}
    count = {name: value for name, value in told.items() if _is_number(value)}
    given = count.get("inherited_count", 0)
    wanted = min(policy.divergence.invalidated_min, given)

    def share(name: str) -> float | None:
        return count[name] / PPM if name in count else None

    return {
        "divergence": share("divergence_ppm") if given else None,
        "novel_count": count.get("novel_count") if given else None,
        "invalidated_missing": max(wanted - count.get("invalidated_count", 0), 0) if given else None,
        "gap_count": count.get("gap_count"),
        "question_ratio": share("question_ratio_ppm"),
    }


class _Spreads:
    """How a bundle's entries are distributed, by themselves and beside the bundle that its golem was born with.

    Shares of a handful are accidents: below the policy's sample they are null.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy, self._rules = policy, policy.steward
        self._before: dict[str, tuple[Ints, Counter[str]]] = {}

    def of(self, candidate: Candidate, told: Told) -> dict[str, Any]:
        """Measures of one candidate. told: its entries."""
        domains = Counter(told.domains.to_pylist())
        lost = candidate.facts.domains - domains.keys()
        return {
            "domain_count": len(domains) if told.ids else None,
            "domains_lost": len(lost),
            **(self._alone(told, candidate.facts.at_us) if len(told.ids) >= self._rules.sample_min else {}),
            **self._drift(candidate.before, told.now, domains),
        }

    def _alone(self, told: Told, at_us: int) -> dict[str, float]:
        stale_us = int(self._rules.stale_days * DAY_US)
        return {
            "confidence_mean": float(told.now.mean()) / PPM,
            "unsure_share": float((told.now < conf.ppm(self._policy.curator.prune_confidence)).mean()),
            "lasting_share": _share(pc.equal(told.classes, _LASTING)),
            "stale_share": _share(pc.fill_null(pc.less(told.validated_us, at_us - stale_us), True)),
        }

    def _drift(self, before: Bundle | None, now: Ints, domains: Counter[str]) -> dict[str, float]:
        """How far from what the golem was born with: confidence by the largest gap between the two distributions,
        domains by the share that would have to move, size by the factor."""
        if before is None:
            return {}
        then, themes = self._of_predecessor(before)
        out: dict[str, float] = {}
        if max(len(then), len(now)) >= self._rules.sample_min and len(then):
            out["size_ratio"] = len(now) / len(then)
        if min(len(then), len(now)) >= self._rules.sample_min:
            out["confidence_drift"] = largest_gap(then, now)
            out["domain_drift"] = moved_share(themes, domains)
        return out

    def _of_predecessor(self, before: Bundle) -> tuple[Ints, Counter[str]]:
        """Confidence at the predecessor's death, after the crossing, and domains; read once, however many heirs."""
        known = self._before.get(before.bundle_hash)
        if known is None:
            told = entries_told(before, _micros(before.manifest.get("died_at")) or 0, self._policy)
            known = told.now, Counter(told.domains.to_pylist())
            self._before[before.bundle_hash] = known
        return known


def _share(these: pa.Array) -> float:
    """How many of these are so, of all."""
    return int(pc.sum(these).as_py()) / len(these)


def largest_gap(one: Ints, other: Ints) -> float:
    """The largest gap between two samples' distributions (Kolmogorov and Smirnov's statistic), in [0, 1]."""
    both = np.sort(np.concatenate([one, other]))
    shares = [np.searchsorted(np.sort(sample), both, side="right") / len(sample) for sample in (one, other)]
    return float(np.abs(shares[0] - shares[1]).max())


def moved_share(one: Counter[str], other: Counter[str]) -> float:
    """The share of one sample that would have to change its kind to be distributed as the other, in [0, 1]."""
    return sum(abs(one[name] / one.total() - other[name] / other.total()) for name in {*one, *other}) / 2


def _measures_of_entries(facts: AtDeath, told: Told, policy: Policy) -> dict[str, Any]:
    """Measures by entry, as columns (ENTRY_MEASURES); what the dead did not know counts as trusted not at all."""
    trusted = [facts.confidence.get(entry_id or "", (0, 0)) for entry_id in told.ids.to_pylist()]
    at_death, floor = np.array(trusted, np.int64).reshape(-1, 2).T
    return {
        "entry_id": told.ids,
        "confidence": pc.divide(told.stated.cast(pa.float64()), float(conf.PPM)),
        "confidence_death_ppm": told.now,
        "confidence_limit_ppm": crossing_limit(at_death, floor, policy.inheritance),
        "decay_class": told.classes,
        "provenance_missing": told.missing,
        "forbidden_fields": told.forbidden,
        "words": told.words,
    }


def _words(rows: Iterable[Row], name: str) -> list[str]:
    return [row[name] for row in rows if isinstance(row.get(name), str)]


def _confidence_then(rows: Sequence[Row], at_us: int, policy: Policy) -> Ints:
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
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _EXACT


def _micros(value: Any) -> int | None:
    try:
        moment = datetime.fromisoformat(value)
        return (moment - _EPOCH) // timedelta(microseconds=1)
    except (TypeError, ValueError, OverflowError):
        return None
