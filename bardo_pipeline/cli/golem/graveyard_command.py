"""`bardo graveyard`, `bardo golem show | phrase`: dead golems, one golem, and testaments in a model's words."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape
from rich.panel import Panel

from bardo_pipeline.cli.options import EmbedderOption, HomeOption, JsonOption, now, open_context
from bardo_pipeline.cli.output.tables import out, print_json, print_nonempty, print_table, say
from bardo_pipeline.derivation.death.graveyard import GolemReport, golem_report, graves, playbook_diff, standing_of
from bardo_pipeline.derivation.death.testament_phrasing import (
    PhrasedTestament,
    PhrasingResult,
    phrase_all_testaments,
    phrase_testament,
    phrased_testament,
    phrasing_requests,
)
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.gateway.model_settings import ModelSettings
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.inheritance.testament import CATEGORIES

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
    dead_golems = graves(open_context(home, embedder), owner=owner, lineage=lineage)
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
    print_table(None, names, rows)
    for grave in dead_golems[:limit]:
        if grave.last_words:
            say(f"{grave.golem_id}: “{grave.last_words}”")
    say(
        f"{len(dead_golems)} dead; `bardo golem show GOLEM` opens a testament, `bardo golem successor GOLEM` summons "
        "an heir, `bardo golem found --like GOLEM` starts fresh"
    )


def show_golem(
    golem: Annotated[str, typer.Argument(help="Living or dead golem.")],
    home: HomeOption = None,
    testament: Annotated[bool, typer.Option("--testament", help="Show the whole testament.")] = False,
    json: JsonOption = False,
    embedder: EmbedderOption = None,
) -> None:
    """Show one golem: vitality, phase, knowledge, line of descent, and its testament if it is dead."""
    stores = open_context(home, embedder)
    report = golem_report(stores, golem)
    words = None if report.testament is None else phrased_testament(stores, golem, report.testament)
    if json:
        born = report.born.model_dump()
        died = None if report.died is None else report.died.model_dump()
        facts = {**{k: v for k, v in vars(report).items() if k not in ("born", "died")}, "born": born, "died": died}
        print_json(facts | {"in_words": None if words is None else words.facts})
        return
    _show_life(report)
    rows = [(row["kind"], row["status"], row["entries"]) for row in report.knows]
    print_nonempty("What it knows", ["kind", "status", "entries"], rows)
    if report.testament is not None:
        parts = [_category(name, report.testament[name], testament) for name in CATEGORIES if report.testament[name]]
        out.print(Panel("\n".join(parts), title=f"Testament of {golem}"))
    show_words(words)
    standing = standing_of(stores, golem)
    if standing is not None:
        steps = [(step.step, step.outcome, step.attempt, step.why) for step in standing.last.values()]
        print_table("Succession", ["step", "outcome", "attempt", "why"], steps)
        if standing.halted is not None and standing.halted.step == "compared":
            for line in playbook_diff(stores, golem):
                say(line)


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


def phrase_testaments(
    golem: Annotated[str | None, typer.Argument(help="Dead golem whose testament to rephrase.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every testament, until the day's cost cap is reached.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Retry testaments without an answer.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the prompts; send nothing.")] = False,
    home: HomeOption = None,
    embedder: EmbedderOption = None,
) -> None:
    """Have a language model (BARDO_MODEL=PROVIDER:MODEL) rephrase testaments, and record its answers.

    A wording that claims something else than the derived sentence is refused, and the derived sentence is kept.
    Testament and bundle stay unchanged. Each testament is sent once; a rebuild sends nothing. Exit 1 if a request
    failed: the model declined, or the cost cap was reached.
    """
    if (golem is None) != every:
        raise ConfigError("name one golem, or give --all")
    stores = open_context(home, embedder)
    if dry_run:
        for golem_id, (_, _, prompt) in phrasing_requests(stores, None if golem is None else [golem]).items():
            typer.echo(f"# golem {golem_id}, prompt {prompt.hash}\n{prompt.instructions}\n{prompt.question}")
        return
    settings = ModelSettings.wanted(os.environ)
    with out.status(f"asking {settings.provider}:{settings.model}"):
        if golem is None:
            results = phrase_all_testaments(stores, settings, clock=now, again=again)
        else:
            results = [phrase_testament(stores, golem, settings, clock=now, again=again)]
    if not results:
        out.print("nothing to send: every testament was sent before")
        return
    _show_phrasings(results)
    failed = [error for result in results if (error := result.error)]
    if failed and golem is not None:
        raise failed[0]
    if failed:
        raise typer.Exit(1)


def _show_phrasings(results: list[PhrasingResult]) -> None:
    names = ["golem", "what came", "phrased", "refused", "tokens", "cost"]
    print_table("Asked", names, [_row(result) for result in results])
    for result in results:
        rows = [(w.statement, w.wording, w.fault) for w in result.phrased.wordings if w.fault]
        print_nonempty(f"Refused for {result.golem_id}", ["sentence", "wording", "because"], rows)


def _row(result: PhrasingResult) -> tuple[object, ...]:
    phrased = result.phrased
    outcome = phrased.outcome.replace("_", " ") + (", on record already" if result.known else "")
    refused = sum(wording.fault is not None for wording in phrased.wordings)
    tokens = f"{phrased.input_tokens} + {phrased.output_tokens}"
    cost = f"${phrased.cost_micros / 1e6:.6f}"
    return result.golem_id, outcome, len(phrased.wordings) - refused, refused, tokens, cost


def show_words(words: PhrasedTestament | None) -> None:
    """Print a testament in the model's words, and the number of refused wordings; nothing if no model phrased it."""
    if words is None:
        return
    more = f"\n({len(words.refused)} wordings claimed something else; the derived sentences are kept)"
    page = words.page.strip() + (more if words.refused else "")
    out.print(Panel(escape(page), title=escape(f"In the words of {words.by}")))
