"""The command `bardo`: all commands, and errors as one line.

Exit codes: 0 success, 1 a check failed, 2 bad input or no home.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from io import TextIOWrapper
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from typer.main import get_command

from bardo_pipeline.cli import library_command
from bardo_pipeline.cli import run_options as opt
from bardo_pipeline.cli.bundle import bundle_command, checks_command, give_command
from bardo_pipeline.cli.dagster_process import execute_job, project_root, serve
from bardo_pipeline.cli.evaluation import evaluate_memory
from bardo_pipeline.cli.fleet.run_command import RunSettings, go, loan_of
from bardo_pipeline.cli.golem import deaths_command, graveyard_command, phrase_command, succession_command
from bardo_pipeline.cli.golem.succession_command import bounds_of
from bardo_pipeline.cli.memory import (
    ask_command,
    conversation_command,
    dreams_command,
    embeddings_command,
    grimoire_command,
    propose_command,
    scars_command,
    search_command,
)
from bardo_pipeline.cli.operations import (
    config_command,
    derive_command,
    drain_command,
    keys_command,
    maintain_command,
    seal_command,
    spool_and_quarantine,
    status_command,
    strike_command,
    verify_and_backup,
    watch_command,
    what_if_command,
)
from bardo_pipeline.cli.options import ConfigOption, EmbedderOption, FormatOption, HomeOption, now, root_of
from bardo_pipeline.cli.output import views
from bardo_pipeline.errors import BardoError, ConfigError
from bardo_pipeline.project_files import checkout

app = typer.Typer(
    help="The memory of mortal agents: fleets of golems live, learn, die and bequeath; every row traces to its tick.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
out = Console(soft_wrap=False)
err = Console(stderr=True)

app.add_typer(config_command.app, name="config")
app.add_typer(deaths_command.app, name="golem")
app.add_typer(seal_command.app, name="seal")
app.add_typer(bundle_command.app, name="bundle")
app.add_typer(conversation_command.app, name="conversation")
app.add_typer(grimoire_command.app, name="grimoire")
app.add_typer(library_command.app, name="library")
app.add_typer(evaluate_memory.app, name="eval")
app.add_typer(keys_command.app, name="keys")
app.add_typer(spool_and_quarantine.spool, name="spool")
app.add_typer(spool_and_quarantine.quarantine, name="quarantine")
app.command("watch")(watch_command.watch)
app.command("ticks")(maintain_command.ticks)
app.command("maintain")(maintain_command.maintain)
app.command("derive")(derive_command.derive)
app.command("drain")(drain_command.drain)
app.command("graveyard")(graveyard_command.graveyard)
app.command("ask")(ask_command.ask_golem)
app.command("search")(search_command.search_all)
app.command("dreams")(dreams_command.dreams)
app.command("scars")(scars_command.scars)
app.command("bloodstain")(scars_command.bloodstain)
app.command("verify")(verify_and_backup.verify_home)
app.command("backup")(verify_and_backup.backup)
app.command("restore")(verify_and_backup.restore_home)
app.command("schema")(spool_and_quarantine.schema)
app.command("strike")(strike_command.strike_record)
app.command("reorg")(strike_command.reorg_blocks)
app.command("struck")(strike_command.prove)
app.command("whatif")(what_if_command.ask_what_if)
app.command("adopt")(what_if_command.adopt_derivation)
app.command("drift")(embeddings_command.drift)
app.command("reembed")(embeddings_command.reembed_everything)
app.command("propose")(propose_command.propose_operations)
deaths_command.app.command("successor")(succession_command.successor)
deaths_command.app.command("found")(succession_command.found)
deaths_command.app.command("credit")(succession_command.credit)
deaths_command.app.command("due")(succession_command.due_now)
deaths_command.app.command("successions")(succession_command.successions)
deaths_command.app.command("show")(graveyard_command.show_golem)
deaths_command.app.command("phrase")(phrase_command.phrase_testaments)
bundle_command.app.command("rank")(give_command.rank)
bundle_command.app.command("give")(give_command.give_)
bundle_command.app.command("checks")(checks_command.checks)
bundle_command.app.command("waive")(checks_command.waive_warning)


@app.command()
def demo(
    home: HomeOption = None,
    seed: Annotated[int, typer.Option(help="Seed of the synthetic market.")] = 7,
    golems: Annotated[int, typer.Option(min=1, help="Golems of the first generation.")] = 8,
    generations: Annotated[int, typer.Option(min=1, help="Generations until a lineage ends.")] = 3,
    ui: Annotated[
        bool, typer.Option(help="Derive through Dagster, so that its UI shows the run (needs a checkout).")
    ] = True,
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
    )
    ending = go(root, settings, clock=now, console=out, derive=not ui, marts=not ui)
    if ui:
        with out.status("deriving everything through Dagster's curator_job (open `bardo ui` to see it)"):
            execute_job(root, "curator_job")
    views.ending(out, ending)
    views.fleet(out, root)
    views.learned(out, root)
    views.next_steps(out, root)


@app.command()
def run(
    home: HomeOption = None,
    trace: opt.Trace = None,
    golems: opt.Golems = 8,
    generations: opt.Generations = 3,
    seed: opt.Seed = 7,
    bars: opt.Bars = 5_760,
    owner: opt.Owners = None,
    budget: opt.Budget = 50.0,
    lifespan: opt.Lifespan = "2000-8000",
    market: opt.MarketName = "synthetic",
    loan_to_value: opt.LoanToValue = 0.0,
    collateral: opt.Collateral = "WETH",
    steer: opt.Steers = None,
    kill_switch: opt.KillSwitch = None,
    oracle: opt.Oracle = None,
    pool: opt.Pool = None,
    replicants: opt.Replicants = 0,
    marts: opt.Marts = True,
    embedder: EmbedderOption = None,
    config: ConfigOption = None,
) -> None:
    """Run a fleet through a recorded or synthetic market, then derive every table from its records."""
    settings = RunSettings(
        golems=golems, generations=generations, seed=seed, bars=bars, lifespan_ticks=bounds_of(lifespan),
        owners=tuple(owner or ("owner-1",)), budget_micros=round(budget * 1_000_000), trace=trace, pool=pool,
        market=market, steers=tuple(steer or ()), kill_switch=kill_switch, oracle=oracle, embedder=embedder,
        config=config, replicants=replicants, loan=loan_of(loan_to_value, collateral),
    )  # fmt: skip
    root = root_of(home)
    ending = go(root, settings, clock=now, console=out, derive=True, marts=marts)
    views.ending(out, ending)
    if marts:
        views.fleet(out, root)
        views.learned(out, root)


@app.command()
def status(
    home: HomeOption = None,
    format: FormatOption = "table",
    check: Annotated[bool, typer.Option("--check", help="Exit 1 if a threshold of the policy is exceeded.")] = False,
    embedder: EmbedderOption = None,
) -> None:
    """Show the state of a home: log, lag, journals, spool, quarantine, verdicts, tables, exceeded thresholds."""
    if not status_command.status(out, root_of(home), embedder, now(), format) and check:
        raise typer.Exit(1)


@app.command()
def sql(
    query: Annotated[str, typer.Argument(help='SQL over the marts, for example "from dim_golem".')],
    home: HomeOption = None,
    format: Annotated[str, typer.Option("--format", help="table, csv or json.")] = "table",
    limit: Annotated[int | None, typer.Option(min=1, help="Maximum number of rows.")] = None,
) -> None:
    """Query the DuckDB warehouse."""
    views.answer(out, root_of(home), query, format, limit)


@app.command()
def lineage(
    entry: Annotated[str, typer.Argument(help="Entry id, or a unique prefix.")],
    home: HomeOption = None,
    golem: Annotated[str | None, typer.Option(help="Only this golem and its ancestors.")] = None,
    format: Annotated[str, typer.Option("--format", help="tree or json.")] = "tree",
    embedder: EmbedderOption = None,
) -> None:
    """Trace an entry through generations to the ticks that it was derived from."""
    views.lineage(out, root_of(home), entry, golem, format, embedder)


@app.command()
def similar(
    text: Annotated[str, typer.Argument(help='Text to compare with, for example "gas spiked in a crash".')],
    home: HomeOption = None,
    golem: Annotated[str | None, typer.Option(help="Only episodes of this golem.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of episodes with distinct texts.")] = 5,
    format: FormatOption = "table",
    embedder: EmbedderOption = None,
) -> None:
    """Find the episodes most similar to a text, by meaning and by words."""
    views.similar(out, root_of(home), text, golem, limit, format, embedder)


@app.command()
def rebuild(
    home: HomeOption = None,
    as_of: Annotated[str | None, typer.Option(help="Compare as of a moment of event time (ISO 8601, UTC).")] = None,
    as_of_version: Annotated[int | None, typer.Option(min=0, help="Compare as of a version of the log.")] = None,
    embedder: EmbedderOption = None,
) -> None:
    """Derive every table again from the log, in a separate folder, and compare fingerprints; exit 1 on a difference."""
    if not views.rebuilt(out, root_of(home), as_of, as_of_version, now(), embedder):
        raise typer.Exit(1)


@app.command("accept-gap")
def accept_gap(
    golem: Annotated[str, typer.Argument(help="Golem with missing ticks.")],
    tick_from: Annotated[int, typer.Argument(min=1, help="First missing tick.")],
    tick_to: Annotated[int, typer.Argument(min=1, help="Last missing tick.")],
    why: Annotated[str, typer.Option(help="Reason why they are lost; recorded.")],
    home: HomeOption = None,
) -> None:
    """Record that missing ticks are lost, so that derivation continues after them."""
    views.gap_accepted(out, root_of(home), golem, (tick_from, tick_to), why, now())


@app.command()
def ui(
    home: HomeOption = None,
    port: Annotated[int, typer.Option(min=1, max=65_535, help="Port of Dagster's UI.")] = 3000,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
) -> None:
    """Start Dagster's UI: asset graph, jobs, schedules, sensors, checks."""
    project_root()
    out.print(f"Dagster on http://{host}:{port} (stop it with Ctrl-C)")
    raise typer.Exit(serve(root_of(home), host, port))


@cache
def command() -> Callable[[], object]:
    """Build all commands with their options; cached because it takes 0.1 s."""
    return get_command(app)


def main() -> None:
    """Run the command line; print a BardoError as one line and exit 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # print "?" for characters that the terminal's encoding lacks
            stream.reconfigure(errors="replace")
    try:
        _check_utf8(sys.argv[1:])
        command()()
    except BardoError as error:
        err.print(f"[bold red]bardo:[/] {escape(str(error))}", soft_wrap=True, highlight=False)
        sys.exit(2)


def _check_utf8(arguments: Sequence[str]) -> None:
    """Raise ConfigError for an argument that is not UTF-8, because no table can store or match it."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            shown = argument.encode(errors="surrogateescape").decode(errors="backslashreplace")
            raise ConfigError(f"argument {shown} is not UTF-8: encode it as UTF-8") from None


if __name__ == "__main__":
    main()
