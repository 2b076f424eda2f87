"""Runs: from what a user asked for to a fleet that lives, with progress to look at."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, astuple, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from bardo_pipeline.derivation.configuration import in_force_now, put_in_force, record_configuration
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.memory.derive_episodes import refresh_index
from bardo_pipeline.derivation.repair.strikes_and_reorgs import withdraw
from bardo_pipeline.derivation.succession.succeed import retry_registrations, succeed_in_run
from bardo_pipeline.derivation.versions.rebuild import derive_everything
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.events.life.loan_granted import LoanGranted
from bardo_pipeline.heartbeat.fleet import Founding
from bardo_pipeline.market.aave_reserves import ASSETS, LENDER
from bardo_pipeline.market.market import Market
from bardo_pipeline.market.synthetic import flat_market, synthetic_market
from bardo_pipeline.policy import Policy
from bardo_pipeline.policy.toml_config import ConfigFile
from bardo_pipeline.runtime import fleet_run
from bardo_pipeline.runtime.resume_golems import passes
from bardo_pipeline.runtime.run_settings import Ending, Run, Succeed
from bardo_pipeline.runtime.run_settings import Progress as Told
from bardo_pipeline.storage.configuration_file import stated_in
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.keys.owner_signing_keys import OwnerKeys
from bardo_pipeline.storage.market_data.demeter_trace import read_trace
from bardo_pipeline.storage.warehouse.build import build_warehouse

SYNTHETIC_START = datetime(2026, 1, 1, tzinfo=UTC)
"""When synthetic markets begin: a fixed moment, so that a seed gives the same bytes on any day."""

_UNNAMED = ("trace", "kill_switch", "embedder", "config", "loan")
"""Settings that are outside of a run's name, or in it only where there are any."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_STEER = re.compile(r"^(?P<golem>\*|g-[0-9a-f]{8})@(?P<tick>\d+)(?P<how>[:?])(?P<intent>.+)$")


@dataclass(frozen=True)
class RunSettings:
    """What a user asks of a run."""

    golems: int = 8
    generations: int = 3
    seed: int = 7
    bars: int = 5_760
    lifespan_ticks: tuple[int, int] = (2_000, 8_000)
    owners: tuple[str, ...] = ("owner-1",)
    budget_micros: int = 50_000_000
    trace: Path | None = None
    pool: str | None = None
    market: str = "synthetic"
    steers: tuple[str, ...] = ()
    kill_switch: Path | None = None
    oracle: bool | None = None
    embedder: str | None = None
    config: Path | None = None
    replicants: int = 0
    loan: LoanGranted | None = None


def go(
    root: Path, settings: RunSettings, *, clock: Callable[[], datetime], console: Console, derive: bool, marts: bool
) -> Ending:
    """Live through the market, then derive everything from the log (unless somebody else will)."""
    market = open_market(settings, console)
    steers = parse_steers(settings.steers)
    stated = stated_in(root, settings.config)
    Home.create(root, Policy(), clock())
    stores, settings, name = _configured(root, stated, settings, market, clock())
    keys = OwnerKeys(stores.home, stores.log)
    for owner in settings.owners:
        if not any(key.owner_id == owner for key in keys.on_record()):
            keys.make(owner, secrets.token_bytes(32), clock())
    founding = Founding(
        owners=settings.owners, budget_micros=settings.budget_micros, lifespan_ticks=settings.lifespan_ticks,
        loan=settings.loan,
    )  # fmt: skip
    run = Run(
        name=name,
        market=market,
        golems=settings.golems,
        generations=settings.generations,
        founding=founding,
        steers=steers,
        killed=_switch(settings.kill_switch),
        oracle=bool(settings.oracle),
        succeed=_succession(stores, founding, clock),
        replicants=settings.replicants,
    )
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[now]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        ending = _lived(stores, run, clock, progress)
        if derive:
            step = progress.add_task("deriving", total=None, now="")
            withdraw(stores, now=clock())
            derive_everything(stores, now=clock(), tell=lambda name: progress.update(step, now=name))
            progress.update(step, now="index")
            refresh_index(stores)
            if marts:
                progress.update(step, now="warehouse (dbt)")
                build_warehouse(stores.home, stores.derivation_id, stores.policy)
    stores.log.close()
    return ending


def _succession(stores: DerivationContext, founding: Founding, clock: Callable[[], datetime]) -> Succeed | None:
    """Who decides on heirs while the run lasts: the configuration, where it wants them by itself; else the run."""
    if not in_force_now(stores).configuration.succession.auto:
        return None
    return lambda lives, at: succeed_in_run(stores, lives, lifespan_ticks=founding.lifespan_ticks, now=clock(), at=at)


def _lived(stores: DerivationContext, run: Run, clock: Callable[[], datetime], progress: Progress) -> Ending:
    """Live the run: its founders, then those who were born between runs and waited for one."""
    last = _EPOCH + timedelta(microseconds=int(run.market.at_us[-1]))
    ending = Ending(0, 0, 0, 0, 0)
    beside = passes(stores, run, last, now=clock())
    if run.golems < 1 and not beside:
        raise ConfigError(f"nobody is there to live: no golem waits for a run of {run.market.name}; give --golems")
    for one in [*([run] if run.golems else []), *beside]:
        life = fleet_run.Living(stores, one, clock)
        task = progress.add_task("living heirs" if one.heirs else "living", total=life.tape.ticks, now="")
        heirs = {heir.golem_id for heir in one.heirs}

        def tell(p: Told, task: TaskID = task, heirs: set[str] = heirs) -> None:
            said = f"{p.records:,} records, {p.living} alive, {p.births} born, {p.deaths} dead, {p.published} bundles"
            progress.update(task, completed=p.ticks_done, now=said)
            if heirs:
                retry_registrations(stores, heirs, now=clock())

        lived = life.live(tell)
        progress.update(task, completed=life.tape.ticks)
        ending = Ending(*(a + b for a, b in zip(astuple(ending), astuple(lived), strict=True)))
    return ending


def _configured(
    root: Path, stated: ConfigFile, settings: RunSettings, market: Market, now: datetime
) -> tuple[DerivationContext, RunSettings, str]:
    """The stores under what is stated, which is put in force and recorded, the settings with it, and the run's name."""
    begun, why = _EPOCH + timedelta(microseconds=int(market.at_us[0])), "a run begins"
    put_in_force(DerivationContext.open(root), stated, now=now, why=why, at=begun)
    stores = DerivationContext.open(root, embedder=settings.embedder)
    configuration = stated.complete(stores.policy)
    if settings.oracle is None:
        settings = replace(settings, oracle=configuration.oracle.enabled)
    auto = configuration.succession.model_dump() if configuration.succession.auto else None
    name = run_name(settings, market, stores, auto)
    record_configuration(stores, stated, now=now, why=why, run=name, at=begun)
    if stated.policy(stores.policy) != stores.policy:
        stores = DerivationContext.open(root, embedder=settings.embedder)
    return stores, settings, name


def open_market(settings: RunSettings, console: Console) -> Market:
    """The market that was asked for. Raises TraceError or ConfigError."""
    if settings.trace is not None:
        market, report = read_trace(settings.trace, pool=settings.pool, rates=settings.loan is not None)
        skipped = "; ".join(sorted({reason for _, reason in report.files_skipped}))
        mended = (
            (report.minutes_missing, "minutes missing"),
            (report.gas_filled, "without a gas price"),
            (report.liquidity_carried, "without active liquidity"),
            (report.extremes_widened, "with a close beyond their extremes"),
        )
        console.print(
            f"{market.name}: {report.bars:,} minutes, "
            f"{report.first_at:%Y-%m-%d %H:%M} to {report.last_at:%Y-%m-%d %H:%M} UTC; "
            f"{len(report.files_read)} files read, {len(report.files_skipped)} skipped"
            + (f" ({skipped})" if skipped else "")
            + "".join(f"; {count:,} {what}" for count, what in mended if count),
            highlight=False,
            soft_wrap=True,
        )
        return market
    if settings.loan is not None:
        raise ConfigError("a synthetic market lends nothing: give --trace FOLDER with Aave rates for --loan-to-value")
    if settings.market == "flat":
        return flat_market(bars=settings.bars, start=SYNTHETIC_START)
    if settings.market == "synthetic":
        return synthetic_market(seed=settings.seed, bars=settings.bars, start=SYNTHETIC_START)
    raise ConfigError(f"there is no market {settings.market!r}: synthetic or flat, or give --trace FOLDER")


def loan_of(loan_to_value: float, collateral: str) -> LoanGranted | None:
    """What golems may borrow; None for nothing. Raises ConfigError for another collateral than the pool's tokens."""
    asset = collateral.upper()
    if asset not in ASSETS:
        raise ConfigError(f"--collateral {collateral!r} is none of {', '.join(ASSETS)}")
    return LoanGranted(protocol=LENDER, collateral=asset, loan_to_value=loan_to_value) if loan_to_value > 0.0 else None


def run_name(
    settings: RunSettings, market: Market, stores: DerivationContext, auto: Mapping[str, Any] | None = None
) -> str:
    """A name that only this run has: the same settings, market and derivation have the same.

    auto: what the configuration wants of heirs by itself, None where it wants none.
    """
    kept = {k: v for k, v in asdict(settings).items() if k not in _UNNAMED}
    if settings.loan is not None:
        kept |= {"loan": settings.loan.model_dump(), "lending": stores.policy.lending.model_dump()}
    if auto:
        kept["succession"] = auto
    if not settings.replicants:  # a run that sends none has the name that it always had
        del kept["replicants"]
    content = orjson.dumps([kept, market.content_hash, stores.derivation_id], option=orjson.OPT_SORT_KEYS, default=str)
    return hashlib.sha256(content).hexdigest()[:8]


def parse_steers(texts: tuple[str, ...]) -> dict[tuple[str, int], tuple[str, str]]:
    """GOLEM@TICK:INTENT interrupts at once, GOLEM@TICK?INTENT waits as a follow-up; * is every golem."""
    out = {}
    for text in texts:
        found = _STEER.match(text)
        if found is None:
            raise ConfigError(
                f"--steer {text!r} is not GOLEM_OR_*@TICK:INTENT (or ?INTENT for a follow-up): for example '*@120:hold'"
            )
        severity = "high" if found["how"] == ":" else "low"
        out[found["golem"], int(found["tick"])] = (severity, found["intent"])
    return out


def _switch(path: Path | None) -> Callable[[], bool]:
    return (lambda: False) if path is None else path.exists
