"""Prints bundles, and their failed expectations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape

from bardo_pipeline.cli.output.golem_state import show_words
from bardo_pipeline.cli.output.tables import out, print_nonempty, print_table, say

_LISTED = ("bundle", "golem", "generation", "entries", "signed_by", "remark")
_CONTENT = ("bundle", "golem", "generation", "lineage", "died_at", "made_by", "signed_by", "entries", "anti_knowledge",
            "bloodstains", "episodes", "links", "procedures")  # fmt: skip
_BARS = 10


def show_bundle(facts: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
    """Print the content of a bundle (`bundle_document`), or a list of bundles (`bundle_rows`)."""
    if not isinstance(facts, Mapping):
        print_table(None, _LISTED, [tuple(row[name] for name in _LISTED) for row in facts])
        return
    for name in _CONTENT:
        out.print(f"{name:18} {escape(str(facts[name]))}")
    print_table("Entries", ["domain", "entries"], sorted(facts["domains"].items()))
    counts = {int(band): count for band, count in facts["confidence"].items()}
    print_table("Confidence at death", ["from", "entries", ""], _histogram(counts))
    say(facts["testament"])
    show_words(facts["in_words"])


def show_checks(failures: Sequence[Mapping[str, Any]]) -> None:
    """Print failed expectations of bundles (rows of `bundle_failures`)."""
    rows = [
        (f["golem_id"], f["bundle_hash"][:16], f["expectation"], f["severity"], f["observed"], _state(f))
        for f in failures
    ]
    print_nonempty(None, ["golem", "bundle", "expectation", "severity", "observed", ""], rows)
    open_count = sum(failure["why"] is None for failure in failures)
    out.print(f"{len(failures)} failed, {len(failures) - open_count} waived, {open_count} open")


def _state(failure: Mapping[str, Any]) -> str:
    if failure["why"] is not None:
        return f"waived: {failure['why']}"
    return "refused" if failure["severity"] == "critical" else "open"


def _histogram(counts: Mapping[int, int]) -> list[tuple[str, int, str]]:
    most = max(counts.values(), default=1)
    return [(f"{at / _BARS:.1f}", counts.get(at, 0), "█" * round(30 * counts.get(at, 0) / most)) for at in range(_BARS)]
