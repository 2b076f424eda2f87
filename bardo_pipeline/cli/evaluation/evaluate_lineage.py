"""`bardo eval lineage`: compare life and worth of heirs with golems that inherit nothing, a part or everything."""

from __future__ import annotations

from collections import Counter
from html import escape
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from typer import Exit, Option

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.output import eval_report
from bardo_pipeline.cli.output.plots import Line, lines
from bardo_pipeline.cli.output.tables import print_table, say
from bardo_pipeline.market.market import Market
from bardo_pipeline.policy import Policy
from bardo_pipeline.quality.lineage_statistics import CASH, CASH_SHARE, LIFETIME, Gain
from bardo_pipeline.runtime.lineage_evaluation import Descent, Graded, grade_lineages, graded, live_recorded
from bardo_pipeline.storage.market_data.demeter_trace import read_trace

RECORDED = Path("../shared/data")
"""Default folder of recorded markets."""


def lineage(
    seed: opt.FirstSeed = 7,
    seeds: opt.Seeds = 30,
    golems: Annotated[int, Option(min=1, max=opt.GOLEMS_MAX, help="Lineages per market.")] = 4,
    days: Annotated[int, Option(min=1, max=opt.DAYS_MAX, help="Days per ancestor generation.")] = 4,
    judged_days: Annotated[int, Option(min=1, max=opt.DAYS_MAX, help="Maximum days of the compared generation.")] = 10,
    ancestors: Annotated[int, Option(min=1, max=opt.MARKETS_MAX, help="Number of ancestor generations.")] = 2,
    steady: Annotated[bool, Option("--steady", help="Keep the market's rules unchanged between generations.")] = False,
    trace: Annotated[Path, Option(help="Folder of recorded minute bars, evaluated in addition.")] = RECORDED,
    gas_token_price: opt.GasTokenPrice = None,
    folder: Annotated[Path | None, Option("--out", help="Output folder (default: ./eval/lineage-SEED).")] = None,
    workers: opt.Workers = None,
    json: opt.Json = False,
) -> None:
    """Compare heirs with orphans, clones, other conditions and cash; exit 1 if a bound is missed."""
    policy = Policy()
    market, why = recorded_market(trace, opt.gas_token_micros(gas_token_price))
    target = eval_report.make_output_folder(folder or Path("eval") / f"lineage-{seed}")
    descents = [Descent(seed + i, golems, days, judged_days, ancestors, turns=not steady) for i in range(seeds)]
    with eval_report.report_progress(quiet=json) as on_progress:
        report = grade_lineages(descents, policy, lambda share: on_progress("living", share), workers=workers)
        on_progress("recorded days", 0.0)
        recorded = None if market is None else graded([live_recorded(market, golems, ancestors, policy)], policy)
    summary = {
        "seed": seed, "markets": len(report.markets), "golems": golems, "days": days, "judged_days": judged_days,
        "ancestors": ancestors, "turns": not steady, "kept": report.kept, **_summary(report),
        "recorded": {"skipped": why} if recorded is None else _summary(recorded),
    }  # fmt: skip
    page_text = _page(descents[0], report, recorded, why)
    eval_report.write_report(target, page_text, summary, lambda: _show(report, recorded, why), json=json)
    if not report.kept:
        raise Exit(1)


def recorded_market(
    trace: Path, gas_token_micros: int | None, *, rates: bool = False
) -> tuple[Market | None, str | None]:
    """Return the recorded market, or why its evaluation is skipped. A single market has no bounds."""
    if not trace.is_dir():
        return None, f"{trace} is not a folder; name the recorded market's folder with --trace"
    return read_trace(trace, native_usd_micros=gas_token_micros, rates=rates)[0], None


def _rows(report: Graded) -> list[tuple[Any, ...]]:
    """Return one row per condition and one for cash.

    A row has lifetime quartiles, return at a common age, end worth as a share of the budget with its interval, causes
    of death, costs and initial entries.
    """
    rows: list[tuple[Any, ...]] = []
    for condition, lives in report.lived.items():
        low, middle, high = np.percentile(lives.ticks, (25, 50, 75))
        causes = ", ".join(f"{count} {cause}" for cause, count in sorted(Counter(lives.causes).items()))
        thought, gas = report.spent[condition]
        rows.append(
            (condition.replace("_", " "), int(middle), f"{low:,.0f} to {high:,.0f}",
             f"{100 * float(np.median(lives.returns)):+.1f} %", *_share(report.end_worth[condition]), causes,
             f"{thought / 1e6:.2f} + {gas / 1e6:.2f}",
             f"{report.known[condition]:.1f}")
        )  # fmt: skip
    rows.append((CASH, "-", "-", "-", *_share((CASH_SHARE,) * 3), "-", "0.00 + 0.00", "-"))
    return rows


def _share(median_and_interval: tuple[float, ...]) -> tuple[str, str]:
    median, low, high = (f"{100 * value:.1f} %" for value in median_and_interval)
    return median, f"{low} to {high}"


_CONDITION = (
    "condition", "median_ticks", "quarters", "worth", "end_worth", "end_worth_95", "died_of", "thought_gas_usd", "knew",
)  # fmt: skip
_GAIN = ("gain_of", "over", "in", "median", "interval_95", "better", "alike")


def _gain_rows(gains: tuple[Gain, ...]) -> list[tuple[Any, ...]]:
    def percent(value: float) -> str:
        return f"{100 * value:+.1f} %"

    return [
        (*(name.replace("_", " ") for name in (g.condition, g.base, g.measure)), percent(g.median),
         f"{percent(g.low)} to {percent(g.high)}",
         f"{g.wins:.0%}", f"{g.ties:.0%}")
        for g in gains
    ]  # fmt: skip


def _show(report: Graded, recorded: Graded | None, why: str | None) -> None:
    eval_report.print_bounds(report.bounds)
    print_table(f"{len(report.markets)} markets", _CONDITION, _rows(report))
    print_table("Gains", _GAIN, _gain_rows(report.gains))
    if recorded is None:
        say(f"Recorded days skipped: {why}")
    else:
        print_table(recorded.markets[0], _CONDITION, _rows(recorded))
        print_table(f"Gains, {recorded.markets[0]}", _GAIN, _gain_rows(recorded.gains))


def _summary(report: Graded) -> dict[str, Any]:
    return {
        "bounds": [b._asdict() for b in report.bounds],
        "gains": [g._asdict() for g in report.gains],
        "conditions": {
            c: {
                "ticks": lives.ticks.tolist(), "returns": lives.returns.tolist(), "causes": dict(Counter(lives.causes)),
                "end_worth": lives.ends.tolist(), "end_worth_median": report.end_worth[c][0],
                "end_worth_interval_95": report.end_worth[c][1:], "markets": lives.market.tolist(),
                "known": report.known[c], "thought_micros": report.spent[c][0], "gas_micros": report.spent[c][1],
            }
            for c, lives in report.lived.items()
        },
        CASH: {"end_worth": CASH_SHARE, "costs_of_living_paid": False},
    }  # fmt: skip


def _page(first: Descent, report: Graded, recorded: Graded | None, why: str | None) -> str:
    transition = "The market's rules then change, and" if first.turns else "The market's rules stay the same, and"
    head = (
        f"In each of {len(report.markets)} markets, {first.golems} lineages live for {first.ancestors} generations of "
        f"{first.days} days. {transition} the next generation lives under six conditions in parallel, with the same "
        "traits, budgets, lifespans and random draws. Worth is net asset value plus credits relative to birth, at the "
        "age that all golems of a lineage reached. End worth is worth at the end of life as a share of the budget; the "
        "death reserve counts as spent. Cash is the budget kept without a golem, so no costs of living are paid."
    )
    lives = eval_report.table(_CONDITION, _rows(report))
    sections = [
        f"<h2>Bounds</h2>{eval_report.bounds_table(report.bounds)}",
        f'<h2>Lives</h2><div class="plots">{_survival(report)}{_ahead(report)}</div>{lives}',
        f"<h2>Gains</h2>{eval_report.table(_GAIN, _gain_rows(report.gains))}",
        "<h2>Recorded days</h2>"
        + (
            f"<p>Skipped: {escape(why or '')}</p>"
            if recorded is None
            else f"<p>{escape(recorded.markets[0])}: a single market, so no bounds apply.</p>"
            f"{eval_report.table(_CONDITION, _rows(recorded))}{eval_report.table(_GAIN, _gain_rows(recorded.gains))}"
        ),
    ]
    return eval_report.page("Proof of worth: lineage", head, sections)


def _survival(report: Graded) -> str:
    curves = []
    for condition, lives in report.lived.items():
        ages = np.sort(lives.ticks)
        step = max(len(ages) // 40, 1)
        points = [(0.0, 1.0)] + [(float(ages[i]), 1.0 - (i + 1) / len(ages)) for i in range(step - 1, len(ages), step)]
        curves.append(Line(condition.replace("_", " "), points))
    return lines("Survival", "age, ticks", curves)


def _ahead(report: Graded) -> str:
    """Plot the distribution of the lifetime ratio of heirs to each other condition, pair by pair."""
    heirs = report.lived["heirs"].ticks
    curves, right = [], 2.0
    for condition, lives in report.lived.items():
        if condition == "heirs":
            continue
        ratio = np.sort(np.minimum(heirs / np.maximum(lives.ticks, 1), right))
        step = max(len(ratio) // 40, 1)
        points = [(float(ratio[i]), (i + 1) / len(ratio)) for i in range(step - 1, len(ratio), step)]
        curves.append(Line(condition.replace("_", " "), points))
    return lines("Lifetime of heirs relative to others", f"ratio of {LIFETIME}", curves)
