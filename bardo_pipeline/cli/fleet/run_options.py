"""Options that `bardo run` and `bardo live` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from bardo_pipeline.cli import options as opt

GENERATIONS_MAX = 10_000
"""Bound of a run, above what one machine lives through."""

Trace = Annotated[
    Path | None, Option(help="Folder of recorded minute bars (demeter-fetch CSV); default: a synthetic market.")
]

Generations = Annotated[int, Option(min=1, max=GENERATIONS_MAX, help="Generations until a lineage ends.")]

Seed = Annotated[
    int, Option(min=0, max=opt.SEED_MAX, help="Seed of the synthetic market, the golems' traits and lifespans.")
]

Bars = Annotated[int, Option(min=60, max=opt.BARS_MAX, help="Length of the synthetic market in minutes.")]

Owner = Annotated[list[str] | None, Option(help="Owner of golems; repeatable.")]

Budget = Annotated[float, Option(min=1.0, max=opt.DOLLARS_MAX, help="Initial capital of a golem in dollars.")]

Lifespan = Annotated[str, Option(help="Bounds of the lifespan in ticks, LOW-HIGH.")]

Market = Annotated[str, Option(help="Market without a trace: synthetic, or flat (constant prices, cheap gas).")]

LoanToValue = Annotated[
    float,
    Option(min=0.0, max=1.0, help="Aave debt per dollar of collateral, at most 0.75; needs a trace with rates."),
]

Collateral = Annotated[str, Option(help="Token supplied as collateral, WETH or USDC; golems borrow the other.")]

KillSwitch = Annotated[Path | None, Option(help="File whose existence raises the kill-switch probe.")]

Oracle = Annotated[
    bool | None,
    Option(
        "--oracle/--no-oracle",
        help="Golems predict; otherwise observations alone measure surprise (default: bardo.toml, else on).",
    ),
]

Pool = Annotated[str | None, Option(help="Pool to trade, if the trace folder holds several.")]
