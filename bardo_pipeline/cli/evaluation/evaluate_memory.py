"""`bardo eval memory`: grade learned knowledge against synthetic markets with known truths, or a recorded market."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from typer import Exit, Option, Typer

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.evaluation.evaluate_bottleneck import bottleneck
from bardo_pipeline.cli.evaluation.evaluate_cache import cache
from bardo_pipeline.cli.evaluation.evaluate_clade import clade
from bardo_pipeline.cli.evaluation.evaluate_gate import gate
from bardo_pipeline.cli.evaluation.evaluate_lineage import RECORDED, lineage
from bardo_pipeline.cli.evaluation.evaluate_negentropy import negentropy
from bardo_pipeline.cli.evaluation.evaluate_recall import recall
from bardo_pipeline.cli.options import now
from bardo_pipeline.cli.output import eval_report
from bardo_pipeline.cli.output.tables import out, print_table, say
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.policy import Policy
from bardo_pipeline.quality.calibration import Calibration
from bardo_pipeline.runtime.memory_evaluation import Grading, Report, foretell, grade_memory
from bardo_pipeline.storage.market_data.demeter_trace import read_trace

app = Typer(help="Grade the knowledge of golems against markets with known truths.", no_args_is_help=True)

app.command()(negentropy)
app.command()(lineage)
app.command()(bottleneck)
app.command()(recall)
app.command()(gate)
app.command()(cache)
app.command()(clade)


@app.command()
def memory(
    seed: Annotated[int, Option(min=0, max=opt.SEED_MAX, help="Seed of the graded market.")] = 7,
    golems: Annotated[int, Option(min=1, max=opt.GOLEMS_MAX, help="Number of golems.")] = 64,
    days: Annotated[
        int, Option(min=2, max=opt.DAYS_MAX, help="Days of the market; half-way, some truths expire.")
    ] = 14,
    markets: Annotated[
        int | None,
        Option(
            min=1, max=opt.MARKETS_MAX, help="Independent markets on which truth is measured (default: 8 per half)."
        ),
    ] = None,
    market: Annotated[
        str, Option(help="synthetic (known truths) or recorded (graded against the following day).")
    ] = "synthetic",
    trace: Annotated[Path, Option(help="Folder of recorded minute bars for --market recorded.")] = RECORDED,
    gas_token_price: opt.GasTokenPrice = None,
    folder: Annotated[Path | None, Option("--out", help="Output folder (default: ./eval/memory-SEED).")] = None,
    json: opt.Json = False,
) -> None:
    """Run golems through a market with planted truths and grade their entries; exit 1 if a bound is missed."""
    policy = Policy()
    if market == "recorded":
        gas_token_micros = opt.gas_token_micros(gas_token_price)
        _recorded(trace, gas_token_micros, golems, folder or Path("eval") / "memory-recorded", policy, json=json)
        return
    if market != "synthetic":
        raise ConfigError(f"--market {market!r} is unknown: use synthetic or recorded")
    target = eval_report.make_output_folder(folder or Path("eval") / f"memory-{seed}")
    with TemporaryDirectory(prefix="bardo-eval-") as home, eval_report.report_progress(quiet=json) as on_progress:
        report = grade_memory(
            Path(home), Grading(seed, golems, days, markets), policy=policy, clock=now, on_progress=on_progress
        )
    page = eval_report.worth_page(report, policy.worth)
    eval_report.write_report(target, page, summary(report), lambda: show(report), json=json)
    if not report.kept:
        raise Exit(1)


def _recorded(
    trace: Path, gas_token_micros: int | None, golems: int, target: Path, policy: Policy, *, json: bool
) -> None:
    """Measure calibration on a recorded market; print a note if the trace folder is missing."""
    if not trace.is_dir():
        out.print(f"skipped: {trace} is not a folder; name the recorded market's folder with --trace")
        return
    market, _ = read_trace(trace, native_usd_micros=gas_token_micros)
    target = eval_report.make_output_folder(target)
    with TemporaryDirectory(prefix="bardo-eval-") as home, eval_report.report_progress(quiet=json) as on_progress:
        result = foretell(Path(home), market, golems, policy=policy, clock=now, on_progress=on_progress)
    facts: dict[str, Any] = {"market": result.market, "golems": result.golems, "records": result.records}
    facts |= {
        "calibration": calibration_facts(result.calibration),
        "stated_calibration": calibration_facts(result.stated_calibration),
    }

    def show_recorded() -> None:
        say(f"{result.market}: {result.golems} golems, {result.records:,} records")
        show_calibration(result.calibration, result.stated_calibration)

    eval_report.write_report(target, eval_report.foretold_page(result), facts, show_recorded, json=json)


def show(report: Report) -> None:
    """Print bounds, truths of the last day, expired truths, retrieval quality and calibration as tables."""
    eval_report.print_bounds(report.bounds)
    rows = [(t.name, t.kind, t.strength, t.met, t.held) for t in report.looks[-1].recalled]
    print_table("Truths above one sigma", ["truth", "kind", "sigma", "met", "held"], rows)
    if report.faded:
        names = ["expired truth", "golems", "half_life_days", "below_after_days", "left"]
        print_table(
            "Fading", names, [(f.name, f.holders, f.half_life_days, f.days_below, f.left) for f in report.faded]
        )

    asked = report.asked
    if asked.number:
        hits = f"{asked.number:,} questions: {asked.hit_rate:.0%} answered among the first {asked.first}"
        say(f"{hits}; mean reciprocal rank {asked.reciprocal_rank:.2f}")
    show_calibration(report.calibration, report.stated_calibration)


def show_calibration(calibration: Calibration, stated: Calibration) -> None:
    """Print by foretold confidence the share of beliefs that held on the following day, and the Brier scores."""
    rows = [
        (f"{r['confidence_low_ppm'] / PPM:.1f}-{r['confidence_high_ppm'] / PPM:.1f}", r["belief_count"],
         r["held_ppm"] / PPM, r["outcome_count"], r["agreed_ppm"] / PPM)
        for r in calibration.bands.to_pylist()
    ]  # fmt: skip
    print_table("Calibration", ["foretold", "beliefs", "held", "decisions", "agreed"], rows)
    names = ["subject", "beliefs", "foretold", "held", "Brier", "of the base rate"]
    print_table("Calibration by subject", names, eval_report.subject_rows(calibration))
    if calibration.brier_held_ppm is not None:
        scores = calibration.brier_held_ppm, calibration.brier_base_ppm or 0, stated.brier_held_ppm or 0
        foretold, base, before = (f"{score / PPM:.3f}" for score in scores)
        say(f"Brier score {foretold}; of the base rate {base}, of the stated confidence {before} (a coin: 0.250)")


def calibration_facts(calibration: Calibration) -> dict[str, Any]:
    """Return a calibration as JSON."""
    return {
        "beliefs": calibration.belief_count,
        "unjudged": calibration.unjudged_count,
        "brier_held_ppm": calibration.brier_held_ppm,
        "brier_agreed_ppm": calibration.brier_agreed_ppm,
        "brier_base_ppm": calibration.brier_base_ppm,
        "is_monotone": calibration.is_monotone,
        "bands": calibration.bands.to_pylist(),
        "subjects": calibration.subjects.to_pylist(),
    }


def summary(report: Report) -> dict[str, Any]:
    """Return the report as JSON, without single entries."""
    return {
        **{name: getattr(report.grading, name) for name in ("seed", "golems", "days")},
        "records": report.records,
        "kept": report.kept,
        "bounds": [b._asdict() for b in report.bounds],
        "looks": [
            {
                **{name: getattr(look, name) for name in ("day", "precision", "recall", "junk", "decoy_confidence")},
                "truths": [{**t._asdict(), "share": t.share} for t in look.recalled],
            }
            for look in report.looks
        ],
        "faded": [f._asdict() for f in report.faded],
        "null_market": report.nothing._asdict(),
        "asked": report.asked._asdict(),
        "calibration": calibration_facts(report.calibration),
        "stated_calibration": calibration_facts(report.stated_calibration),
    }
