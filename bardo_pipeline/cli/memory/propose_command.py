"""`bardo propose`: ask a language model for operations on a golem's grimoire."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.options import now, open_context
from bardo_pipeline.cli.output.tables import out, print_nonempty, print_table
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation import request_proposals as proposals
from bardo_pipeline.derivation.curation.model_budget import memory_budget
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.events.life.proposal_events import ProposedOperation
from bardo_pipeline.gateway.model_request import ModelSettings


def propose_operations(
    golem: Annotated[str | None, typer.Argument(help="Golem id.")] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every living golem, until the day's cost cap is reached.")
    ] = False,
    cycle: Annotated[int | None, typer.Option(min=1, help="Closed cycle (default: the last).")] = None,
    again: Annotated[bool, typer.Option("--again", help="Retry cycles without an answer.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the prompts; send nothing.")] = False,
    home: opt.Home = None,
    embedder: opt.Embedder = None,
) -> None:
    """Ask a language model (BARDO_MODEL=PROVIDER:MODEL) for operations on a grimoire, and record its answers.

    Proposals pass the curator's gate when the golem's next cycle closes. Each prompt is sent once; a rebuild sends
    nothing. Exit 1 if a request failed: the model declined, or the cost cap was reached.
    """
    if (golem is None) != every or (every and cycle is not None):
        raise ConfigError("name one golem, or give --all; --cycle needs one golem")
    stores = open_context(home, embedder)
    if golem is None and not proposals.living_golems(stores):
        out.print("no living golem has a curated cycle: nothing to send")
        return
    if dry_run:
        for golem_id in proposals.living_golems(stores) if golem is None else [golem]:
            _show_question(stores, golem_id, cycle)
        return
    settings = ModelSettings.wanted(os.environ)
    with out.status(f"asking {settings.provider}:{settings.model}"):
        if golem is None:
            results = proposals.propose_all(stores, settings, clock=now, again=again)
        else:
            results = [proposals.propose(stores, golem, settings, clock=now, cycle=cycle, again=again)]
    _show(results)
    failed = [error for result in results if (error := result.error)]
    if failed and golem is not None:
        raise failed[0]
    if failed:
        raise typer.Exit(1)


def _show_question(stores: DerivationContext, golem_id: str, cycle: int | None) -> None:
    asked_cycle, prompt = proposals.question(stores, golem_id, cycle)
    if prompt is None:
        out.print(f"golem {golem_id}: it has learned nothing after cycle {asked_cycle}: nothing to send")
    else:
        budget = memory_budget(stores, golem_id, now())
        spent, cap = f"${budget.spent_micros / 1e6:.4f}", f"${budget.cap_micros / 1e6:.4f}"
        share = f"at most {budget.share:.0%} of its daily budget of ${budget.daily_budget_micros / 1e6:.2f}"
        typer.echo(
            f"# golem {golem_id}, cycle {asked_cycle}, prompt {prompt.hash}; {spent} of {cap} spent today ({share})"
        )
        typer.echo(f"{prompt.instructions}\n{prompt.question}")


def _show(results: list[proposals.ProposalRequest]) -> None:
    names = ["golem", "cycle", "what came", "operations", "tokens", "cost"]
    print_table("Asked", names, [_row(result) for result in results])
    for result in results:
        rows = [_operation(operation) for operation in result.operations]
        print_nonempty(f"Proposed for {result.golem_id}", ["operation", "about", "evidence", "reason"], rows)


def _operation(operation: ProposedOperation) -> tuple[object, ...]:
    about = operation.entry_id or " ".join(operation.situation.model_dump().values() if operation.situation else ())
    return operation.operation, about, ", ".join(map(str, operation.evidence)), operation.reason


def _row(result: proposals.ProposalRequest) -> tuple[object, ...]:
    answer = result.event.asked if result.event else None
    if answer is None:
        return result.golem_id, result.cycle, "nothing learned yet", "", "", ""
    outcome = answer.outcome.replace("_", " ") + (", on record already" if result.known else "")
    tokens = f"{answer.input_tokens} + {answer.output_tokens}"
    return result.golem_id, result.cycle, outcome, len(answer.operations), tokens, f"${answer.cost_micros / 1e6:.6f}"
