"""A home that is gone comes back from the relay and the secret of its clade, and nothing else reaches the relay."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bardo_pipeline.client.relay_client import RelayClient, RelayMessage
from bardo_pipeline.derivation.clade import clade_backup, clade_restore
from bardo_pipeline.derivation.clade.clade_backup import BackedUp, back_up, restore_mark
from bardo_pipeline.derivation.clade.clade_restore import restore_clade
from bardo_pipeline.derivation.clade.vault_snapshots import assembled, part_of
from bardo_pipeline.derivation.configuration import record_configuration
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.dreams.derive_lessons import known_entries
from bardo_pipeline.errors import BackupError, ForkError
from bardo_pipeline.events.custody.clade_secret import CladeSecret
from bardo_pipeline.events.custody.hash_chain import Payloads
from bardo_pipeline.events.experience.stored_text import stored_text
from bardo_pipeline.events.life.events import KeyRegistered, Published, life_event
from bardo_pipeline.events.life.override_events import Pinned
from bardo_pipeline.events.record.validate import examine
from bardo_pipeline.policy import Policy
from bardo_pipeline.policy.inheritance import CladePolicy
from bardo_pipeline.policy.toml_config import parse
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.keys.clade_secrets import clade_secret_path
from bardo_pipeline.storage.log.batch import Stamp
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.projections.projections import TABLES
from bardo_pipeline.storage.verification.verify import verify
from tests.conftest import NOW, one_at_a_time
from tests.support.homes.tampered_homes import ARROW, JSON, KEY_ID, PUBLIC, SIGNED, batch, lines, signed
from tests.support.knowledge.handmade_bundles import bundle_of
from tests.support.knowledge.handmade_grimoires import entry
from tests.support.processes.bardo_command import ROOT, bardo, run
from tests.support.processes.relays import relay
from tests.support.records.drawn_records import records
from tests.support.records.handmade_births import birth_of

OWNER, SECRET = "owner-1", b"v" * 32
VAULT = CladeSecret(SECRET).vault
ENABLED = "[styx]\nclade_enabled = true\nvault_enabled = true\n"
RUN = ("run", "--golems", "3", "--bars", "900", "--owner", OWNER, "--no-marts", "--lifespan", "300-3000", "--seed", "1")


class HeldVault:
    """The vault's topic in memory, whose messages a test may alter."""

    def __init__(self) -> None:
        self.messages: list[RelayMessage] = []

    def put(self, message_id: str, body: bytes, days: int | None = None) -> int:
        """Store a message unless it is stored."""
        if message_id not in self.ids:
            self.messages.append(RelayMessage(self.newest() + 1, message_id, body))
        return self.newest()

    def keep(self, message_ids: Sequence[str], days: int) -> list[str]:
        """Return the ids that are not stored."""
        return [message_id for message_id in message_ids if message_id not in self.ids]

    def after(self, number: int) -> list[RelayMessage]:
        """Return the messages behind a number."""
        return [message for message in self.messages if message.number > number]

    def newest(self) -> int:
        """Return the newest number."""
        return max((message.number for message in self.messages), default=0)

    @property
    def ids(self) -> list[str]:
        """The ids of the messages in order."""
        return [message.message_id for message in self.messages]


class Stop:
    """A stop before or after a step: the one with this number."""

    def __init__(self, number: int) -> None:
        self._left = number

    def around(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return the step with a possible stop before and after it."""

        def stoppable(*given: Any, **named: Any) -> Any:
            self._count()
            result = step(*given, **named)
            self._count()
            return result

        return stoppable

    def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt


# a home without derived tables


def at(seconds: float) -> datetime:
    """Return a recording time."""
    return NOW + timedelta(seconds=seconds)


def live(root: Path, tick: int, seconds: float, count: int = 3) -> None:
    """Append ticks of two golems as a batch, one of them signed, and of a third as JSON."""
    with EventLog(Home.open(root)) as log:
        table, single = batch(tick, count), records(count, golems=1, tick=tick, seed=tick, prefix="json")
        log.append(table, writer="runtime", segment=tick, recorded_at=at(seconds), signatures=signed(table))
        given = Payloads.of(pa.array(lines(tick, count), pa.binary()))
        log.admit(examine(single), Stamp("spool", tick, at(seconds + 0.5)), payloads=given)


def store(root: Path, golem_id: str, text: str, seconds: float) -> None:
    """Record a text of a golem's runtime."""
    with EventLog(Home.open(root)) as log:
        log.record([life_event(golem_id, NOW, stored_text(text))], at(seconds))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Return a home of three golems of one owner, with texts and a bundle: four commits of records of each way."""
    root, bundle = tmp_path / "small", bundle_of(entry(about="h", kind="heuristic"))
    home = Home.create(root, Policy(), NOW)
    context = DerivationContext.open(root)
    record_configuration(context, parse("[styx]\nvault_enabled = true\n", "bardo.toml"), now=at(0), why="a test")
    context.log.record([birth_of(golem_id) for golem_id in (ARROW, SIGNED, JSON)], at(1))
    key = KeyRegistered(key_id=KEY_ID, public_key=PUBLIC, tick_from=1)
    context.log.record([life_event(SIGNED, NOW, key)], at(2))
    live(root, 1, 3.0)
    store(root, ARROW, "Gas doubled at noon.", 3.2)
    live(root, 4, 4.0)
    store(root, JSON, "The pool was drained.", 4.8)
    published = Published(bundle_hash=bundle.bundle_hash, entry_count=1, derivation_id="derivation-1")
    context.log.record([life_event(ARROW, NOW, published)], at(5))
    folder = home.bundles / bundle.bundle_hash
    folder.mkdir()
    for name, content in bundle.files.items():
        (folder / name).write_bytes(content)
    return root


def backed_up(root: Path, vault: HeldVault, now: datetime = NOW, *, is_due_only: bool = False) -> BackedUp:
    return back_up(DerivationContext.open(root), "owner", VAULT, vault, now=now, is_due_only=is_due_only)


def restored(root: Path, vault: HeldVault, owner: str = "owner", **options: Any) -> Any:
    """Restore into a home, which is made if it does not exist."""
    Home.create(root, Policy(), NOW)
    return restore_clade(DerivationContext.open(root), owner, VAULT, vault, **options)


def content(root: Path) -> tuple[Any, ...]:
    """Return what a log holds: records with their links and recording times, life events, and bundles."""
    log = EventLog(Home.open(root))
    cycles = log.read_cycles().sort_by([("golem_id", "ascending"), ("tick", "ascending")])
    events = pa.concat_tables([log.life(), log.life("TextStored"), log.life("ToolCalled")]).sort_by("event_id")
    names = sorted(path.name for path in log.home.bundles.glob("[!.]*"))
    return cycles.drop_columns(["version", "writer", "segment"]).to_pylist(), events.to_pylist(), names


@pytest.mark.full
def test_a_log_comes_back_with_its_links_and_signatures(small: Path, tmp_path: Path) -> None:
    vault = HeldVault()
    assert backed_up(small, vault).snapshots == 1
    live(small, 7, 6.0)
    store(small, SIGNED, "The bridge stopped.", 6.5)
    done = backed_up(small, vault, at(7))
    assert (done.records, done.events) == (9, 1)
    assert (backed_up(small, vault, at(8)).messages, len(vault.messages)) == (0, 2)
    done = restored(tmp_path / "new", vault)
    assert (done.golems, done.snapshots, done.records, done.bundles) == ((ARROW, SIGNED, JSON), 2, 27, 1)
    assert content(tmp_path / "new") == content(small)
    report = verify(Home.open(tmp_path / "new"))
    assert not report.breaks
    assert report.facts["signatures"] == verify(Home.open(small)).facts["signatures"] > 0
    again = restored(tmp_path / "new", vault)
    assert (again.records, again.events, again.bundles) == (0, 0, 0)
    assert restored(small, vault).records == 0, "a home that has everything gets nothing"
    assert content(tmp_path / "new") == content(small)


def test_the_texts_of_a_golem_whose_vault_is_enabled_later_are_backed_up(small: Path, tmp_path: Path) -> None:
    context, vault = DerivationContext.open(small), HeldVault()

    def configure(words: str, seconds: float, run: str | None) -> None:
        record_configuration(context, parse(words, "bardo.toml"), now=at(seconds), why="a test", run=run)

    configure("[styx]\nvault_enabled = false\n", 6, "quiet")
    configure("[styx]\nvault_enabled = true\n", 6.5, None)
    context.log.record([birth_of("later", run="quiet")], at(7))
    store(small, "later", "The oracle lagged.", 8)
    assert backed_up(small, vault, at(9)).golems == (ARROW, SIGNED, JSON)
    configure("[styx]\nvault_enabled = true\n", 10, "quiet")
    assert "later" in backed_up(small, vault, at(11)).golems
    restored(tmp_path / "new", vault)
    assert content(tmp_path / "new") == content(small)


@pytest.mark.full
def test_a_stop_at_any_step_of_a_backup_loses_and_doubles_nothing(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clade_backup, "SNAPSHOT_ROWS", 6)
    shutil.copytree(small, tmp_path / "whole")
    whole, stops = HeldVault(), 0
    assert backed_up(tmp_path / "whole", whole).snapshots == 3

    while True:
        stops += 1
        stop, home, vault = Stop(stops), tmp_path / f"home-{stops}", HeldVault()
        shutil.copytree(small, home)
        with monkeypatch.context() as patched:
            patched.setattr(clade_backup, "replace_file", stop.around(clade_backup.replace_file))
            patched.setattr(vault, "put", stop.around(vault.put))
            try:
                backed_up(home, vault)
                break
            except KeyboardInterrupt:
                pass
        backed_up(home, vault)
        assert vault.messages == whole.messages
        assert (backed_up(home, vault).messages, vault.messages) == (0, whole.messages)
    assert stops > 18
    restored(tmp_path / "new", vault)
    assert content(tmp_path / "new") == content(small)


@pytest.mark.full
def test_a_stop_at_any_step_of_a_restore_is_continued(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault, stops = HeldVault(), 0
    backed_up(small, vault)
    while True:
        stops += 1
        stop, new = Stop(stops), tmp_path / f"new-{stops}"
        with monkeypatch.context() as patched:
            patched.setattr(clade_restore, "write_bundle", stop.around(clade_restore.write_bundle))
            for step in (EventLog.record, EventLog.admit):
                patched.setattr(EventLog, step.__name__, stop.around(step))
            try:
                restored(new, vault)
                break
            except KeyboardInterrupt:
                pass
        with pytest.raises(BackupError, match="was interrupted"):
            backed_up(new, vault)
        restored(new, vault)
        assert content(new) == content(small)
        assert not restore_mark(Home.open(new), "owner").exists()
    assert stops > 14


def test_a_backup_is_due_after_200_ticks_a_birth_or_a_death(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vault = HeldVault()
    assert CladePolicy().backup_ticks == 200
    assert backed_up(small, vault, is_due_only=True).snapshots == 1
    live(small, 7, 10.0, 199)
    assert backed_up(small, vault, at(20), is_due_only=True).snapshots == 0
    live(small, 206, 21.0, 1)
    assert backed_up(small, vault, at(22), is_due_only=True).records == 600
    DerivationContext.open(small).log.record([birth_of("heir")], at(23))
    assert backed_up(small, vault, at(24), is_due_only=True).events == 1


def test_a_lost_cursor_or_relay_begins_a_new_chain(small: Path, tmp_path: Path) -> None:
    vault = HeldVault()
    backed_up(small, vault)
    shutil.rmtree(small / "clade")
    live(small, 7, 6.0)
    assert backed_up(small, vault, at(7)).number == 1, "a home without a cursor begins again"
    restored(tmp_path / "first", vault)
    assert content(tmp_path / "first") == content(small)
    emptied = HeldVault()
    assert backed_up(small, emptied, at(8)).number == 1, "a relay without messages gets all again"
    restored(tmp_path / "second", emptied)
    assert content(tmp_path / "second") == content(small)
    live(small, 10, 9.0)
    backed_up(small, emptied, at(10))
    lost = emptied.messages.pop(0)
    emptied.put("f" * 64, b"of another home")
    assert backed_up(small, emptied, at(11), is_due_only=True).messages == 0
    assert backed_up(small, emptied, at(11) + clade_backup.RENEWAL, is_due_only=True).number == 1, "the relay was asked"
    assert lost not in emptied.messages
    restored(tmp_path / "third", emptied)
    assert content(tmp_path / "third") == content(small)


@pytest.mark.parametrize(
    "kind", ["lost", *(pytest.param(kind, marks=pytest.mark.full) for kind in ("altered", "another secret", "no part"))]
)
def test_a_backup_with_a_missing_message_is_refused_whole(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(clade_backup, "SNAPSHOT_ROWS", 6)
    vault = HeldVault()
    backed_up(small, vault)
    body = vault.messages[1].body
    bodies = {
        "altered": body[:-1] + bytes([body[-1] ^ 1]), "another secret": CladeSecret(b"x" * 32).vault.encrypt(b"x"),
        "no part": VAULT.encrypt(b"no part"),
    }  # fmt: skip
    if kind == "lost":
        del vault.messages[1]
    else:
        vault.messages[1] = vault.messages[1]._replace(body=bodies[kind])
    new = tmp_path / "new"
    with pytest.raises(BackupError, match=r"lacks snapshot 2 of 3 .* --incomplete restores the 1 before it"):
        restored(new, vault)
    assert content(new) == ([], [], []), "nothing is recorded"
    assert not restore_mark(Home.open(new), "owner").exists()
    done = restored(new, vault, is_partial=True)
    assert (done.snapshots, len(done.refused)) == (1, kind != "lost")
    assert "snapshot 2 of 3" in done.missing
    assert 0 < len(content(new)[0]) < len(content(small)[0])


def test_parts_of_a_snapshot_are_named(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bardo_pipeline.derivation.clade.vault_snapshots._PART_BYTES", 2_000)
    vault = HeldVault()
    backed_up(small, vault)
    count = len(vault.messages)
    restored(tmp_path / "whole", vault)
    assert content(tmp_path / "whole") == content(small)
    for number in (3, 1):
        del vault.messages[number]
    with pytest.raises(BackupError, match=rf"snapshot 1 \(parts 2, 4 of {count}\).* no snapshot before it is complete"):
        restored(tmp_path / "new", vault, is_partial=True)


def test_an_owner_without_or_with_another_backup_is_refused(small: Path, tmp_path: Path) -> None:
    vault = HeldVault()
    with pytest.raises(BackupError, match="no backup of the clade of owner"):
        restored(tmp_path / "new", vault)
    backed_up(small, vault)
    with pytest.raises(BackupError, match=f"golem {ARROW}, which does not belong to owner-2"):
        restored(tmp_path / "new", vault, "owner-2")
    assert content(tmp_path / "new") == ([], [], [])


def test_the_home_is_named_if_a_relay_has_several(small: Path, tmp_path: Path) -> None:
    vault, other = HeldVault(), tmp_path / "other"
    backed_up(small, vault)
    restored(other, vault)
    live(other, 7, 6.0)
    backed_up(other, vault, at(9))
    with pytest.raises(BackupError, match=r"backups of 2 homes \(.*\): name one by --from"):
        restored(tmp_path / "new", vault)
    assert restored(tmp_path / "new", vault, home_id=EventLog(Home.open(other)).table_id[:8]).records == 27
    assert content(tmp_path / "new") == content(other)


def test_another_record_of_a_tick_stops_a_restore_which_says_so(small: Path, tmp_path: Path) -> None:
    vault, fork = HeldVault(), tmp_path / "fork"
    backed_up(small, vault)
    Home.create(fork, Policy(), NOW)
    with EventLog(Home.open(fork)) as log:
        log.append(records(1, golems=1, seed=9, prefix="arrow"), writer="w", segment=1, recorded_at=NOW)
    with pytest.raises(ForkError):
        restored(fork, vault)
    with pytest.raises(BackupError, match="was interrupted: `bardo clade restore owner`"):
        backed_up(fork, vault)
    assert "bardo clade restore owner" in bardo("doctor", home=fork, expect=1)


@pytest.mark.parametrize("recorded", [3.2, pytest.param(9.0, marks=pytest.mark.full)])
def test_an_event_is_restored_at_the_tick_that_it_saw(small: Path, tmp_path: Path, recorded: float) -> None:
    """A process reads the clock before it commits: the order of recording times differs from that of the commits."""
    log = EventLog(Home.open(small))
    pinned = Pinned(number=1, entry_id="e", tick_seen=6, cycle_seen=0, why="a test")
    log.record([life_event(ARROW, NOW, pinned)], at(recorded))
    live(small, 7, 6.0)
    vault = HeldVault()
    backed_up(small, vault)
    restored(tmp_path / "new", vault)
    assert content(tmp_path / "new") == content(small)


# real processes


@pytest.fixture(scope="module")
def lived(session_folder: Path) -> Path:
    """Return a folder with a home whose run was backed up, and the database of the relay. Copy before writing."""
    folder = session_folder / "vault"
    with one_at_a_time(session_folder / "vault.lock"):
        if not (folder / "done").exists():
            shutil.rmtree(folder, ignore_errors=True)
            with relay(_made(folder / "relay") / "relay.db") as (url, _):
                home = _made(folder / "home")
                (home / "bardo.toml").write_text(ENABLED)
                _made(home / "keys")
                clade_secret_path(Home.create(home, Policy(), NOW), OWNER).write_bytes(SECRET)
                done = run(RUN, {**os.environ, "BARDO_HOME": str(home), "BARDO_RELAY": url})
                assert done.returncode == 0, done.stderr
            (folder / "done").touch()
    return folder


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def copy(lived: Path, tmp_path: Path) -> Path:
    shutil.copytree(lived, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def address(copy: Path) -> Iterator[str]:
    with relay(copy / "relay" / "relay.db") as (url, _):
        yield url


def empty_home(root: Path) -> Path:
    """Return a home with the secret of the clade and nothing else."""
    secret = root.parent / "carried.key"
    secret.write_bytes(SECRET)
    bardo("init", home=root)
    bardo("clade", "key", OWNER, "--file", str(secret), home=root)
    return root


def fingerprints(root: Path) -> dict[str, tuple[int, str]]:
    """Return the fingerprint of each derived table, and the bytes of each playbook."""
    context = DerivationContext.open(root)
    tables = {name: (d.rows, d.fingerprint) for name in TABLES for d in [context.projections.digest(name)]}
    pages = sorted(context.home.playbooks.rglob("PLAYBOOK.md"))
    return tables | {str(page.relative_to(context.home.playbooks)): (1, page.read_text()) for page in pages}


def digest(root: Path) -> str:
    """Return the line of `bardo verify` about the records of all golems."""
    (line,) = [line for line in bardo("verify", home=root).splitlines() if "digest of the fleet" in line]
    return line.partition(":")[2]


@pytest.mark.row("KAT-10")
def test_a_wiped_home_comes_back_from_the_relay_and_its_secret(copy: Path, address: str, tmp_path: Path) -> None:
    old = copy / "home"
    before, fleet, events = fingerprints(old), digest(old), content(old)[1]
    assert before["grimoire"][0] > 10
    assert any(name.endswith("PLAYBOOK.md") for name in before)
    context = DerivationContext.open(old)
    texts = known_entries(context)["text"].to_pylist()
    canaries = [*context.golem_ids(), OWNER, "WETH", "confidence", "GolemBorn", "playbook", *texts]
    shutil.rmtree(old)
    new = empty_home(tmp_path / "new")
    done = json.loads(bardo("clade", "restore", OWNER, "--relay", address, "--json", home=new))
    assert done["missing"] == ""
    bardo("derive", "--no-marts", home=new)
    assert fingerprints(new) == before
    assert digest(new) == fleet
    assert content(new)[1] == events
    stored = b"".join(path.read_bytes() for path in (copy / "relay").iterdir())
    assert [canary for canary in canaries if canary.encode() in stored] == []
    again = json.loads(bardo("clade", "restore", OWNER, "--relay", address, "--json", home=new))
    assert (again["records"], again["events"], again["bundles"]) == (0, 0, 0)


@pytest.mark.row("KAT-10")
def test_a_run_is_backed_up_every_200_ticks(copy: Path, address: str) -> None:
    with RelayClient(address, VAULT.topic, VAULT.token) as topic:
        parts = [part_of(VAULT.decrypt(message.body)) for message in topic.after(0)]
    hashes = dict.fromkeys(part.hash for part in parts)
    snapshots = [assembled([part for part in parts if part.hash == one]) for one in hashes]
    assert [snapshot.place.number for snapshot in snapshots] == list(range(1, len(snapshots) + 1))
    newest: dict[str, int] = {}
    for snapshot in snapshots:
        rows = snapshot.records.group_by("golem_id").aggregate([("tick", "max")]).to_pylist()
        ticks = {row["golem_id"]: row["tick_max"] for row in rows}
        assert max(tick - newest.get(golem_id, 0) for golem_id, tick in ticks.items()) <= 200
        newest |= ticks
    context = DerivationContext.open(copy / "home")
    assert newest == {row["golem_id"]: row["highest"] for row in context.log.heads().to_pylist()}


@pytest.mark.row("KAT-10")
def test_a_backup_is_kept_for_90_days(tmp_path: Path) -> None:
    start = datetime(2026, 11, 1, tzinfo=UTC)
    database, ids = tmp_path / "relay.db", ["a" * 64, "b" * 64]

    def serving(days: float) -> Any:
        return relay(database, clock=start + timedelta(days=days))

    with serving(0) as (url, _), RelayClient(url, VAULT.topic, VAULT.token) as topic:
        topic.put(ids[0], b"a snapshot", 90)
        topic.put(ids[1], b"a parcel")
    for days, kept in ((6, ids), (8, ids[:1]), (89, ids[:1])):
        with serving(days) as (url, _), RelayClient(url, VAULT.topic, VAULT.token) as topic:
            _wait_for(lambda topic=topic, kept=kept: [m.message_id for m in topic.after(0)] == kept)  # type: ignore[misc]
    with serving(89) as (url, _), RelayClient(url, VAULT.topic, VAULT.token) as topic:
        assert topic.keep(ids, 1) == ids[1:], "a shorter time changes nothing"
    with serving(91) as (url, _), RelayClient(url, VAULT.topic, VAULT.token) as topic:
        _wait_for(lambda: topic.after(0) == [])
        topic.put(ids[0], b"a snapshot", 90)
    with serving(121) as (url, _), RelayClient(url, VAULT.topic, VAULT.token) as topic:
        assert topic.keep(ids, 90) == ids[1:]
    with serving(200) as (url, _), RelayClient(url, VAULT.topic, VAULT.token) as topic:
        assert [m.message_id for m in topic.after(0)] == ids[:1], "its time was extended"


def _wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a relay that has just started has removed what expired."""
    until = time.monotonic() + 20.0
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.full
def test_killed_backups_and_restores_lose_and_double_nothing(copy: Path, tmp_path: Path) -> None:
    drawn, port, database = random.Random(10), 0, tmp_path / "relay.db"
    old, new = copy / "home", empty_home(tmp_path / "new")
    shutil.rmtree(old / "clade")
    with relay(database) as (url, _):
        port = int(url.rsplit(":", 1)[1])

    def killed(words: Sequence[str], home: Path, turn: int) -> None:
        with relay(database, port) as (url, process):
            command = [sys.executable, "-m", "bardo_pipeline.cli.app", "clade", *words, OWNER, "--relay", url]
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "BARDO_HOME": str(home)}
            working = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            time.sleep(drawn.uniform(1.5, 5.0))
            (process if turn % 3 == 2 else working).send_signal(signal.SIGKILL)
            working.kill()
            working.wait()

    for turn in range(6):
        killed(["backup"], old, turn)
    with relay(database, port) as (url, _):
        bardo("clade", "backup", OWNER, "--relay", url, home=old)
        with RelayClient(url, VAULT.topic, VAULT.token) as topic:
            parts = [part_of(VAULT.decrypt(message.body)) for message in topic.after(0)]
        assert len({(part.place.number, part.number) for part in parts}) == len(parts), "a message was doubled"
    for turn in range(6):
        killed(["restore"], new, turn)
    with relay(database, port) as (url, _):
        bardo("clade", "restore", OWNER, "--relay", url, home=new)
    assert content(new) == content(old)
    assert not restore_mark(Home.open(new), OWNER).exists()
    assert digest(new) == digest(old)
