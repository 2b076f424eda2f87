"""`bardo eval cache`: compare golems with the decision cache and without it: hit rate, cost of thought, worth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Exit, Option

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.output import eval_report
from bardo_pipeline.cli.output.tables import print_table
from bardo_pipeline.policy import Policy
from bardo_pipeline.runtime.cache_evaluation import CacheReport, CacheTrial, grade_cache


def cache(
    seed: opt.FirstSeed = 7,
    seeds: opt.Seeds = 10,
    golems: Annotated[int, Option(min=1, max=opt.GOLEMS_MAX, help="Golems per market.")] = 3,
    days: Annotated[int, Option(min=1, max=opt.DAYS_MAX, help="Days of each market.")] = 7,
    gate: Annotated[Literal["fixed", "attention", "learned"], Option(help="Mode of the gate.")] = "learned",
    folder: Annotated[Path | None, Option("--out", help="Output folder (default: ./eval/cache-SEED).")] = None,
    workers: opt.Workers = None,
    json: opt.Json = False,
) -> None:
    """Compare golems with and without the decision cache; exit 1 if it hits too rarely or costs worth."""
    target = eval_report.make_output_folder(folder or Path("eval") / f"cache-{seed}")
    trials = [CacheTrial(seed + i, golems, days, gate) for i in range(seeds)]
    with eval_report.report_progress(quiet=json) as on_progress:
        report = grade_cache(trials, Policy(), lambda share: on_progress("living", share), workers=workers)
    summary: dict[str, Any] = {
        "seed": seed, "markets": seeds, "golems": golems, "days": days, "gate": gate, "kept": report.kept,
        "bounds": [bound._asdict() for bound in report.bounds], "hit_rate": report.hit_rate,
        "saved_usd": report.saved_usd, "worth": report.worth, "results": report.results,
    }  # fmt: skip
    eval_report.write_report(target, _page(report, days), summary, lambda: _show(report), json=json)
    if not report.kept:
        raise Exit(1)


_NAMES = ("figure", "mean", "95_low", "95_high")


def _rows(report: CacheReport) -> list[tuple[str, ...]]:
    figures = (
        ("hit rate", report.hit_rate, "{:.1%}"), ("saved dollars a day", report.saved_usd, "{:+.4f}"),
        ("gain of end worth", report.worth, "{:+.2%}"),
    )  # fmt: skip
    return [(name, *(words.format(value) for value in values)) for name, values, words in figures]


def _show(report: CacheReport) -> None:
    eval_report.print_bounds(report.bounds)
    print_table(f"{report.markets} markets", _NAMES, _rows(report))
    print_table("Lookups by result", ("result", "lookups"), list(report.results.items()))


def _page(report: CacheReport, days: int) -> str:
    head = (
        f"In each of {report.markets} markets, golems with equal traits, budgets, lifespans and luck live for {days} "
        "days with the decision cache and without it. A lookup is a tick that would deliberate and was not forced. "
        "Intervals are 95 % by a bootstrap over markets."
    )
    sections = (
        f"<h2>Bounds</h2>{eval_report.bounds_table(report.bounds)}",
        f"<h2>Figures</h2>{eval_report.table(_NAMES, _rows(report))}",
        f"<h2>Lookups by result</h2>{eval_report.table(('result', 'lookups'), list(report.results.items()))}",
    )
    return eval_report.page("Proof of worth: decision cache", head, sections)
