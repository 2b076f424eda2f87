"""Judges candidate bundles and publishes those that pass; verdicts and publications are events.

A bundle that fails stays in its candidate folder. Source: INH S7, architecture ("Running", "Projections").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.golem_batches import GOLEMS_AT_ONCE
from bardo_pipeline.derivation.katabasis.vote_and_consensus import recorded_deaths
from bardo_pipeline.derivation.legacy.bundle_candidates import (
    birth_rows,
    candidate_folder,
    entries_of,
)
from bardo_pipeline.derivation.legacy.bundle_metrics import Candidate, at_death
from bardo_pipeline.derivation.legacy.bundle_signing import Voucher
from bardo_pipeline.derivation.legacy.bundle_store import read_bundle_folder, write_bundle
from bardo_pipeline.derivation.legacy.bundle_verdicts import Verdicts, judge
from bardo_pipeline.derivation.legacy.published_bundles import event_field
from bardo_pipeline.errors import BundleError
from bardo_pipeline.events.life.events import LifeEvent, Published, life_event
from bardo_pipeline.inheritance.bundle_files import Bundle, open_bundle
from bardo_pipeline.inheritance.weismann import leave_bloodstains


def unjudged_candidates(context: DerivationContext) -> list[dict[str, Any]]:
    """Candidates that have no verdict, by golem."""
    known = event_field(context, "BundleJudged", "judged", "bundle_hash")
    hashes = context.projections.growing("candidates").read(["bundle_hash"])["bundle_hash"]
    return _rows_of(context, hashes.filter(pc.invert(pc.is_in(hashes, value_set=known))))


def _rows_of(context: DerivationContext, hashes: pa.ChunkedArray) -> list[dict[str, Any]]:
    """These candidates (CANDIDATE_SCHEMA), by golem: what they are made from is read of them alone."""
    if not len(hashes):
        return []
    rows = context.projections.growing("candidates").read(only=pc.field("bundle_hash").isin(hashes.combine_chunks()))
    return rows.sort_by("golem_id").to_pylist()


def judge_candidates(
    context: DerivationContext,
    *,
    now: datetime,
    data_docs_dir: Path | None = None,
    read: Callable[[Path], Bundle] | None = None,
) -> Verdicts:
    """One Great Expectations run over all candidates without a verdict; each verdict is recorded as an event.

    now: the moment of recording. read: how a candidate's folder is read, by default with its hashes checked by the run.
    """
    rows = unjudged_candidates(context)
    if not rows:
        return Verdicts((), None)
    verdicts = judge(candidates_of(context, rows, read or read_unchecked), context.policy, data_docs_dir)
    events = [life_event(r["golem_id"], r["died_at"], v) for r, v in zip(rows, verdicts.judged, strict=True)]
    context.log.record(events, now)
    return verdicts


def candidates_of(
    context: DerivationContext, rows: Sequence[Mapping[str, Any]], read: Callable[[Path], Bundle]
) -> Iterator[Candidate]:
    """Candidates (CANDIDATE_SCHEMA) with what is on record of their golems, and the bundles these were born with.

    One after the other, in the order of the rows: what was looked at may be forgotten.
    """
    deaths, folder = recorded_deaths(context), candidate_folder(context)
    births = birth_rows(context, {r["golem_id"] for r in rows})
    for at in range(0, len(rows), GOLEMS_AT_ONCE):
        some = rows[at : at + GOLEMS_AT_ONCE]
        wanted = pa.array([r["golem_id"] for r in some], pa.string())
        died = deaths.filter(pc.is_in(deaths["golem_id"], value_set=wanted))
        facts = at_death(leave_bloodstains(entries_of(context, died), died, context.policy), died, context.policy)
        given = {r["golem_id"]: births[r["golem_id"]]["bundle_hash"] for r in some}
        before = {name: read_unchecked(context.home.bundles / name) for name in sorted({*given.values()} - {None})}
        for r in some:
            bundle, born_with = read(folder / r["bundle_hash"]), before.get(given[r["golem_id"]])
            yield Candidate(r["bundle_hash"], bundle, facts[r["golem_id"]], born_with)


def read_unchecked(folder: Path) -> Bundle:
    """A candidate as it lies there, empty if it is gone; whether its hashes match, the expectations say."""
    if not folder.is_dir():
        return open_bundle({})
    return open_bundle({p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.is_file()})


def publish_candidates(context: DerivationContext, *, now: datetime) -> list[str]:
    """Publish the candidates that passed and are not published. Returns their hashes.

    A candidate is read with its hashes checked once more: one that was altered since its verdict stays where it is, in
    nobody's way, and the check on waiting candidates names it.
    """
    rows = _rows_of(context, _to_publish(context))
    if not rows:
        return []
    published, voucher = [], Voucher(context)
    events: list[LifeEvent] = []
    for row in rows:
        try:
            bundle = read_bundle_folder(candidate_folder(context) / row["bundle_hash"])
        except BundleError:
            continue
        write_bundle(context.home.bundles, bundle)
        signed = voucher.sign(bundle, row["owner_id"], row["died_at"])
        payload = Published(
            bundle_hash=row["bundle_hash"], entry_count=row["entry_count"], derivation_id=context.derivation_id
        )
        events += [life_event(row["golem_id"], row["died_at"], payload), *([signed] if signed else [])]
        published.append(row["bundle_hash"])
    context.log.record(events, now)
    return published


def _to_publish(context: DerivationContext) -> pa.ChunkedArray:
    """Hashes of the candidates whose last verdict on record passed them, and that are not published."""
    judged, passed = (event_field(context, "BundleJudged", "judged", name) for name in ("bundle_hash", "passed"))
    verdict = dict(zip(judged.to_pylist(), passed.to_pylist(), strict=True))
    good = pa.array([name for name, well in verdict.items() if well], pa.string())
    hashes = context.projections.growing("candidates").read(["bundle_hash"])["bundle_hash"]
    out = pc.is_in(hashes, value_set=event_field(context, "BundlePublished", "published", "bundle_hash"))
    return hashes.filter(pc.and_(pc.is_in(hashes, value_set=good), pc.invert(out)))
