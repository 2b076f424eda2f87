"""What a run is asked for: the options of `bardo run`, each with its help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Trace = Annotated[
    Path | None,
    typer.Option(help="Folder of recorded minute bars (demeter-fetch CSV); without it, a synthetic market."),
]
Pool = Annotated[str | None, typer.Option(help="The pool to trade, if the trace folder holds several.")]
MarketName = Annotated[str, typer.Option(help="Without a trace: synthetic, or flat (nothing happens, gas is cheap).")]
Seed = Annotated[int, typer.Option(help="Seed of the synthetic market, and of the golems' traits and lifespans.")]
Bars = Annotated[int, typer.Option(min=60, help="Minutes of the synthetic market.")]
Golems = Annotated[
    int, typer.Option(min=0, help="Golems of the first generation; 0: only those who were born between runs.")
]
Generations = Annotated[int, typer.Option(min=1, help="Generations until a lineage ends.")]
Owners = Annotated[list[str] | None, typer.Option(help="An owner; give it several times for several.")]
Budget = Annotated[float, typer.Option(min=1.0, help="Dollars a golem is founded with.")]
Lifespan = Annotated[str, typer.Option(help="Bounds of the lifespan in ticks, LOW-HIGH.")]
LoanToValue = Annotated[
    float,
    typer.Option(
        min=0.0, max=1.0, help="Aave debt for each dollar of collateral, at most 0.75; needs the trace's rates."
    ),
]
Collateral = Annotated[str, typer.Option(help="What they supply, WETH or USDC; they owe the other.")]
Steers = Annotated[
    list[str] | None,
    typer.Option(help="Interrupt: GOLEM_OR_*@TICK:INTENT (high) or GOLEM_OR_*@TICK?INTENT (follow-up)."),
]
KillSwitch = Annotated[Path | None, typer.Option(help="While this file exists, the kill-switch probe is high.")]
Oracle = Annotated[
    bool | None,
    typer.Option(
        "--oracle/--no-oracle",
        help="Golems predict; without, they judge surprise by what they see alone (default: bardo.toml, else on).",
    ),
]
Replicants = Annotated[
    int, typer.Option(min=0, help="Replicants that a golem may send out, one at a time, to settle what is open to it.")
]
Marts = Annotated[bool, typer.Option(help="Build the analysts' warehouse at the end.")]
