"""The program `bardo`: asks the running server of the home where that is possible, else runs the command here.

Importing a command takes a second or more. The commands of _ANSWERED need no import when a server of the home runs.
The command does everything else, errors included.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from bardo_pipeline.client.running_server import RunningServer, running_server
from bardo_pipeline.errors import BardoError

_CLIENT_OPTIONS = frozenset({"home", "owner", "json", "format"})
_TIMEOUT_SECONDS = 60.0
_MALLOPT = {-8: 1, -1: 65_536, -3: 65_536}
"""M_ARENA_MAX, and in bytes M_TRIM_THRESHOLD and M_MMAP_THRESHOLD, of malloc.h."""


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
    if words[:1] == ["live"]:
        _return_freed_memory()
    gc.disable()  # the objects of imports stay: each pass of the collector would visit them, for a tenth of the time
    from bardo_pipeline.cli.app import main as run_command

    run_command()


def _return_freed_memory() -> None:
    """Let allocators return freed memory at once: a golem that lives for days would keep a fifth more of it."""
    for name in ("_RJEM_MALLOC_CONF", "DUCKDB_JE_MALLOC_CONF"):  # jemalloc inside deltalake and duckdb
        os.environ.setdefault(name, "dirty_decay_ms:0,muzzy_decay_ms:0,narenas:1,tcache:false")
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    with suppress(AttributeError):  # only glibc has mallopt
        for parameter, value in _MALLOPT.items():
            ctypes.CDLL(None).mallopt(parameter, value)


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
    words_of = _ANSWERED[command]
    try:
        given = words_of.parsed(words[len(command.split()) :])
        owner = environ.get("BARDO_OWNER") or None if given.owner is None else given.owner
        home = Path(environ.get("BARDO_HOME") or ".bardo" if given.home is None else given.home).absolute()
        server = running_server(home)
        if server is None or owner == "":
            return False
        document = _asked(server, command, words_of.sent(given), owner)
    except (_NotHere, BardoError):
        return False
    try:
        _print(command, document, home, given)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the pipe ended, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    return True


def _asked(server: RunningServer, command: str, options: dict[str, Any], owner: str | None) -> dict[str, Any]:
    from bardo_pipeline.client.http_client import Client

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
            case "status":
                return client.status()
            case _:
                return client.report(command.replace(" ", "-"), **options)


def _print(command: str, document: dict[str, Any], home: Path, given: Namespace) -> None:
    from bardo_pipeline.cli.output.answers import show_hits, show_warning
    from bardo_pipeline.cli.output.rendering import show_report
    from bardo_pipeline.cli.output.tables import use_lossy_streams

    use_lossy_streams()
    fresh, warning = document.pop("freshness"), document.pop("warning", None)
    facts = {"home": str(home), **document} if command == "status" else document
    facts = facts.get(_ROWS.get(command, "rows"), facts)
    as_json = given.json or given.format == "json"
    if command == "search" and not as_json:
        show_hits(facts, document["newest_event_us"], fresh["log_version"])
    else:
        options = {name: value for name in _ANSWERED[command].shown if (value := vars(given)[name]) is not None}
        show_report(command, facts, as_json=as_json, **options)
    if not as_json:
        show_warning(warning)


_ROWS = {"search": "hits", "lineage": "holdings"}
"""Commands whose facts are only this field of the server's answer; a report that is a list has the field `rows`."""


class _Words(NamedTuple):
    """Words of a command.

    Parameters
    ----------
    arguments : names of positional words; one that ends with "?" may be absent
    flags : options without a value; `needed` ones, without which the command acts, are always given
    formats : values of --format; a command without them has --json, if `has_json`
    shown : options that only the printing needs, by name
    """

    arguments: tuple[str, ...] = ()
    options: Mapping[str, Callable[[str], Any]] = {}
    switches: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    has_json: bool = True

    def parsed(self, words: Sequence[str]) -> Namespace:
        """Return the values that the words give. Raises _NotHere for words that the command must read itself."""
        parser = _Parser(add_help=False, allow_abbrev=False)
        parser.set_defaults(json=False, format=None)
        for name in ("--home", "--owner"):
            parser.add_argument(name)
        for name in self.arguments:
            read = _stored if name == "target?" else str
            parser.add_argument(name.removesuffix("?"), nargs="?" if name.endswith("?") else None, type=read)
        for name, kind in self.options.items():
            parser.add_argument(name, type=kind)
        for name in self.switches:
            parser.add_argument(name, action=BooleanOptionalAction)
        for name in (*self.flags, *self.needed, *(("--json",) if self.has_json and not self.formats else ())):
            parser.add_argument(name, action="store_true", required=name in self.needed)
        if self.formats:
            parser.add_argument("--format", choices=self.formats)
        return parser.parse_args(list(words))

    def sent(self, given: Namespace) -> dict[str, Any]:
        """Return the options for the server."""
        needed = {name.removeprefix("--").replace("-", "_") for name in self.needed}
        kept = _CLIENT_OPTIONS | needed | set(self.shown)
        return {name: value for name, value in vars(given).items() if name not in kept and value is not None}


def _stored(target: str) -> str:
    if os.path.exists(target):  # a folder or an archive, which only the command reads
        raise ValueError
    return target


def _count(text: str) -> int:
    if (number := int(text)) < 1:
        raise ValueError
    return number


_FORMATS = ("table", "json")
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
    "golem show": _Words(("golem",), flags=("--testament",), shown=("testament",)),
    "lineage": _Words(("entry",), {"--golem": str}, formats=("tree", "json")),
    "status": _Words(formats=_FORMATS),
    "bloodstain": _Words(("golem",), flags=("--public",), formats=_FORMATS),
    "bundle checks": _Words(("target?",), formats=_FORMATS),
    "bundle show": _Words(("target?",), formats=_FORMATS),
    "clade beliefs": _Words(),
    "clade notes": _Words(),
    "clade pheromones": _Words(),
    "dreams": _Words(("golem?",), {"--limit": _count}, shown=("limit",)),
    "golem death": _Words(("golem",), has_json=False),
    "golem due": _Words(needed=("--dry-run",)),
    "golem notices": _Words(has_json=False),
    "golem successions": _Words(),
    "graveyard": _Words((), {"--lineage": str, "--limit": _count}, shown=("limit",)),
    "grimoire list": _Words(
        ("golem",),
        {"--kind": str, "--status": str, "--text": str, "--confidence-min": float, "--limit": int},
        flags=("--pinned",),
        formats=_FORMATS,
    ),
    "grimoire show": _Words(("golem", "entry"), formats=_FORMATS),
    "library list": _Words((), {"--channel": str, "--kind": str, "--text": str, "--limit": int}, formats=_FORMATS),
    "library show": _Words(("entry",), formats=_FORMATS),
    "scars": _Words(("golem?",), flags=("--failures",), formats=_FORMATS),
    "similar": _Words(("text",), {"--golem": str, "--limit": int}, formats=_FORMATS),
}
"""Commands that a running server answers, with their words."""


if __name__ == "__main__":
    main()
