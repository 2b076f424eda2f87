"""The graveyard: every dead golem of a home, and how one golem is, or was when it died. Reads, never derives.

Source: INH S12 (memorial, last words, graveyard).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.configuration import in_force_now
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.death.death_queries import (
    DeadGolem,
    births_of,
    deaths_of,
    succession_steps,
)
from bardo_pipeline.derivation.legacy.bundle_metrics import at_death
from bardo_pipeline.derivation.legacy.bundle_store import load_bundle
from bardo_pipeline.derivation.legacy.published_bundles import published_bundles
from bardo_pipeline.errors import QueryError
from bardo_pipeline.events.life.events import Born, Died
from bardo_pipeline.events.life.inherited_defaults import Instincts
from bardo_pipeline.grimoire.entries import MOMENT
from bardo_pipeline.grimoire.entry_columns import query_tables
from bardo_pipeline.inheritance.bundle_files import EPISODES
from bardo_pipeline.inheritance.heir_entries import inherited_entries
from bardo_pipeline.inheritance.inheritance_preview import Preview, preview
from bardo_pipeline.inheritance.succession_state import Standing, standings
from bardo_pipeline.inheritance.testament import CATEGORIES
from bardo_pipeline.inheritance.weismann import leave_bloodstains

LAST_WORDS = ("ask", "suspected", "untested", "confused", "failed", "worked")
"""Where a golem's last words are taken from: the first of these of which its testament says anything."""

RECOMMENDED = ("forget", "ask", "failed", "suspected", "untested")
"""Categories of a testament that tell a successor what to change, to find out and to beware of."""


@dataclass(frozen=True)
class Grave:
    """A dead golem: whose it was, how it lived and died, what it left, what it said last, and who followed.

    succession: how that stands, None where none began.
    """

    golem_id: str
    owner_id: str
    generation: int
    predecessor_id: str | None
    heir_id: str | None
    succession: str | None
    cause: str
    born_at: datetime
    died_at: datetime
    ticks: int
    lifespan_ticks: int
    budget_micros: int
    capital_micros: int
    credits_micros: int
    earned_micros: int
    entry_count: int | None
    divergence_ppm: int | None
    bundle_hash: str | None
    last_words: str | None


@dataclass(frozen=True)
class GolemReport:
    """A golem as it is, or was when it died.

    vitality, phase, tick, credits: of its last record, or of its death. knows: entries by kind and status. lineage:
    who came before, the founder first, and the golem itself last. heirs: who inherited from it. defaults: what
    its line made it start from. testament: category to
    statements, None for the living and where it is not derived yet.
    """

    golem_id: str
    born: Born
    born_at: datetime
    died: Died | None
    died_at: datetime | None
    tick: int
    phase: str | None
    vitality: Mapping[str, float] | None
    credits_micros: int
    capital_micros: int | None
    knows: list[dict[str, Any]]
    playbook_version: int | None
    lineage: list[str]
    heirs: list[str]
    bundle_hash: str | None
    verdict: Mapping[str, Any] | None
    testament: Mapping[str, list[str]] | None
    divergence_ppm: int | None
    defaults: tuple[str, ...]
    configuration: Mapping[str, Any]
    succession: list[dict[str, Any]]


def graves(context: DerivationContext, *, owner: str | None = None, lineage: str | None = None) -> list[Grave]:
    """Every dead golem, the latest death first. owner: only of this one. lineage: only who is of this golem's line.

    Raises QueryError for a golem that nobody knows.
    """
    births, deaths = births_of(context), deaths_of(context)
    if lineage is not None and lineage not in births:
        raise QueryError(f"golem {lineage}: no golem of this name was born: `bardo graveyard` lists the dead")
    of_line = births[lineage][0].lineage_id if lineage is not None else None
    chosen = [
        g
        for g in deaths.keys() & births.keys()
        if owner in (None, births[g][0].owner_id) and of_line in (None, births[g][0].lineage_id)
    ]
    heirs = {birth.predecessor_id: g for g, (birth, _) in sorted(births.items())}
    published, told = published_bundles(context), _testaments(context, chosen)
    stands = standings(succession_steps(context, chosen))
    left = {e["bundle_hash"]: e["entry_count"] for e in context.life("BundlePublished")["published"].to_pylist()}
    rows = [
        Grave(
            golem_id=g,
            owner_id=births[g][0].owner_id,
            generation=births[g][0].generation,
            predecessor_id=births[g][0].predecessor_id,
            heir_id=heirs.get(g),
            succession=stands[g].state if g in stands else None,
            cause=deaths[g][0].cause,
            born_at=births[g][1],
            died_at=deaths[g][1],
            ticks=deaths[g][0].tick,
            lifespan_ticks=births[g][0].lifespan_ticks,
            budget_micros=budget_of(births[g][0]),
            capital_micros=deaths[g][0].capital_micros,
            credits_micros=deaths[g][0].credits_micros,
            earned_micros=deaths[g][0].earned_micros,
            entry_count=left.get(published.get(g, "")),
            divergence_ppm=None if g not in told else told[g]["divergence_ppm"],
            bundle_hash=published.get(g),
            last_words=None if g not in told else last_words(told[g]),
        )
        for g in chosen
    ]
    return sorted(rows, key=lambda grave: (grave.died_at, grave.golem_id), reverse=True)


def budget_of(birth: Born) -> int:
    """All that a golem was founded with, in micro-dollars."""
    return birth.credits_micros + birth.reserve_micros + birth.capital_micros


def last_words(testament: Mapping[str, Any]) -> str | None:
    """One sentence of a testament: what it left open before what it was sure of (INH S12, S8)."""
    for category in LAST_WORDS:
        items = testament[category]
        if items and category != "failed":
            return str(items[0]["statement"])
        if len(items) > 1:  # the first is how it died
            return str(items[1]["statement"])
    return None


def _testaments(context: DerivationContext, golems: list[str]) -> dict[str, dict[str, Any]]:
    rows = context.projections.growing("testaments").read(golems=golems).to_pylist() if golems else []
    return {row["golem_id"]: row for row in rows}


def golem_report(context: DerivationContext, golem_id: str) -> GolemReport:
    """One golem, living or dead. Raises QueryError for one that nobody knows."""
    births, deaths = births_of(context), deaths_of(context, [golem_id])
    if golem_id not in births:
        raise QueryError(f"golem {golem_id}: no golem of this name was born: `bardo graveyard` lists the dead")
    birth, born_at = births[golem_id]
    died, died_at = deaths.get(golem_id, (None, None))
    head, last = _last_record(context, golem_id)
    told = _testaments(context, [golem_id]).get(golem_id)
    said = {name: [item["statement"] for item in told[name]] for name in CATEGORIES} if told else None
    vitality = died.vitality.model_dump() if died else last["vitality"] if last else None
    mine = [one for _, one in succession_steps(context, [golem_id])]
    return GolemReport(
        golem_id=golem_id,
        born=birth,
        born_at=born_at,
        died=died,
        died_at=died_at,
        tick=died.tick if died else head,
        phase=died.phase if died else last["phase"] if last else None,
        vitality=vitality,
        credits_micros=died.credits_micros if died else last["credits_micros"] if last else birth.credits_micros,
        capital_micros=died.capital_micros if died else None,
        knows=_known(context, golem_id),
        playbook_version=_playbook_version(context, golem_id),
        lineage=_line(births, golem_id),
        heirs=sorted(g for g, (b, _) in births.items() if b.predecessor_id == golem_id),
        bundle_hash=published_bundles(context, [golem_id]).get(golem_id),
        verdict=_verdict(context, golem_id),
        testament=said,
        divergence_ppm=told["divergence_ppm"] if told else None,
        defaults=Instincts.of(context.life("DefaultsInherited")).words(golem_id),
        configuration=in_force_now(context, golem_id).configuration.model_dump(mode="json"),
        succession=[one.model_dump(exclude={"configuration"}) for one in mine],
    )


def _last_record(context: DerivationContext, golem_id: str) -> tuple[int, dict[str, Any] | None]:
    heads = context.log.heads()
    found = heads.filter(pc.equal(heads["golem_id"], golem_id))["contiguous"].to_pylist()
    if not found or not found[0]:
        return 0, None
    rows = context.log.read_stretch(["tick", "vitality", "phase", "credits_micros"], [golem_id], found[0], found[0])
    return found[0], rows.to_pylist()[0] if rows.num_rows else None


def _known(context: DerivationContext, golem_id: str) -> list[dict[str, Any]]:
    """Entries of a golem by kind and status."""
    entries = context.projections.renewed("grimoire").read(only=[golem_id])
    query = "select kind, status, count(*) as entries from entries group by all order by all"
    return query_tables(query, entries=entries.select(["kind", "status"])).to_pylist()


def _playbook_version(context: DerivationContext, golem_id: str) -> int | None:
    rows = context.projections.growing("playbooks").read(["version"], golems=[golem_id])
    found: int | None = pc.max(rows["version"]).as_py()
    return found


def _line(births: Mapping[str, tuple[Born, datetime]], golem_id: str) -> list[str]:
    line: list[str] = []
    at: str | None = golem_id
    while at is not None and at in births and at not in line:
        line.append(at)
        at = births[at][0].predecessor_id
    return line[::-1]


def _verdict(context: DerivationContext, golem_id: str) -> dict[str, Any] | None:
    rows = context.life("BundleJudged")
    told = rows.filter(pc.equal(rows["golem_id"], golem_id)).sort_by("recorded_at")["judged"].to_pylist()
    return told[-1] if told else None


def standing_of(context: DerivationContext, golem_id: str) -> Standing | None:
    """How a dead golem's succession stands; None where none began."""
    return standings(succession_steps(context, [golem_id])).get(golem_id)


def inheritance_previews(context: DerivationContext, dead: list[DeadGolem]) -> dict[str, Preview]:
    """What the heirs of these dead would inherit, for those whose bundle was published; read together."""
    dead = [one for one in dead if one.bundle_hash is not None]
    if not dead:
        return {}
    deaths = pa.table({
        "golem_id": [one.golem_id for one in dead], "at": pa.array([one.died_at for one in dead], MOMENT),
    })  # fmt: skip
    entries = context.projections.renewed("grimoire").read(only=[one.golem_id for one in dead])
    trusted = at_death(leave_bloodstains(entries, deaths, context.policy), deaths, context.policy)
    found = {}
    for one in dead:
        assert one.bundle_hash is not None, "the others are left out"
        bundle = load_bundle(context.home, one.bundle_hash)
        found[one.golem_id] = preview(
            bundle.entries(),
            inherited_entries(bundle, one.heir_id, context.policy),
            {entry: value for entry, (value, _) in trusted[one.golem_id].confidence.items()},
            golem_id=one.golem_id,
            bundle_hash=one.bundle_hash,
            generation=one.born.generation + 1,
            died_at=one.died_at,
            episode_count=len(bundle.rows(EPISODES)),
            policy=context.policy,
        )
    return found


def recommendations(context: DerivationContext, golem_id: str) -> dict[str, list[str]]:
    """What a dead golem's testament tells its successor, by category; empty where it is not derived yet."""
    told = _testaments(context, [golem_id]).get(golem_id)
    return {} if told is None else {name: [item["statement"] for item in told[name]] for name in RECOMMENDED}


def playbook_diff(context: DerivationContext, golem_id: str) -> list[str]:
    """What changed in a golem's playbook from its birth to its end, as lines of a unified diff."""
    rows = context.projections.growing("playbooks").read(["version", "markdown"], golems=[golem_id]).sort_by("version")
    if not rows.num_rows:
        return []
    first, last = rows["markdown"][0].as_py(), rows["markdown"][-1].as_py()
    return list(difflib.unified_diff(first.splitlines(), last.splitlines(), "at birth", "at death", lineterm="", n=1))
