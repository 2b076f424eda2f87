"""Embedding at the door: `bardo drift`, does the model still give its vectors; `bardo reembed`, to go to another."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from bardo_pipeline.cli.options import EmbedderOption, FormatOption, HomeOption, check_format, now, root_of
from bardo_pipeline.cli.output.tables import print_json, print_table
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.memory.embed_texts import check_drift, pausing_check, suspect_count
from bardo_pipeline.derivation.memory.embedder_migration import reembed
from bardo_pipeline.retrieval.embedder_drift import PPM
from bardo_pipeline.storage.log.embedding_table import Checked

out = Console(soft_wrap=False, highlight=False)


def add_to(app: typer.Typer) -> None:
    """Put these commands into `bardo`."""
    app.command("drift")(drift)
    app.command("reembed")(reembed_everything)


def drift(
    home: HomeOption = None,
    check: Annotated[bool, typer.Option("--check", help="Check now, and record what is found.")] = False,
    last: Annotated[int, typer.Option(min=1, help="Show at most so many checks, the newest.")] = 10,
    format: FormatOption = "table",
    embedder: EmbedderOption = None,
) -> None:
    """Has the model drifted from the vectors on record? Shows the checks; exit 1 if the newest one is critical."""
    check_format(format)
    stores = DerivationContext.open(root_of(home), embedder=embedder)
    if check:
        with out.status("embedding the reference texts") if format == "table" else nullcontext():
            check_drift(stores, now=now())
    checks = stores.embedding_log.checks(name=stores.embedder_name)
    if format == "json":
        print_json([asdict(one) for one in checks[-last:]])
    elif not checks:
        out.print(f"{stores.embedder_name} was never checked: the first vectors check it, or `bardo drift --check`")
    else:
        print_table(
            out, f"{stores.embedder_name} beside its vectors on record", _NAMES, [_row(c) for c in checks[-last:]]
        )
    if checks and checks[-1].found.verdict == "critical":
        if format == "table":
            out.print(
                f"Embedding is paused; {suspect_count(stores):,} vectors were made since the last sound check. "
                "Put the model back as it was and check again, or `bardo reembed`.",
                soft_wrap=True,
            )
        raise typer.Exit(1)


def warn_of_drift(console: Console, stores: DerivationContext) -> None:
    """Say below an answer that its likeness is not to be relied on, if the last check of the model was critical."""
    found = pausing_check(stores)
    if found is not None:
        console.print(
            f"{stores.embedder_name} had drifted from its vectors on record when it was checked last "
            f"({found.at:%Y-%m-%d %H:%M}): do not rely on what is alike here; `bardo drift` says more.",
            style="yellow",
            highlight=False,
            soft_wrap=True,
        )


_NAMES = ["when", "verdict", "furthest", "mean", "kept", "lengths", "says"]


def _row(one: Checked) -> tuple[object, ...]:
    found = one.found
    return (
        f"{one.at:%Y-%m-%d %H:%M}",
        found.verdict,
        f"{found.distance_max_ppm / PPM:.4f}",
        f"{found.distance_mean_ppm / PPM:.4f}",
        f"{found.neighbours_ppm / PPM:.0%}",
        f"{found.norm_variance_ppm / PPM:.4g}",
        "; ".join(found.says),
    )


def reembed_everything(
    model: Annotated[
        str | None, typer.Option(help="minilm, minilm-int8 or nomic; without, what is half done, or the same anew.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="By the same model, even if it has not drifted.")] = False,
    home: HomeOption = None,
) -> None:
    """Embed everything by another model, beside what is in force; switch when all of it is there, or not at all.

    Interrupted, the old one stays in force; run again, it goes on.
    """
    stores = DerivationContext.open(root_of(home))
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=out, transient=True) as progress:
        task = progress.add_task("opening the model", total=None)

        def tell(step: str, done: int, count: int) -> None:
            progress.update(task, description=step, completed=done, total=count or None)

        done = reembed(stores, model, again=again, now=now(), tell=tell)
    out.print(
        f"{done.new} is in force instead of {done.old}: {done.episodes:,} episodes of {done.texts:,} texts, derivation "
        f"{done.derivation_id}{' (resumed)' if done.resumed else ''}",
        soft_wrap=True,
    )
