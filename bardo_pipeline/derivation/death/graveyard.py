"""Reports on golems: the graveyard of a home, the state of one golem, and what its heir would inherit. Read-only.

Source: INH S12 (memorial, last words, graveyard).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.configuration import in_force_now
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.death.derive_thanatopsis import PHASE_WORDS, phases_of
from bardo_pipeline.derivation.death.testament_phrasing import phrased_testament
from bardo_pipeline.derivation.death.unfinished_deaths import unfinished_deaths
from bardo_pipeline.derivation.incremental.record_queries import ancestors, predecessors, require_born
from bardo_pipeline.derivation.legacy.bundle_metrics import at_death
from bardo_pipeline.derivation.legacy.bundle_store import load_bundle, published_bundles
from bardo_pipeline.derivation.legacy.death_queries import (
    SHOW_THE_DEAD,
    DeadGolem,
    births_of,
    deaths_of,
    standing_of,
    succession_steps,
)
from bardo_pipeline.errors import QueryError
from bardo_pipeline.events.life.events import Born, Died
from bardo_pipeline.events.life.succession_events import STEPS, Instincts
from bardo_pipeline.grimoire.entries import MOMENT
from bardo_pipeline.grimoire.entry_columns import query_tables
from bardo_pipeline.inheritance.bundle_files import EPISODES
from bardo_pipeline.inheritance.heir_entries import inherited_entries
from bardo_pipeline.inheritance.inheritance_preview import Preview, preview
from bardo_pipeline.inheritance.succession_state import standings
from bardo_pipeline.inheritance.testament import CATEGORIES
from bardo_pipeline.inheritance.weismann import leave_bloodstains
from bardo_pipeline.storage.log.event_log import EventLog

LAST_WORDS = ("ask", "suspected", "untested", "confused", "failed", "worked")
"""Testament categories that last words are taken from, in order of preference."""

RECOMMENDED = ("forget", "ask", "failed", "suspected", "untested")
"""Testament categories with advice for a successor: what to change, to find out and to avoid."""


@dataclass(frozen=True)
class Grave:
    """One row of the graveyard. succession is the state of the succession, None if none began."""

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
    """The state of one golem, now or at its death.

    Vitality, phase, tick and credits come from the death, else from the last record. knows: entry counts by kind and
    status. lineage: golem ids from the founder to this golem. heirs: direct heirs. defaults: inherited defaults in
    words. testament: category -> statements, None until it is derived.
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


def graves(context: DerivationContext, *, lineage: str | None = None) -> list[Grave]:
    """Return the dead golems, latest death first, only those of the lineage of a golem if given.

    Raises QueryError if the golem `lineage` is unknown.
    """
    births, deaths = births_of(context), deaths_of(context)
    if lineage is not None:
        require_born(context, lineage, SHOW_THE_DEAD)
    lineage_id = births[lineage][0].lineage_id if lineage is not None else None
    chosen = [g for g in deaths.keys() & births.keys() if lineage_id in (None, births[g][0].lineage_id)]
    heirs = {birth.predecessor_id: g for g, (birth, _) in sorted(births.items())}
    published, testaments = published_bundles(context), _testaments(context, chosen)
    successions = standings(succession_steps(context, chosen))
    bundles = context.life_fields("BundlePublished", "bundle_hash", "entry_count")
    entry_counts = dict(zip(bundles["bundle_hash"].to_pylist(), bundles["entry_count"].to_pylist(), strict=True))
    rows = [
        Grave(
            golem_id=g,
            owner_id=births[g][0].owner_id,
            generation=births[g][0].generation,
            predecessor_id=births[g][0].predecessor_id,
            heir_id=heirs.get(g),
            succession=successions[g].state if g in successions else None,
            cause=deaths[g][0].cause,
            born_at=births[g][1],
            died_at=deaths[g][1],
            ticks=deaths[g][0].tick,
            lifespan_ticks=births[g][0].lifespan_ticks,
            budget_micros=budget_of(births[g][0]),
            capital_micros=deaths[g][0].capital_micros,
            credits_micros=deaths[g][0].credits_micros,
            earned_micros=deaths[g][0].earned_micros,
            entry_count=entry_counts.get(published.get(g, "")),
            divergence_ppm=None if g not in testaments else testaments[g]["divergence_ppm"],
            bundle_hash=published.get(g),
            last_words=None if g not in testaments else last_words(testaments[g]),
        )
        for g in chosen
    ]
    return sorted(rows, key=lambda grave: (grave.died_at, grave.golem_id), reverse=True)


def budget_of(birth: Born) -> int:
    """Return credits, reserve and capital at birth, in micro-dollars."""
    return birth.credits_micros + birth.reserve_micros + birth.capital_micros


def last_words(testament: Mapping[str, Any]) -> str | None:
    """Return one statement of a testament: open questions before established facts (INH S12, S8)."""
    for category in LAST_WORDS:
        items = testament[category]
        if items and category != "failed":
            return str(items[0]["statement"])
        if len(items) > 1:  # the first statement reports the death
            return str(items[1]["statement"])
    return None


def _testaments(context: DerivationContext, golems: list[str]) -> dict[str, dict[str, Any]]:
    rows = context.projections.growing("testaments").read(golems=golems).to_pylist() if golems else []
    return {row["golem_id"]: row for row in rows}


def golem_report(context: DerivationContext, golem_id: str) -> GolemReport:
    """Return the state of a living or dead golem. Raises QueryError for an unknown one."""
    require_born(context, golem_id, SHOW_THE_DEAD)
    births, deaths = births_of(context), deaths_of(context, [golem_id])
    birth, born_at = births[golem_id]
    died, died_at = deaths.get(golem_id, (None, None))
    head, last = _last_record(context.log, golem_id)
    testament = _testaments(context, [golem_id]).get(golem_id)
    statements = {name: [item["statement"] for item in testament[name]] for name in CATEGORIES} if testament else None
    vitality = died.vitality.model_dump() if died else last["vitality"] if last else None
    steps = [step for _, step in succession_steps(context, [golem_id])]
    steps.sort(key=lambda step: (step.mode, step.attempt, STEPS.index(step.step)))
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
        knows=_entry_counts(context, golem_id),
        playbook_version=_playbook_version(context, golem_id),
        lineage=ancestors(predecessors(context), golem_id),
        heirs=sorted(g for g, (b, _) in births.items() if b.predecessor_id == golem_id),
        bundle_hash=published_bundles(context, [golem_id]).get(golem_id),
        verdict=_verdict(context, golem_id),
        testament=statements,
        divergence_ppm=testament["divergence_ppm"] if testament else None,
        defaults=Instincts.of(context.life("DefaultsInherited")).words(golem_id),
        configuration=in_force_now(context, golem_id).configuration.model_dump(mode="json"),
        succession=[step.model_dump(exclude={"configuration"}) for step in steps],
    )


def golem_document(context: DerivationContext, golem_id: str) -> dict[str, Any]:
    """Return the report of a golem as a document, for JSON.

    It has also its testament `in_words` of a model, titles of the testament's `categories`, the `last_steps` of its
    succession, and the `playbook_diff` because of which that halted. Raises QueryError for an unknown golem.
    """
    report, standing = golem_report(context, golem_id), standing_of(context, golem_id)
    words = None if report.testament is None else phrased_testament(context, golem_id, report.testament)
    halted = None if standing is None else standing.halted
    return {
        **asdict(report),
        "born": report.born.model_dump(),
        "died": None if report.died is None else report.died.model_dump(),
        "in_words": None if words is None else words.facts,
        "categories": CATEGORIES,
        "last_steps": [] if standing is None else [step.model_dump() for step in standing.last.values()],
        "playbook_diff": playbook_diff(context, golem_id) if halted and halted.step == "compared" else [],
    }


def death_document(context: DerivationContext, golem_id: str) -> dict[str, Any]:
    """Return the recorded phases of a death, each with the payload of its event, and what the next one `waits_for`.

    Raises QueryError for a golem without a death, or without a phase of it.
    """
    phases, unfinished = phases_of(context, [golem_id]).get(golem_id), unfinished_deaths(context, [golem_id])
    if phases is None and unfinished:
        raise QueryError(f"golem {golem_id} is dead, and its death is not completed: {unfinished[0].why}")
    if phases is None:
        raise QueryError(f"golem {golem_id} has no death on record: {SHOW_THE_DEAD}")
    listed = [{"phase": PHASE_WORDS[phase.kind], **phase._asdict()} for phase in phases]
    return {"golem_id": golem_id, "phases": listed, "waits_for": unfinished[0].why if unfinished else None}


def _last_record(log: EventLog, golem_id: str) -> tuple[int, dict[str, Any] | None]:
    tick, names = log.head_of(golem_id).contiguous, ["tick", "vitality", "phase", "credits_micros"]
    rows = log.read_stretch(names, [golem_id], tick, tick)
    return tick, rows.to_pylist()[0] if rows.num_rows else None


def _entry_counts(context: DerivationContext, golem_id: str) -> list[dict[str, Any]]:
    """Number of a golem's entries by kind and status."""
    entries = context.projections.replaceable("grimoire").read(only=[golem_id])
    query = "select kind, status, count(*) as entries from entries group by all order by all"
    return query_tables(query, entries=entries.select(["kind", "status"])).to_pylist()


def _playbook_version(context: DerivationContext, golem_id: str) -> int | None:
    rows = context.projections.growing("playbooks").read(["version"], golems=[golem_id])
    return pc.max(rows["version"]).as_py()


def _verdict(context: DerivationContext, golem_id: str) -> dict[str, Any] | None:
    verdicts = context.life("BundleJudged", [golem_id]).sort_by("recorded_at")["judged"].to_pylist()
    return verdicts[-1] if verdicts else None


def inheritance_previews(context: DerivationContext, dead: list[DeadGolem]) -> dict[str, Preview]:
    """Return golem -> what its heir would inherit, for the dead golems with a published bundle."""
    dead = [golem for golem in dead if golem.bundle_hash is not None]
    if not dead:
        return {}
    deaths = pa.table({
        "golem_id": [golem.golem_id for golem in dead], "at": pa.array([golem.died_at for golem in dead], MOMENT),
    })  # fmt: skip
    entries = context.projections.replaceable("grimoire").read(only=[golem.golem_id for golem in dead])
    trusted = at_death(leave_bloodstains(entries, deaths, context.policy), deaths, context.policy)
    previews = {}
    for golem in dead:
        assert golem.bundle_hash is not None, "golems without a bundle are filtered out above"
        bundle = load_bundle(context.home, golem.bundle_hash)
        previews[golem.golem_id] = preview(
            bundle.entries(),
            inherited_entries(bundle, golem.heir_id, context.policy),
            {entry: value for entry, (value, _) in trusted[golem.golem_id].confidence.items()},
            golem_id=golem.golem_id,
            bundle_hash=golem.bundle_hash,
            generation=golem.born.generation + 1,
            died_at=golem.died_at,
            episode_count=len(bundle.rows(EPISODES)),
            policy=context.policy,
        )
    return previews


def recommendations(context: DerivationContext, golem_id: str) -> dict[str, list[str]]:
    """Return category -> advice to the successor from a golem's testament, empty until it is derived."""
    testament = _testaments(context, [golem_id]).get(golem_id)
    return {} if testament is None else {name: [item["statement"] for item in testament[name]] for name in RECOMMENDED}


def playbook_diff(context: DerivationContext, golem_id: str) -> list[str]:
    """Return the unified diff of a golem's first and last playbook, as lines."""
    rows = context.projections.growing("playbooks").read(["version", "markdown"], golems=[golem_id]).sort_by("version")
    if not rows.num_rows:
        return []
    first, last = rows["markdown"][0].as_py(), rows["markdown"][-1].as_py()
    return list(difflib.unified_diff(first.splitlines(), last.splitlines(), "at birth", "at death", lineterm="", n=1))
