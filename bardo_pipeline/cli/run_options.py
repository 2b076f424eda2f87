"""Options of `bardo run`, with their help texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Trace = Annotated[
    Path | None,
    typer.Option(help="Folder of recorded minute bars (demeter-fetch CSV); default: a synthetic market."),
]
Pool = Annotated[str | None, typer.Option(help="Pool to trade, if the trace folder holds several.")]
MarketName = Annotated[
    str, typer.Option(help="Market without a trace: synthetic, or flat (constant prices, cheap gas).")
]
Seed = Annotated[int, typer.Option(help="Seed of the synthetic market, the golems' traits and lifespans.")]
Bars = Annotated[int, typer.Option(min=60, help="Length of the synthetic market in minutes.")]
Golems = Annotated[
    int, typer.Option(min=0, help="Golems of the first generation; 0 runs only golems born between runs.")
]
Generations = Annotated[int, typer.Option(min=1, help="Generations until a lineage ends.")]
Owners = Annotated[list[str] | None, typer.Option(help="Owner of golems; repeatable.")]
Budget = Annotated[float, typer.Option(min=1.0, help="Initial capital of a golem in dollars.")]
Lifespan = Annotated[str, typer.Option(help="Bounds of the lifespan in ticks, LOW-HIGH.")]
LoanToValue = Annotated[
    float,
    typer.Option(min=0.0, max=1.0, help="Aave debt per dollar of collateral, at most 0.75; needs a trace with rates."),
]
Collateral = Annotated[str, typer.Option(help="Token supplied as collateral, WETH or USDC; golems borrow the other.")]
Steers = Annotated[
    list[str] | None,
    typer.Option(
        help="Intervention GOLEM@TICK:INTENT (immediate) or GOLEM@TICK?INTENT (follow-up); * means every golem."
    ),
]
KillSwitch = Annotated[Path | None, typer.Option(help="File whose existence raises the kill-switch probe.")]
Oracle = Annotated[
    bool | None,
    typer.Option(
        "--oracle/--no-oracle",
        help="Golems predict; otherwise observations alone measure surprise (default: bardo.toml, else on).",
    ),
]
Replicants = Annotated[
    int, typer.Option(min=0, help="Replicants that a golem may send out, one at a time, to test an open hypothesis.")
]
Marts = Annotated[bool, typer.Option(help="Build the DuckDB warehouse (dbt) at the end.")]
