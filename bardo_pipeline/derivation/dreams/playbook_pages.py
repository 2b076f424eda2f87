"""PLAYBOOK.md files: the newest playbook of each golem, followed by the revisions that the lessons of its dreams stage.

Curation writes a page when a playbook changes, and dreams write it when a golem's lessons change. The table of
playbooks does not hold the lessons. Source: KAT (Loop 3), MEM-8; docs/adr/0089.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.record_queries import values_by_golem
from bardo_pipeline.dreams.lessons import revision_of

HEADING = "## Staged: lessons of its dreams"

_MARK = ".lessons"
"""File that exists once pages state lessons; a home of an earlier version does not have it."""


def lesson_sections(lessons: pa.Table) -> dict[str, str]:
    """Return the page section of each golem with an active lesson about the threshold of re-centring.

    lessons: ENTRY_SCHEMA. The confidence is as of `anchor_at`, so that a section changes with its lessons only.
    """
    lines: dict[str, list[str]] = {}
    for row in lessons.filter(pc.equal(lessons["status"], "active")).to_pylist():
        if revision := revision_of(row | {"change": row["cause"], "state": "confirmed"}, row["confidence_ppm"]):
            lines.setdefault(row["golem_id"], []).append(f"- {revision}: {_figures(row)}")
    return {golem_id: "\n".join(["", HEADING, "", *sorted(of_golem), ""]) for golem_id, of_golem in lines.items()}


def _figures(row: Mapping[str, Any]) -> str:
    mean, low, high = (row[f"effect_{name}_ppm"] for name in ("mean", "low", "high"))
    return f"mean effect {mean:+,} ppm, interval {low:+,} to {high:+,} ppm, n={row['evidence_count']:,}"


def pages_of(versions: pa.Table, lessons: pa.Table) -> Iterator[tuple[str, str]]:
    """Yield each golem with the page of its newest playbook among these rows (PLAYBOOK_SCHEMA)."""
    ordered = versions.sort_by([("golem_id", "ascending"), ("version", "ascending")])
    sections = lesson_sections(lessons)
    for golem_id, markdown in values_by_golem(ordered, "markdown").items():
        yield golem_id, markdown + sections.get(golem_id, "")


def write_playbooks(context: DerivationContext, versions: pa.Table, lessons: pa.Table | None = None) -> None:
    """Write each golem's newest playbook among these rows as a file, if this derivation is in force.

    lessons: the golems' lessons (ENTRY_SCHEMA); None for those on record.
    """
    if not versions.num_rows or not context.is_in_force:
        return
    if lessons is None:
        lessons = context.projections.replaceable("lessons").read(only=versions["golem_id"].to_pylist())
    for golem_id, text in pages_of(versions, lessons):
        page = context.home.playbook(golem_id)
        page.parent.mkdir(parents=True, exist_ok=True)
        draft = page.with_name(".PLAYBOOK.md")
        draft.write_text(text)
        draft.replace(page)


def write_changed_sections(context: DerivationContext, golem_ids: Iterable[str], lessons: pa.Table) -> None:
    """Write the pages of those golems whose section is not that of these lessons (ENTRY_SCHEMA).

    The caller replaces the lessons on record afterwards, so an interrupted run is repeated from the same hypotheses.
    """
    if not context.is_in_force:
        return
    sections = lesson_sections(lessons)
    if changed := [g for g in sorted(golem_ids) if _written_section(context.home.playbook(g)) != sections.get(g, "")]:
        write_playbooks(context, context.projections.growing("playbooks").read(golems=changed), lessons)


def _written_section(page: Path) -> str:
    _, heading, lines = (page.read_text() if page.exists() else "").partition(f"\n{HEADING}\n")
    return heading + lines


def add_missing_sections(context: DerivationContext) -> None:
    """Write the pages of all golems with lessons, if the home's pages are of a version that did not list lessons.

    The mark is written last, so an interrupted run is repeated.
    """
    mark = context.home.playbooks / _MARK
    if mark.exists() or not context.is_in_force:
        return
    with context.deriving():
        lessons = context.projections.replaceable("lessons").read()
        write_changed_sections(context, set(lessons["golem_id"].to_pylist()), lessons)
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
