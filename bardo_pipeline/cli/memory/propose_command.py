"""Proposing at the door: `bardo propose` asks a language model what a golem's closed cycles teach."""

from __future__ import annotations

import os
from typing import Annotated

import typer
from rich.console import Console

from bardo_pipeline.cli.options import EmbedderOption, HomeOption, now, root_of
from bardo_pipeline.cli.output.tables import print_table
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation.model_budget import memory_budget
from bardo_pipeline.derivation.curation.request_proposals import (
    ProposalRequest,
    living_golems,
    propose,
    propose_all,
    question,
)
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.events.life.proposal_events import ProposedOperation
from bardo_pipeline.gateway.model_settings import ModelSettings

out = Console(soft_wrap=False, highlight=False)


def add_to(app: typer.Typer) -> None:
    """Put this command into `bardo`."""
    app.command("propose")(propose_operations)


def propose_operations(
    golem: Annotated[str | None, typer.Argument(help="The golem to ask about.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every living golem, until the day's cap is reached.")] = False,
    cycle: Annotated[int | None, typer.Option(min=1, help="The closed cycle to ask about (default: the last).")] = None,
    again: Annotated[bool, typer.Option("--again", help="Ask anew where nothing was answered before.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be asked, and ask nothing.")] = False,
    home: HomeOption = None,
    embedder: EmbedderOption = None,
) -> None:
    """Ask a language model (BARDO_MODEL=PROVIDER:MODEL) for operations on a grimoire, and record what it answers.

    What it proposes passes the curator's own gate when the golem's next cycle closes. One question is asked once; a
    rebuild asks nothing. Exit 1 if something went wrong that is on record now, such as a refusal or the cap.
    """
    if (golem is None) != every or (every and cycle is not None):
        raise ConfigError("name a golem, or give --all; only of one golem may a cycle be named")
    stores = DerivationContext.open(root_of(home), embedder=embedder)
    if golem is None and not living_golems(stores):
        out.print("nobody lives of whom a cycle is curated: there is nothing to ask about")
        return
    if dry_run:
        for golem_id in living_golems(stores) if golem is None else [golem]:
            _show_question(stores, golem_id, cycle)
        return
    settings = ModelSettings.wanted(os.environ)
    with out.status(f"asking {settings.provider}:{settings.model}"):
        if golem is None:
            askings = propose_all(stores, settings, clock=now, again=again)
        else:
            askings = [propose(stores, golem, settings, clock=now, cycle=cycle, again=again)]
    _show(askings)
    failed = [error for asking in askings if (error := asking.error)]
    if failed and golem is not None:
        raise failed[0]
    if failed:
        raise typer.Exit(1)


def _show_question(stores: DerivationContext, golem_id: str, cycle: int | None) -> None:
    asked, prompt = question(stores, golem_id, cycle)
    if prompt is None:
        out.print(f"golem {golem_id}: after cycle {asked} nothing is learned yet that could be asked about")
    else:
        budget = memory_budget(stores, golem_id, now())
        spent, cap = f"${budget.spent_micros / 1e6:.4f}", f"${budget.cap_micros / 1e6:.4f}"
        share = f"at most {budget.share:.0%} of its daily budget of ${budget.daily_budget_micros / 1e6:.2f}"
        typer.echo(f"# golem {golem_id}, cycle {asked}, prompt {prompt.hash}; {spent} of {cap} spent today ({share})")
        typer.echo(f"{prompt.instructions}\n{prompt.question}")


def _show(askings: list[ProposalRequest]) -> None:
    names = ["golem", "cycle", "what came", "operations", "tokens", "cost"]
    print_table(out, "Asked", names, [_row(asking) for asking in askings])
    for asking in askings:
        rows = [_operation(one) for one in asking.operations]
        if rows:
            print_table(out, f"Proposed for {asking.golem_id}", ["operation", "about", "evidence", "reason"], rows)


def _operation(one: ProposedOperation) -> tuple[object, ...]:
    about = one.entry_id or " ".join(one.situation.model_dump().values() if one.situation else ())
    return one.operation, about, ", ".join(map(str, one.evidence)), one.reason


def _row(asking: ProposalRequest) -> tuple[object, ...]:
    said = asking.event.asked if asking.event else None
    if said is None:
        return asking.golem_id, asking.cycle, "nothing learned yet", "", "", ""
    what = said.outcome.replace("_", " ") + (", on record already" if asking.known else "")
    tokens = f"{said.input_tokens} + {said.output_tokens}"
    return asking.golem_id, asking.cycle, what, len(said.operations), tokens, f"${said.cost_micros / 1e6:.6f}"
