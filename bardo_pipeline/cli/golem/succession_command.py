"""`bardo golem successor | found | credit | due | successions`: heirs of dead golems."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from typer import Argument, Option

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.options import bounds_of, now, open_context, require_named, root_for_owner
from bardo_pipeline.cli.output.rendering import show_report
from bardo_pipeline.cli.output.tables import out, print_json, print_table, say
from bardo_pipeline.derivation.configuration import in_force_now
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.death.graveyard import budget_of, inheritance_previews, recommendations
from bardo_pipeline.derivation.legacy import death_queries as deaths
from bardo_pipeline.derivation.succession.succeed import due_successions, found_new_lineage, run_due_successions, summon
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.inheritance.inheritance_preview import BANDS, GROUPS, Preview
from bardo_pipeline.inheritance.succession_state import Standing
from bardo_pipeline.inheritance.testament import CATEGORIES
from bardo_pipeline.policy import Policy
from bardo_pipeline.policy.toml_config import to_toml
from bardo_pipeline.storage.home import Home

HeirBudget = Annotated[
    float | None, Option(min=0.01, max=opt.DOLLARS_MAX, help="Initial capital in dollars (default: the predecessor's).")
]
Inherit = Annotated[
    bool, Option("--inherit-grimoire/--no-inherit", help="Inherit the bundle, or only the configuration.")
]
Lifespan = Annotated[str | None, Option(help="Bounds of the lifespan in ticks, LOW-HIGH.")]
_BAR = 24


def successor(
    dead: Annotated[str, Argument(help="Dead golem.")],
    budget: HeirBudget = None,
    inherit: Inherit = True,
    force: Annotated[
        bool,
        Option("--force-similarity", help="Succeed even if the dead golem's playbook repeats the one it inherited."),
    ] = False,
    lifespan: Lifespan = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Show the inheritance; record nothing.")] = False,
    home: opt.Home = None,
    json: opt.Json = False,
) -> None:
    """Create the successor of a dead golem; show its inheritance and the testament's advice.

    The next run of its market runs it. Repeating the command changes nothing.
    """
    stores = open_context(home)
    predecessor = deaths.dead_golem(stores, dead)
    micros = round(budget * 1e6) if budget is not None else budget_of(predecessor.born)
    request = deaths.HeirRequest(budget_micros=micros, inherit=inherit, force=force, lifespan_ticks=bounds_of(lifespan))
    existed = bool(deaths.births_of(stores, [predecessor.heir_id]))
    if not dry_run:
        summon(stores, predecessor, request, now=now())
    preview = inheritance_previews(stores, [predecessor]).get(dead) if inherit else None
    if json:
        facts = {
            "predecessor": predecessor.golem_id,
            "heir": predecessor.heir_id,
            "budget_usdc": request.budget_micros / 1e6,
            "generation": predecessor.born.generation + 1,
            "configuration": in_force_now(stores, predecessor.golem_id).configuration.model_dump(mode="json"),
            "recommendations": recommendations(stores, predecessor.golem_id),
            "preview": None if preview is None else asdict(preview),
            "born": not dry_run,
            "known_already": existed,
        }
        print_json(facts)
        return
    _show_advice(stores, predecessor)
    if preview is not None:
        _show_preview(preview)
    elif inherit:
        out.print("its bundle is not published: nothing can be inherited")
    else:
        out.print("it inherits only its predecessor's configuration and traits")
    out.print(_outcome(predecessor, request, dry_run=dry_run, existed=existed), soft_wrap=True)


def _outcome(predecessor: deaths.DeadGolem, request: deaths.HeirRequest, *, dry_run: bool, existed: bool) -> str:
    if dry_run:
        return f"nothing was recorded; the heir would be {escape(predecessor.heir_id)}"
    if existed:
        return escape(f"{predecessor.heir_id} is already the heir of {predecessor.golem_id}: nothing was changed")
    return (
        f"[bold]{escape(predecessor.heir_id)}[/] is born, generation {predecessor.born.generation + 1}, with "
        f"${request.budget_micros / 1e6:,.2f}; the next run of {escape(predecessor.born.market)} runs it"
    )


def found_golem(
    like: Annotated[str, Option("--like", help="Dead golem whose market and owner the new golem gets.")],
    budget: Annotated[float, Option(min=0.01, max=opt.DOLLARS_MAX, help="Initial capital in dollars.")] = 50.0,
    lifespan: Lifespan = None,
    number: Annotated[int, Option(min=1, help="Number of the new lineage; repeating a number changes nothing.")] = 1,
    home: opt.Home = None,
) -> None:
    """Found a new lineage in the market of a dead golem; it inherits nothing."""
    stores = open_context(home)
    request = deaths.HeirRequest(budget_micros=round(budget * 1e6), lifespan_ticks=bounds_of(lifespan))
    example = deaths.dead_golem(stores, like)
    golem_id, is_new = found_new_lineage(stores, example, request, number=number, now=now())
    if is_new:
        out.print(f"[bold]{escape(golem_id)}[/] is founded; the next run of {escape(example.born.market)} runs it")
    else:
        say(f"{golem_id} exists already: nothing was changed; --number {number + 1} founds another")


def credit(
    owner: opt.Owner,
    usdc: Annotated[float, Argument(min=0.01, max=opt.DOLLARS_MAX, help="Amount in dollars.")],
    why: opt.Why,
    home: opt.Home = None,
) -> None:
    """Commit credit of an owner for automatic heirs; create the home if missing."""
    require_named(owner)
    Home.create(root_for_owner(home), Policy(), now())
    balance = deaths.commit_credit(open_context(home), owner, round(usdc * 1e6), why, now=now())
    out.print(f"owner {escape(owner)}: ${balance / 1e6:,.2f} of credit is committed to heirs")


def due_now(
    dry_run: Annotated[bool, Option("--dry-run", help="List due steps; run none.")] = False,
    home: opt.Home = None,
    json: opt.Json = False,
) -> None:
    """Run due succession steps: create wanted heirs, retry failed steps and registrations."""
    stores, moment = open_context(home), now()
    waiting = due_successions(stores, moment)
    results: dict[str, Standing] = {} if dry_run else run_due_successions(stores, now=moment)
    rows = [item.row(results[item.golem_id].state if item.golem_id in results else "due") for item in waiting]
    show_report("golem due", rows, as_json=json)


def successions(home: opt.Home = None, json: opt.Json = False) -> None:
    """List successions with state and reason, and each owner's credit."""
    show_report("golem successions", deaths.successions_document(open_context(home)), as_json=json)


def _show_advice(stores: DerivationContext, predecessor: deaths.DeadGolem) -> None:
    whole = to_toml(in_force_now(stores, predecessor.golem_id).configuration)
    sections = f"{whole.partition('[styx]')[0]}[succession]{whole.partition('[succession]')[2]}".rstrip()
    advice = [
        f"[bold]{CATEGORIES[name]}[/]\n" + "\n".join(f"- {escape(statement)}" for statement in statements[:4])
        for name, statements in recommendations(stores, predecessor.golem_id).items()
        if statements
    ]
    panels = Table.grid(expand=True, padding=(0, 1))
    panels.add_row(
        Panel(escape(sections), title=escape(f"How {predecessor.golem_id} was configured")),
        Panel("\n\n".join(advice) or "It gives no advice.", title="Advice to its successor"),
    )
    out.print(panels)


def _show_preview(preview: Preview) -> None:
    """Print an inheritance preview: counts, confidence before and after the decay at death, entries by group."""
    out.print(
        f"{preview.entry_count:,} entries are inherited (of at most {preview.budget:,}), "
        f"{preview.bloodstain_count} bloodstains, {preview.anti_knowledge_count} anti-knowledge, "
        f"{preview.episode_count} episodes; the heir is generation {preview.generation}",
        soft_wrap=True,
    )
    table = Table(title="Confidence at death, and as inherited", title_justify="left", box=None, pad_edge=False)
    for name in ("from", "before", "", "after", ""):
        table.add_column(name, justify="right" if name else "left")
    most = max(*preview.before, *preview.after, 1)
    for band in range(BANDS):
        counts = (preview.before[band], preview.after[band])
        cells = (cell for count in counts for cell in (str(count), "█" * (count * _BAR // most)))
        table.add_row(f"{band * 100 // BANDS} %", *cells)
    table.add_row("mean", f"{preview.mean_before_ppm / PPM:.0%}", "", f"{preview.mean_after_ppm / PPM:.0%}", "")
    out.print(table)
    rows = [
        (name.removeprefix("by_"), ", ".join(f"{what} {count}" for what, count in getattr(preview, name).items()))
        for name in GROUPS
    ]
    print_table(None, ["by", "entries"], rows)
