"""`bardo eval`: whether what golems learned is true, graded against markets of which the truth is known."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from bardo_pipeline.doors.options import now
from bardo_pipeline.doors.tables import print_table
from bardo_pipeline.doors.worth_page import worth_page
from bardo_pipeline.policy import Policy
from bardo_pipeline.quality.bounds import Bound
from bardo_pipeline.runtime.worth import Grading, Report, Tell, grade_memory

app = typer.Typer(help="Grade what golems learned against markets of which the truth is known.", no_args_is_help=True)
out = Console(soft_wrap=False)


@app.callback()
def _group() -> None:
    """Grade what golems learned against markets of which the truth is known."""


@app.command()
def memory(
    seed: Annotated[int, typer.Option(min=0, help="Seed of the graded market.")] = 7,
    golems: Annotated[int, typer.Option(min=1, help="Golems that live through it.")] = 64,
    days: Annotated[int, typer.Option(min=2, help="Days it lasts; half-way, part of what holds expires.")] = 14,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Folder of the page (default: ./eval/memory-SEED).")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON in place of tables.")] = False,
) -> None:
    """Plant truths in a market, let golems learn from it, and grade what they hold; exit 1 if a bound is missed."""
    target = folder or Path("eval") / f"memory-{seed}"
    policy = Policy()
    with TemporaryDirectory(prefix="bardo-eval-") as home, _told(quiet=json) as tell:
        report = grade_memory(Path(home), Grading(seed, golems, days), policy=policy, clock=now, tell=tell)
    target.mkdir(parents=True, exist_ok=True)
    (target / "index.html").write_text(worth_page(report, policy.worth))
    said = orjson.dumps(summary(report), option=orjson.OPT_INDENT_2)
    (target / "report.json").write_bytes(said)
    if json:
        typer.echo(said.decode())
    else:
        show(report)
        out.print(f"Page: {target / 'index.html'}", highlight=False, soft_wrap=True)
    if not report.kept:
        raise typer.Exit(1)


def show(report: Report) -> None:
    """Bounds, the last day's truths, and what faded, as tables."""
    print_bounds(report.bounds)
    rows = [(t.name, t.kind, t.strength, t.met, t.held) for t in report.looks[-1].recalled]
    print_table(out, "Truths above one sigma", ["truth", "kind", "sigma", "met", "held"], rows)
    if report.faded:
        names = ["expired truth", "golems", "half_life_days", "below_after_days", "left"]
        print_table(
            out, "Fading", names, [(f.name, f.holders, f.half_life_days, f.days_below, f.left) for f in report.faded]
        )


def print_bounds(found: tuple[Bound, ...]) -> None:
    """Each bound with what was measured and the verdict."""
    rows = [(b.name, b.value, f"{b.way} {b.limit:g}", "kept" if b.kept else "MISSED", b.said) for b in found]
    print_table(out, "Bounds", ["bound", "measured", "asked", "verdict", "of what"], rows)


def summary(report: Report) -> dict[str, Any]:
    """The report as JSON: what the page shows, without entries one by one."""
    return {
        "seed": report.grading.seed,
        "golems": report.grading.golems,
        "days": report.grading.days,
        "records": report.records,
        "kept": report.kept,
        "bounds": [b._asdict() for b in report.bounds],
        "looks": [
            {
                "day": one.day,
                "precision": one.precision,
                "recall": one.recall,
                "junk": one.junk,
                "decoy_confidence": one.decoy_confidence,
                "truths": [{**t._asdict(), "share": t.share} for t in one.recalled],
            }
            for one in report.looks
        ],
        "faded": [f._asdict() for f in report.faded],
        "null_market": report.nothing._asdict(),
    }


@contextmanager
def _told(*, quiet: bool) -> Iterator[Tell]:
    """Progress on the terminal, one bar a stage; quiet: on standard error, so that JSON stays alone."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True) if quiet else out
    with Progress(*columns, console=console, transient=True) as progress:
        tasks: dict[str, Any] = {}

        def tell(stage: str, share: float) -> None:
            if stage not in tasks:
                for task in tasks.values():
                    progress.update(task, completed=1.0)
                tasks[stage] = progress.add_task(stage, total=1.0)
            progress.update(tasks[stage], completed=share)

        yield tell
