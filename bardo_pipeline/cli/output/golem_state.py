"""Prints the state of a golem and its testament from a document, equal for a local one and for that of a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.panel import Panel

from bardo_pipeline.cli.output.tables import as_moment, out, print_nonempty, say

_SHOWN_ITEMS = 4


def show_golem_report(golem: Mapping[str, Any], *, testament: bool) -> None:
    """Print the document of `golem_document`; if `testament`, with all statements of the testament."""
    _show_life(golem)
    rows = [(row["kind"], row["status"], row["entries"]) for row in golem["knows"]]
    print_nonempty("What it knows", ["kind", "status", "entries"], rows)
    if golem["testament"] is not None:
        sections = ((golem["categories"][name], items) for name, items in golem["testament"].items() if items)
        parts = [_section(title, items, testament) for title, items in sections]
        out.print(Panel("\n".join(parts), title=escape(f"Testament of {golem['golem_id']}")))
    show_words(golem["in_words"])
    steps = [(step["step"], step["outcome"], step["attempt"], step["why"]) for step in golem["last_steps"]]
    print_nonempty("Succession", ["step", "outcome", "attempt", "why"], steps)
    for line in golem["playbook_diff"]:
        say(line)


def _show_life(golem: Mapping[str, Any]) -> None:
    birth, died = golem["born"], golem["died"]
    lines = [
        f"[bold]{escape(golem['golem_id'])}[/] of {escape(birth['owner_id'])}, "
        f"generation {birth['generation']}, {escape(birth['market'])}",
        f"born {as_moment(golem['born_at']):%Y-%m-%d %H:%M}, " + (
            f"died {as_moment(golem['died_at']):%Y-%m-%d %H:%M} at tick {golem['tick']:,} ({died['cause']})"
            if died is not None
            else f"lives, at tick {golem['tick']:,} of {birth['lifespan_ticks']:,}"
        ),
    ]  # fmt: skip
    if golem["vitality"] is not None:
        parts = ", ".join(f"{name} {value:.0%}" for name, value in golem["vitality"].items())
        lines.append(f"phase {golem['phase']}; vitality: {parts}")
    lines.append(f"credits ${golem['credits_micros'] / 1e6:,.2f}" + _money(golem))
    if golem["divergence_ppm"] is not None:
        lines.append(f"divergence from its inheritance: {golem['divergence_ppm'] / 1e6:.0%}")
    lines += [f"default of its line: re-centres {line}" for line in golem["defaults"]]
    lines.append(escape(f"line: {' > '.join(golem['lineage'])}; heirs: {', '.join(golem['heirs']) or 'none'}"))
    if died is not None:
        lines.append(f"bundle: {golem['bundle_hash'] or 'none was published'}" + _verdict(golem["verdict"]))
    for line in lines:
        out.print(line, soft_wrap=True)


def _money(golem: Mapping[str, Any]) -> str:
    if golem["died"] is None or golem["capital_micros"] is None:
        return ""
    return f", capital ${golem['capital_micros'] / 1e6:,.2f}, earned ${golem['died']['earned_micros'] / 1e6:+,.2f}"


def _verdict(verdict: Mapping[str, Any] | None) -> str:
    if verdict is None:
        return "; not judged yet"
    failed = "; ".join(f"{f['expectation']} ({f['severity']}: {f['observed']})" for f in verdict["failed"])
    return f"; failed: {escape(failed)}" if failed else ""


def _section(title: str, statements: Sequence[str], whole: bool) -> str:
    shown = statements if whole else statements[:_SHOWN_ITEMS]
    more = f"\n  ({len(statements) - len(shown)} more: --testament)" if len(shown) < len(statements) else ""
    return f"[bold]{title}[/]\n" + "\n".join(f"- {escape(statement)}" for statement in shown) + more


def show_words(words: Mapping[str, Any] | None) -> None:
    """Print a testament in the model's words, and the number of refused wordings; nothing if no model phrased it."""
    if words is None:
        return
    refused = len(words["refused"])
    more = f"\n({refused} wordings claimed something else; the derived sentences are kept)" if refused else ""
    out.print(Panel(escape(words["page"].strip() + more), title=escape(f"In the words of {words['by']}")))
