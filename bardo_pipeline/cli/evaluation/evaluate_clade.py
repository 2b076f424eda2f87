"""`bardo eval clade`: compare golems alone, in a clade, with Lethe, with one liar, and with a forger on Lethe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Exit, Option

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.output import eval_report
from bardo_pipeline.cli.output.plots import Line, bars, lines
from bardo_pipeline.cli.output.tables import print_table, say
from bardo_pipeline.policy import Policy
from bardo_pipeline.relay.relay_in_process import RelayInProcess
from bardo_pipeline.runtime.clade_evaluation import (
    ARMS,
    TRUTH,
    CladeReport,
    CladeTrial,
    Interval,
    grade_clades,
)


def clade(
    seed: opt.FirstSeed = 7,
    seeds: opt.Seeds = 20,
    golems: Annotated[int, Option(min=2, max=opt.GOLEMS_MAX, help="Golems per market.")] = 8,
    bars: Annotated[int, Option(min=200, max=opt.BARS_MAX, help="Minute bars of each market.")] = 3_600,
    apart: Annotated[int, Option(min=0, max=opt.BARS_MAX, help="Ticks between the births of two golems.")] = 300,
    folder: Annotated[Path | None, Option("--out", help="Output folder (default: ./eval/clade-SEED).")] = None,
    workers: opt.Workers = None,
    json: opt.Json = False,
) -> None:
    """Compare golems alone, in a clade, with Lethe, with one liar and with a forger; exit 1 if a bound is missed."""
    target = eval_report.make_output_folder(folder or Path("eval") / f"clade-{seed}")
    trials = [CladeTrial(seed + number, golems, bars, apart) for number in range(seeds)]
    with eval_report.report_progress(quiet=json) as on_progress:
        report = grade_clades(
            trials, Policy(), RelayInProcess, lambda share: on_progress("living", share), workers=workers
        )
    summary: dict[str, Any] = {
        "seed": seed, "markets": seeds, "golems": golems, "bars": bars, "apart": apart, "kept": report.kept,
        "bounds": [bound._asdict() for bound in report.bounds], "arms": report.arms, "gains": report.gains,
        "time_share": report.time_share, "liars_cost": report.liars_cost, "forgers_cost": report.forgers_cost,
        "liar": report.liar,
        "markets_by_arm": {arm: [life.document for life in lives] for arm, lives in report.markets.items()},
    }  # fmt: skip
    eval_report.write_report(target, _page(report, trials[0]), summary, lambda: _show(report), json=json)
    if not report.kept:
        raise Exit(1)


_ARM = ("arm", "ticks_until_all_know", "knew_it_by_the_end", "deaths", "worth", "false_priors", "alarmed")
_GAIN = ("difference", "mean", "95_low", "95_high")


def _number(value: Interval | None, form: str = "{:,.0f}") -> str:
    """Return a mean with its interval; - without a value."""
    return "-" if value is None else f"{form} ({form} to {form})".format(*value)


def _arm_rows(report: CladeReport) -> list[tuple[str, ...]]:
    return [
        (arm, _number(own["all_know"]), _number(own["share_known"], "{:.0%}"), _number(own["deaths"], "{:.1f}"),
         _number(own["worth"], "{:.1%}"), _number(own["false_priors"]), _number(own["alarmed"], "{:.0%}"))
        for arm, own in report.arms.items()
    ]  # fmt: skip


def _gain_rows(report: CladeReport) -> list[tuple[str, ...]]:
    rows = []
    for name, own in report.gains.items():
        form = "{:+.2%}" if "worth" in name else "{:+,.1f}"
        rows.append((name, *(form.format(value) for value in own)))
    for name, cost in (("liar", report.liars_cost), ("forger", report.forgers_cost)):
        if cost is not None:
            rows.append((f"{name}'s cost, share of the gain of time", *(f"{value:.1%}" for value in cost)))
    return rows


def _liar_rows(report: CladeReport) -> list[tuple[str, str]]:
    return [(name, _number(own, "{:,.1f}")) for name, own in report.liar.items()]


def _show(report: CladeReport) -> None:
    eval_report.print_bounds(report.bounds)
    print_table(f"{len(report.markets[ARMS[0]])} markets, means and 95 % intervals", _ARM, _arm_rows(report))
    print_table("Paired differences", _GAIN, _gain_rows(report))
    print_table("The liar and the forger", ("figure", "mean and 95 %"), _liar_rows(report))
    say("Ticks are counted from the last birth, and for the liar from its first message. Alarmed: share of ticks.")


def _page(report: CladeReport, first: CladeTrial) -> str:
    head = (
        f"In each of {len(report.markets[ARMS[0]])} markets, {first.golems} golems are born {first.apart} ticks apart. "
        f"They live with equal traits, budgets, lifespans and luck in each arm, through {first.bars:,} bars. The "
        f"planted truth is that wide ranges earn more: {TRUTH[1]}. A golem knows it when it holds the rule as active. "
        "Ticks are counted from the last birth; a golem that never knew it counts with the end of the market. In the "
        "arm liar one golem is replaced, and the others are compared. In the arm forger a stranger forges votes and "
        "threats. False priors are pairs of a golem and a false scar or proposition that it retrieved. Alarmed is the "
        "share of ticks with a high threat. Intervals are 95 % by a bootstrap over markets."
    )
    plots = (
        _known(report),
        bars(
            "Worth at the end, share of the budget",
            [(arm, own["worth"][0], f"{own['worth'][0]:.1%}") for arm, own in report.arms.items()],
        ),
    )
    sections = (
        f"<h2>Bounds</h2>{eval_report.bounds_table(report.bounds)}",
        f'<h2>Arms</h2><div class="plots">{"".join(plots)}</div>{eval_report.table(_ARM, _arm_rows(report))}',
        f"<h2>Paired differences</h2>{eval_report.table(_GAIN, _gain_rows(report))}",
        f"<h2>The liar and the forger</h2>{eval_report.table(('figure', 'mean and 95 %'), _liar_rows(report))}",
    )
    return eval_report.page("Proof of worth: clades", head, sections)


def _known(report: CladeReport) -> str:
    """Plot the share of golems that know the truth by the ticks since their birth."""
    curves = [Line(arm, report.known_by_age(arm)) for arm in ARMS]
    return lines("Share of golems that know the truth", "age, ticks", curves)
