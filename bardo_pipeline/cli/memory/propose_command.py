"""`bardo propose`, `bardo golem phrase`: ask a language model for operations on a grimoire, or to word a testament."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

from typer import Argument, Exit, Option

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.options import now, open_context
from bardo_pipeline.cli.output.tables import out, print_line, print_nonempty, print_table, say
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.curation import request_proposals as proposals
from bardo_pipeline.derivation.curation.request_proposals import memory_budget
from bardo_pipeline.derivation.death import testament_phrasing as phrasing
from bardo_pipeline.errors import ConfigError, GatewayError
from bardo_pipeline.events.life.proposal_events import Asked, Phrased, ProposedOperation
from bardo_pipeline.gateway.model_request import ModelSettings


def propose_operations(
    golem: Annotated[str | None, Argument(help="Golem id.")] = None,
    every: Annotated[bool, Option("--all", help="Every living golem, until the day's cost cap is reached.")] = False,
    cycle: Annotated[int | None, Option(min=1, help="Closed cycle (default: the last).")] = None,
    again: Annotated[bool, Option("--again", help="Retry cycles without an answer.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Print the prompts; send nothing.")] = False,
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
    _fail_with([result.error for result in results], golem)


def _show_question(stores: DerivationContext, golem_id: str, cycle: int | None) -> None:
    asked_cycle, prompt = proposals.question(stores, golem_id, cycle)
    if prompt is None:
        say(f"golem {golem_id}: it has learned nothing after cycle {asked_cycle}: nothing to send")
    else:
        budget = memory_budget(stores, golem_id, now())
        spent, cap = f"${budget.spent_micros / 1e6:.4f}", f"${budget.cap_micros / 1e6:.4f}"
        share = f"at most {budget.share:.0%} of its daily budget of ${budget.daily_budget_micros / 1e6:.2f}"
        print_line(
            f"# golem {golem_id}, cycle {asked_cycle}, prompt {prompt.hash}; {spent} of {cap} spent today ({share})"
        )
        print_line(f"{prompt.instructions}\n{prompt.question}")


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
    return result.golem_id, result.cycle, _outcome(answer, result.known), len(answer.operations), *_cost(answer)


def _outcome(answer: Asked | Phrased, known: bool) -> str:
    return answer.outcome.replace("_", " ") + (", on record already" if known else "")


def _cost(answer: Asked | Phrased) -> tuple[str, str]:
    return f"{answer.input_tokens} + {answer.output_tokens}", f"${answer.cost_micros / 1e6:.6f}"


def _fail_with(errors: Sequence[GatewayError | None], golem: str | None) -> None:
    """Raise the error of a request about one golem; of requests about all, exit 1 if one failed."""
    failed = [error for error in errors if error is not None]
    if failed:
        raise failed[0] if golem is not None else Exit(1)


def phrase_testaments(
    golem: Annotated[str | None, Argument(help="Dead golem whose testament to rephrase.")] = None,
    every: Annotated[bool, Option("--all", help="Every testament, until the day's cost cap is reached.")] = False,
    again: Annotated[bool, Option("--again", help="Retry testaments without an answer.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Print the prompts; send nothing.")] = False,
    home: opt.Home = None,
    embedder: opt.Embedder = None,
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
        for golem_id, (_, _, prompt) in phrasing.phrasing_requests(stores, None if golem is None else [golem]).items():
            print_line(f"# golem {golem_id}, prompt {prompt.hash}\n{prompt.instructions}\n{prompt.question}")
        return
    settings = ModelSettings.wanted(os.environ)
    with out.status(f"asking {settings.provider}:{settings.model}"):
        if golem is None:
            results = phrasing.phrase_all_testaments(stores, settings, clock=now, again=again)
        else:
            results = [phrasing.phrase_testament(stores, golem, settings, clock=now, again=again)]
    if not results:
        out.print("nothing to send: every testament was sent before")
        return
    _show_phrasings(results)
    _fail_with([result.error for result in results], golem)


def _show_phrasings(results: list[phrasing.PhrasingResult]) -> None:
    names = ["golem", "what came", "phrased", "refused", "tokens", "cost"]
    rows = []
    for result in results:
        answer, refused = result.phrased, sum(wording.fault is not None for wording in result.phrased.wordings)
        counts = len(answer.wordings) - refused, refused
        rows.append((result.golem_id, _outcome(answer, result.known), *counts, *_cost(answer)))
    print_table("Asked", names, rows)
    for result in results:
        faults = [(w.statement, w.wording, w.fault) for w in result.phrased.wordings if w.fault]
        print_nonempty(f"Refused for {result.golem_id}", ["sentence", "wording", "because"], faults)
