"""Care: what the log keeps of every tick (`bardo ticks`)."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import orjson
import pyarrow as pa
import typer
from rich.console import Console

from bardo_pipeline.doors.options import HomeOption, root_of
from bardo_pipeline.doors.tables import print_table
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.log import EventLog
from bardo_pipeline.storage.tick_index import PHASE_SCHEMA, TickIndex

out = Console(soft_wrap=False)

_WIDE = 110  # columns of a terminal that has room for what a tick cost and was worth


def ticks(
    home: HomeOption = None,
    golem: Annotated[list[str] | None, typer.Option(help="Only this golem's; several times for several.")] = None,
    tier: Annotated[list[str] | None, typer.Option(help="T0, T1, T2 or suppress; several times for several.")] = None,
    regime: Annotated[list[str] | None, typer.Option(help="For example volatile; several times for several.")] = None,
    phase: Annotated[list[str] | None, typer.Option(help="For example terminal; several times for several.")] = None,
    acted: Annotated[bool, typer.Option(help="Only ticks with an action and its outcome.")] = False,
    last: Annotated[int, typer.Option(min=1, help="At most so many, the last ones.")] = 50,
    phases: Annotated[bool, typer.Option(help="How many ticks each phase has, instead.")] = False,
    struck: Annotated[bool, typer.Option(help="With ticks that were struck or taken back by a reorg.")] = True,
    format: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
) -> None:
    """Ask the tick index: the last ticks by golem, tier, regime, phase, or acted with an outcome; cold ones too."""
    if format not in ("table", "json"):
        raise ConfigError(f"--format {format!r}: table or json")
    opened = Home.open(root_of(home))
    with EventLog(opened) as log:
        index = TickIndex.open(opened, log)
        if phases:
            found = index.phases(golems=golem, struck=struck)
        else:
            true = True if acted else None
            found = index.ticks(
                golems=golem, tier=tier, regime=regime, phase=phase,
                has_action=true, has_outcome=true, limit=last, struck=struck,
            )  # fmt: skip
    _show(found, format)


def _show(found: pa.Table, format: str) -> None:
    rows = found.to_pylist()
    if format == "json":
        sys.stdout.buffer.write(orjson.dumps(rows) + b"\n")
        return
    told = rows if found.schema == PHASE_SCHEMA else [_told(row, wide=out.width >= _WIDE) for row in rows]
    if told:
        print_table(out, None, list(told[0]), [tuple(row.values()) for row in told])
    else:
        out.print("no such tick")


def _told(row: dict[str, Any], *, wide: bool) -> dict[str, object]:
    """A tick as the terminal shows it; JSON has everything."""
    did = "acted" if row["has_action"] else ""
    shown: dict[str, object] = {
        "tick": f"{row['golem_id']}:{row['tick']}",
        "when": f"{row['observed_at']:%Y-%m-%d %H:%M}",
        "tier": row["tier"],
        "regime": row["regime"],
        "phase": row["phase"],
        "did": f"{did}, outcome" if row["has_outcome"] else did,
    }
    if wide:
        shown |= {"error": row["prediction_error"], "cost": row["total_cost_micros"], "pnl": row["pnl_impact_micros"]}
        shown |= {"emotion": row["primary_emotion"]}
    return shown
