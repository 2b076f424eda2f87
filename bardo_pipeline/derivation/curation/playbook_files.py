"""The PLAYBOOK.md file of each golem. Source: MEM-8."""

from __future__ import annotations

import pyarrow as pa

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.record_queries import values_by_golem

_MARK = ".derivation"
"""File that names the derivation whose playbooks are written."""


def write_playbooks(context: DerivationContext, versions: pa.Table) -> None:
    """Write each golem's newest playbook among these rows as a file, if this derivation is in force."""
    if not context.is_in_force:
        return
    ordered = versions.sort_by([("golem_id", "ascending"), ("version", "ascending")])
    for golem_id, markdown in values_by_golem(ordered, "markdown").items():
        page = context.home.playbook(golem_id)
        page.parent.mkdir(parents=True, exist_ok=True)
        draft = page.with_name(".PLAYBOOK.md")
        draft.write_text(markdown)
        draft.replace(page)


def follow_adoption(context: DerivationContext) -> None:
    """Write all playbooks again if another derivation was adopted since they were written.

    The mark is written last, so an interrupted run is repeated.
    """
    if not context.life("DerivationAdopted").num_rows or not context.is_in_force:
        return
    mark = context.home.playbooks / _MARK
    if mark.exists() and mark.read_text() == context.derivation_id:
        return
    write_playbooks(context, context.projections.growing("playbooks").read())
    draft = mark.with_name(f"{_MARK}.draft")
    draft.write_text(context.derivation_id)
    draft.replace(mark)
