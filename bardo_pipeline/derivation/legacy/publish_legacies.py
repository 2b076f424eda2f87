"""Legacy: what the dead leave: testaments, candidate bundles, verdicts, and the bundles that may be inherited.

Testaments and candidates are projections; verdicts and publications are events. A bundle that fails is kept where
it was made and goes no further; the others do. Source: INH S7, architecture ("Running", "Projections").
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.death.derive_thanatopsis import pass_away
from bardo_pipeline.derivation.incremental.golem_batches import GOLEMS_AT_ONCE, in_slices
from bardo_pipeline.derivation.incremental.record_queries import curated
from bardo_pipeline.derivation.incremental.retraction_tracking import Heeded, because, first_cycles, from_cycle
from bardo_pipeline.derivation.katabasis.vote_and_consensus import recorded_deaths
from bardo_pipeline.derivation.legacy.bundle_candidates import (
    BEFORE_CANDIDATES,
    births_of,
    candidate_folder,
    candidates,
    entries_of,
)
from bardo_pipeline.derivation.legacy.bundle_metrics import Candidate, at_death
from bardo_pipeline.derivation.legacy.bundle_signing import Voucher
from bardo_pipeline.derivation.legacy.bundle_store import read_bundle_folder, write_bundle
from bardo_pipeline.derivation.legacy.bundle_verdicts import Verdicts, judge
from bardo_pipeline.derivation.memory.derive_episodes import derive_episodes
from bardo_pipeline.errors import BundleError
from bardo_pipeline.events.life.events import LifeEvent, Published, life_event
from bardo_pipeline.inheritance.bundle_files import Bundle, open_bundle
from bardo_pipeline.inheritance.testament import TESTAMENT_SCHEMA, testaments
from bardo_pipeline.inheritance.weismann import leave_bloodstains
from bardo_pipeline.storage.delta.table_digest import Written


def _unwritten(context: DerivationContext, table: str, *, after: tuple[str, ...] = ()) -> pa.Table:
    """Deaths that are curated to their last cycle and known to these tables, but not to this one, with their lives."""
    sources, target = [context.projections.growing(n) for n in after], context.projections.growing(table)
    deaths = recorded_deaths(context)
    keep = [
        target.done(g) is None
        and all(known is not None and known >= c for known in (curated(context, g), *(t.done(g) for t in sources)))
        for g, c in zip(deaths["golem_id"].to_pylist(), deaths["cycle"].to_pylist(), strict=True)
    ]
    return with_lives(context, deaths.filter(pa.array(keep, pa.bool_())))


def with_lives(context: DerivationContext, deaths: pa.Table) -> pa.Table:
    """Deaths with the generation, lineage, cause and tick that a testament and a bundle name."""
    names = deaths["golem_id"].to_pylist()
    births, events = births_of(context, names), context.life("DeathDeclared", names).select(["golem_id", "died"])
    died = {e["golem_id"]: e["died"] for e in events.to_pylist()}
    columns = {
        "generation": pa.array([births[g]["generation"] for g in names], pa.int64()),
        "lineage_id": pa.array([births[g]["lineage_id"] for g in names], pa.string()),
        "cause": pa.array([died[g]["cause"] for g in names], pa.string()),
        "tick": pa.array([died[g]["tick"] for g in names], pa.int64()),
    }
    ticks = columns["tick"].to_numpy()
    columns["is_record_left_out"] = pa.array(context.left_out().records(deaths["golem_id"], ticks), pa.bool_())
    for name, column in columns.items():
        deaths = deaths.append_column(name, column)
    return deaths


def derive_testaments(context: DerivationContext) -> list[Written]:
    """Write the testament of every golem that died since, and again where something it rests on is left out since."""
    with context.deriving():
        written = _repair(context, "testaments", _testaments, after=("curation",))
        deaths = _unwritten(context, "testaments")
        if deaths.num_rows:
            written.append(context.projections.growing("testaments").put(_testaments(context, deaths), _upto(deaths)))
        return written


def _testaments(context: DerivationContext, deaths: pa.Table) -> pa.Table:
    """The testaments of these dead (TESTAMENT_SCHEMA)."""
    parts = [TESTAMENT_SCHEMA.empty_table()]
    for some in in_slices(context, deaths):
        decisions = context.projections.growing("curation").read(golems=some["golem_id"].to_pylist())
        parts.append(testaments(entries_of(context, some), decisions, some, context.policy))
    return pa.concat_tables(parts)


def _repair(
    context: DerivationContext,
    table: str,
    make: Callable[[DerivationContext, pa.Table], pa.Table],
    *,
    after: tuple[str, ...],
) -> list[Written]:
    """Make again the rows of the dead that rest on something that is left out since their row was made.

    after: consumers that must have heeded a cause before.
    """
    heeded, span = Heeded(context, table), context.policy.curator.cycle_ticks
    due, target = (
        heeded.due(context.left_out(), after=[Heeded(context, n) for n in after]),
        context.projections.growing(table),
    )
    deaths = recorded_deaths(context).filter(from_cycle(recorded_deaths(context), first_cycles(due, span)))
    made = pa.array([target.done(g) is not None for g in deaths["golem_id"].to_pylist()], pa.bool_())
    deaths = with_lives(context, deaths.filter(made))
    written = []
    if deaths.num_rows:
        standing = target.read(golems=deaths["golem_id"].to_pylist(), hidden=True)
        written.append(target.repair(standing, make(context, deaths), because(standing, due, span)))
    heeded.keep(cause.event_id for cause in due)
    return written


def _upto(deaths: pa.Table) -> dict[str, int]:
    return dict(zip(deaths["golem_id"].to_pylist(), deaths["cycle"].to_pylist(), strict=True))


def derive_candidates(context: DerivationContext) -> list[Written]:
    """Press every golem that died since through the bottleneck, and make the bundle it would leave.

    A bundle that rests on something that is left out since is made again; the one that was made before keeps its bytes.
    """
    with context.deriving():
        written = _repair(context, "candidates", candidates, after=BEFORE_CANDIDATES)
        deaths = _unwritten(context, "candidates", after=("testaments", "episodes"))
        if deaths.num_rows:
            written.append(context.projections.growing("candidates").put(candidates(context, deaths), _upto(deaths)))
        return written


def unjudged(context: DerivationContext) -> list[dict[str, Any]]:
    """Candidates that have no verdict, by golem."""
    known = _told(context, "BundleJudged", "judged", "bundle_hash")
    hashes = context.projections.growing("candidates").read(["bundle_hash"])["bundle_hash"]
    return _rows_of(context, hashes.filter(pc.invert(pc.is_in(hashes, value_set=known))))


def _rows_of(context: DerivationContext, hashes: pa.ChunkedArray) -> list[dict[str, Any]]:
    """These candidates (CANDIDATE_SCHEMA), by golem: what they are made from is read of them alone."""
    if not len(hashes):
        return []
    rows = context.projections.growing("candidates").read(only=pc.field("bundle_hash").isin(hashes.combine_chunks()))
    return rows.sort_by("golem_id").to_pylist()


def _told(context: DerivationContext, kind: str, attribute: str, field: str) -> pa.Array:
    """One field of what these events say, an event each."""
    return pc.struct_field(context.life(kind)[attribute].combine_chunks(), field)


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
    rows = unjudged(context)
    if not rows:
        return Verdicts((), None)
    verdicts = judge(candidates_of(context, rows, read or loosely_read), context.policy, data_docs_dir)
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
    births = births_of(context, {r["golem_id"] for r in rows})
    for at in range(0, len(rows), GOLEMS_AT_ONCE):
        some = rows[at : at + GOLEMS_AT_ONCE]
        wanted = pa.array([r["golem_id"] for r in some], pa.string())
        died = deaths.filter(pc.is_in(deaths["golem_id"], value_set=wanted))
        facts = at_death(leave_bloodstains(entries_of(context, died), died, context.policy), died, context.policy)
        given = {r["golem_id"]: births[r["golem_id"]]["bundle_hash"] for r in some}
        before = {name: loosely_read(context.home.bundles / name) for name in sorted({*given.values()} - {None})}
        for r in some:
            bundle, born_with = read(folder / r["bundle_hash"]), before.get(given[r["golem_id"]])
            yield Candidate(r["bundle_hash"], bundle, facts[r["golem_id"]], born_with)


def loosely_read(folder: Path) -> Bundle:
    """A candidate as it lies there, empty if it is gone; whether its hashes match, the expectations say."""
    if not folder.is_dir():
        return open_bundle({})
    return open_bundle({p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.is_file()})


def publish(context: DerivationContext, *, now: datetime) -> list[str]:
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
    judged, passed = (_told(context, "BundleJudged", "judged", name) for name in ("bundle_hash", "passed"))
    verdict = dict(zip(judged.to_pylist(), passed.to_pylist(), strict=True))
    good = pa.array([name for name, well in verdict.items() if well], pa.string())
    hashes = context.projections.growing("candidates").read(["bundle_hash"])["bundle_hash"]
    out = pc.is_in(hashes, value_set=_told(context, "BundlePublished", "published", "bundle_hash"))
    return hashes.filter(pc.and_(pc.is_in(hashes, value_set=good), pc.invert(out)))


def published_bundles(context: DerivationContext, golem_ids: Collection[str] | None = None) -> dict[str, str]:
    """Golem to the hash of the bundle it left, for all golems of which one was published, or those among these.

    Of several it is the one that would be made now: a bundle is published anew where something that it rested on is
    left out since. Where that one waits for its verdict, the last of those that are out.
    """
    published: dict[str, list[str]] = {}
    events = context.life("BundlePublished", golem_ids)
    events = events.select(["golem_id", "observed_at", "event_id", "published"])
    events = events.sort_by([("observed_at", "ascending"), ("event_id", "ascending")])
    left = pc.struct_field(events["published"].combine_chunks(), "bundle_hash").to_pylist()
    for golem_id, bundle_hash in zip(events["golem_id"].to_pylist(), left, strict=True):
        published.setdefault(golem_id, []).append(bundle_hash)
    several = [golem_id for golem_id, hashes in published.items() if len(hashes) > 1]
    now = _candidate_hashes(context, several)
    return {g: now[g] if now.get(g) in hashes else hashes[-1] for g, hashes in published.items()}


def bundles_published_by(context: DerivationContext) -> set[str]:
    """Hashes of the bundles that this derivation published."""
    out, by = (_told(context, "BundlePublished", "published", name) for name in ("bundle_hash", "derivation_id"))
    return set(out.filter(pc.equal(by, context.derivation_id)).to_pylist())


def _candidate_hashes(context: DerivationContext, golem_ids: Sequence[str]) -> dict[str, str]:
    """Golem to the hash of the bundle that it would leave now."""
    if not golem_ids:
        return {}
    rows = context.projections.growing("candidates").read(["golem_id", "bundle_hash"], golems=golem_ids)
    return dict(zip(rows["golem_id"].to_pylist(), rows["bundle_hash"].to_pylist(), strict=True))


def overtaken_bundles(context: DerivationContext) -> list[tuple[str, str]]:
    """Published bundles that were made before something they may rest on was left out: golem and hash, by golem.

    They keep their bytes and their place; whoever inherits now gets the one that was made since.
    """
    events = context.life("BundlePublished", context.left_out().golem_ids).select(["golem_id", "published"]).to_pylist()
    out = [(e["golem_id"], e["published"]["bundle_hash"]) for e in events]
    now = _candidate_hashes(context, sorted({golem_id for golem_id, _ in out}))
    return sorted((golem_id, bundle_hash) for golem_id, bundle_hash in out if now.get(golem_id) != bundle_hash)


def wrongly_published(context: DerivationContext) -> list[str]:
    """Hashes of published bundles without a passing verdict, or whose bytes are not what their hash says."""
    judged, well = (_told(context, "BundleJudged", "judged", name) for name in ("bundle_hash", "passed"))
    passed, wrong = set(judged.filter(well).to_pylist()), []
    for bundle_hash in sorted(_told(context, "BundlePublished", "published", "bundle_hash").to_pylist()):
        try:
            whole = read_bundle_folder(context.home.bundles / bundle_hash).bundle_hash == bundle_hash
        except BundleError:
            whole = False
        if bundle_hash not in passed or not whole:
            wrong.append(bundle_hash)
    return wrong


def bequeath(context: DerivationContext, *, now: datetime, data_docs_dir: Path | None = None) -> list[str]:
    """All that follows a death, in order: testament, candidate, verdict, publication, and the phases of dying beside.

    Returns the hashes published.
    """
    pass_away(context, now=now)  # acceptance and settlement come first, whatever befalls the rest
    derive_episodes(context, now=now)
    derive_testaments(context)
    derive_candidates(context)
    judge_candidates(context, now=now, data_docs_dir=data_docs_dir)
    published = publish(context, now=now)
    pass_away(context, now=now)
    return published
