"""`bardo eval bottleneck`: measure the loss of knowledge as the inheritance budget shrinks."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from typer import Option

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.options import now
from bardo_pipeline.cli.output import eval_report
from bardo_pipeline.cli.output.plots import Line, lines
from bardo_pipeline.cli.output.tables import out, print_table
from bardo_pipeline.policy import Policy
from bardo_pipeline.runtime.bottleneck_evaluation import WAYS, Kept, Squeeze, Squeezed, squeeze

_NAMES = ("budget", "way", "entries", "truths", "answers", "worth")


def bottleneck(
    seed: opt.FirstSeed = 7,
    golems: Annotated[int, Option(min=1, max=opt.GOLEMS_MAX, help="Golems whose knowledge is combined.")] = 32,
    days: Annotated[int, Option(min=1, max=opt.DAYS_MAX, help="Days of learning.")] = 5,
    heir_days: Annotated[int, Option(min=1, max=opt.DAYS_MAX, help="Days that heirs live afterwards.")] = 2,
    heirs: Annotated[int, Option(min=1, max=opt.GOLEMS_MAX, help="Heirs for each budget and selection.")] = 2,
    markets: Annotated[
        int, Option(min=1, max=opt.MARKETS_MAX, help="Independent markets on which truth is measured.")
    ] = 8,
    pairs: Annotated[int, Option(min=1, max=opt.GOLEMS_MAX, help="Trading pairs, each with its own market.")] = 8,
    folder: Annotated[Path | None, Option("--out", help="Output folder (default: ./eval/bottleneck-SEED).")] = None,
    json: opt.Json = False,
) -> None:
    """Measure the share of truths, answers and heirs' returns that survives budgets of 16 to 8,192 entries."""
    settings = Squeeze(seed, golems, days, heir_days, heirs, markets, pairs)
    target = eval_report.make_output_folder(folder or Path("eval") / f"bottleneck-{seed}")
    with TemporaryDirectory(prefix="bardo-eval-") as home, eval_report.report_progress(quiet=json) as on_progress:
        result = squeeze(Path(home) / "home", settings, policy=Policy(), on_progress=on_progress, clock=now)
    whole = {"entries": result.entries, "truths": result.truths, "answered": result.answered}
    facts = {"seed": seed, **whole, "kept": [k._asdict() for k in result.kept]}
    eval_report.write_report(target, _page(settings, result), facts, lambda: _show(result), json=json)


def _show(result: Squeezed) -> None:
    held = f"{result.entries:,} entries, {result.truths} truths held correctly"
    out.print(f"{held}, {result.answered} questions answered")
    print_table("What survives", _NAMES, [_row(k) for k in result.kept])


def _row(kept: Kept) -> tuple[object, ...]:
    shares = (f"{100 * share:.1f} %" for share in (kept.truths, kept.answers, kept.worth))
    return (kept.budget, kept.way, kept.entries, *shares)


def _page(settings: Squeeze, result: Squeezed) -> str:
    head = (
        f"{settings.golems} golems, trading {settings.pairs} pairs, learned for {settings.days} days; together "
        f"they hold {result.entries:,} entries, state {result.truths} truths correctly and "
        f"answer {result.answered} questions. Shares are relative to that."
    )
    plots = "".join(
        lines(title, "doublings of a budget of 16", [_line(result, way, part) for way in WAYS], top=top)
        for title, part, top in (
            ("Truths kept", "truths", 1.0), ("Answers kept", "answers", 1.0), ("Worth of heirs", "worth", 1.2),
        )
    )  # fmt: skip
    sections = [f'<h2>Size against loss</h2><div class="plots">{plots}</div>',
                f"<h2>Figures</h2>{eval_report.table(_NAMES, [_row(k) for k in result.kept])}"]  # fmt: skip
    return eval_report.page("Bottleneck: size against loss", head, sections)


def _line(result: Squeezed, way: str, part: str) -> Line:
    points = [k for k in result.kept if k.way == way]
    return Line(way, [(float(k.budget.bit_length() - 5), float(getattr(k, part))) for k in points])
