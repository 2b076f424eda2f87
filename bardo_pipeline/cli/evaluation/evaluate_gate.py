"""`bardo eval gate`: compare what gates catch of the ticks that matter, what thought costs, and the owner's worth."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Annotated, Any

from typer import Exit, Option

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.evaluation.evaluate_lineage import RECORDED, recorded_market
from bardo_pipeline.cli.output import eval_report
from bardo_pipeline.cli.output.plots import bars
from bardo_pipeline.cli.output.tables import print_table, say
from bardo_pipeline.policy import Policy
from bardo_pipeline.runtime.gate_evaluation import (
    COST_MAX,
    FIRST_TICKS,
    Compared,
    GateReport,
    Trial,
    compare_gates,
    grade_gates,
    graded_gates,
    recorded_trial,
)

_NAMES = ("gate", "caught", "ahead_95", "cost", "cost_95", "whole_cost", "worth", "worth_95")
"""Columns: share of important ticks caught, and its gain over the fixed gate; cost of thought that the gate chose, and
with forced thought, as shares of the fixed gate's; gain of end worth over the fixed gate in shares of the budget."""


def gate(
    seed: opt.FirstSeed = 7,
    seeds: opt.Seeds = 30,
    golems: Annotated[int, Option(min=1, max=opt.GOLEMS_MAX, help="Golems per market.")] = 3,
    days: Annotated[
        int, Option(min=1, max=opt.DAYS_MAX, help="Days that are compared, after as many days of ancestors.")
    ] = 1,
    trace: Annotated[Path, Option(help="Folder of recorded minute bars, evaluated in addition.")] = RECORDED,
    gas_token_price: opt.GasTokenPrice = None,
    folder: Annotated[Path | None, Option("--out", help="Output folder (default: ./eval/gate-SEED).")] = None,
    workers: opt.Workers = None,
    json: opt.Json = False,
) -> None:
    """Compare the fixed, attention, learned, inherited and routed gate with an oracle; exit 1 if a bound is missed."""
    market, why = recorded_market(trace, opt.gas_token_micros(gas_token_price), rates=True)
    target = eval_report.make_output_folder(folder or Path("eval") / f"gate-{seed}")
    trials = [Trial(seed + i, golems, days, days) for i in range(seeds)]
    with eval_report.report_progress(quiet=json) as on_progress:
        report = grade_gates(trials, Policy(), lambda share: on_progress("living", share), workers=workers)
        on_progress("recorded days", 0.0)
        lived = None if market is None else compare_gates(recorded_trial(market, golems), Policy())
    recorded = None if lived is None else graded_gates([lived], Policy()).whole
    summary: dict[str, Any] = {
        "seed": seed, "markets": len(report.markets), "golems": golems, "days": days, "kept": report.kept,
        "bounds": [bound._asdict() for bound in report.bounds],
        "whole": [row._asdict() for row in report.whole], "first": [row._asdict() for row in report.first],
        "recorded": {"skipped": why} if recorded is None else [row._asdict() for row in recorded],
    }  # fmt: skip
    eval_report.write_report(
        target, _page(report, recorded, why), summary, lambda: _show(report, recorded, why), json=json
    )
    if not report.kept:
        raise Exit(1)


def _rows(compared: tuple[Compared, ...]) -> list[tuple[Any, ...]]:
    def percent(value: float) -> str:
        return f"{100 * value:+.1f} %"

    return [
        (row.gate, f"{row.caught:.1%}", f"{percent(row.ahead[1])} to {percent(row.ahead[2])}", f"{row.cost[0]:.2f}",
         f"{row.cost[1]:.2f} to {row.cost[2]:.2f}", f"{row.whole_cost[0]:.2f}", percent(row.worth[0]),
         f"{percent(row.worth[1])} to {percent(row.worth[2])}")
        for row in compared
    ]  # fmt: skip


def _show(report: GateReport, recorded: tuple[Compared, ...] | None, why: str | None) -> None:
    eval_report.print_bounds(report.bounds)
    print_table(f"{len(report.markets)} markets", _NAMES, _rows(report.whole))
    print_table(f"First {FIRST_TICKS} ticks", _NAMES, _rows(report.first))
    if recorded is None:
        say(f"Recorded days: {why}")
    else:
        print_table("Recorded days, one market without an interval", _NAMES, _rows(recorded))


def _page(report: GateReport, recorded: tuple[Compared, ...] | None, why: str | None) -> str:
    head = (
        f"In each of {len(report.markets)} markets, golems with equal traits, budgets, lifespans and luck live under "
        "each gate. A tick is important if a deliberation would execute an action. The oracle deliberates at these "
        "ticks alone. The inherited gate starts with the state that ancestors with the learned gate left. The routed "
        "gate is the learned one with the router of chain events. Intervals are 95 % by a bootstrap over markets."
    )
    sections = [f"<h2>Bounds</h2>{eval_report.bounds_table(report.bounds)}"]
    for title, rows in (("Whole lives", report.whole), (f"First {FIRST_TICKS} ticks", report.first)):
        caught = [(row.gate, row.caught, f"{row.caught:.1%}") for row in rows]
        cost = [(row.gate, row.cost[0], f"{row.cost[0]:.2f}") for row in rows]
        plots = (
            bars("Share of important ticks caught", caught),
            bars("Cost of chosen thought beside the fixed gate", cost, COST_MAX),
        )
        table = eval_report.table(_NAMES, _rows(rows))
        sections.append(f'<h2>{title}</h2><div class="plots">{"".join(plots)}</div>{table}')
    table = f"<p>{escape(why or '')}</p>" if recorded is None else eval_report.table(_NAMES, _rows(recorded))
    sections.append(f"<h2>Recorded days</h2>{table}")
    return eval_report.page("Proof of worth: gates", head, sections)
