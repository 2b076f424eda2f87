"""The command `bardo`: all commands, and errors as one line.

A call imports only the modules of its first word, because importing all of them takes half a second longer.
Exit codes: 0 success, 1 a check failed, 2 bad input or no home.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module

from rich.markup import escape
from typer import Typer
from typer.main import get_command

from bardo_pipeline.cli.options import with_shared_options
from bardo_pipeline.cli.output.tables import err, use_lossy_streams
from bardo_pipeline.errors import BardoError, ConfigError
from bardo_pipeline.storage.home import typed_disk_errors
from bardo_pipeline.visible_text import visible

_HELP = "The memory of mortal agents: fleets of golems live, learn, die and bequeath; every row traces to its tick."

_MODULES = {
    "operations.config_command": {"config": "app"},
    "golem.golem_command": {"golem": "app", "graveyard": "graveyard", "golem show": "show_golem"},
    "operations.keys_command": {"seal": "seal_app", "keys": "app"},
    "bundle.bundle_command": {"bundle": "app"},
    "memory.conversation_command": {"conversation": "app"},
    "memory.grimoire_command": {"grimoire": "app", "lineage": "lineage"},
    "library_command": {"library": "app"},
    "evaluation.evaluate_memory": {"eval": "app"},
    "operations.spool_and_quarantine": {"spool": "spool", "quarantine": "quarantine", "schema": "schema"},
    "operations.status_command": {"watch": "watch", "status": "status"},
    "operations.maintain_and_verify": {
        "ticks": "ticks",
        "maintain": "maintain",
        "verify": "verify_home",
        "backup": "backup",
        "restore": "restore_home",
    },
    "operations.serve_command": {"serve": "serve"},
    "operations.clade_command": {"clade": "app", "relay": "relay"},
    "operations.derive_and_strike": {
        "derive": "derive",
        "strike": "strike_record",
        "reorg": "reorg_blocks",
        "struck": "prove",
        "sql": "sql",
        "rebuild": "rebuild",
        "accept-gap": "accept_gap",
    },
    "operations.init_command": {"init": "init"},
    "operations.doctor_command": {"doctor": "doctor"},
    "operations.drain_command": {"drain": "drain"},
    "memory.ask_and_search": {
        "ask": "ask_golem",
        "search": "search_all",
        "drift": "drift",
        "reembed": "reembed_everything",
        "similar": "similar",
    },
    "memory.remember_command": {"remember": "remember"},
    "operations.report_command": {"report": "report_action"},
    "memory.dreams_and_scars": {"dreams": "dreams", "scars": "scars", "bloodstain": "bloodstain"},
    "operations.what_if_command": {"whatif": "ask_what_if", "adopt": "adopt_derivation"},
    "memory.propose_command": {"propose": "propose_operations", "golem phrase": "phrase_testaments"},
    "golem.succession_command": {
        "golem successor": "successor",
        "golem found": "found_golem",
        "golem credit": "credit",
        "golem due": "due_now",
        "golem successions": "successions",
    },
    "golem.birth_command": {"golem birth": "record_birth"},
    "bundle.checks_and_give": {
        "bundle rank": "rank",
        "bundle give": "give_",
        "bundle consent": "consent_to_sale",
        "bundle checks": "checks",
        "bundle waive": "waive_warning",
    },
    "fleet.fleet_commands": {"demo": "demo", "run": "run", "ui": "ui"},
    "fleet.live_commands": {"live": "live", "steer": "steer"},
}
"""Module of this package -> words of a command or group -> its name there; a group comes before its commands."""


@cache
def app_of(first: str | None = None) -> Typer:
    """Return all commands, or only those that begin with this word."""
    app = Typer(
        help=_HELP,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        callback=lambda: None,  # else Typer makes a single command the whole program
    )
    groups = {"": app}
    for module, names in _MODULES.items():
        for words, name in names.items():
            group, _, word = words.rpartition(" ")
            if first not in (None, words, group):
                continue
            part = getattr(import_module(f"{__package__}.{module}"), name)
            if isinstance(part, Typer):
                groups[words] = part
                app.add_typer(part, name=word)
            else:
                groups[group].command(word)(part)
    return app


@cache
def command(first: str | None = None) -> Callable[..., object]:
    """Build all commands with their options, or those that begin with this word; cached because it takes 0.1 s."""
    return with_shared_options(get_command(app_of(first)))


def main() -> None:
    """Run the command line; print a BardoError, or an error of the disk, as one line and exit 2."""
    first = next((word for word in sys.argv[1:2] if any(word in names for names in _MODULES.values())), None)
    use_lossy_streams()
    try:
        with typed_disk_errors():
            _check_utf8(sys.argv[1:])
            if any(visible(word) != word for word in sys.argv[1:]):
                _strip_usage_errors()
            run = command(first)
            gc.freeze()  # the objects of imports stay; `entry` disabled the collector before it made them
            gc.enable()
            run(prog_name="bardo")
    except BardoError as error:
        err.print(f"[bold red]bardo:[/] {escape(str(error))}", soft_wrap=True, highlight=False)
        sys.exit(2)


def _strip_usage_errors() -> None:
    """Let Typer's errors repeat words of the command line without their control characters."""
    from typer import rich_utils  # takes 0.2 s to import

    shown = rich_utils.highlighter
    rich_utils.highlighter = lambda text: shown(visible(text) if isinstance(text, str) else text)  # type: ignore[assignment]


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
