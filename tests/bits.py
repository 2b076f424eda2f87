"""Damage every kind of file of a home, read it as commands do, and judge the answers: `python -m tests.bits`.

Each damage is one flipped bit, or a file cut short, in a fresh copy of the home. Every command then either gives the
answer of the undamaged home, or a typed error (`verify`: a break). Anything else is a wrong answer or a traceback, and
fails the run. A failure prints the seed that replays it.
"""

from __future__ import annotations

import argparse
import base64
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, tzinfo
from functools import cache, partial
from itertools import zip_longest
from pathlib import Path
from random import Random
from typing import Literal, NamedTuple, Self, cast, get_args
from unittest import mock

import orjson
from click import Command
from click.testing import CliRunner

from bardo_pipeline.cli.app import command
from bardo_pipeline.cli.entry import answered
from bardo_pipeline.client.running_server import FILE
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.derive_home import derive_home
from bardo_pipeline.derivation.home_maintenance import tend
from bardo_pipeline.derivation.legacy.bundle_archives import import_bundle
from bardo_pipeline.derivation.legacy.bundle_signing import sign_all_bundles
from bardo_pipeline.derivation.legacy.data_docs import judge_with_docs
from bardo_pipeline.derivation.memory.derive_episodes import refresh_index
from bardo_pipeline.derivation.succession.birth_events import UNKNOWN, record_founder
from bardo_pipeline.errors import BardoError
from bardo_pipeline.events.custody.hash_chain import content_of
from bardo_pipeline.events.life.events import KeyRegistered, life_event
from bardo_pipeline.heartbeat.fleet import Founding
from bardo_pipeline.market.synthetic import synthetic_market
from bardo_pipeline.policy import Policy, WriterPolicy
from bardo_pipeline.runtime.fleet_run import FleetRun, Run
from bardo_pipeline.signing import signed_message
from bardo_pipeline.storage.conversations.conversations import Conversations
from bardo_pipeline.storage.embedding.embedders import open_embedder
from bardo_pipeline.storage.home import Home, replace_file
from bardo_pipeline.storage.index.tick_index import TickIndex
from bardo_pipeline.storage.intake.quarantine import Quarantine, QuarantineItem
from bardo_pipeline.storage.journal.event_writer import EventWriter
from bardo_pipeline.storage.keys.golem_seal_keys import SealKeys
from bardo_pipeline.storage.keys.owner_signing_keys import OwnerKeys
from bardo_pipeline.tools.archives import EXPORT_GRIMOIRE, IMPORT_GRIMOIRE
from bardo_pipeline.tools.call_tool import call_tool
from bardo_pipeline.tools.memory_gate import MemoryGate
from bardo_pipeline.tools.tool_call import Caller
from tests.support.homes.tampered_homes import KEY, KEY_ID, PUBLIC, lines
from tests.support.knowledge.handmade_bundles import bundle_of
from tests.support.knowledge.handmade_grimoires import entry

NOW = datetime(2026, 11, 1, tzinfo=UTC)
SIGNED, WAITING = "json-0000", "waiting-0000"

Outcome = Literal["equal", "remade", "typed error", "wrong answer", "traceback"]
"""From best to worst; the outcome of a damage is its worst command's."""

KINDS: Mapping[str, str] = {
    "rows of the log": r"log/(cycles|life)/[^_].*parquet",
    "commits of the log": r"log/(cycles|life)/_delta_log/\d+\.json",
    "checkpoints": r"(log|derivations)/.*(checkpoint.*|_last_checkpoint)",
    "vectors": r"log/(vectors|embedding)/.*",
    "quarantine": r"log/quarantine/.*",
    "checksum manifests": r"log/sums/.*",
    "rows of projections": r"derivations/[^/]+/[a-z_]+/[^_].*parquet",
    "commits of projections": r"derivations/[^/]+/[a-z_]+/_delta_log/\d+\.json",
    "candidates": r"derivations/[^/]+/bundles/.*",
    "marks of readers": r"derivations/[^/]+/(readers/.*|derivation\.json|[a-z_]+\.version)",
    "bundles": r"bundles/.*",
    "heads": r"index/heads\.arrow",
    "tick index": r"index/ticks/.*",
    "episode index": r"index/episodes/.*",
    "warehouse": r"warehouse\.duckdb",
    "journals": r"journal/.*\.seg",
    "leases": r"leases/.*",
    "signatures in the spool": r"spool/.*\.sig",
    "keys": r"keys/.*",
    "conversations": r"conversations/.*",
    "playbooks": r"playbooks/.*",
    "archives": r"archives/.*",
    "documents": r"data_docs/.*|dbt_docs\.html",
    "server.json": r"server\.json",
    "home.json": r"home\.json",
    "bardo.toml": r"bardo\.toml",
}
"""Kind of file -> pattern of its path below the home; the first match counts."""

UNJUDGED: Mapping[str, str] = {
    r"locks/.*": "no command reads their content",
    r"journal/[^/]+/lock": "limits of a writer for health checks; the policy's count in place of unreadable ones",
    r"models/.*": "embedding models are made outside of the home",
    r"spool/.*\.jsonl": "a line without a signature is what its sender wrote: another bit is another line",
}
"""Pattern of files that have no kind -> the reason why their damage is not judged."""


class Damage(NamedTuple):
    """A change of one file. at: the flipped bit, or the length in bytes to which the file is cut."""

    path: str
    how: Literal["flip", "cut"]
    at: int

    def apply(self, root: Path) -> None:
        """Change the file in the home in this folder; its size may shrink, its time changes."""
        content = bytearray((root / self.path).read_bytes())
        if self.how == "flip":
            content[self.at // 8] ^= 1 << self.at % 8
        else:
            del content[self.at :]
        (root / self.path).write_bytes(content)


class Answer(NamedTuple):
    """The result of a command: its output without paths and ages, its exit code, its error."""

    text: str
    code: int
    error: BaseException | None


def make_home(root: Path, *, marts: bool) -> None:
    """Run two golems and their heirs, and derive every table."""
    Home.create(root, Policy(), NOW)
    stores = DerivationContext.open(root)
    market = synthetic_market(seed=7, bars=300, start=datetime(2026, 1, 1, tzinfo=UTC))
    founding = Founding(lifespan_ticks=(100, 140))
    FleetRun(stores, Run("bits", market, golems=2, generations=2, founding=founding), lambda: NOW).live()
    furnish(root, marts=marts)


def furnish(root: Path, *, marts: bool) -> None:
    """Add what a run does not leave: keys, a conversation, quarantine, an imported bundle, a journal, a spool file."""
    stores = DerivationContext.open(root)
    home, log = stores.home, stores.log
    owner = stores.life_fields("GolemBorn", "owner_id")["owner_id"][0].as_py()
    record_founder(
        stores, None, owner_id=owner, lineage_id=f"{owner}/reader of archives", founding=Founding((owner,)),
        market=UNKNOWN, at=NOW, now=NOW,
    )  # fmt: skip
    OwnerKeys(home, log).make(owner, bytes(range(32)), NOW)
    sign_all_bundles(stores, now=NOW)
    SealKeys(home).make(log, "sealed", bytes(range(1, 33)), NOW)
    talks = Conversations(home, log)
    for number in range(3):
        talks.append("g-talks", "owner", f"message {number}", NOW)
    talks.compact("g-talks", "two messages", NOW, keep=1)
    talks.append("g-talks", "owner", "message 3", NOW)
    Quarantine(home).put([QuarantineItem("spool", "x.jsonl", 1, None, None, "RecordError", "no", b"{]")], NOW)
    bundle = bundle_of(entry(about="h", kind="heuristic", validations=3, confidence_ppm=900_000))
    import_bundle(stores, dict(bundle.files), public_key=None, now=NOW)
    log.record([life_event(SIGNED, NOW, KeyRegistered(key_id=KEY_ID, public_key=PUBLIC, tick_from=1))], NOW)
    derive_home(stores, clock=lambda: NOW, marts=marts, data_docs="first")
    TickIndex.open(home, log)
    tend(home, log, stores.policy, now=NOW)
    refresh_index(stores)
    golem = stores.projections.replaceable("grimoire").read()["golem_id"][0].as_py()
    call_tool(
        stores, Caller(golem, None), EXPORT_GRIMOIRE.name, {}, clock=lambda: NOW, ids=lambda: "export",
        gate=MemoryGate(enabled=True),
    )  # fmt: skip
    facts = {"url": f"http://127.0.0.1:{_CLOSED_PORT}", "token": "f" * 64, "pid": 1, "instance": "killed"}
    replace_file(root / FILE, orjson.dumps(facts, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    log.close()
    (root / "bardo.toml").write_text("[heartbeat]\nmax_daily_cost_usd = 12.5\n")
    sent = lines(1, 2)
    signatures = (KEY.sign(signed_message(SIGNED, content_of(line))) for line in sent)
    home.spool.mkdir(exist_ok=True)
    listed = (f"{KEY_ID} {base64.b64encode(signature).decode()}\n" for signature in signatures)
    (home.spool / "signed.jsonl.sig").write_text("".join(listed))
    (home.spool / "signed.jsonl").write_bytes(b"".join(line + b"\n" for line in sent))
    pairs = Policy(writer=WriterPolicy(batch_records=2))
    with EventWriter.open(home, WAITING, clock=lambda: NOW, policy=pairs, drain="none", writer="gone") as writer:
        for line in lines(1, 3, "waiting"):
            writer.append(line)
        shutil.copytree(root, root.with_name(f".{root.name}.killed"), symlinks=True)  # as after a kill at this point
    shutil.rmtree(root)
    root.with_name(f".{root.name}.killed").rename(root)


_CLOSED_PORT = 9
"""Port of the server that was killed; no program of this machine listens there."""


class Bench:
    """A home to damage, the commands that read it, and their answers without damage."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._copies = Path(tempfile.mkdtemp(prefix="bits-", dir=root.parent))
        stores = DerivationContext.open(root)
        grimoire = stores.projections.replaceable("grimoire").read().to_pylist()
        golem, entry_id = grimoire[0]["golem_id"], grimoire[0]["entry_id"]
        published = stores.life_fields("BundlePublished", "bundle_hash")["bundle_hash"].to_pylist()
        imported = stores.life_fields("BundleImported", "bundle_hash")["bundle_hash"].to_pylist()
        dead = stores.life_fields("DeathDeclared")["golem_id"][0].as_py()
        (item,) = Quarantine(stores.home).open()["item_id"].to_pylist()
        stores.log.close()
        self.commands = _commands(golem, entry_id, dead, item, published[0], imported[0], root)
        if not (root / "warehouse.duckdb").exists():
            self.commands.pop("sql")
        self.expected = dict(self.answers(self.copy(), list(self.commands)))
        failed = {name: answer for name, answer in self.expected.items() if answer.error is not None}
        assert not failed, f"commands fail without damage: {failed}"

    def copy(self) -> Path:
        """Return a fresh copy of the home, in a folder of its own because caches of this process go by path."""
        target = Path(tempfile.mkdtemp(dir=self._copies)) / "home"
        shutil.copytree(self.root, target, symlinks=True)
        return target

    def answers(self, home: Path, names: Sequence[str]) -> Iterator[tuple[str, Answer]]:
        """Run these commands on a home, in order, at a fixed time."""
        environment = {"BARDO_HOME": str(home), "COLUMNS": "200"}
        with (
            mock.patch.dict(os.environ, environment),
            mock.patch("bardo_pipeline.clock.datetime", _Clock),
            mock.patch("bardo_pipeline.derivation.context.open_embedder", _EMBEDDER),
        ):
            for name in names:
                words = [word.replace(str(self.root), str(home)) for word in self.commands[name]]
                if name in _OTHERS:
                    yield name, _answer_of(partial(_OTHERS[name], home, words), home)
                    continue
                result = CliRunner().invoke(cast(Command, command()), words)
                error = None if isinstance(result.exception, SystemExit) else result.exception
                yield name, Answer(_plain(result.output, home), result.exit_code, error)

    def kinds(self) -> dict[str, list[str]]:
        """Return the files of each kind, as paths below the home; empty files cannot be damaged."""
        by_kind = defaultdict(list)
        for path in sorted(self.root.rglob("*")):
            name = path.relative_to(self.root).as_posix()
            if path.is_file() and path.stat().st_size and not any(re.fullmatch(pattern, name) for pattern in UNJUDGED):
                by_kind[kind_of(name)].append(name)
        return dict(by_kind)

    def judge(self, kind: str, damage: Damage) -> tuple[Outcome, str]:
        """Apply a damage to a fresh copy, run the kind's commands; return the worst outcome with its command."""
        home = self.copy()
        try:
            damage.apply(home)
            damaged = (home / damage.path).read_bytes()
            worst: Outcome = "equal"
            why = ""
            names = [name for name in READ_BY[kind] if name in self.commands]
            for name, answer in self.answers(home, names):
                outcome = _judged(answer, self.expected[name], name, damage)
                if _RANK[outcome] > _RANK[worst]:
                    worst, why = outcome, name + _difference(answer, self.expected[name])
            path = home / damage.path
            if worst == "equal" and not (path.exists() and path.read_bytes() == damaged):
                worst = "remade"
            return worst, why
        finally:
            shutil.rmtree(home.parent)


def kind_of(name: str) -> str:
    """Return the kind of a file by its path below the home. Raises ValueError for a path without a kind."""
    kind = next((kind for kind, pattern in KINDS.items() if re.fullmatch(pattern, name)), None)
    if kind is None:
        raise ValueError(f"{name} has no kind: name in tests/bits.py the commands that read it")
    return kind


def _import_archive(home: Path, words: list[str]) -> str:
    """Import the archive of a golem as the tool of the server does, without recording it."""
    stores = DerivationContext.open(home)
    (path,) = (home / "archives").rglob("*.json")
    dead = {words[0], *stores.life("DeathDeclared")["golem_id"].to_pylist()}
    golem = next(golem for golem in stores.life("GolemBorn")["golem_id"].to_pylist() if golem not in dead)
    arguments = {"path": str(path), "dry_run": True}
    with closing(stores.log):
        return repr(call_tool(stores, Caller(golem, None), IMPORT_GRIMOIRE.name, arguments, clock=lambda: NOW,
                              ids=lambda: "import", gate=MemoryGate(enabled=True)))  # fmt: skip


def _ask_server(home: Path, words: list[str]) -> str:
    """Look for the running server of the home as `bardo ask` does, while another program holds the server's lock."""
    with Home.open(home).lock("server"):
        return f"answered by the server: {answered(words, os.environ)}"


def _document_again(home: Path, _: list[str]) -> str:
    """Judge the bundles without documents as `bardo derive` does; it reads the lists of documented bundles."""
    stores = DerivationContext.open(home)
    with closing(stores.log):
        return f"judged: {len(judge_with_docs(stores, now=NOW, run='second').fresh.judged)}"


_OTHERS: Mapping[str, Callable[[Path, list[str]], str]] = {
    "import archive": _import_archive,
    "ask server": _ask_server,
    "document again": _document_again,
}
"""Readers that are no command of their own: the tools, a part of the program `bardo`, and a part of `bardo derive`."""


def _answer_of(read: Callable[[], str], home: Path) -> Answer:
    try:
        return Answer(_plain(read(), home), 0, None)
    except Exception as error:
        return Answer("", 1, error)


_EMBEDDER = cache(open_embedder)
"""The model is outside of the home, so it is opened only once."""


class _Clock(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        return cls(2026, 11, 2, tzinfo=tz)


def _commands(
    golem: str, entry_id: str, dead: str, item: str, published: str, imported: str, root: Path
) -> dict[str, list[str]]:
    """Return the commands that read the home, by name; the last two write to it."""
    return {
        "verify": ["verify"],
        "status": ["status", "--check", "--format", "json"],
        "ask": ["ask", golem, "what about gas?"],
        "search": ["search", "gas"],
        "similar": ["similar", "gas spiked"],
        "lineage": ["lineage", entry_id],
        "grimoire": ["grimoire", "list", golem],
        "entry": ["grimoire", "show", golem, entry_id],
        "golem": ["golem", "show", dead],
        "bloodstain": ["bloodstain", dead],
        "graveyard": ["graveyard"],
        "dreams": ["dreams"],
        "scars": ["scars"],
        "struck": ["struck"],
        "ticks": ["ticks", "--format", "json"],
        "bundle": ["bundle", "show", published],
        "bundle signature": ["bundle", "verify", str(root / "bundles" / published)],
        "imported bundle": ["bundle", "show", imported],
        "bundle checks": ["bundle", "checks"],
        "conversation": ["conversation", "show", "g-talks"],
        "quarantine": ["quarantine", "show", item, "--raw"],
        "seal": ["seal", "list"],
        "owner key": ["bundle", "sign"],
        "sql": ["sql", "select * from fct_ticks order by all"],
        "import archive": [golem],
        "ask server": ["ask", golem, "what about gas?"],
        "document again": [],
        "drain": ["drain"],
        "spool": ["spool", "take"],
    }


_TABLES = (
    "verify",
    "status",
    "ask",
    "lineage",
    "grimoire",
    "entry",
    "golem",
    "bloodstain",
    "dreams",
    "scars",
    "struck",
)
_LOG = ("verify", "status", "golem", "ticks", "lineage")
_BUNDLE = ("verify", "bundle", "bundle signature", "imported bundle", "bundle checks", "golem")
READ_BY: Mapping[str, Sequence[str]] = {
    "rows of the log": _LOG,
    "commits of the log": _LOG,
    "checkpoints": (*_LOG, "ask"),
    "vectors": ("verify", "similar", "ask"),
    "quarantine": ("verify", "quarantine", "status"),
    "checksum manifests": ("verify",),
    "rows of projections": _TABLES,
    "commits of projections": _TABLES,
    "candidates": ("verify", "bundle checks"),
    "marks of readers": ("verify", "status", "golem"),
    "bundles": _BUNDLE,
    "heads": ("verify", "status"),
    "tick index": ("ticks",),
    "episode index": ("verify", "similar", "search", "status"),
    "warehouse": ("sql", "status"),
    "journals": ("verify", "status", "drain"),
    "leases": ("verify", "status", "drain"),
    "signatures in the spool": ("verify", "spool"),
    "keys": ("verify", "seal", "owner key"),
    "conversations": ("verify", "conversation"),
    "playbooks": ("verify", "golem"),
    "archives": ("verify", "import archive"),
    "documents": ("verify", "status", "document again"),
    "server.json": ("ask server", "ask"),
    "home.json": ("verify", "status", "golem"),
    "bardo.toml": ("verify", "status", "ask"),
}
"""Kind of file -> the commands that read it.

Browsers read the pages of documents. `bardo config` is left out for bardo.toml: the user edits that file, so another
value in it is another configuration.
"""


def _plain(text: str, home: Path) -> str:
    """Return an output without the home's path, ages and moments of this run."""
    text = re.sub(r"in \d+\.\d+ s\b", "", text.replace(str(home), "HOME"))
    text = re.sub(r'"(\w*seconds\w*|bytes|minute|hour|day|day_share|at|derived_at|built_at)": ?[^,}\]]*', "", text)
    return re.sub(r"(bytes|files with a sum|commits) +[\d,]+", "", text)


def _judged(answer: Answer, expected: Answer, name: str, damage: Damage) -> Outcome:
    if isinstance(answer.error, BardoError):
        return "typed error"
    if answer.error is not None:
        return "traceback"
    if (answer.text, answer.code) == (expected.text, expected.code):
        return "equal"
    names_it = any(part in answer.text for part in (damage.path, str(Path(damage.path).parent)))
    if name == "verify" and answer.code == 1 and names_it:
        return "typed error"
    if answer.code not in (0, expected.code) or _WARNING.search(answer.text):
        return "typed error"
    return "wrong answer"


_RANK: Mapping[Outcome, int] = {outcome: rank for rank, outcome in enumerate(get_args(Outcome))}
_WARNING = re.compile(
    r"SignatureError|damaged|torn bytes in journals +[1-9]|restore it|unfinished (last line|frame)|cannot be read"
    r"|commits without a sum +[1-9]"  # a power cut may leave a shorter manifest, so this is no break
)
"""Words by which a command reports a damage beside its answer."""


def _difference(answer: Answer, expected: Answer) -> str:
    if answer.error is not None and not isinstance(answer.error, BardoError):
        return "\n" + "".join(traceback.format_exception(answer.error))[-1_500:]
    at = next((i for i, (a, b) in enumerate(zip_longest(answer.text, expected.text)) if a != b), 0)
    shown = slice(max(0, at - 60), at + 100)
    return f": {answer.error or answer.text[shown]!r} instead of {expected.text[shown]!r}"


def damages(bench: Bench, flips: int, cuts: int, rng: Random) -> Iterator[tuple[str, Damage]]:
    """Draw damages, evenly over the kinds of files, each with its kind."""
    kinds = bench.kinds()
    turns = [*(["flip"] * flips), *(["cut"] * cuts)]
    for number, how in enumerate(turns):
        kind = sorted(kinds)[number % len(kinds)]
        path = rng.choice(kinds[kind])
        size = (bench.root / path).stat().st_size
        if how == "flip":
            yield kind, Damage(path, "flip", rng.randrange(8 * size))
        else:
            at = rng.choice([0, size - 1, rng.randrange(size)])
            yield kind, Damage(path, "cut", at - (at in append_ends(bench.root / path)))


def append_ends(path: Path) -> set[int]:
    """Return the sizes that a file had between two appends; empty for a file that does not grow any more.

    Cut to such a size, the file is what it was at an earlier moment, and nothing in the home tells them apart: the last
    segment of a dead writer, and a conversation's lines behind those written with its header.
    """
    content = path.read_bytes()
    if path.suffix == ".seg" and path == max(path.parent.glob("*.seg")):
        return {match.start() for match in re.finditer(b"FRAM", content)}
    if path.suffix == ".jsonl" and path.parent.parent.name == "conversations" and ".archive-" not in path.name:
        ends = [match.end() for match in re.finditer(b"\n", content)]
        return set(ends[orjson.loads(content[: ends[0]])["lines"] :])
    return set()


def judged_by_processes(bench: Bench, drawn: Sequence[tuple[str, Damage]]) -> Iterator[tuple[Outcome, str]]:
    """Judge damages in order, on all cores. A process ends after some damages, because its caches go by path."""
    with multiprocessing.get_context("spawn").Pool(maxtasksperchild=_DAMAGES_PER_PROCESS) as pool:
        yield from pool.imap(partial(_judge, bench), drawn)


def _judge(bench: Bench, drawn: tuple[str, Damage]) -> tuple[Outcome, str]:
    return bench.judge(*drawn)


_DAMAGES_PER_PROCESS = 40


def main() -> None:
    """Damage a home many times and print a table of the outcomes; exit 1 for a wrong answer or a traceback."""
    parser = argparse.ArgumentParser(prog="python -m tests.bits", description=__doc__)
    parser.add_argument("--flips", type=int, default=1_000, help="single flipped bits")
    parser.add_argument("--cuts", type=int, default=200, help="files cut short")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--home", type=Path, help="furnished home to damage; made if missing")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bardo-bits-") as folder:
        root = options.home or Path(folder) / "home"
        if not root.exists():
            make_home(root, marts=True)
        bench = Bench(root)
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        failed = 0
        drawn = list(damages(bench, options.flips, options.cuts, Random(options.seed)))
        for (kind, damage), (outcome, why) in zip(drawn, judged_by_processes(bench, drawn), strict=True):
            counts[kind][outcome] += 1
            if outcome in ("wrong answer", "traceback"):
                failed += 1
                print(f"seed {options.seed}, {damage}: {outcome}: {why}", flush=True)
    print(f"{'kind':<26}" + "".join(f"{outcome:>14}" for outcome in get_args(Outcome)))
    for kind in KINDS:
        print(f"{kind:<26}" + "".join(f"{counts[kind][outcome]:>14,}" for outcome in get_args(Outcome)))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
