"""The command `bardo`: all commands, and errors as one line.

Exit codes: 0 success, 1 a check failed, 2 bad input or no home.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache

from typer import Typer
from typer.main import get_command

from bardo_pipeline.cli import library_command
from bardo_pipeline.cli.bundle import bundle_command, checks_and_give
from bardo_pipeline.cli.evaluation import evaluate_memory
from bardo_pipeline.cli.fleet import fleet_commands
from bardo_pipeline.cli.golem import birth_command, golem_command, succession_command
from bardo_pipeline.cli.memory import (
    ask_and_search,
    conversation_command,
    dreams_and_scars,
    grimoire_command,
    propose_command,
    remember_command,
)
from bardo_pipeline.cli.operations import (
    config_command,
    derive_command,
    drain_command,
    keys_command,
    maintain_command,
    report_command,
    serve_command,
    spool_and_quarantine,
    status_command,
    what_if_command,
)
from bardo_pipeline.cli.options import with_owner_option
from bardo_pipeline.cli.output.exit_codes import run_to_exit
from bardo_pipeline.errors import ConfigError

app = Typer(
    help="The memory of mortal agents: fleets of golems live, learn, die and bequeath; every row traces to its tick.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.add_typer(config_command.app, name="config")
app.add_typer(golem_command.app, name="golem")
app.add_typer(keys_command.seal_app, name="seal")
app.add_typer(bundle_command.app, name="bundle")
app.add_typer(conversation_command.app, name="conversation")
app.add_typer(grimoire_command.app, name="grimoire")
app.add_typer(library_command.app, name="library")
app.add_typer(evaluate_memory.app, name="eval")
app.add_typer(keys_command.app, name="keys")
app.add_typer(spool_and_quarantine.spool, name="spool")
app.add_typer(spool_and_quarantine.quarantine, name="quarantine")
app.command("watch")(status_command.watch)
app.command("ticks")(maintain_command.ticks)
app.command("maintain")(maintain_command.maintain)
app.command("serve")(serve_command.serve)
app.command("derive")(derive_command.derive)
app.command("drain")(drain_command.drain)
app.command("graveyard")(golem_command.graveyard)
app.command("ask")(ask_and_search.ask_golem)
app.command("search")(ask_and_search.search_all)
app.command("remember")(remember_command.remember)
app.command("report")(report_command.report_action)
app.command("dreams")(dreams_and_scars.dreams)
app.command("scars")(dreams_and_scars.scars)
app.command("bloodstain")(dreams_and_scars.bloodstain)
app.command("verify")(maintain_command.verify_home)
app.command("backup")(maintain_command.backup)
app.command("restore")(maintain_command.restore_home)
app.command("schema")(spool_and_quarantine.schema)
app.command("strike")(derive_command.strike_record)
app.command("reorg")(derive_command.reorg_blocks)
app.command("struck")(derive_command.prove)
app.command("whatif")(what_if_command.ask_what_if)
app.command("adopt")(what_if_command.adopt_derivation)
app.command("drift")(ask_and_search.drift)
app.command("reembed")(ask_and_search.reembed_everything)
app.command("propose")(propose_command.propose_operations)
golem_command.app.command("successor")(succession_command.successor)
golem_command.app.command("birth")(birth_command.record_birth)
golem_command.app.command("found")(succession_command.found_golem)
golem_command.app.command("credit")(succession_command.credit)
golem_command.app.command("due")(succession_command.due_now)
golem_command.app.command("successions")(succession_command.successions)
golem_command.app.command("show")(golem_command.show_golem)
golem_command.app.command("phrase")(propose_command.phrase_testaments)
bundle_command.app.command("rank")(checks_and_give.rank)
bundle_command.app.command("give")(checks_and_give.give_)
bundle_command.app.command("consent")(checks_and_give.consent_to_sale)
bundle_command.app.command("checks")(checks_and_give.checks)
bundle_command.app.command("waive")(checks_and_give.waive_warning)
app.command()(fleet_commands.demo)
app.command()(fleet_commands.run)
app.command()(status_command.status)
app.command()(derive_command.sql)
app.command()(grimoire_command.lineage)
app.command()(ask_and_search.similar)
app.command()(derive_command.rebuild)
app.command("accept-gap")(derive_command.accept_gap)
app.command()(fleet_commands.ui)


@cache
def command() -> Callable[[], object]:
    """Build all commands with their options; cached because it takes 0.1 s."""
    return with_owner_option(get_command(app))


def main() -> None:
    """Run the command line; print a BardoError as one line and exit 2."""

    def checked() -> None:
        _check_utf8(sys.argv[1:])
        command()()

    run_to_exit(checked)


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
