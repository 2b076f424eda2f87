"""Pages: PLAYBOOK.md of each golem as a file, for whoever reads files. Source: MEM-8."""

from __future__ import annotations

import pyarrow as pa

from bardo_pipeline.derivation.context import DerivationContext


def write_playbooks(context: DerivationContext, versions: pa.Table) -> None:
    """The newest PLAYBOOK.md of each golem as a file, for whoever reads files; what is not in force leaves it alone."""
    if not context.is_in_force:
        return
    ordered = versions.sort_by([("golem_id", "ascending"), ("version", "ascending")])
    newest = dict(zip(ordered["golem_id"].to_pylist(), ordered["markdown"].to_pylist(), strict=True))
    for golem_id, markdown in newest.items():
        page = context.home.playbook(golem_id)
        page.parent.mkdir(parents=True, exist_ok=True)
        draft = page.with_name(".PLAYBOOK.md")
        draft.write_text(markdown)
        draft.replace(page)


_PLAYBOOKS_OF = ".derivation"


def follow_adoption(context: DerivationContext) -> None:
    """Write every PLAYBOOK.md again where another derivation was adopted since they were written.

    Whose they are is kept last, so that whoever was cut off is followed by one who does it whole.
    """
    if not context.life("DerivationAdopted").num_rows or not context.is_in_force:
        return
    mark = context.home.playbooks / _PLAYBOOKS_OF
    if mark.exists() and mark.read_text() == context.derivation_id:
        return
    write_playbooks(context, context.projections.growing("playbooks").read())
    draft = mark.with_name(f"{_PLAYBOOKS_OF}.draft")
    draft.write_text(context.derivation_id)
    draft.replace(mark)
