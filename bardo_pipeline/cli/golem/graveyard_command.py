"""Graves: `bardo graveyard` and `bardo golem show`."""

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


def add_to(app: typer.Typer, group: typer.Typer) -> None:
    """Put `graveyard` into `bardo`, and `show` into `bardo golem`."""
    app.command()(graveyard)
    group.command("show")(show_golem)


def graveyard(
    home: HomeOption = None,
    owner: Annotated[str | None, typer.Option(help="Only this owner's.")] = None,
    lineage: Annotated[str | None, typer.Option(help="Only who is of this golem's line.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the latest deaths.")] = 20,
    json: JsonOption = False,
    embedder: EmbedderOption = None,
) -> None:
    """Every dead golem: of what it died, how it lived, what it left, its last words."""
    found = graves(DerivationContext.open(root_of(home), embedder=embedder), owner=owner, lineage=lineage)
    if json:
        print_json([asdict(grave) for grave in found])
        return
    if not found:
        out.print("nobody died yet")
        return
    rows = [
        (g.golem_id, g.generation, g.owner_id, f"{g.died_at:%m-%d %H:%M}", g.cause, g.ticks,
         f"{g.earned_micros / 1e6:+,.2f}", g.entry_count, (g.bundle_hash or "none")[:12],
         g.heir_id or g.succession or "-")
        for g in found[:limit]
    ]  # fmt: skip
    names = ["golem", "gen", "owner", "died", "cause", "ticks", "earned $", "left", "bundle", "heir"]
    print_table(out, None, names, rows)
    for grave in found[:limit]:
        if grave.last_words:
            out.print(f"{grave.golem_id}: “{escape(grave.last_words)}”", soft_wrap=True)
    out.print(
        f"{len(found)} dead; `bardo golem show GOLEM` opens a testament, `bardo golem successor GOLEM` summons "
        "an heir, `bardo golem found --like GOLEM` starts fresh",
        soft_wrap=True,
    )


def show_golem(
    golem: Annotated[str, typer.Argument(help="A golem, living or dead.")],
    home: HomeOption = None,
    testament: Annotated[bool, typer.Option("--testament", help="All of its testament.")] = False,
    json: JsonOption = False,
    embedder: EmbedderOption = None,
) -> None:
    """One golem: vitality, phase, what it knows, whose heir it is and whose predecessor; its testament if it died."""
    stores = DerivationContext.open(root_of(home), embedder=embedder)
    seen = golem_report(stores, golem)
    words = None if seen.testament is None else phrased_testament(stores, golem, seen.testament)
    if json:
        born = seen.born.model_dump()
        died = None if seen.died is None else seen.died.model_dump()
        facts = {**{k: v for k, v in vars(seen).items() if k not in ("born", "died")}, "born": born, "died": died}
        print_json(facts | {"in_words": None if words is None else words.facts})
        return
    _show_life(seen)
    if seen.knows:
        rows = [(row["kind"], row["status"], row["entries"]) for row in seen.knows]
        print_table(out, "What it knows", ["kind", "status", "entries"], rows)
    if seen.testament is not None:
        parts = [_category(name, seen.testament[name], testament) for name in CATEGORIES if seen.testament[name]]
        out.print(Panel("\n".join(parts), title=f"Testament of {golem}"))
    if words is not None:
        show_words(words)
    standing = standing_of(stores, golem)
    if standing is not None:
        told = [(one.step, one.outcome, one.attempt, one.why) for one in standing.last.values()]
        print_table(out, "Succession", ["step", "outcome", "attempt", "why"], told)
        if standing.halted is not None and standing.halted.step == "compared":
            for line in playbook_diff(stores, golem):
                out.print(escape(line), soft_wrap=True)


def _show_life(seen: GolemReport) -> None:
    birth = seen.born
    lines = [
        f"[bold]{seen.golem_id}[/] of {escape(birth.owner_id)}, generation {birth.generation}, {escape(birth.market)}",
        f"born {seen.born_at:%Y-%m-%d %H:%M}, " + (
            f"died {seen.died_at:%Y-%m-%d %H:%M} at tick {seen.tick:,} ({seen.died.cause})"
            if seen.died is not None and seen.died_at is not None
            else f"lives, at tick {seen.tick:,} of {birth.lifespan_ticks:,}"
        ),
    ]  # fmt: skip
    if seen.vitality is not None:
        parts = ", ".join(f"{name} {value:.0%}" for name, value in seen.vitality.items())
        lines.append(f"phase {seen.phase}; vitality: {parts}")
    lines.append(f"credits ${seen.credits_micros / 1e6:,.2f}" + _money(seen))
    if seen.divergence_ppm is not None:
        lines.append(f"divergence from what it was given: {seen.divergence_ppm / PPM:.0%}")
    lines += [f"default of its line: re-centres {line}" for line in seen.defaults]
    lines.append(f"line: {' > '.join(seen.lineage)}; heirs: {', '.join(seen.heirs) or 'none'}")
    if seen.died is not None:
        lines.append(f"bundle: {seen.bundle_hash or 'none was published'}" + _verdict(seen))
    for line in lines:
        out.print(line, soft_wrap=True)


def _money(seen: GolemReport) -> str:
    if seen.died is None or seen.capital_micros is None:
        return ""
    return f", capital ${seen.capital_micros / 1e6:,.2f}, earned ${seen.died.earned_micros / 1e6:+,.2f}"


def _verdict(seen: GolemReport) -> str:
    if seen.verdict is None:
        return "; it is not judged yet"
    failed = "; ".join(f"{f['expectation']} ({f['severity']}: {f['observed']})" for f in seen.verdict["failed"])
    return f"; failed: {escape(failed)}" if failed else ""


def _category(name: str, said: list[str], everything: bool) -> str:
    shown = said if everything else said[:_SHOWN_ITEMS]
    more = f"\n  ({len(said) - len(shown)} more: --testament)" if len(shown) < len(said) else ""
    return f"[bold]{CATEGORIES[name]}[/]\n" + "\n".join(f"- {escape(one)}" for one in shown) + more
