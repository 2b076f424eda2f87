"""`bardo eval lineage`: whether heirs live longer and do better than those who inherit nothing, or everything."""

from __future__ import annotations

from collections import Counter
from html import escape
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from bardo_pipeline.cli.evaluation.evaluation_options import keep, out, print_bounds, room_for, told
from bardo_pipeline.cli.output.eval_page import bounds_table, page, table
from bardo_pipeline.cli.output.svg_plots import Line, lines
from bardo_pipeline.cli.output.tables import print_table
from bardo_pipeline.policy import Policy
from bardo_pipeline.quality.lineage_statistics import LIFETIME, Gain
from bardo_pipeline.runtime.lineage_evaluation import Descent, Graded, grade_lineages, graded, live_recorded
from bardo_pipeline.storage.market_data.demeter_trace import read_trace

RECORDED = Path("../shared/data")


def lineage(
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first market; the others follow.")] = 7,
    seeds: Annotated[int, typer.Option(min=1, help="Markets, each with its own seed.")] = 30,
    golems: Annotated[int, typer.Option(min=1, help="Lineages that live through each.")] = 4,
    days: Annotated[int, typer.Option(min=1, help="Days of each generation of ancestors.")] = 4,
    judged_days: Annotated[int, typer.Option(min=1, help="Days that the compared generation may live.")] = 10,
    ancestors: Annotated[int, typer.Option(min=1, help="Generations before the compared one.")] = 2,
    steady: Annotated[bool, typer.Option("--steady", help="The market does not turn between generations.")] = False,
    trace: Annotated[Path, typer.Option(help="Folder of recorded minute bars, lived through besides.")] = RECORDED,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Folder of the page (default: ./eval/lineage-SEED).")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes at once (default: one a processor).")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON in place of tables.")] = False,
) -> None:
    """Let heirs live beside orphans, clones and those who forget nothing; exit 1 if a bound is missed."""
    policy = Policy()
    target = room_for(folder or Path("eval") / f"lineage-{seed}")
    descents = [Descent(seed + i, golems, days, judged_days, ancestors, turns=not steady) for i in range(seeds)]
    with told(quiet=json) as tell:
        report = grade_lineages(descents, policy, lambda share: tell("living", share), workers=workers)
        recorded, why = _recorded(trace, golems, ancestors, policy, lambda share: tell("recorded days", share))
    summary = {
        "seed": seed, "markets": len(report.markets), "golems": golems, "days": days, "judged_days": judged_days,
        "ancestors": ancestors, "turns": not steady, "kept": report.kept, **_summary(report),
        "recorded": {"skipped": why} if recorded is None else _summary(recorded),
    }  # fmt: skip
    said = keep(target, _page(descents[0], report, recorded, why), summary)
    if json:
        typer.echo(said)
    else:
        _show(report, recorded, why)
        out.print(f"Page: {target / 'index.html'}", highlight=False, soft_wrap=True)
    if not report.kept:
        raise typer.Exit(1)


def _recorded(trace: Path, golems: int, ancestors: int, policy: Policy, tell: Any) -> tuple[Graded | None, str | None]:
    """The same on a recorded market: one luck, so nothing is asked of it; without one, the reason."""
    if not trace.is_dir():
        return None, f"{trace} holds no recorded market; name its folder with --trace"
    tell(0.0)
    market, _ = read_trace(trace)
    return graded([live_recorded(market, golems, ancestors, policy)], policy), None


def _rows(report: Graded) -> list[tuple[Any, ...]]:
    """One row a condition: median ticks, quarters, worth beside the start at a common age, causes of death, spent."""
    rows = []
    for condition, one in report.lived.items():
        low, middle, high = np.percentile(one.ticks, (25, 50, 75))
        causes = ", ".join(f"{count} {cause}" for cause, count in sorted(Counter(one.causes).items()))
        thought, gas = report.spent[condition]
        rows.append(
            (condition.replace("_", " "), int(middle), f"{low:,.0f} to {high:,.0f}",
             f"{100 * float(np.median(one.returns)):+.1f} %", causes, f"{thought / 1e6:.2f} + {gas / 1e6:.2f}",
             f"{report.known[condition]:.1f}")
        )  # fmt: skip
    return rows


_CONDITION = ("condition", "median_ticks", "quarters", "worth", "died_of", "thought_gas_usd", "knew")
_GAIN = ("heirs_before", "of", "median", "interval_95", "better", "alike")


def _gains(found: tuple[Gain, ...]) -> list[tuple[Any, ...]]:
    def percent(value: float) -> str:
        return f"{100 * value:+.1f} %"

    return [
        (g.other.replace("_", " "), g.of, percent(g.median), f"{percent(g.low)} to {percent(g.high)}",
         f"{g.wins:.0%}", f"{g.ties:.0%}")
        for g in found
    ]  # fmt: skip


def _show(report: Graded, recorded: Graded | None, why: str | None) -> None:
    print_bounds(report.bounds)
    print_table(out, f"{len(report.markets)} markets", list(_CONDITION), _rows(report))
    print_table(out, "What heirs have before others", list(_GAIN), _gains(report.gains))
    if recorded is None:
        out.print(f"Recorded days skipped: {why}", highlight=False, soft_wrap=True)
    else:
        print_table(out, recorded.markets[0], list(_CONDITION), _rows(recorded))


def _summary(report: Graded) -> dict[str, Any]:
    return {
        "bounds": [b._asdict() for b in report.bounds],
        "gains": [g._asdict() for g in report.gains],
        "conditions": {
            c: {
                "ticks": one.ticks.tolist(), "returns": one.returns.tolist(), "causes": dict(Counter(one.causes)),
                "markets": one.market.tolist(), "known": report.known[c], "thought_micros": report.spent[c][0],
                "gas_micros": report.spent[c][1],
            }
            for c, one in report.lived.items()
        },
    }  # fmt: skip


def _page(first: Descent, report: Graded, recorded: Graded | None, why: str | None) -> str:
    turned = "The market then turns, and" if first.turns else "The market goes on as it was;"
    head = (
        f"In each of {len(report.markets)} markets, {first.golems} lineages live for {first.ancestors} generations of "
        f"{first.days} days. {turned} the next generation lives under four conditions side by side, with the same "
        "traits, budgets, lifespans and luck. Worth is net asset value and credits beside those at birth, at the age "
        "that all four of a lineage reached."
    )
    sections = [
        f"<h2>Bounds</h2>{bounds_table(report.bounds)}",
        f'<h2>Lives</h2><div class="plots">{_survival(report)}{_ahead(report)}</div>{table(_CONDITION, _rows(report))}',
        f"<h2>What heirs have before others</h2>{table(_GAIN, _gains(report.gains))}",
        "<h2>Recorded days</h2>"
        + (
            f"<p>Skipped: {escape(why or '')}</p>"
            if recorded is None
            else f"<p>{escape(recorded.markets[0])}: one market, one luck; nothing is asked of it.</p>"
            f"{table(_CONDITION, _rows(recorded))}{table(_GAIN, _gains(recorded.gains))}"
        ),
    ]
    return page("Proof of worth: lineage", head, sections)


def _survival(report: Graded) -> str:
    """The share that lives on, by age."""
    drawn = []
    for condition, one in report.lived.items():
        ages = np.sort(one.ticks)
        step = max(len(ages) // 40, 1)
        points = [(0.0, 1.0)] + [(float(ages[i]), 1.0 - (i + 1) / len(ages)) for i in range(step - 1, len(ages), step)]
        drawn.append(Line(condition.replace("_", " "), points))
    return lines("Who lives on", "age, ticks", drawn)


def _ahead(report: Graded) -> str:
    """How much longer heirs lived than the others, pair by pair, sorted: the share of pairs below each ratio."""
    heirs = report.lived["heirs"].ticks
    drawn, right = [], 2.0
    for condition, one in report.lived.items():
        if condition == "heirs":
            continue
        ratio = np.sort(np.minimum(heirs / np.maximum(one.ticks, 1), right))
        step = max(len(ratio) // 40, 1)
        points = [(float(ratio[i]), (i + 1) / len(ratio)) for i in range(step - 1, len(ratio), step)]
        drawn.append(Line(condition.replace("_", " "), points))
    return lines("Heirs' life beside that of the others", f"ratio of {LIFETIME}", drawn)
