"""Run a fleet: open the market, put the configuration in force, live, derive, show progress."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.progress import Progress, TaskID, TextColumn

from bardo_pipeline.cli.output.tables import out, print_line, progress_bar
from bardo_pipeline.clock import moment_at
from bardo_pipeline.derivation.clade.clade_backup import require_restored
from bardo_pipeline.derivation.clade.exchange_clades import back_up_clades, exchange_clades, exchange_public_posts
from bardo_pipeline.derivation.configuration import in_force_now, put_in_force, record_configuration
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.memory.derive_episodes import refresh_index
from bardo_pipeline.derivation.strikes_and_reorgs import withdraw
from bardo_pipeline.derivation.succession.succeed import retry_registrations, succeed_in_run
from bardo_pipeline.derivation.versions.rebuild import derive_everything
from bardo_pipeline.errors import BardoError, ConfigError
from bardo_pipeline.events.life.events import LoanGranted
from bardo_pipeline.heartbeat.fleet import Founding
from bardo_pipeline.market.market import ASSETS, LENDER, Market
from bardo_pipeline.market.synthetic import flat_market, synthetic_market
from bardo_pipeline.policy import Policy
from bardo_pipeline.policy.toml_config import ConfigFile
from bardo_pipeline.process_settings import CladeSettings
from bardo_pipeline.runtime import fleet_run
from bardo_pipeline.runtime.fleet_run import passes
from bardo_pipeline.runtime.laned_run import LanedRun, has_lanes
from bardo_pipeline.runtime.run_settings import Ending, Run, Succeed
from bardo_pipeline.runtime.run_settings import Progress as RunProgress
from bardo_pipeline.storage.home import Home, stated_in
from bardo_pipeline.storage.keys.clade_secrets import clade_secret_path
from bardo_pipeline.storage.keys.owner_signing_keys import OwnerKeys
from bardo_pipeline.storage.market_data.demeter_trace import read_trace
from bardo_pipeline.storage.operations.maintenance import merge_life_files
from bardo_pipeline.storage.warehouse.build import build_warehouse

SYNTHETIC_START = datetime(2026, 1, 1, tzinfo=UTC)
"""Start of every synthetic market, fixed so that a seed always gives the same bytes."""

_UNNAMED = ("trace", "kill_switch", "embedder", "config", "loan", "gas_token_micros")
"""Settings left out of the hash that names a run. `run_name` adds a loan; the market's hash covers the gas price."""


_STEER = re.compile(r"^(?P<golem>\*|g-[0-9a-f]{8})@(?P<tick>\d+)(?P<how>[:?])(?P<intent>.+)$")


@dataclass(frozen=True)
class RunSettings:
    """Settings of a run, as the user gave them."""

    golems: int = 8
    generations: int = 3
    seed: int = 7
    bars: int = 5_760
    lifespan_ticks: tuple[int, int] = (2_000, 8_000)
    owners: tuple[str, ...] = ("owner-1",)
    budget_micros: int = 50_000_000
    trace: Path | None = None
    pool: str | None = None
    gas_token_micros: int | None = None
    market: str = "synthetic"
    steers: tuple[str, ...] = ()
    kill_switch: Path | None = None
    oracle: bool | None = None
    embedder: str | None = None
    config: Path | None = None
    replicants: int = 0
    loan: LoanGranted | None = None


def go(
    root: Path,
    settings: RunSettings,
    *,
    clock: Callable[[], datetime],
    derive: bool,
    marts: bool,
    console: Console = out,
) -> Ending:
    """Run the fleet through the market, then derive every table if `derive`, and the warehouse if `marts`."""
    stores, run = opened_run(root, settings, clock=clock, console=console)
    back_up_all = _backup(stores, run.founding, clock, is_due_only=False)
    with progress_bar(console, TextColumn("{task.fields[now]}")) as progress:
        ending = _live(stores, run, clock, progress)
        if derive:
            step = progress.add_task("deriving", total=None, now="")
            withdraw(stores, now=clock())
            derive_everything(stores, now=clock(), on_step=lambda name: progress.update(step, now=name))
            progress.update(step, now="index")
            refresh_index(stores)
            if marts:
                progress.update(step, now="warehouse (dbt)")
                build_warehouse(stores.home, stores.derivation_id, stores.policy)
        if back_up_all is not None:
            back_up_all()
        merge_life_files(stores.home, stores.policy, now=clock())
    stores.log.close()
    return ending


def opened_run(
    root: Path, settings: RunSettings, *, clock: Callable[[], datetime], console: Console = out
) -> tuple[DerivationContext, Run]:
    """Open the market and the home, put the configuration in force, and return the context and the run."""
    market = open_market(settings, console)
    steers = parse_steers(settings.steers)
    stated = stated_in(root, settings.config)
    home = Home.create(root, Policy(), clock())
    for owner in settings.owners:
        require_restored(home, owner)
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
        killed=settings.kill_switch.exists if settings.kill_switch else lambda: False,
        oracle=bool(settings.oracle),
        succeed=_succession(stores, founding, clock),
        exchange=_exchange(stores, founding, clock),
        back_up=_backup(stores, founding, clock, is_due_only=True),
        replicants=settings.replicants,
    )
    return stores, run


def _succession(stores: DerivationContext, founding: Founding, clock: Callable[[], datetime]) -> Succeed | None:
    """Return the function that decides on heirs during the run if succession is automatic, else None."""
    if not in_force_now(stores).configuration.succession.auto:
        return None
    return lambda lives, at: succeed_in_run(stores, lives, lifespan_ticks=founding.lifespan_ticks, now=clock(), at=at)


def _exchange(
    stores: DerivationContext, founding: Founding, clock: Callable[[], datetime]
) -> Callable[[], None] | None:
    """Return the function that exchanges knowledge with siblings and strangers for the run's owners.

    None without a relay, or with both layers off. A relay that fails does not stop the run: its golems go on alone.
    """
    address, owners = CladeSettings.of(os.environ).relay, _with_secret(stores.home, founding)
    styx = in_force_now(stores).configuration.styx
    if address is None or not owners or not (styx.clade_enabled or styx.lethe_enabled):
        return None

    def exchange_all() -> None:
        if styx.clade_enabled:
            _warn("clade", exchange_clades(stores, address, now=clock(), owners=owners))
        if styx.lethe_enabled:
            _warn("lethe", exchange_public_posts(stores, address, now=clock(), owners=owners))

    return exchange_all


def _backup(
    stores: DerivationContext, founding: Founding, clock: Callable[[], datetime], *, is_due_only: bool
) -> Callable[[], None] | None:
    """Return the function that backs up the clades of the run's owners; None without a relay.

    A relay that fails, or a damaged bundle, does not stop the run.
    """
    address, owners = CladeSettings.of(os.environ).relay, _with_secret(stores.home, founding)
    if address is None or not owners or not in_force_now(stores).configuration.styx.vault_enabled:
        return None

    def back_up_all() -> None:
        _warn("vault", back_up_clades(stores, address, now=clock(), is_due_only=is_due_only, owners=owners))

    return back_up_all


def _with_secret(home: Home, founding: Founding) -> list[str]:
    """Return the owners of a run whose clade's secret the home has."""
    return [owner for owner in founding.owners if clade_secret_path(home, owner).exists()]


def _warn(of: str, results: Mapping[str, object]) -> None:
    """Print the errors among results by owner."""
    for owner, result in results.items():
        if isinstance(result, BardoError):
            print_line(f"{of} of {owner}: {result}", to=sys.stderr)


def _live(stores: DerivationContext, run: Run, clock: Callable[[], datetime], progress: Progress) -> Ending:
    """Run the founders, then the golems that were born between runs."""
    last = moment_at(int(run.market.at_us[-1]))
    ending = Ending()
    heir_runs = passes(stores, run, last, now=clock())
    if run.golems < 1 and not heir_runs:
        raise ConfigError(f"no golem waits for a run of {run.market.name}: give --golems")
    for part in [*([run] if run.golems else []), *heir_runs]:
        life = (LanedRun if has_lanes(part) else fleet_run.FleetRun)(stores, part, clock)
        task = progress.add_task("living heirs" if part.heirs else "living", total=life.tape.ticks, now="")
        heirs = {heir.golem_id for heir in part.heirs}

        def on_progress(p: RunProgress, task: TaskID = task, heirs: set[str] = heirs) -> None:
            counts = f"{p.records:,} records, {p.living} alive, {p.births} born, {p.deaths} dead, {p.published} bundles"
            progress.update(task, completed=p.ticks_done, now=counts)
            if heirs:
                retry_registrations(stores, heirs, now=clock())

        ending += life.live(on_progress)
        progress.update(task, completed=life.tape.ticks)
    return ending


def _configured(
    root: Path, stated: ConfigFile, settings: RunSettings, market: Market, now: datetime
) -> tuple[DerivationContext, RunSettings, str]:
    """Put the stated configuration in force and record it; return the context, completed settings and run name."""
    begun, why = moment_at(int(market.at_us[0])), "a run begins"
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
    """Open the market that the settings name. Raises TraceError or ConfigError."""
    if settings.trace is not None:
        market, report = read_trace(
            settings.trace, native_usd_micros=settings.gas_token_micros, pool=settings.pool,
            rates=settings.loan is not None,
        )  # fmt: skip
        skipped = "; ".join(sorted({reason for _, reason in report.files_skipped}))
        repairs = (
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
            + "".join(f"; {count:,} {what}" for count, what in repairs if count)
            + f"; gas token at ${market.native_usd_micros / 1e6:,.2f}",
            highlight=False,
            soft_wrap=True,
        )
        return market
    if settings.pool is not None:
        raise ConfigError("--pool names a pool of a recorded market: give --trace FOLDER, or leave the option out")
    if settings.gas_token_micros is not None:
        raise ConfigError("--gas-token-price is for a recorded market: give --trace FOLDER, or leave the option out")
    if settings.loan is not None:
        raise ConfigError("--loan-to-value needs a recorded market with Aave rates: give --trace FOLDER")
    if settings.market == "flat":
        return flat_market(bars=settings.bars, start=SYNTHETIC_START)
    if settings.market == "synthetic":
        return synthetic_market(seed=settings.seed, bars=settings.bars, start=SYNTHETIC_START)
    raise ConfigError(f"--market {settings.market!r} is unknown: use synthetic or flat, or give --trace FOLDER")


def loan_of(loan_to_value: float, collateral: str) -> LoanGranted | None:
    """Return the loan of every golem, None without debt. Raises ConfigError for an unsupported collateral."""
    asset = collateral.upper()
    if asset not in ASSETS:
        raise ConfigError(f"--collateral {collateral!r} is not supported: use {' or '.join(ASSETS)}")
    return LoanGranted(protocol=LENDER, collateral=asset, loan_to_value=loan_to_value) if loan_to_value > 0.0 else None


def run_name(
    settings: RunSettings, market: Market, stores: DerivationContext, auto: Mapping[str, Any] | None = None
) -> str:
    """Return the first 8 hex digits of the SHA-256 of settings, market, derivation and `auto`.

    auto: the configuration's succession settings if succession is automatic, else None.
    """
    kept = {k: v for k, v in asdict(settings).items() if k not in _UNNAMED}
    if settings.loan is not None:
        kept |= {"loan": settings.loan.model_dump(), "lending": stores.policy.lending.model_dump()}
    if auto:
        kept["succession"] = auto
    if not settings.replicants:  # keep the names of runs from before this setting existed
        del kept["replicants"]
    content = orjson.dumps([kept, market.content_hash, stores.derivation_id], option=orjson.OPT_SORT_KEYS, default=str)
    return hashlib.sha256(content).hexdigest()[:8]


def parse_steers(texts: tuple[str, ...]) -> dict[tuple[str, int], tuple[str, str]]:
    """Parse GOLEM@TICK:INTENT (immediate) and GOLEM@TICK?INTENT (follow-up); * means every golem."""
    steers = {}
    for text in texts:
        match = _STEER.match(text)
        if match is None:
            raise ConfigError(
                f"--steer {text!r} is not GOLEM_OR_*@TICK:INTENT (or ?INTENT for a follow-up): for example '*@120:hold'"
            )
        severity = "high" if match["how"] == ":" else "low"
        steers[match["golem"], int(match["tick"])] = (severity, match["intent"])
    return steers
