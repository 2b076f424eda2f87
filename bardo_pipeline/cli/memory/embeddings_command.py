"""`bardo drift | reembed`: compare the embedding model with its recorded vectors; migrate to another model."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from rich.progress import MofNCompleteColumn
from typer import Exit, Option

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.options import now, open_context
from bardo_pipeline.cli.output.tables import out, print_json, print_table, progress_bar, say, spinner
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.memory.embed_texts import check_drift, pausing_check, suspect_count
from bardo_pipeline.derivation.memory.embedder_migration import reembed
from bardo_pipeline.retrieval.embedder_drift import PPM
from bardo_pipeline.storage.log.embedding_table import Checked


def drift(
    home: opt.Home = None,
    check: Annotated[bool, Option("--check", help="Check now and record the result.")] = False,
    last: Annotated[int, Option(min=1, help="Number of newest checks to show.")] = 10,
    format: opt.Format = "table",
    embedder: opt.Embedder = None,
) -> None:
    """Show checks of the embedding model against its recorded vectors; exit 1 if the newest is critical."""
    stores = open_context(home, embedder)
    if check:
        with spinner("embedding the reference texts", quiet=format == "json"):
            check_drift(stores, now=now())
    checks = stores.embedding_log.checks(name=stores.embedder_name)
    if format == "json":
        print_json([asdict(c) for c in checks[-last:]])
    elif not checks:
        out.print(f"{stores.embedder_name} was never checked: `bardo drift --check` or the next embedding checks it")
    else:
        names = ["when", "verdict", "furthest", "mean", "kept", "lengths", "says"]
        print_table(f"{stores.embedder_name} and its recorded vectors", names, [_row(c) for c in checks[-last:]])
    if checks and checks[-1].drift.verdict == "critical":
        if format == "table":
            say(
                f"Embedding is paused; {suspect_count(stores):,} vectors were made since the last passed check. "
                "Restore the model and check again, or run `bardo reembed`."
            )
        raise Exit(1)


def warn_of_drift(stores: DerivationContext) -> None:
    """Warn below an answer if the last check of the embedding model was critical."""
    failed_check = pausing_check(stores)
    if failed_check is not None:
        out.print(
            f"{stores.embedder_name} had drifted from its recorded vectors at the last check "
            f"({failed_check.at:%Y-%m-%d %H:%M}): similarities here are unreliable; `bardo drift` shows details.",
            style="yellow",
            soft_wrap=True,
        )


def _row(check: Checked) -> tuple[object, ...]:
    result = check.drift
    return (
        f"{check.at:%Y-%m-%d %H:%M}",
        result.verdict,
        f"{result.distance_max_ppm / PPM:.4f}",
        f"{result.distance_mean_ppm / PPM:.4f}",
        f"{result.neighbours_ppm / PPM:.0%}",
        f"{result.norm_variance_ppm / PPM:.4g}",
        "; ".join(result.says),
    )


def reembed_everything(
    model: Annotated[
        str | None,
        Option(help="minilm, minilm-int8 or nomic (default: continue a migration, else the same model)."),
    ] = None,
    again: Annotated[bool, Option("--again", help="Embed again with the same model, even without drift.")] = False,
    home: opt.Home = None,
) -> None:
    """Embed all texts with another model in a separate derivation; switch when it is complete.

    If interrupted, the old model stays active; running the command again continues.
    """
    stores = open_context(home)
    with progress_bar(out, MofNCompleteColumn()) as progress:
        task = progress.add_task("opening the model", total=None)

        def tell(step: str, done: int, count: int) -> None:
            progress.update(task, description=step, completed=done, total=count or None)

        migration = reembed(stores, model, again=again, now=now(), tell=tell)
    say(
        f"{migration.new} is active instead of {migration.old}: {migration.episodes:,} episodes of {migration.texts:,} "
        f"texts, derivation {migration.derivation_id}{' (resumed)' if migration.resumed else ''}"
    )
