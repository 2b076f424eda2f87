"""The program `bardo`: asks the running server of the home where that is possible, else runs the command here.

Importing a command takes a second or more. The commands of _ANSWERED need no import when a server of the home runs.
The command does everything else, errors included.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from bardo_pipeline.client.running_server import RunningServer, running_server
from bardo_pipeline.errors import BardoError

_CLIENT_OPTIONS = ("home", "owner", "json", "format", "testament")
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
    if words[:1] == ["serve"]:
        # A second thread of a matrix product would take the core on which the callers of this machine run.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from bardo_pipeline.cli.app import main as run_command

    run_command()


def answered(words: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Answer a reading command by the running server of the home and print the answer; False if that is not possible.

    Parameters
    ----------
    words : arguments of `bardo`
    environ : environment variables
    """
    command = next((name for name in _ANSWERED if name.split() == list(words[: len(name.split())])), None)
    if command is None or any("\ud800" <= char <= "\udfff" for char in "".join(words)):  # from bytes that are no UTF-8
        return False
    try:
        given = _ANSWERED[command].parsed(words[len(command.split()) :])
        owner = given.owner or environ.get("BARDO_OWNER") or None
        home = Path(given.home or environ.get("BARDO_HOME") or ".bardo").absolute()
        server = running_server(home)
        if server is None:
            return False
        document = _asked(server, command, given, owner)
    except (_NotHere, BardoError):
        return False
    _print(command, document, home, given)
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
            case "golem show":
                return client.golem_state(**options)
            case _:
                return client.status()


def _print(command: str, document: dict[str, Any], home: Path, given: Namespace) -> None:
    from bardo_pipeline.cli.output.answers import show_answer, show_hits, show_lineage, show_warning
    from bardo_pipeline.cli.output.golem_state import show_golem_report
    from bardo_pipeline.cli.output.status_report import show_status
    from bardo_pipeline.cli.output.tables import print_json, use_lossy_streams

    use_lossy_streams()
    fresh, warning = document.pop("freshness"), document.pop("warning", None)
    if command == "status":
        document = {"home": str(home), **document}
    if given.json or given.format == "json":
        print_json(document[_ROWS[command]] if command in _ROWS else document)
        return
    match command:
        case "ask":
            show_answer(document)
        case "search":
            show_hits(document["hits"], document["newest_event_us"], fresh["log_version"])
        case "lineage":
            show_lineage(document["holdings"])
        case "golem show":
            show_golem_report(document, whole=given.testament)
        case _:
            show_status(document)
    show_warning(warning)


_ROWS = {"search": "hits", "lineage": "holdings"}
"""Commands whose JSON is only this field of the server's answer."""


class _Words(NamedTuple):
    """Words of a command. formats: values of --format; a command without them has --json."""

    arguments: tuple[str, ...] = ()
    options: Mapping[str, Callable[[str], Any]] = {}
    switches: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()

    def parsed(self, words: Sequence[str]) -> Namespace:
        """Return the values that the words give. Raises _NotHere for words that the command must read itself."""
        parser = _Parser(add_help=False, allow_abbrev=False)
        parser.set_defaults(json=False, format=None)
        for name in ("--home", "--owner", *self.arguments):
            parser.add_argument(name)
        for name, kind in self.options.items():
            parser.add_argument(name, type=kind)
        for name in self.switches:
            parser.add_argument(name, action=BooleanOptionalAction)
        for name in (*self.flags, *(() if self.formats else ("--json",))):
            parser.add_argument(name, action="store_true")
        if self.formats:
            parser.add_argument("--format", choices=self.formats)
        return parser.parse_args(list(words))


_FILTERS = ("store", "golem", "kind", "category", "domain", "regime", "status", "chain", "pair", "tool")
_ANSWERED = {
    "ask": _Words(
        ("golem", "question"),
        {"--k": int, "--regime": str, "--at": datetime.fromisoformat, "--tick": int},
        switches=("--clade", "--may-skip"),
    ),
    "search": _Words(
        ("words",),
        {**{f"--{name}": str for name in _FILTERS}, "--min-confidence": float, "--limit": int},
        switches=("--decay",),
    ),
    "golem show": _Words(("golem",), flags=("--testament",)),
    "lineage": _Words(("entry",), {"--golem": str}, formats=("tree", "json")),
    "status": _Words(formats=("table", "json")),
}
"""Commands that a running server answers, with their words."""


if __name__ == "__main__":
    main()
