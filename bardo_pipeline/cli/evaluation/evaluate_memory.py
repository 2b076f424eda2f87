"""`bardo eval`: whether what golems learned is true, graded against markets of which the truth is known."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from bardo_pipeline.cli.evaluation.evaluate_bottleneck import bottleneck
from bardo_pipeline.cli.evaluation.evaluate_lineage import lineage
from bardo_pipeline.cli.evaluation.evaluate_negentropy import negentropy
from bardo_pipeline.cli.evaluation.evaluation_options import keep, out, print_bounds, room_for, told
from bardo_pipeline.cli.options import now
from bardo_pipeline.cli.output.eval_page import foretold_page, worth_page
from bardo_pipeline.cli.output.tables import print_table
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.policy import Policy
from bardo_pipeline.quality.calibration import Calibration
from bardo_pipeline.runtime.memory_evaluation import Grading, Report, foretell, grade_memory
from bardo_pipeline.storage.market_data.demeter_trace import read_trace

app = typer.Typer(help="Grade what golems learned against markets of which the truth is known.", no_args_is_help=True)

RECORDED = Path("../shared/data")
"""Where recorded markets lie, unless it is said otherwise."""


app.command()(negentropy)
app.command()(lineage)
app.command()(bottleneck)


@app.callback()
def _group() -> None:
    """Grade what golems learned against markets of which the truth is known."""


@app.command()
def memory(
    seed: Annotated[int, typer.Option(min=0, help="Seed of the graded market.")] = 7,
    golems: Annotated[int, typer.Option(min=1, help="Golems that live through it.")] = 64,
    days: Annotated[int, typer.Option(min=2, help="Days it lasts; half-way, part of what holds expires.")] = 14,
    markets: Annotated[
        int | None, typer.Option(min=1, help="Independent markets that the truth is measured on (default: 8 a half).")
    ] = None,
    market: Annotated[
        str, typer.Option(help="synthetic: its truths are known; recorded: only the following day is.")
    ] = "synthetic",
    trace: Annotated[Path, typer.Option(help="Folder of recorded minute bars, for --market recorded.")] = RECORDED,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Folder of the page (default: ./eval/memory-SEED).")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON in place of tables.")] = False,
) -> None:
    """Plant truths in a market, let golems learn from it, and grade what they hold; exit 1 if a bound is missed."""
    policy = Policy()
    if market == "recorded":
        _recorded(trace, golems, folder or Path("eval") / "memory-recorded", policy, json=json)
        return
    if market != "synthetic":
        raise ConfigError(f"there is no market {market!r} to be graded on: synthetic or recorded")
    target = room_for(folder or Path("eval") / f"memory-{seed}")
    with TemporaryDirectory(prefix="bardo-eval-") as home, told(quiet=json) as tell:
        report = grade_memory(Path(home), Grading(seed, golems, days, markets), policy=policy, clock=now, tell=tell)
    said = keep(target, worth_page(report, policy.worth), summary(report))
    if json:
        typer.echo(said)
    else:
        show(report)
        out.print(f"Page: {target / 'index.html'}", highlight=False, soft_wrap=True)
    if not report.kept:
        raise typer.Exit(1)


def _recorded(trace: Path, golems: int, target: Path, policy: Policy, *, json: bool) -> None:
    """Calibration on a recorded market; without one, the reason why there is none."""
    if not trace.is_dir():
        out.print(f"skipped: {trace} holds no recorded market; name its folder with --trace", highlight=False)
        return
    market, _ = read_trace(trace)
    target = room_for(target)
    with TemporaryDirectory(prefix="bardo-eval-") as home, told(quiet=json) as tell:
        found = foretell(Path(home), market, golems, policy=policy, clock=now, tell=tell)
    named = {"market": found.market, "golems": found.golems, "records": found.records}
    said = keep(target, foretold_page(found), {**named, "calibration": foreseen(found.calibration)})
    if json:
        typer.echo(said)
        return
    out.print(f"{found.market}: {found.golems} golems, {found.records:,} records", highlight=False, soft_wrap=True)
    show_calibration(found.calibration)
    out.print(f"Page: {target / 'index.html'}", highlight=False, soft_wrap=True)


def show(report: Report) -> None:
    """Bounds, the last day's truths, what faded, how asking went and how well confidence foretold, as tables."""
    print_bounds(report.bounds)
    rows = [(t.name, t.kind, t.strength, t.met, t.held) for t in report.looks[-1].recalled]
    print_table(out, "Truths above one sigma", ["truth", "kind", "sigma", "met", "held"], rows)
    if report.faded:
        names = ["expired truth", "golems", "half_life_days", "below_after_days", "left"]
        print_table(
            out, "Fading", names, [(f.name, f.holders, f.half_life_days, f.days_below, f.left) for f in report.faded]
        )

    said = report.asked
    if said.number:
        words = f"{said.number:,} questions: {said.hit_rate:.0%} answered among the first {said.first}"
        out.print(f"{words}; mean reciprocal rank {said.reciprocal_rank:.2f}", highlight=False, soft_wrap=True)
    show_calibration(report.calibration)


def show_calibration(found: Calibration) -> None:
    """Of what was believed with which confidence, how much held on the following day."""
    rows = [
        (f"{r['confidence_low_ppm'] / PPM:.1f}-{r['confidence_high_ppm'] / PPM:.1f}", r["belief_count"],
         r["held_ppm"] / PPM, r["outcome_count"], r["agreed_ppm"] / PPM)
        for r in found.bands.to_pylist()
    ]  # fmt: skip
    print_table(out, "Calibration", ["confidence", "beliefs", "held", "decisions", "agreed"], rows)


def foreseen(found: Calibration) -> dict[str, Any]:
    """Calibration as JSON."""
    return {
        "beliefs": found.belief_count,
        "unjudged": found.unjudged_count,
        "brier_held_ppm": found.brier_held_ppm,
        "brier_agreed_ppm": found.brier_agreed_ppm,
        "bands": found.bands.to_pylist(),
    }


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
        "asked": report.asked._asdict(),
        "calibration": foreseen(report.calibration),
    }
