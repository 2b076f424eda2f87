"""The program `bardo`: asks the running server of the home where that is possible, else runs the command here.

Importing the commands takes seconds. `bardo ask`, `search`, `lineage` and `status` need none of them when a server of
the home runs. The command does everything else, errors included.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from bardo_pipeline.client.running_server import RunningServer, running_server
from bardo_pipeline.errors import BardoError

_CLIENT_OPTIONS = ("home", "owner", "json", "format")
_TIMEOUT_SECONDS = 60.0


class _NotHere(Exception):
    """The words are not for the server: the command reads them."""


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _NotHere


def main() -> None:
    """Run `bardo` with the arguments of the process."""
    words = sys.argv[1:]
    if answered(words, os.environ):
        return
    if words and words[0] in _ALONE and all(map(_is_utf8, words)):
        _run_alone(words[0], words[1:])
    else:
        from bardo_pipeline.cli.app import main as run_command

        run_command()


_ALONE = {
    "serve": ("bardo_pipeline.cli.operations.serve_command", "serve"),
    "ask": ("bardo_pipeline.cli.memory.ask_and_search", "ask_golem"),
    "search": ("bardo_pipeline.cli.memory.ask_and_search", "search_all"),
    "lineage": ("bardo_pipeline.cli.memory.grimoire_command", "lineage"),
    "status": ("bardo_pipeline.cli.operations.status_command", "status"),
}
"""Commands that are run without importing the others, with their module and function."""


def _run_alone(name: str, words: Sequence[str]) -> None:
    if name == "serve":
        # A second thread of a matrix product would take the core on which the callers of this machine run.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from typer import Typer
    from typer.main import get_command

    from bardo_pipeline.cli.options import with_owner_option
    from bardo_pipeline.cli.output.exit_codes import run_to_exit

    module, function = _ALONE[name]
    app = Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(name)(getattr(import_module(module), function))
    command = with_owner_option(get_command(app))
    run_to_exit(lambda: command(list(words), prog_name=f"bardo {name}"))


def answered(words: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Answer a reading command by the running server of the home and print the answer; False if that is not possible.

    Parameters
    ----------
    words : arguments of `bardo`
    environ : environment variables
    """
    if not words or words[0] not in _ANSWERED or not all(map(_is_utf8, words)):
        return False
    try:
        given = _ANSWERED[words[0]]().parse_args(list(words[1:]))
        owner = given.owner or environ.get("BARDO_OWNER") or None
        home = Path(given.home or environ.get("BARDO_HOME") or ".bardo").absolute()
        server = running_server(home)
        if server is None:
            return False
        document = _asked(server, words[0], given, owner)
    except (_NotHere, BardoError):
        return False
    _print(words[0], document, home, as_json=given.json or given.format == "json")
    return True


def _asked(server: RunningServer, command: str, given: Namespace, owner: str | None) -> dict[str, Any]:
    from bardo_pipeline.client.http_client import Client

    options = {name: value for name, value in vars(given).items() if name not in _CLIENT_OPTIONS and value is not None}
    with Client(server.url, server.token, owner=owner, timeout_seconds=_TIMEOUT_SECONDS) as client:
        match command:
            case "ask":
                return client.ask(options.pop("question"), **options)
            case "search":
                return client.search_derived(options.pop("words"), **options)
            case "lineage":
                return client.lineage(options.pop("entry"), **options)
            case _:
                return client.status()


def _print(command: str, document: dict[str, Any], home: Path, *, as_json: bool) -> None:
    from bardo_pipeline.cli.output.answers import show_answer, show_hits, show_lineage, show_warning
    from bardo_pipeline.cli.output.status_report import show_status
    from bardo_pipeline.cli.output.tables import print_json, use_lossy_streams

    use_lossy_streams()
    fresh, warning = document.pop("freshness"), document.pop("warning", None)
    if command == "status":
        document = {"home": str(home), **document}
    if as_json:
        print_json(document[_ROWS[command]] if command in _ROWS else document)
        return
    match command:
        case "ask":
            show_answer(document)
        case "search":
            show_hits(document["hits"], document["newest_event_us"], fresh["log_version"])
        case "lineage":
            show_lineage(document["holdings"])
        case _:
            show_status(document)
    show_warning(warning)


_ROWS = {"search": "hits", "lineage": "holdings"}
"""Commands whose JSON is only this field of the server's answer."""


def _is_utf8(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _parser(*formats: str) -> _Parser:
    """Return a parser of the options that all these commands have; `formats` replace --json by --format."""
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--home")
    parser.add_argument("--owner")
    if formats:
        parser.add_argument("--format", choices=formats)
        parser.set_defaults(json=False)
    else:
        parser.add_argument("--json", action="store_true")
        parser.set_defaults(format=None)
    return parser


def _ask_parser() -> _Parser:
    parser = _parser()
    parser.add_argument("golem")
    parser.add_argument("question")
    parser.add_argument("--k", type=int)
    parser.add_argument("--regime")
    parser.add_argument("--at", type=datetime.fromisoformat)
    parser.add_argument("--tick", type=int)
    parser.add_argument("--clade", action=BooleanOptionalAction)
    parser.add_argument("--may-skip", action=BooleanOptionalAction)
    return parser


def _search_parser() -> _Parser:
    parser = _parser()
    parser.add_argument("words")
    for name in ("store", "golem", "kind", "category", "domain", "regime", "status", "chain", "pair", "tool"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--min-confidence", type=float)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--decay", action=BooleanOptionalAction)
    return parser


def _lineage_parser() -> _Parser:
    parser = _parser("tree", "json")
    parser.add_argument("entry")
    parser.add_argument("--golem")
    return parser


_ANSWERED: dict[str, Callable[[], _Parser]] = {
    "ask": _ask_parser,
    "search": _search_parser,
    "lineage": _lineage_parser,
    "status": partial(_parser, "table", "json"),
}
"""Commands that a running server answers, with the parser of their arguments."""


if __name__ == "__main__":
    main()
