"""`bardo demo | run | ui`: run a fleet, show what its golems learned and left; run Dagster on the home."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

from typer import Exit, Option

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.fleet import run_options as words
from bardo_pipeline.cli.fleet.run_command import RunSettings, go, loan_of
from bardo_pipeline.cli.options import bounds_of, named_owner, now, open_log, root_for_owner, root_of
from bardo_pipeline.cli.output.tables import out, print_table, say
from bardo_pipeline.errors import ConfigError, DerivationError
from bardo_pipeline.project_files import checkout
from bardo_pipeline.runtime.run_settings import Ending
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.operations.dagster_settings import prepare_dagster_home
from bardo_pipeline.storage.warehouse.build import query

_TOOLS = Path(sys.executable).parent

DEMO_JOBS = ("dream_job", "curator_job")
"""Jobs that derive a demo: dreams first, so that their lessons are in the marts."""

DEMO_BUDGET_MICROS = 25_000_000
"""Budget of a golem of the demo: some run out of credits before their lifespan ends (at 50 dollars none did)."""

FLEET_SQL = """
select golem_id as golem, generation as gen, owner_id as owner, coalesce(predecessor_id, '-') as heir_of,
ticks_lived as ticks,
       coalesce(cause, 'alive') as fate, knowledge_at_birth as knew, knowledge_at_death as left
from dim_golem order by lineage_id, generation
"""

LEARNED_SQL = """
select kind, text, count(*) as golems, round(100 * avg(confidence), 0)::int as confidence, max(generation) as
generations from fct_knowledge where source = 'pattern' group by all order by golems desc, confidence desc, text limit 6
"""

OLDEST_RULE_SQL = """
select entry_id from fct_knowledge where source = 'pattern' order by generation desc, confidence desc, entry_id limit 1
"""


def demo(
    home: opt.Home = None,
    seed: Annotated[int, Option(min=0, max=opt.SEED_MAX, help="Seed of the synthetic market.")] = 7,
    golems: Annotated[int, Option(min=1, max=opt.GOLEMS_MAX, help="Golems of the first generation.")] = 8,
    generations: words.Generations = 3,
    ui: Annotated[bool, Option(help="Derive through Dagster, so that its UI shows the run (needs a checkout).")] = True,
) -> None:
    """Run short-lived golems through four days of a synthetic market, and show what their successors inherit."""
    root, ui = root_of(home), ui and checkout() is not None
    settings = RunSettings(
        golems=golems,
        generations=generations,
        seed=seed,
        bars=5_760,
        lifespan_ticks=(1_000, 2_000),
        owners=("owner-1", "owner-2"),
        budget_micros=DEMO_BUDGET_MICROS,
    )
    ending = go(root, settings, clock=now, derive=not ui, marts=not ui)
    if ui:
        for job in DEMO_JOBS:
            with out.status(f"deriving through Dagster's {job} (open `bardo ui` to see it)"):
                _execute_job(root, job)
    show_ending(ending)
    warehouse = Home.open(root)
    _show_fleet(warehouse)
    _, rows = query(warehouse, OLDEST_RULE_SQL)
    entry = rows[0][0][:10] if rows else "ENTRY"
    say(f'Next: bardo status | bardo sql "from fct_deaths" | bardo lineage {entry} | bardo rebuild | bardo ui')


def run(
    home: opt.Home = None,
    trace: words.Trace = None,
    golems: Annotated[
        int,
        Option(min=0, max=opt.GOLEMS_MAX, help="Golems of the first generation; 0 runs only golems born between runs."),
    ] = 8,
    generations: words.Generations = 3,
    seed: words.Seed = 7,
    bars: words.Bars = 5_760,
    owner: words.Owner = None,
    budget: words.Budget = 50.0,
    lifespan: words.Lifespan = "2000-8000",
    market: words.Market = "synthetic",
    loan_to_value: words.LoanToValue = 0.0,
    collateral: words.Collateral = "WETH",
    steer: Annotated[
        list[str] | None,
        Option(
            help="Intervention GOLEM@TICK:INTENT (immediate) or GOLEM@TICK?INTENT (follow-up); * means every golem."
        ),
    ] = None,
    kill_switch: words.KillSwitch = None,
    oracle: words.Oracle = None,
    pool: words.Pool = None,
    gas_token_price: opt.GasTokenPrice = None,
    replicants: Annotated[
        int,
        Option(
            min=0,
            max=opt.GOLEMS_MAX,
            help="Replicants that a golem may send out, one at a time, to test an open hypothesis.",
        ),
    ] = 0,
    marts: Annotated[bool, Option(help="Build the DuckDB warehouse (dbt) at the end.")] = True,
    embedder: opt.Embedder = None,
    config: opt.Config = None,
) -> None:
    """Run a fleet through a recorded or synthetic market, then derive every table from its records."""
    settings = RunSettings(
        golems=golems, generations=generations, seed=seed, bars=bars, lifespan_ticks=bounds_of(lifespan),
        owners=tuple(opt.checked_owner(name) for name in owner or ["owner-1"]),
        budget_micros=round(budget * 1_000_000), trace=trace, pool=pool,
        market=market, steers=tuple(steer or ()), kill_switch=kill_switch, oracle=oracle, embedder=embedder,
        config=config, replicants=replicants, loan=loan_of(loan_to_value, collateral),
        gas_token_micros=opt.gas_token_micros(gas_token_price),
    )  # fmt: skip
    root = root_of(home)
    ending = go(root, settings, clock=now, derive=True, marts=marts)
    show_ending(ending)
    if marts:
        _show_fleet(Home.open(root))


def show_ending(end: Ending) -> None:
    """Print the result of a run."""
    refused = f", {end.refused} refused" if end.refused else ""
    out.print(
        f"[bold]{end.records:,}[/] records; {end.births} golem{'s' * (end.births != 1)} born, {end.deaths} died, "
        f"{end.published} bundle{'s' * (end.published != 1)} published{refused}"
    )
    if end.no_entry:
        out.print(end.no_entry, highlight=False, soft_wrap=True)


def _show_fleet(home: Home) -> None:
    print_table("Lineages", *query(home, FLEET_SQL))
    print_table("Learned rules that most golems hold", *query(home, LEARNED_SQL))


def ui(
    home: opt.Home = None,
    port: Annotated[int, Option(min=1, max=65_535, help="Port of Dagster's UI.")] = 3000,
    host: Annotated[str, Option(help="Address to listen on.")] = "127.0.0.1",
) -> None:
    """Start Dagster's UI: asset graph, jobs, schedules, sensors, checks; for a named owner, views of its rows."""
    from bardo_pipeline.server.connections import listening_socket  # `run` needs no server

    project, root, owner = _project_root(), root_for_owner(home), named_owner()
    with open_log(home):
        pass  # raises an error for an unknown owner
    listening_socket(port, host).close()  # raises an error for an address that is taken or of another machine
    out.print(f"Dagster on http://{host}:{port} (stop it with Ctrl-C)")
    command = [str(_TOOLS / "dagster"), "dev", "-w", "workspace.yaml", "-h", host, "-p", str(port)]
    try:
        ended = subprocess.run(command, cwd=project, env=dagster_environment(root, owner), check=False)
    except KeyboardInterrupt:
        return
    raise Exit(ended.returncode)


def _project_root() -> Path:
    """Return the folder with definitions.py and workspace.yaml. Raises ConfigError outside a checkout."""
    root = checkout()
    if root is None:
        raise ConfigError("Dagster's code location is not part of the wheel: use a checkout (`make venv`) or the image")
    return root


def dagster_environment(root: Path, owner: str | None = None) -> dict[str, str]:
    """Return the environment of Dagster's command: the home, its instance, this Python's scripts first on PATH."""
    return {
        **os.environ,
        "BARDO_HOME": str(root),
        "BARDO_OWNER": owner or "",
        "DAGSTER_HOME": str(prepare_dagster_home(Home.open(root), owner)),
        "PATH": f"{_TOOLS}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": f"{_project_root()}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",  # jobs.run_launcher
        "DAGSTER_DISABLE_TELEMETRY": "yes",
    }


def _execute_job(root: Path, job: str) -> None:
    """Run a job and wait for it. Raises DerivationError with the last 25 log lines if it fails."""
    command = [str(_TOOLS / "dagster"), "job", "execute", "-f", "definitions.py", "-j", job]
    environ = dagster_environment(root) | {"BARDO_BUCKETS": ""}  # this command can name no partitions
    job_run = subprocess.run(command, cwd=_project_root(), env=environ, capture_output=True, text=True, check=False)
    if job_run.returncode:
        tail = "\n".join((job_run.stdout + job_run.stderr).splitlines()[-25:])
        raise DerivationError(f"Dagster's {job} failed; its last log lines:\n{tail}")
