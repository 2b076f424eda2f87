"""`bardo eval bottleneck`: how much is lost when less and less may cross a death."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from bardo_pipeline.cli.evaluation.evaluation_options import keep, out, room_for, told
from bardo_pipeline.cli.options import now
from bardo_pipeline.cli.output.eval_page import page, table
from bardo_pipeline.cli.output.svg_plots import Line, lines
from bardo_pipeline.cli.output.tables import print_table
from bardo_pipeline.policy import Policy
from bardo_pipeline.runtime.bottleneck_evaluation import WAYS, Kept, Squeeze, Squeezed, squeeze

_NAMES = ("budget", "way", "entries", "truths", "answers", "worth")


def bottleneck(
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first market; the others follow.")] = 7,
    golems: Annotated[int, typer.Option(min=1, help="Golems whose knowledge is taken together.")] = 32,
    days: Annotated[int, typer.Option(min=1, help="Days that they learn.")] = 5,
    heir_days: Annotated[int, typer.Option(min=1, help="Days that heirs live after it.")] = 2,
    heirs: Annotated[int, typer.Option(min=1, help="Heirs of each choice.")] = 2,
    markets: Annotated[int, typer.Option(min=1, help="Independent markets that the truth is measured on.")] = 8,
    pairs: Annotated[int, typer.Option(min=1, help="Pairs, each with its market, that the golems trade.")] = 8,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Folder of the page (default: ./eval/bottleneck-SEED).")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON in place of tables.")] = False,
) -> None:
    """Draw size against loss: what of truths, answers and heirs' worth survives budgets from 16 to 8,192 entries."""
    asked = Squeeze(seed, golems, days, heir_days, heirs, markets, pairs)
    target = room_for(folder or Path("eval") / f"bottleneck-{seed}")
    with TemporaryDirectory(prefix="bardo-eval-") as home, told(quiet=json) as tell:
        found = squeeze(Path(home) / "home", asked, policy=Policy(), tell=tell, clock=now)
    whole = {"entries": found.entries, "truths": found.truths, "answered": found.answered}
    said = keep(target, _page(asked, found), {"seed": seed, **whole, "kept": [k._asdict() for k in found.kept]})
    if json:
        typer.echo(said)
        return
    out.print(
        f"{found.entries:,} entries, {found.truths} truths held rightly, {found.answered} questions answered",
        highlight=False,
    )
    print_table(out, "What survives", list(_NAMES), [_row(k) for k in found.kept])
    out.print(f"Page: {target / 'index.html'}", highlight=False, soft_wrap=True)


def _row(kept: Kept) -> tuple[object, ...]:
    shares = (f"{100 * share:.1f} %" for share in (kept.truths, kept.answers, kept.worth))
    return (kept.budget, kept.way, kept.entries, *shares)


def _page(asked: Squeeze, found: Squeezed) -> str:
    head = (
        f"{asked.golems} golems, trading {asked.pairs} pairs, learned for {asked.days} days; together they hold "
        f"{found.entries:,} entries, state {found.truths} truths rightly and answer {found.answered} questions. Shares "
        "are of that whole."
    )
    plots = "".join(
        lines(title, "doublings of a budget of 16", [_line(found, way, part) for way in WAYS], top=top)
        for title, part, top in (
            ("Truths kept", "truths", 1.0), ("Answers kept", "answers", 1.0), ("Worth of heirs", "worth", 1.2),
        )
    )  # fmt: skip
    sections = [f'<h2>Size against loss</h2><div class="plots">{plots}</div>',
                f"<h2>Figures</h2>{table(_NAMES, [_row(k) for k in found.kept])}"]  # fmt: skip
    return page("Bottleneck: size against loss", head, sections)


def _line(found: Squeezed, way: str, part: str) -> Line:
    mine = [k for k in found.kept if k.way == way]
    return Line(way, [(float(k.budget.bit_length() - 5), float(getattr(k, part))) for k in mine])
