"""`bardo golem phrase`: have a language model rephrase testaments of dead golems."""

from __future__ import annotations

import os
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel

from bardo_pipeline.cli.options import EmbedderOption, HomeOption, now, root_of
from bardo_pipeline.cli.output.tables import print_table
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.death.testament_phrasing import (
    PhrasedTestament,
    PhrasingResult,
    phrase_all_testaments,
    phrase_testament,
    phrasing_requests,
)
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.gateway.model_settings import ModelSettings

out = Console(soft_wrap=False, highlight=False)


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
    stores = DerivationContext.open(root_of(home), embedder=embedder)
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
    _show(results)
    failed = [error for result in results if (error := result.error)]
    if failed and golem is not None:
        raise failed[0]
    if failed:
        raise typer.Exit(1)


def _show(results: list[PhrasingResult]) -> None:
    names = ["golem", "what came", "phrased", "refused", "tokens", "cost"]
    print_table(out, "Asked", names, [_row(result) for result in results])
    for result in results:
        rows = [(w.statement, w.wording, w.fault) for w in result.phrased.wordings if w.fault]
        if rows:
            print_table(out, f"Refused for {result.golem_id}", ["sentence", "wording", "because"], rows)


def _row(result: PhrasingResult) -> tuple[object, ...]:
    phrased = result.phrased
    outcome = phrased.outcome.replace("_", " ") + (", on record already" if result.known else "")
    refused = sum(wording.fault is not None for wording in phrased.wordings)
    tokens = f"{phrased.input_tokens} + {phrased.output_tokens}"
    cost = f"${phrased.cost_micros / 1e6:.6f}"
    return result.golem_id, outcome, len(phrased.wordings) - refused, refused, tokens, cost


def show_words(words: PhrasedTestament) -> None:
    """Print a testament in the model's words, and the number of refused wordings."""
    more = f"\n({len(words.refused)} wordings claimed something else; the derived sentences are kept)"
    page = words.page.strip() + (more if words.refused else "")
    out.print(Panel(escape(page), title=escape(f"In the words of {words.by}")))
