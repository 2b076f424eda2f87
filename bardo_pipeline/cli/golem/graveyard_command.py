"""`bardo graveyard` lists dead golems; `bardo golem show` shows one golem."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel

from bardo_pipeline.cli.golem.phrase_command import show_words
from bardo_pipeline.cli.options import EmbedderOption, HomeOption, JsonOption, root_of
from bardo_pipeline.cli.output.tables import print_json, print_table
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.death.graveyard import GolemReport, golem_report, graves, playbook_diff, standing_of
from bardo_pipeline.derivation.death.testament_phrasing import phrased_testament
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.inheritance.testament import CATEGORIES

out = Console(soft_wrap=False, highlight=False)

_SHOWN_ITEMS = 4


def graveyard(
    home: HomeOption = None,
    owner: Annotated[str | None, typer.Option(help="Only golems of this owner.")] = None,
    lineage: Annotated[str | None, typer.Option(help="Only golems in this golem's line of descent.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of deaths, latest first.")] = 20,
    json: JsonOption = False,
    embedder: EmbedderOption = None,
) -> None:
    """List dead golems: cause of death, earnings, entries left, bundle, heir, last words."""
    dead_golems = graves(DerivationContext.open(root_of(home), embedder=embedder), owner=owner, lineage=lineage)
    if json:
        print_json([asdict(grave) for grave in dead_golems])
        return
    if not dead_golems:
        out.print("no golem has died yet")
        return
    rows = [
        (g.golem_id, g.generation, g.owner_id, f"{g.died_at:%m-%d %H:%M}", g.cause, g.ticks,
         f"{g.earned_micros / 1e6:+,.2f}", g.entry_count, (g.bundle_hash or "none")[:12],
         g.heir_id or g.succession or "-")
        for g in dead_golems[:limit]
    ]  # fmt: skip
    names = ["golem", "gen", "owner", "died", "cause", "ticks", "earned $", "left", "bundle", "heir"]
    print_table(out, None, names, rows)
    for grave in dead_golems[:limit]:
        if grave.last_words:
            out.print(f"{grave.golem_id}: “{escape(grave.last_words)}”", soft_wrap=True)
    out.print(
        f"{len(dead_golems)} dead; `bardo golem show GOLEM` opens a testament, `bardo golem successor GOLEM` summons "
        "an heir, `bardo golem found --like GOLEM` starts fresh",
        soft_wrap=True,
    )


def show_golem(
    golem: Annotated[str, typer.Argument(help="Living or dead golem.")],
    home: HomeOption = None,
    testament: Annotated[bool, typer.Option("--testament", help="Show the whole testament.")] = False,
    json: JsonOption = False,
    embedder: EmbedderOption = None,
) -> None:
    """Show one golem: vitality, phase, knowledge, line of descent, and its testament if it is dead."""
    stores = DerivationContext.open(root_of(home), embedder=embedder)
    report = golem_report(stores, golem)
    words = None if report.testament is None else phrased_testament(stores, golem, report.testament)
    if json:
        born = report.born.model_dump()
        died = None if report.died is None else report.died.model_dump()
        facts = {**{k: v for k, v in vars(report).items() if k not in ("born", "died")}, "born": born, "died": died}
        print_json(facts | {"in_words": None if words is None else words.facts})
        return
    _show_life(report)
    if report.knows:
        rows = [(row["kind"], row["status"], row["entries"]) for row in report.knows]
        print_table(out, "What it knows", ["kind", "status", "entries"], rows)
    if report.testament is not None:
        parts = [_category(name, report.testament[name], testament) for name in CATEGORIES if report.testament[name]]
        out.print(Panel("\n".join(parts), title=f"Testament of {golem}"))
    if words is not None:
        show_words(words)
    standing = standing_of(stores, golem)
    if standing is not None:
        steps = [(step.step, step.outcome, step.attempt, step.why) for step in standing.last.values()]
        print_table(out, "Succession", ["step", "outcome", "attempt", "why"], steps)
        if standing.halted is not None and standing.halted.step == "compared":
            for line in playbook_diff(stores, golem):
                out.print(escape(line), soft_wrap=True)


def _show_life(report: GolemReport) -> None:
    birth = report.born
    lines = [
        f"[bold]{report.golem_id}[/] of {escape(birth.owner_id)}, "
        f"generation {birth.generation}, {escape(birth.market)}",
        f"born {report.born_at:%Y-%m-%d %H:%M}, " + (
            f"died {report.died_at:%Y-%m-%d %H:%M} at tick {report.tick:,} ({report.died.cause})"
            if report.died is not None and report.died_at is not None
            else f"lives, at tick {report.tick:,} of {birth.lifespan_ticks:,}"
        ),
    ]  # fmt: skip
    if report.vitality is not None:
        parts = ", ".join(f"{name} {value:.0%}" for name, value in report.vitality.items())
        lines.append(f"phase {report.phase}; vitality: {parts}")
    lines.append(f"credits ${report.credits_micros / 1e6:,.2f}" + _money(report))
    if report.divergence_ppm is not None:
        lines.append(f"divergence from what it was given: {report.divergence_ppm / PPM:.0%}")
    lines += [f"default of its line: re-centres {line}" for line in report.defaults]
    lines.append(f"line: {' > '.join(report.lineage)}; heirs: {', '.join(report.heirs) or 'none'}")
    if report.died is not None:
        lines.append(f"bundle: {report.bundle_hash or 'none was published'}" + _verdict(report))
    for line in lines:
        out.print(line, soft_wrap=True)


def _money(report: GolemReport) -> str:
    if report.died is None or report.capital_micros is None:
        return ""
    return f", capital ${report.capital_micros / 1e6:,.2f}, earned ${report.died.earned_micros / 1e6:+,.2f}"


def _verdict(report: GolemReport) -> str:
    if report.verdict is None:
        return "; not judged yet"
    failed = "; ".join(f"{f['expectation']} ({f['severity']}: {f['observed']})" for f in report.verdict["failed"])
    return f"; failed: {escape(failed)}" if failed else ""


def _category(name: str, statements: list[str], whole: bool) -> str:
    shown = statements if whole else statements[:_SHOWN_ITEMS]
    more = f"\n  ({len(statements) - len(shown)} more: --testament)" if len(shown) < len(statements) else ""
    return f"[bold]{CATEGORIES[name]}[/]\n" + "\n".join(f"- {escape(statement)}" for statement in shown) + more
