"""Rebuild: derive all tables again from the log and compare their fingerprints with the tables in force.

For an earlier version or time, the tables in force are first limited to the cycles that were closed then.
Source: X-1; architecture, law 4 ("dropped and made again from the log, a projection has the same fingerprint").
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.curator.state.decision_log import fold
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.curate_cycles import derive_curation
from bardo_pipeline.derivation.curation.grimoire_views import GRIMOIRE_VIEWS, derive_grimoire_views, elders
from bardo_pipeline.derivation.dreams.derive_dreams import derive_dreams
from bardo_pipeline.derivation.incremental.record_queries import closed_through, curated_through
from bardo_pipeline.derivation.katabasis.derive_consensus import derive_consensus
from bardo_pipeline.derivation.katabasis.derive_votes import derive_votes
from bardo_pipeline.derivation.katabasis.scars import derive_failures, derive_scars
from bardo_pipeline.derivation.legacy.bundle_store import bundles_published_by, published_bundles, stale_bundles
from bardo_pipeline.derivation.legacy.death_queries import deaths_with_ticks, owners_of, recorded_deaths
from bardo_pipeline.derivation.legacy.derive_legacies import derive_candidates, derive_testaments
from bardo_pipeline.derivation.library.derive_library import derive_library, make_libraries
from bardo_pipeline.derivation.memory.derive_episodes import derive_episodes
from bardo_pipeline.derivation.memory.retrieval_credits import derive_credits
from bardo_pipeline.dreams.lessons import lessons_of
from bardo_pipeline.errors import DamagedError, DerivationError
from bardo_pipeline.events.record.arrow_columns import rows_of_golems
from bardo_pipeline.katabasis.anonymous_votes import backed_votes
from bardo_pipeline.katabasis.scar_rules import scars_of
from bardo_pipeline.katabasis.weighted_consensus import consensus
from bardo_pipeline.storage.delta.table_digest import Digest
from bardo_pipeline.storage.delta.table_specs import TABLES
from bardo_pipeline.storage.log.snapshot import LogAsOf
from bardo_pipeline.storage.projections.derivation_folders import REBUILD, put_in_place
from bardo_pipeline.storage.projections.projections import Projections
from bardo_pipeline.storage.verification.check_projections import damaged_tables

BY_CYCLE = ("curation", "cycles", "playbooks", "episodes", "credits", "hypotheses", "dreams", "failures")
"""Tables whose rows depend on one golem and have a cycle."""


@dataclass(frozen=True)
class Compared:
    """A projection in force compared with the rebuilt one."""

    table: str
    row_count: int
    fingerprint: str
    rebuilt_row_count: int
    rebuilt_fingerprint: str

    @property
    def equal(self) -> bool:
        """Whether both have the same rows."""
        return (self.row_count, self.fingerprint) == (self.rebuilt_row_count, self.rebuilt_fingerprint)


def derive_everything(
    context: DerivationContext, *, now: datetime, on_step: Callable[[str], None] = lambda _: None
) -> None:
    """Update all projections to the log, causes first. Verdicts and publications are events and not derived here.

    The context of a hash bucket updates the tables by golem only; the next update of all golems adds the others.
    """
    by_golem: tuple[tuple[str, Callable[[], object]], ...] = (
        ("curation", lambda: derive_curation(context)),
        ("credits", lambda: derive_credits(context)),
        ("dreams", lambda: derive_dreams(context)),
        *((name, partial(derive_grimoire_views, context, name)) for name in GRIMOIRE_VIEWS),
        ("episodes", lambda: derive_episodes(context, now=now)),
        ("failures", lambda: derive_failures(context)),
    )
    across_golems: tuple[tuple[str, Callable[[], object]], ...] = (
        ("scars", lambda: derive_scars(context)),
        ("votes", lambda: derive_votes(context)),
        ("consensus", lambda: derive_consensus(context)),
        ("testaments", lambda: derive_testaments(context)),
        ("candidates", lambda: derive_candidates(context)),
        ("library", lambda: derive_library(context)),
    )
    for name, derive in (*by_golem, *(across_golems if context.bucket is None else ())):
        on_step(name)
        derive()


def remake_damaged(
    context: DerivationContext, *, now: datetime, on_step: Callable[[str], None] = lambda _: None
) -> list[DamagedError]:
    """Derive all tables again if one of them is damaged, and put them in the place of the damaged ones.

    Returns the damage. Until then readers refuse the damaged tables. Raises DerivationError if this version cannot
    update the derivation.
    """
    damaged, root = list(damaged_tables(context.projections)), context.projections.root
    if damaged:
        beside = replace(context, projections=_beside(context))
        derive_everything(beside, now=now, on_step=on_step)
        with context.deriving():
            put_in_place(beside.projections.root, root)
            context.projections = Projections(root, context.home.bucket_count, context.policy)
    return damaged


def _beside(context: DerivationContext) -> Projections:
    """Return empty projections in the folder for rebuilt tables."""
    folder = context.projections.root.with_name(context.projections.root.name + REBUILD)
    shutil.rmtree(folder, ignore_errors=True)
    return Projections(folder, context.home.bucket_count, context.policy)


def rebuild(
    context: DerivationContext,
    *,
    now: datetime,
    version: int | None = None,
    moment: datetime | None = None,
    on_step: Callable[[str], None] = lambda _: None,
) -> list[Compared]:
    """Update the tables in force, derive all tables again, and compare both. The rebuilt tables are deleted.

    Raises DerivationError if the log grew meanwhile, because both sides must read the same log.

    Parameters
    ----------
    version, moment : compare as of an earlier version of the log or an earlier event time
    """
    is_earlier = version is not None or moment is not None
    derive_everything(context, now=now)
    seen = (context.log.version, context.log.life_version)
    beside = replace(
        context,
        projections=_beside(context),
        as_of=LogAsOf(context.log, version=version, moment=moment) if is_earlier else None,
    )
    try:
        derive_everything(beside, now=now, on_step=on_step)
        tables = _as_of(context, beside) if is_earlier else {name: context.projections.read(name) for name in TABLES}
        compared = [_compared(n, Digest.of(tables[n]), Digest.of(beside.projections.read(n))) for n in TABLES]
        if not is_earlier:
            compared.append(_compare_bundles(context, beside))
    finally:
        shutil.rmtree(beside.projections.root, ignore_errors=True)
    if (context.log.version, context.log.life_version) != seen:
        raise DerivationError("the log grew while it was rebuilt: run it again, or as of a version (--as-of-version)")
    return compared


def _compared(name: str, current: Digest, rebuilt: Digest) -> Compared:
    return Compared(name, current.rows, current.fingerprint, rebuilt.rows, rebuilt.fingerprint)


def _compare_bundles(context: DerivationContext, beside: DerivationContext) -> Compared:
    """Compare published bundles with the rebuilt candidates of the same golems.

    Bundles that a repair made stale and those of other derivations are left out.
    """
    stale, own = set(stale_bundles(context)), bundles_published_by(context)
    published = {g: h for g, h in published_bundles(context).items() if (g, h) not in stale and h in own}
    rows = beside.projections.growing("candidates").read(["golem_id", "bundle_hash"]).to_pylist()
    rebuilt = {r["golem_id"]: r["bundle_hash"] for r in rows if r["golem_id"] in published}
    return _compared("published bundles", _hashes(published), _hashes(rebuilt))


def _hashes(by_golem: dict[str, str]) -> Digest:
    names = sorted(by_golem)
    hashes = pa.array([by_golem[g] for g in names], pa.string())
    return Digest.of(pa.table({"golem_id": pa.array(names, pa.string()), "hash": hashes}))


def _as_of(context: DerivationContext, beside: DerivationContext) -> dict[str, pa.Table]:
    """Return the tables in force, limited to the cycles and deaths that the rebuilt side knows."""
    closed = closed_through(beside)
    known, dead = set(closed), set(recorded_deaths(beside)["golem_id"].to_pylist())
    out = {name: _cut(context.projections.read(name), closed, known) for name in BY_CYCLE}
    orders = beside.overrides().due({}, closed, context.policy.curator.cycle_ticks)
    out["grimoire"], out["lessons"] = fold(out["curation"]), lessons_of(out["hypotheses"], orders, context.policy)
    both = pa.concat_tables([out["grimoire"], out["lessons"]])
    old = elders(beside, closed)
    out |= {name: derive(both, context.policy, old) for name, derive in GRIMOIRE_VIEWS.items()}
    dead_ids = pa.array(sorted(dead), pa.string())
    is_known = (pc.field("confirmed") != "at_death") | pc.field("golem_id").isin(dead_ids)
    out["failures"] = out["failures"].filter(is_known)
    out["scars"] = scars_of(out["failures"], deaths_with_ticks(beside), context.policy)
    causes = context.projections.read("vote_causes")
    votes = context.projections.read("votes")
    death_vote_ids = votes.filter(votes["is_death_vote"])["vote_id"].combine_chunks()
    is_cast = ~pc.field("vote_id").isin(death_vote_ids) | pc.field("golem_id").isin(dead_ids)
    out["vote_causes"] = _cut(causes.filter(is_cast), closed, known)
    cast = out["vote_causes"]["vote_id"].combine_chunks()
    out["votes"] = votes.filter(pc.is_in(votes["vote_id"], value_set=cast))
    backed = backed_votes(out["votes"], out["vote_causes"], recorded_deaths(beside))
    out["consensus"] = consensus(out["votes"], backed, context.policy.katabasis)
    done = {g for g in dead if (curated_through(beside, g) or 0) >= closed.get(g, 0)}
    for name in ("testaments", "candidates"):
        out[name] = rows_of_golems(context.projections.read(name), done)
    return out | make_libraries(
        beside,
        set(owners_of(beside).values()),
        entries=out["grimoire"],
        playbooks=out["playbooks"],
        decisions_of=lambda golems: rows_of_golems(out["curation"], golems),
        reached=closed,
    )


def _cut(rows: pa.Table, closed: dict[str, int], known: set[str]) -> pa.Table:
    golems = rows["golem_id"].to_pylist()
    limit = np.array([closed.get(g, 0) if g in known else -1 for g in golems], dtype=np.int64)
    return rows.filter(pc.less_equal(rows["cycle"], pa.array(limit)))
