"""Conversations: a tree of messages in append-only lines, with branches, summaries and a tail."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bardo_pipeline.errors import DamagedError, QueryError, RecordError, SchemaVersionError, SealError, StoreError
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.conversations import conversations, session_files
from bardo_pipeline.storage.conversations.conversations import (
    Conversations,
    Message,
    conversation_category,
    conversation_tail,
)
from bardo_pipeline.storage.conversations.session_files import read_session, session_file
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.keys.golem_seal_keys import SealKeys
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.verification.report import Report
from bardo_pipeline.storage.verification.verify import verify
from tests.support.processes.bardo_command import run
from tests.support.processes.forked_processes import Forked

pytestmark = pytest.mark.row("EV-9")

NOW = datetime(2026, 11, 1, tzinfo=UTC)
GOLEM = "g-1"
SECRET = bytes(range(32))


@pytest.fixture
def talk(home: Home) -> Conversations:
    return Conversations(home, EventLog(home))


def at(minute: int) -> datetime:
    return NOW + timedelta(minutes=minute)


def append_messages(
    talk: Conversations, *contents: str, golem_id: str = GOLEM, session: str = "session"
) -> list[Message]:
    roles = ("owner", "golem")
    return [talk.append(golem_id, roles[i % 2], content, at(i), session=session) for i, content in enumerate(contents)]


def contents(messages: list[Message] | tuple[Message, ...]) -> list[str]:
    return [message.content for message in messages]


# messages


def test_append_writes_each_message_as_a_line_of_json(home: Home, talk: Conversations) -> None:
    first, second = append_messages(talk, "how do you do?", "I fear the gas")
    header, *lines = [orjson.loads(line) for line in session_file(home, GOLEM, "session").read_bytes().splitlines()]
    assert (header["golem_id"], header["session"]) == (GOLEM, "session")
    assert [(line["id"], line["parent_id"], line["role"], line["content"], line["at"]) for line in lines] == [
        (first.message_id, None, "owner", "how do you do?", at(0).isoformat()),
        (second.message_id, first.message_id, "golem", "I fear the gas", at(1).isoformat()),
    ]
    assert contents(talk.view(GOLEM)) == ["how do you do?", "I fear the gas"]


def test_an_append_is_synced_before_it_returns(
    home: Home, talk: Conversations, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_messages(talk, "first")
    synced: list[int] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (synced.append(os.fstat(handle).st_size), fsync(handle))[1])
    append_messages(talk, "second")
    assert session_file(home, GOLEM, "session").stat().st_size in synced


def test_equal_messages_at_one_moment_have_different_ids(talk: Conversations) -> None:
    first, two = talk.append(GOLEM, "owner", "yes", NOW), talk.append(GOLEM, "owner", "yes", NOW)
    assert first.message_id != two.message_id
    assert contents(talk.view(GOLEM)) == ["yes", "yes"]


@pytest.mark.parametrize("golem_id", ["../../etc/passwd", "/", "..", "a\0b", "x" * 256, "ümläut/\n", "CON"])
def test_the_session_file_of_any_golem_id_is_inside_the_home(home: Home, talk: Conversations, golem_id: str) -> None:
    append_messages(talk, "hello", golem_id=golem_id)
    path = session_file(home, golem_id, "session")
    assert path.parent.parent == home.conversations
    assert path.exists()
    assert contents(conversation_tail(home, golem_id, 5)) == ["hello"]
    assert [session.golem_id for session in talk.sessions()] == [golem_id]


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a.archive-0001", "x" * 65, "a b", "ü"])
def test_an_invalid_session_or_branch_name_is_refused(talk: Conversations, name: str) -> None:
    with pytest.raises(RecordError, match="cannot name"):
        append_messages(talk, "hello", session=name)
    append_messages(talk, "hello")
    with pytest.raises(RecordError, match="cannot name"):
        talk.branch(GOLEM, name, NOW)


def test_an_invalid_message_is_refused_and_creates_no_session(home: Home, talk: Conversations) -> None:
    for role, content in (("stranger", "hi"), ("owner", ""), ("owner", "x" * 65_537), ("owner", "\ud800")):
        with pytest.raises(RecordError):
            talk.append(GOLEM, role, content, NOW)
    with pytest.raises(RecordError, match="UTC"):
        talk.append(GOLEM, "owner", "hi", datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(RecordError, match="UTF-8"):
        talk.append("\ud800", "owner", "hi", NOW)
    assert not talk.sessions()
    with pytest.raises(QueryError, match="no session"):
        talk.view(GOLEM)
    assert conversation_tail(home, GOLEM, 3) == ()


# torn ends and broken files


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_torn_last_line_is_skipped_reported_and_removed_by_the_next_append(
    home: Home, talk: Conversations, cut: int
) -> None:
    append_messages(talk, "first", "second", "lost")
    path = session_file(home, GOLEM, "session")
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    assert contents(talk.view(GOLEM)) == ["first", "second"]
    assert talk.session(GOLEM).torn == whole.splitlines(keepends=True)[-1][:-cut]
    assert path.read_bytes() == whole[:-cut], "reading changes nothing"
    append_messages(talk, "again")
    assert contents(talk.view(GOLEM)) == ["first", "second", "again"]
    assert talk.session(GOLEM).torn == b""


def test_a_last_line_of_zeros_counts_as_torn(home: Home, talk: Conversations) -> None:
    append_messages(talk, "first")
    with session_file(home, GOLEM, "session").open("ab") as out:
        out.write(bytes(30) + b"\n")
    assert contents(talk.view(GOLEM)) == ["first"]
    append_messages(talk, "second")
    assert contents(talk.view(GOLEM)) == ["first", "second"]


def test_a_broken_line_or_header_is_refused(home: Home, talk: Conversations) -> None:
    append_messages(talk, "first", "second")
    path = session_file(home, GOLEM, "session")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"{" + lines[1] + lines[2])
    with pytest.raises(StoreError, match="line 2 cannot be read"):
        talk.view(GOLEM)
    for size in (0, 40, len(lines[0]) - 1):
        path.write_bytes(lines[0][:size])
        with pytest.raises(DamagedError, match=f"{path} is damaged .it has no header.: restore it from a backup"):
            talk.view(GOLEM)
        assert places(verify(home)) == {path.relative_to(home.root).as_posix()}
    path.write_bytes(lines[0].replace(b'"version":1', b'"version":2'))
    with pytest.raises(SchemaVersionError, match="version 2"):
        talk.view(GOLEM)


def places(report: Report) -> set[str]:
    assert set(report.counts) <= {"conversation"}
    return set(report.files)


def test_a_lost_line_of_a_compacted_session_or_its_archive_is_refused(home: Home, talk: Conversations) -> None:
    append_messages(talk, *(f"m{i}" for i in range(4)))
    talk.compact(GOLEM, "summary", at(9), keep=2)
    talk.append(GOLEM, "owner", "m4", at(10))
    path = session_file(home, GOLEM, "session")
    archive = session_files.archive_file(path, 1)
    assert places(verify(home)) == set()
    whole = {each: each.read_bytes() for each in (path, archive)}
    lines = {each: content.splitlines(keepends=True) for each, content in whole.items()}
    facts = {(path, kept): f"it has {kept - 1} of the 4 lines" for kept in (1, 2, 3, 4)}
    facts |= {(archive, 0): "it is empty", (archive, 1): "1 of its 6 messages are neither in it"}
    for (damaged, kept), fact in facts.items():
        damaged.write_bytes(b"".join(lines[damaged][:kept]))
        with pytest.raises(DamagedError, match=fact):
            talk.view(GOLEM)
        (broken,) = verify(home).breaks
        assert fact in broken.fact
        assert broken.file == (archive if kept == 0 else path).relative_to(home.root).as_posix()
        damaged.write_bytes(whole[damaged])
    path.unlink()
    assert places(verify(home)) == {path.relative_to(home.root).as_posix()}
    path.write_bytes(whole[path].rsplit(b"\n", 2)[0] + b"\n")
    assert contents(talk.view(GOLEM)) == ["summary", "m2", "m3"], "a cut between later appends leaves no trace"


def test_a_full_disk_leaves_no_partial_line(home: Home, talk: Conversations, monkeypatch: pytest.MonkeyPatch) -> None:
    append_messages(talk, "first")
    before = session_file(home, GOLEM, "session").read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(session_files.os, "fsync", full)
        with pytest.raises(StoreError, match="No space left"):
            append_messages(talk, "second")
    assert session_file(home, GOLEM, "session").read_bytes() == before


# branches


def test_a_branch_starts_behind_any_message_and_main_can_be_resumed(talk: Conversations) -> None:
    first, second, _ = append_messages(talk, "first", "second", "third")
    talk.branch(GOLEM, "what-if", at(10), behind=second.message_id[:6])
    talk.append(GOLEM, "golem", "another third", at(11))
    assert contents(talk.view(GOLEM)) == ["first", "second", "another third"]
    assert contents(talk.view(GOLEM, branch="main")) == ["first", "second", "third"]
    talk.branch(GOLEM, "main", at(12))
    talk.append(GOLEM, "owner", "fourth", at(13))
    assert contents(talk.view(GOLEM)) == ["first", "second", "third", "fourth"]
    assert contents(talk.view(GOLEM, branch="what-if")) == ["first", "second", "another third"]
    with pytest.raises(QueryError, match="no branch other"):
        talk.branch(GOLEM, "other", at(14))
    with pytest.raises(QueryError, match="has a branch main"):
        talk.branch(GOLEM, "main", at(14), behind=first.message_id)
    with pytest.raises(QueryError, match="no message ffff"):
        talk.branch(GOLEM, "other", at(14), behind="ffff")
    with pytest.raises(QueryError, match="no branch other"):
        talk.view(GOLEM, branch="other")


# compaction


def test_compact_replaces_messages_by_a_summary_and_archives_them(home: Home, talk: Conversations) -> None:
    append_messages(talk, *(f"m{i}" for i in range(8)))
    assert talk.compact(GOLEM, "they greeted", at(20), keep=3) == 5
    assert contents(talk.view(GOLEM)) == ["they greeted", "m5", "m6", "m7"]
    assert talk.view(GOLEM)[0].covers == 5
    assert contents(talk.view(GOLEM, whole=True)) == [f"m{i}" for i in range(8)]
    here = read_session(session_file(home, GOLEM, "session"))
    assert here is not None
    assert len(here.lines) == 3, "covered messages are no longer in the file"
    append_messages(talk, "m8", "m9")
    assert talk.compact(GOLEM, "they greeted and traded", at(30), keep=2) == 8
    assert contents(talk.view(GOLEM)) == ["they greeted and traded", "m8", "m9"]
    assert contents(talk.view(GOLEM, whole=True)) == [f"m{i}" for i in range(10)]
    with pytest.raises(QueryError, match="has nothing to compact"):
        talk.compact(GOLEM, "again", at(31), keep=2)
    assert talk.compact(GOLEM, "all of it", at(32), keep=0) == 10
    assert contents(talk.view(GOLEM)) == ["all of it"]
    append_messages(talk, "m10")
    assert contents(talk.view(GOLEM)) == ["all of it", "m10"]


def test_a_branch_from_an_archived_message_keeps_its_earlier_messages(home: Home, talk: Conversations) -> None:
    messages = append_messages(talk, *(f"m{i}" for i in range(6)))
    talk.branch(GOLEM, "early", at(10), behind=messages[1].message_id)
    talk.append(GOLEM, "owner", "aside", at(11))
    talk.branch(GOLEM, "main", at(12))
    talk.compact(GOLEM, "summary", at(13), keep=1)
    assert contents(talk.view(GOLEM)) == ["summary", "m5"]
    assert contents(talk.view(GOLEM, branch="early")) == ["m0", "m1", "aside"]
    talk.branch(GOLEM, "early", at(14))
    assert contents(conversation_tail(home, GOLEM, 2)) == ["m1", "aside"]
    talk.branch(GOLEM, "later", at(15), behind=messages[3].message_id)
    assert contents(conversation_tail(home, GOLEM, 9)) == ["m0", "m1", "m2", "m3"]


@pytest.mark.parametrize("point", ["archive", "file"])
def test_an_interrupted_compaction_leaves_every_message(
    home: Home, talk: Conversations, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    append_messages(talk, *(f"m{i}" for i in range(5)))
    whole = conversations.replace_file

    def cut(path: Path, content: bytes) -> None:
        if ("archive" in path.name) == (point == "archive"):
            raise OSError("cut")
        whole(path, content)

    with monkeypatch.context() as interrupted:
        interrupted.setattr(conversations, "replace_file", cut)
        with pytest.raises(OSError, match="cut"):
            talk.compact(GOLEM, "lost", at(9), keep=2)
    assert contents(talk.view(GOLEM)) == [f"m{i}" for i in range(5)]
    talk.compact(GOLEM, "kept", at(10), keep=1)
    assert contents(talk.view(GOLEM)) == ["kept", "m4"]
    assert contents(talk.view(GOLEM, whole=True)) == [f"m{i}" for i in range(5)]


acts = st.lists(
    st.one_of(
        st.tuples(st.just("say"), st.integers(0, 0)),
        st.tuples(st.just("fork"), st.integers(0, 30)),
        st.tuples(st.just("back"), st.integers(0, 30)),
        st.tuples(st.just("compact"), st.integers(0, 4)),
    ),
    max_size=25,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(acts)
def test_every_branch_keeps_every_message_after_any_sequence_of_actions(
    tmp_path_factory: pytest.TempPathFactory, acts: list[tuple[str, int]]
) -> None:
    home = Home.create(tmp_path_factory.mktemp("talk") / "home", Policy(), NOW)
    talk = Conversations(home, EventLog(home))
    (first,) = append_messages(talk, "m0")
    paths: dict[str, list[str]] = {"main": ["m0"]}
    ids, active, covered = {"m0": first.message_id}, "main", False
    for number, (act, choice) in enumerate(acts, 1):
        if act == "say":
            ids[f"m{number}"] = talk.append(GOLEM, "owner", f"m{number}", at(number)).message_id
            paths[active] = [*paths[active], f"m{number}"]
        elif act == "fork":
            known = paths[active][: choice % len(paths[active]) + 1]
            active = f"b{number}"
            talk.branch(GOLEM, active, at(number), behind=ids[known[-1]])
            paths[active] = known
        elif act == "back":
            active = sorted(paths)[choice % len(paths)]
            talk.branch(GOLEM, active, at(number))
        else:
            try:
                talk.compact(GOLEM, f"s{number}", at(number), keep=choice)
                covered = True
            except QueryError:
                pass
    for branch, path in paths.items():
        assert contents(talk.view(GOLEM, branch=branch, whole=True)) == path
        view = talk.view(GOLEM, branch=branch)
        assert contents(view)[-1] == path[-1] or view[-1].covers == len(path)
        stands = len(view) - 1 + view[0].covers if view[0].covers else len(view)
        assert stands == len(path)
        assert covered or contents(view) == path
    assert contents(conversation_tail(home, GOLEM, 3)) == contents(talk.view(GOLEM)[-3:])


# the workspace


def test_the_tail_is_of_the_active_branch_of_the_latest_session(home: Home, talk: Conversations) -> None:
    append_messages(talk, "old one", "old two", session="monday")
    talk.append(GOLEM, "owner", "new one", at(50), session="tuesday")
    assert contents(conversation_tail(home, GOLEM, 5)) == ["new one"]
    talk.append(GOLEM, "owner", "old three", at(60), session="monday")
    assert contents(conversation_tail(home, GOLEM, 2)) == ["old two", "old three"]
    assert contents(conversation_tail(home, GOLEM, 2, session="tuesday")) == ["new one"]
    assert conversation_tail(home, GOLEM, 0) == ()
    assert conversation_tail(home, "nobody", 4) == ()


def test_the_tail_is_a_category_of_the_workspace(home: Home, talk: Conversations) -> None:
    append_messages(talk, "x" * 40, "y" * 41)
    category = conversation_category(conversation_tail(home, GOLEM, 9))
    assert (category.category, category.items, category.tokens) == ("conversation", 2, 21)


# sealed


def test_messages_of_a_sealing_golem_are_sealed_and_lost_with_its_key(home: Home) -> None:
    with EventLog(home) as log:
        talk, keys = Conversations(home, log), SealKeys(home)
        append_messages(talk, "before it sealed")
        keys.make(log, GOLEM, SECRET, NOW)
        append_messages(talk, "a secret", "another")
        path = session_file(home, GOLEM, "session")
        assert b"secret" not in path.read_bytes()
        assert contents(conversation_tail(home, GOLEM, 9)) == ["before it sealed", "a secret", "another"]
        lines = path.read_bytes().splitlines(keepends=True)
        moved = orjson.loads(lines[3]) | {"sealed": orjson.loads(lines[2])["sealed"], "checksum": "none"}
        path.write_bytes(b"".join(lines[:3]) + orjson.dumps(moved) + b"\n")
        with pytest.raises(SealError, match="altered or belongs to another record"):
            talk.view(GOLEM)
        path.write_bytes(b"".join(lines))
        talk.compact(GOLEM, "a secret summary", at(5), keep=1)
        everything = b"".join(p.read_bytes() for p in home.conversations.rglob("*") if p.is_file())
        assert b"secret" not in everything
        assert b"before it sealed" not in everything, "a plain message is sealed when it is rewritten"
        assert contents(talk.view(GOLEM, whole=True)) == ["before it sealed", "a secret", "another"]
        keys.destroy(log, GOLEM, "asked", NOW)
        for read in (lambda: talk.view(GOLEM), lambda: conversation_tail(home, GOLEM, 2)):
            with pytest.raises(SealError, match="which is lost"):
                read()
        with pytest.raises(SealError, match="the key was destroyed on"):
            append_messages(talk, "more")


# many writers


def append_many(root: str, name: str) -> None:
    home = Home.open(Path(root))
    conversations = Conversations(home, EventLog(home))
    print("ready", flush=True)
    sys.stdin.readline()
    for i in range(60):
        conversations.append(GOLEM, "owner", f"{name}{i}", datetime(2026, 11, 1, tzinfo=UTC))


@pytest.mark.full
def test_two_concurrent_processes_append_every_message_once_in_order(home: Home) -> None:
    both = [Forked(append_many, str(home.root), name) for name in "ab"]
    for process in both:
        assert process.out.readline() == "ready\n"
    for process in both:
        process.go()
    assert [process.wait() for process in both] == [0, 0]
    got = contents(Conversations(home, EventLog(home)).view(GOLEM))
    assert sorted(got) == sorted(f"{name}{i}" for name in "ab" for i in range(60))
    assert [m for m in got if m.startswith("a")] == [f"a{i}" for i in range(60)]


# the command


def bardo(home: Home, *arguments: str, given: str | None = None) -> tuple[int, str, str]:
    words = ["conversation", *arguments, "--home", str(home.root)]
    done = run(words, os.environ | {"COLUMNS": "160"}, given=given or "")
    return done.returncode, done.stdout, done.stderr


@pytest.mark.full
def test_the_conversation_command_appends_shows_branches_compacts_and_lists(home: Home) -> None:
    first = bardo(home, "append", GOLEM, "hello")[1].strip()
    bardo(home, "append", GOLEM, "-", "--role", "golem", given="long thoughts")
    assert bardo(home, "branch", GOLEM, "aside", "--behind", first)[0] == 0
    bardo(home, "append", GOLEM, "or not")
    shown = bardo(home, "show", GOLEM, "--format", "json")[1]
    assert [orjson.loads(line)["content"] for line in shown.splitlines()] == ["hello", "or not"]
    assert "long thoughts" in bardo(home, "show", GOLEM, "--branch", "main")[1]
    assert bardo(home, "compact", GOLEM, "--summary", "they met", "--keep", "1")[0] == 0
    assert "(of 1 messages) they met" in bardo(home, "show", GOLEM)[1]
    tail = bardo(home, "show", GOLEM, "--tail", "1", "--format", "json")[1]
    assert [orjson.loads(line)["content"] for line in tail.splitlines()] == ["or not"]
    assert "aside*" in bardo(home, "list")[1]
    with session_file(home, GOLEM, "session").open("ab") as out:
        out.write(b'{"kind":"mess')
    code, output, result = bardo(home, "show", GOLEM)
    assert (code, "or not" in output, "unfinished last line" in result) == (0, True, True)
    code, _, result = bardo(home, "show", "nobody")
    assert (code, "has no session" in result) == (2, True)
