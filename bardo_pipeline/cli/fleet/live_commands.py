"""`bardo live | steer`: let golems live in real time, and steer one."""

from __future__ import annotations

import asyncio
import secrets
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.fleet import run_options as words
from bardo_pipeline.cli.fleet.fleet_commands import show_ending
from bardo_pipeline.cli.fleet.run_command import RunSettings, loan_of, opened_run
from bardo_pipeline.cli.options import bounds_of, now, open_context, root_of
from bardo_pipeline.cli.output.live_screen import Shown, line_of, live_screen
from bardo_pipeline.cli.output.tables import out, print_line, say
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.heartbeat.rhythm.heartbeat_state import Steer
from bardo_pipeline.runtime.live.live_run import Latency, LiveRun, LiveTick
from bardo_pipeline.runtime.live.live_view import LiveView
from bardo_pipeline.runtime.live.market_clock import PacedClock, VirtualClock
from bardo_pipeline.runtime.run_settings import Ending
from bardo_pipeline.storage.operations.live_files import SteerFolder, remove_view, write_view

LIVE_GOLEMS_MAX = 64
"""Most golems of a live run: each tick builds, writes and acknowledges a record of each."""

SPEED_MAX = 100_000.0

_STAGES = "reading", "deciding", "simulating", "validating", "call"


def live(
    home: opt.Home = None,
    trace: words.Trace = None,
    golems: Annotated[int, Option(min=1, max=LIVE_GOLEMS_MAX, help="Golems of the first generation.")] = 1,
    generations: words.Generations = 3,
    seed: words.Seed = 7,
    bars: words.Bars = 5_760,
    owner: words.Owner = None,
    budget: words.Budget = 50.0,
    lifespan: words.Lifespan = "2000-8000",
    market: words.Market = "synthetic",
    loan_to_value: words.LoanToValue = 0.0,
    collateral: words.Collateral = "WETH",
    kill_switch: Annotated[
        Path | None, Option(help="File whose existence raises the kill-switch probe and blocks every call.")
    ] = None,
    oracle: words.Oracle = None,
    pool: words.Pool = None,
    gas_token_price: opt.GasTokenPrice = None,
    speed: Annotated[
        float,
        Option(min=0.0, max=SPEED_MAX, help="Market seconds in a second; 0 for as fast as the machine."),
    ] = 1.0,
    latency: Annotated[
        str,
        Option(help="Market seconds of a read, of deciding, simulating, validating, and of a call, as in 1,2,1,0,4."),
    ] = "0,0,0,0,0",
    lag: Annotated[float, Option(min=0.0, max=3_600.0, help="Market seconds until the source has a bar.")] = 0.0,
    screen: Annotated[
        bool | None, Option("--screen/--no-screen", help="Show a live screen (default: on a terminal).")
    ] = None,
    embedder: opt.Embedder = None,
    config: opt.Config = None,
) -> None:
    """Let golems live in real time; each record is durable before the next tick. Ctrl-C stops, the command resumes."""
    settings = RunSettings(
        golems=golems, generations=generations, seed=seed, bars=bars, lifespan_ticks=bounds_of(lifespan),
        owners=tuple(opt.checked_owner(name) for name in owner or ["owner-1"]),
        budget_micros=round(budget * 1_000_000), trace=trace, pool=pool, market=market, kill_switch=kill_switch,
        oracle=oracle, embedder=embedder, config=config, loan=loan_of(loan_to_value, collateral),
        gas_token_micros=opt.gas_token_micros(gas_token_price),
    )  # fmt: skip
    stages = _latency_of(latency, lag)
    stores, run = opened_run(root_of(home), settings, clock=now)
    view, name = LiveView(), f"live-{run.name}"
    remove_view(stores.home, name)  # a killed run left it
    with _shown(out.is_terminal if screen is None else screen) as show:

        def on_tick(tick: LiveTick) -> None:
            shown = view.note(tick)
            write_view(stores.home, name, shown)
            show(shown)

        beating = LiveRun(
            stores, run, now, market_clock=PacedClock(speed, time.monotonic) if speed else VirtualClock(),
            steers=SteerFolder(stores.home), latency=stages, on_tick=on_tick,
        )  # fmt: skip
        try:
            ending = asyncio.run(_until_stopped(beating))
        finally:
            remove_view(stores.home, name)
            stores.log.close()
    show_ending(ending)
    say("stopped: the same command lives on" if beating.heart.is_stopping else "Next: bardo derive")


async def _until_stopped(beating: LiveRun) -> Ending:
    """Live until the end or a signal; a signal ends the run after the present tick."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, beating.stop)
    return await beating.beat()


@contextmanager
def _shown(on_screen: bool) -> Iterator[Shown]:
    if on_screen:
        with live_screen(out) as show:
            yield show
    else:
        yield _print_lines


def _print_lines(golems: Sequence[dict[str, Any]]) -> None:
    """Print the golems that deliberated in their last tick."""
    for golem in golems:
        if golem["decisions"] and golem["decisions"][0]["tick"] == golem["tick"] and not golem["is_replay"]:
            print_line(line_of(golem))


def _latency_of(text: str, lag: float) -> Latency:
    parts = text.split(",")
    try:
        seconds = [float(part) for part in parts]
    except ValueError:
        seconds = []
    if len(seconds) != len(_STAGES) or not all(0.0 <= value <= 3_600.0 for value in seconds):
        raise ConfigError(f"--latency {text!r}: give the seconds of {', '.join(_STAGES)}, for example 1,2,1,0,4")
    return Latency(**dict(zip(_STAGES, seconds, strict=True)), source=lag)


def steer(
    golem: opt.Golem,
    intent: Annotated[str, Argument(help="What the golem shall consider, for example 'hold until noon'.")],
    home: opt.Home = None,
    low: Annotated[bool, Option("--low", help="A follow-up: it interrupts no call.")] = False,
) -> None:
    """Steer a golem of a live run: it deliberates at T2, and calls that it has not sent are cancelled."""
    context = open_context(home)
    opt.require_born(context, golem)
    SteerFolder(context.home).send(Steer(secrets.token_hex(8), golem, not low, intent))
    say(f"golem {golem}: the steer waits for its next state that accepts one")
