"""Heirs: `bardo golem successor | found | credit | due | successions`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from bardo_pipeline.cli.options import HomeOption, JsonOption, now, root_of
from bardo_pipeline.cli.output.tables import print_json, print_table
from bardo_pipeline.derivation.configuration import in_force_now
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.death.death_queries import (
    DeadGolem,
    HeirRequest,
    births_of,
    commit_credit,
    credit_micros,
    dead_golem,
    succession_steps,
)
from bardo_pipeline.derivation.death.graveyard import budget_of, inheritance_previews, recommendations
from bardo_pipeline.derivation.succession.succeed import due_successions, found_new_lineage, run_due_successions, summon
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.heartbeat.fleet import Founding
from bardo_pipeline.inheritance.inheritance_preview import BANDS, GROUPS, Preview
from bardo_pipeline.inheritance.succession_state import Standing, standings
from bardo_pipeline.inheritance.testament import CATEGORIES
from bardo_pipeline.policy import Policy
from bardo_pipeline.policy.toml_config import to_toml
from bardo_pipeline.storage.home import Home

out = Console(soft_wrap=False, highlight=False)

DeadOption = Annotated[str, typer.Argument(help="The golem that died.")]
HeirBudget = Annotated[
    float | None, typer.Option(min=0.01, help="Dollars it is founded with (default: as its predecessor).")
]
Inherit = Annotated[
    bool, typer.Option("--inherit-grimoire/--no-inherit", help="With what crossed, or with its configuration alone.")
]
Force = Annotated[bool, typer.Option("--force-similarity", help="Even where the dead only repeated what it was given.")]
Lifespan = Annotated[str | None, typer.Option(help="Bounds of the lifespan in ticks, LOW-HIGH.")]
_BAR = 24


def add_to(group: typer.Typer) -> None:
    """Put these commands into `bardo golem`."""
    for command in (successor, found, credit, successions):
        group.command()(command)
    group.command("due")(due_now)


def successor(
    dead: DeadOption,
    budget: HeirBudget = None,
    inherit: Inherit = True,
    force: Force = False,
    lifespan: Lifespan = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what it would get.")] = False,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Summon a successor of a dead golem: what it would inherit, what the testament asks, and its birth.

    The next run of its market lives it. The same command again changes nothing.
    """
    stores = DerivationContext.open(root_of(home))
    gone = dead_golem(stores, dead)
    micros = round(budget * 1e6) if budget is not None else budget_of(gone.born)
    wish = HeirRequest(budget_micros=micros, inherit=inherit, force=force, lifespan_ticks=bounds_of(lifespan))
    known = bool(births_of(stores, [gone.heir_id]))
    if not dry_run:
        summon(stores, gone, wish, now=now())
    seen = inheritance_previews(stores, [gone]).get(dead) if inherit else None
    if json:
        print_json(_told(stores, gone, wish, seen) | {"born": not dry_run, "known_already": known})
        return
    _show_advice(stores, gone)
    if seen is not None:
        show_preview(out, seen)
    elif inherit:
        out.print("no bundle of it was published: nothing can be inherited")
    else:
        out.print("it inherits nothing: its configuration and traits alone are its predecessor's")
    out.print(_came_of(gone, wish, dry_run=dry_run, known=known), soft_wrap=True)


def _told(stores: DerivationContext, gone: DeadGolem, wish: HeirRequest, seen: Preview | None) -> dict[str, Any]:
    """A succession as JSON: who follows whom, with what, and what the testament tells it."""
    return {
        "predecessor": gone.golem_id,
        "heir": gone.heir_id,
        "budget_usdc": wish.budget_micros / 1e6,
        "generation": gone.born.generation + 1,
        "configuration": in_force_now(stores, gone.golem_id).configuration.model_dump(mode="json"),
        "recommendations": recommendations(stores, gone.golem_id),
        "preview": None if seen is None else asdict(seen),
    }


def _came_of(gone: DeadGolem, wish: HeirRequest, *, dry_run: bool, known: bool) -> str:
    if dry_run:
        return f"nothing was recorded; its heir would be {gone.heir_id}"
    if known:
        return f"{gone.heir_id} is the heir of {gone.golem_id} already: nothing was changed"
    return (
        f"[bold]{gone.heir_id}[/] is born, generation {gone.born.generation + 1}, with "
        f"${wish.budget_micros / 1e6:,.2f}; the next run of {escape(gone.born.market)} lives it"
    )


def found(
    like: Annotated[str, typer.Option("--like", help="A dead golem, in whose market and for whose owner it lives.")],
    budget: Annotated[float, typer.Option(min=0.01, help="Dollars it is founded with.")] = 50.0,
    lifespan: Lifespan = None,
    number: Annotated[int, typer.Option(min=1, help="Which one: the same number again is the same golem.")] = 1,
    home: HomeOption = None,
) -> None:
    """Start fresh: found a lineage of its own where a dead golem lived; it inherits nothing and owes nobody."""
    stores = DerivationContext.open(root_of(home))
    wish = HeirRequest(budget_micros=round(budget * 1e6), lifespan_ticks=bounds_of(lifespan))
    gone = dead_golem(stores, like)
    golem_id, fresh = found_new_lineage(stores, gone, wish, number=number, now=now())
    if fresh:
        out.print(f"[bold]{golem_id}[/] is founded; the next run of {escape(gone.born.market)} lives it")
    else:
        out.print(f"{golem_id} was founded so before: nothing was changed; --number {number + 1} founds another")


def credit(
    owner: Annotated[str, typer.Argument(help="The owner.")],
    usdc: Annotated[float, typer.Argument(min=0.01, help="Dollars.")],
    why: Annotated[str, typer.Option(help="Why; it is recorded.")],
    home: HomeOption = None,
) -> None:
    """Commit an owner's money, from which heirs are funded automatically. Makes the home where there is none yet."""
    root = root_of(home)
    Home.create(root, Policy(), now())
    balance = commit_credit(DerivationContext.open(root), owner, round(usdc * 1e6), why, now=now())
    out.print(f"owner {escape(owner)}: ${balance / 1e6:,.2f} of credit is committed to heirs")


def due_now(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what is due.")] = False,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Do what is due of successions: heirs that are wanted, steps whose time has come, identities that were refused."""
    stores, moment = DerivationContext.open(root_of(home)), now()
    waiting = due_successions(stores, moment)
    done: dict[str, Standing] = {} if dry_run else run_due_successions(stores, now=moment)
    rows = [(one.golem_id, one.why, done[one.golem_id].state if one.golem_id in done else "due") for one in waiting]
    if json:
        print_json([{"golem": golem, "why": why, "state": state} for golem, why, state in rows])
    elif rows:
        print_table(out, "Due", ["dead golem", "why", "now"], rows)
    else:
        out.print("nothing is due")


def successions(home: HomeOption = None, json: JsonOption = False) -> None:
    """Every succession: how far it came, what stopped it, when it is tried again; and each owner's credit."""
    stores = DerivationContext.open(root_of(home))
    told = standings(succession_steps(stores))
    births = births_of(stores, told)
    rows = [_row(golem, standing, births[golem][0].owner_id) for golem, standing in sorted(told.items())]
    owners = sorted({one["owner_id"] for one in stores.life("CreditCommitted")["credited"].to_pylist()})
    balances = {owner: credit_micros(stores, owner) for owner in owners}
    if json:
        print_json({"successions": rows, "credit_micros": balances})
        return
    if rows:
        print_table(out, "Successions", list(rows[0]), [tuple(row.values()) for row in rows])
    else:
        out.print("no succession was begun: `bardo golem successor DEAD`, or `auto = true` under [succession]")
    for owner, micros in balances.items():
        out.print(f"owner {escape(owner)}: ${micros / 1e6:,.2f} of credit is committed to heirs")


def _row(golem: str, standing: Standing, owner: str) -> dict[str, Any]:
    newest = list(standing.last.values())[-1]
    stuck = standing.halted or next((one for one in standing.last.values() if one.outcome != "done"), None)
    return {
        "dead": golem,
        "heir": newest.heir_id,
        "owner": owner,
        "mode": newest.mode,
        "steps": sum(one.outcome == "done" for one in standing.last.values()),
        "state": standing.state,
        "why": (stuck or newest).why,
    }


def bounds_of(text: str | None) -> tuple[int, int]:
    """LOW-HIGH as two numbers. Raises ConfigError for anything else."""
    if text is None:
        return Founding().lifespan_ticks
    low, _, high = text.partition("-")
    if not (low.isdigit() and high.isdigit() and 1 <= int(low) <= int(high)):
        raise ConfigError(f"--lifespan {text!r} is not LOW-HIGH in ticks: for example 2000-8000")
    return int(low), int(high)


def _show_advice(stores: DerivationContext, gone: DeadGolem) -> None:
    """The predecessor's configuration beside what its testament tells its successor."""
    whole = to_toml(in_force_now(stores, gone.golem_id).configuration)
    theirs = f"{whole.partition('[styx]')[0]}[succession]{whole.partition('[succession]')[2]}".rstrip()
    parts = [
        f"[bold]{CATEGORIES[name]}[/]\n" + "\n".join(f"- {escape(said)}" for said in told[:4])
        for name, told in recommendations(stores, gone.golem_id).items()
        if told
    ]
    beside = Table.grid(expand=True, padding=(0, 1))
    beside.add_row(
        Panel(escape(theirs), title=f"How {gone.golem_id} was configured"),
        Panel("\n\n".join(parts) or "It says nothing of it.", title="What it tells its successor"),
    )
    out.print(beside)


def show_preview(to: Console, seen: Preview) -> None:
    """The inheritance preview: counts, confidence before and after the crossing, and what it is about."""
    to.print(
        f"{seen.entry_count:,} entries cross (of at most {seen.budget:,}), {seen.bloodstain_count} bloodstains, "
        f"{seen.anti_knowledge_count} of anti-knowledge, {seen.episode_count} episodes; the heir is of generation "
        f"{seen.generation}",
        soft_wrap=True,
    )
    table = Table(title="Confidence at death, and as it crosses", title_justify="left", box=None, pad_edge=False)
    for name in ("from", "before", "", "after", ""):
        table.add_column(name, justify="right" if name else "left")
    most = max(*seen.before, *seen.after, 1)
    for band in range(BANDS):
        before, after = seen.before[band], seen.after[band]
        table.add_row(
            f"{band * 100 // BANDS} %",
            str(before),
            "█" * (before * _BAR // most),
            str(after),
            "█" * (after * _BAR // most),
        )
    table.add_row("mean", f"{seen.mean_before_ppm / PPM:.0%}", "", f"{seen.mean_after_ppm / PPM:.0%}", "")
    to.print(table)
    rows = [
        (name.removeprefix("by_"), ", ".join(f"{what} {count}" for what, count in getattr(seen, name).items()))
        for name in GROUPS
    ]
    print_table(to, None, ["by", "entries"], rows)
