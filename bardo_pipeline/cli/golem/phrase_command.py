"""Phrasing at the door: `bardo golem phrase` has a language model phrase the testaments of the dead."""

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


def add_to(group: typer.Typer) -> None:
    """Put this command into `bardo golem`."""
    group.command("phrase")(phrase_testaments)


def phrase_testaments(
    golem: Annotated[str | None, typer.Argument(help="The dead golem whose testament is phrased.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every testament, until the day's cap is reached.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Ask anew where nothing was answered before.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be asked, and ask nothing.")] = False,
    home: HomeOption = None,
    embedder: EmbedderOption = None,
) -> None:
    """Have a language model (BARDO_MODEL=PROVIDER:MODEL) phrase testaments, and record what it answers.

    A sentence that claims anything else than the derived one is refused, and the derived one stands. The testament and
    the bundle stay as they are; the wordings are shown beside. One testament is asked about once; a rebuild asks
    nothing. Exit 1 if something went wrong that is on record now, such as a refusal or the cap.
    """
    if (golem is None) != every:
        raise ConfigError("name a golem, or give --all")
    stores = DerivationContext.open(root_of(home), embedder=embedder)
    if dry_run:
        for golem_id, (_, _, prompt) in phrasing_requests(stores, None if golem is None else [golem]).items():
            typer.echo(f"# golem {golem_id}, prompt {prompt.hash}\n{prompt.instructions}\n{prompt.question}")
        return
    settings = ModelSettings.wanted(os.environ)
    with out.status(f"asking {settings.provider}:{settings.model}"):
        if golem is None:
            askings = phrase_all_testaments(stores, settings, clock=now, again=again)
        else:
            askings = [phrase_testament(stores, golem, settings, clock=now, again=again)]
    if not askings:
        out.print("nothing to ask: every testament that there is was asked about")
        return
    _show(askings)
    failed = [error for asking in askings if (error := asking.error)]
    if failed and golem is not None:
        raise failed[0]
    if failed:
        raise typer.Exit(1)


def _show(askings: list[PhrasingResult]) -> None:
    names = ["golem", "what came", "phrased", "refused", "tokens", "cost"]
    print_table(out, "Asked", names, [_row(asking) for asking in askings])
    for asking in askings:
        rows = [(one.statement, one.wording, one.fault) for one in asking.phrased.wordings if one.fault]
        if rows:
            print_table(out, f"Refused for {asking.golem_id}", ["sentence", "wording", "because"], rows)


def _row(asking: PhrasingResult) -> tuple[object, ...]:
    said = asking.phrased
    what = said.outcome.replace("_", " ") + (", on record already" if asking.known else "")
    refused = sum(one.fault is not None for one in said.wordings)
    tokens = f"{said.input_tokens} + {said.output_tokens}"
    cost = f"${said.cost_micros / 1e6:.6f}"
    return asking.golem_id, what, len(said.wordings) - refused, refused, tokens, cost


def show_words(words: PhrasedTestament) -> None:
    """A testament in a model's words, and how many of its wordings were refused."""
    more = f"\n({len(words.refused)} wordings claimed something else: the derived sentences stand)"
    page = words.page.strip() + (more if words.refused else "")
    out.print(Panel(escape(page), title=escape(f"In the words of {words.by}")))
