"""Judges candidate bundles and publishes those that pass; verdicts and publications are events.

A bundle that fails stays in its candidate folder. Source: INH S7, architecture ("Running", "Projections").
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.record_queries import GOLEMS_AT_ONCE, birth_rows
from bardo_pipeline.derivation.legacy.bundle_candidates import candidate_folder, entries_of
from bardo_pipeline.derivation.legacy.bundle_metrics import Candidate, at_death
from bardo_pipeline.derivation.legacy.bundle_signing import BundleSigner
from bardo_pipeline.derivation.legacy.bundle_store import read_bundle_folder, write_bundle
from bardo_pipeline.derivation.legacy.bundle_verdicts import Verdicts, judge
from bardo_pipeline.derivation.legacy.death_queries import recorded_deaths
from bardo_pipeline.errors import BundleError
from bardo_pipeline.events.life.events import LifeEvent, Published, life_event
from bardo_pipeline.events.record.arrow_columns import rows_of_golems
from bardo_pipeline.inheritance.bundle_files import Bundle, open_bundle
from bardo_pipeline.inheritance.weismann import leave_bloodstains


def unjudged_candidates(context: DerivationContext) -> list[dict[str, Any]]:
    """Return the candidates without a verdict, by golem."""
    judged = context.life_fields("BundleJudged", "bundle_hash")["bundle_hash"]
    hashes = context.projections.growing("candidates").read(["bundle_hash"])["bundle_hash"]
    return candidate_rows(context, hashes.filter(pc.invert(pc.is_in(hashes, value_set=judged))).to_pylist())


def candidate_rows(context: DerivationContext, hashes: Collection[str]) -> list[dict[str, Any]]:
    """Return the candidates with these bundle hashes (rows of CANDIDATE_SCHEMA), by golem."""
    if not hashes:
        return []
    rows = context.projections.growing("candidates").read(only=pc.field("bundle_hash").isin(list(hashes)))
    return rows.sort_by("golem_id").to_pylist()


def judge_candidates(context: DerivationContext, *, now: datetime, data_docs_dir: Path | None = None) -> Verdicts:
    """Judge all candidates without a verdict in one Great Expectations run and record each verdict as an event."""
    rows = unjudged_candidates(context)
    if not rows:
        return Verdicts((), None)
    verdicts = judge(candidates_of(context, rows), context.policy, data_docs_dir)
    events = [life_event(r["golem_id"], r["died_at"], v) for r, v in zip(rows, verdicts.judged, strict=True)]
    context.log.record(events, now)
    return verdicts


def candidates_of(context: DerivationContext, rows: Sequence[Mapping[str, Any]]) -> Iterator[Candidate]:
    """Yield each candidate row with its golem's entries at death and inherited bundle, in the order of the rows."""
    deaths, folder = recorded_deaths(context), candidate_folder(context)
    births = birth_rows(context, {row["golem_id"] for row in rows})
    for start in range(0, len(rows), GOLEMS_AT_ONCE):
        batch = rows[start : start + GOLEMS_AT_ONCE]
        died = rows_of_golems(deaths, [row["golem_id"] for row in batch])
        facts = at_death(leave_bloodstains(entries_of(context, died), died, context.policy), died, context.policy)
        inherited_hash = {row["golem_id"]: births[row["golem_id"]]["bundle_hash"] for row in batch}
        names = sorted({*inherited_hash.values()} - {None})
        inherited = {name: _read_unchecked(context.home.bundles / name) for name in names}
        for row in batch:
            golem_id, bundle = row["golem_id"], _read_unchecked(folder / row["bundle_hash"])
            yield Candidate(row["bundle_hash"], bundle, facts[golem_id], inherited.get(inherited_hash[golem_id]))


def _read_unchecked(folder: Path) -> Bundle:
    """Read a bundle's folder, whose hashes an expectation checks; a missing folder gives an empty bundle."""
    if not folder.is_dir():
        return open_bundle({})
    return open_bundle({p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.is_file()})


def publish_candidates(context: DerivationContext, *, now: datetime) -> list[str]:
    """Publish the candidates that passed and are not published. Return their hashes.

    A candidate that was altered after its verdict is skipped; the asset check on waiting candidates reports it.
    """
    rows = candidate_rows(context, _to_publish(context))
    if not rows:
        return []
    published, signer = [], BundleSigner(context)
    events: list[LifeEvent] = []
    for row in rows:
        try:
            bundle = read_bundle_folder(candidate_folder(context) / row["bundle_hash"])
        except BundleError:
            continue
        write_bundle(context.home.bundles, bundle)
        signed = signer.sign(bundle, row["owner_id"], row["died_at"])
        payload = Published(
            bundle_hash=row["bundle_hash"], entry_count=row["entry_count"], derivation_id=context.derivation_id
        )
        events += [life_event(row["golem_id"], row["died_at"], payload), *([signed] if signed else [])]
        published.append(row["bundle_hash"])
    context.log.record(events, now)
    return published


def _to_publish(context: DerivationContext) -> list[str]:
    """Hashes of the unpublished candidates whose last recorded verdict is a pass."""
    verdicts = context.life_fields("BundleJudged", "bundle_hash", "passed").to_pylist()
    passed = {verdict["bundle_hash"]: verdict["passed"] for verdict in verdicts}
    passed_hashes = pa.array([name for name, is_passed in passed.items() if is_passed], pa.string())
    hashes = context.projections.growing("candidates").read(["bundle_hash"])["bundle_hash"]
    is_published = pc.is_in(hashes, value_set=context.life_fields("BundlePublished", "bundle_hash")["bundle_hash"])
    is_due = pc.and_(pc.is_in(hashes, value_set=passed_hashes), pc.invert(is_published))
    return list(hashes.filter(is_due).to_pylist())
