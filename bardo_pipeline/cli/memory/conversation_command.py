"""The command `bardo conversation`: say something to a golem, read what was said, branch, compact."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import orjson
import typer
from rich.console import Console

from bardo_pipeline.cli.options import HomeOption, now, root_of
from bardo_pipeline.cli.output.tables import print_table
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.storage.conversations.conversations import DEFAULT_SESSION, Conversations, conversation_tail
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.log.event_log import EventLog

app = typer.Typer(help="What owners and golems say to each other, kept beside the log as JSON lines.")
out = Console(soft_wrap=False)

Golem = Annotated[str, typer.Argument(help="The golem.")]
SessionOption = Annotated[str, typer.Option("--session", help="The session.")]


@app.command()
def append(
    golem: Golem,
    content: Annotated[str, typer.Argument(help="What was said; - reads it from standard input.")],
    role: Annotated[str, typer.Option(help="Who said it: owner, golem, system or tool.")] = "owner",
    session: SessionOption = DEFAULT_SESSION,
    home: HomeOption = None,
) -> None:
    """Add a message to the active branch of a session, and print its id once it is on the disk."""
    said = sys.stdin.read() if content == "-" else content
    place = Home.open(root_of(home))
    with EventLog(place) as log:
        message = Conversations(place, log).append(golem, role, said, now(), session=session)
    typer.echo(message.message_id)


@app.command()
def show(
    golem: Golem,
    session: SessionOption = DEFAULT_SESSION,
    branch: Annotated[str | None, typer.Option(help="Another branch than the active one.")] = None,
    tail: Annotated[int | None, typer.Option(min=1, help="Only the last N, as the workspace gets them.")] = None,
    whole: Annotated[bool, typer.Option("--whole", help="Every message in the place of summaries.")] = False,
    format: Annotated[str, typer.Option("--format", help="table or json (a line a message).")] = "table",
    home: HomeOption = None,
) -> None:
    """Show what a branch says, summaries in the place of what they cover."""
    if format not in ("table", "json"):
        raise ConfigError(f"--format {format!r} is none of table, json")
    place = Home.open(root_of(home))
    if tail is not None and branch is None and not whole:
        messages = list(conversation_tail(place, golem, tail, session=session))
        torn = b""
    else:
        with EventLog(place) as log:
            told = Conversations(place, log)
            messages = told.view(golem, session, branch=branch, whole=whole)[-(tail or 0) :]
            torn = told.session(golem, session).torn
    if format == "json":
        for message in messages:
            typer.echo(orjson.dumps(asdict(message)).decode())
    else:
        rows = [(m.message_id, f"{m.at:%Y-%m-%d %H:%M}", m.role, _content(m.content, m.covers)) for m in messages]
        print_table(out, None, ["id", "at", "role", "content"], rows)
    if torn:
        typer.echo(f"the last line was never finished and is left out ({len(torn)} bytes)", err=True)


@app.command()
def branch(
    golem: Golem,
    name: Annotated[str, typer.Argument(help="The branch that becomes the active one.")],
    behind: Annotated[str | None, typer.Option(help="Begin it, behind this message (the beginning of its id).")] = None,
    session: SessionOption = DEFAULT_SESSION,
    home: HomeOption = None,
) -> None:
    """Fork from any message, or go back to a branch."""
    place = Home.open(root_of(home))
    with EventLog(place) as log:
        Conversations(place, log).branch(golem, name, now(), behind=behind, session=session)
    typer.echo(f"golem {golem}: session {session} goes on in branch {name}")


@app.command()
def compact(
    golem: Golem,
    summary: Annotated[str, typer.Option(help="What stands for all that is covered.")],
    keep: Annotated[int, typer.Option(min=0, help="The newest messages that stay as they are.")] = 10,
    session: SessionOption = DEFAULT_SESSION,
    home: HomeOption = None,
) -> None:
    """Put a summary in the place of older messages, which move to an archive beside."""
    place = Home.open(root_of(home))
    with EventLog(place) as log:
        covered = Conversations(place, log).compact(golem, summary, now(), keep=keep, session=session)
    typer.echo(f"golem {golem}: a summary stands for {covered} messages of session {session}")


@app.command("list")
def list_(home: HomeOption = None) -> None:
    """Every session: how many messages it had, its branches, when something was last said."""
    place = Home.open(root_of(home))
    with EventLog(place) as log:
        sessions = Conversations(place, log).sessions()
    rows = [
        (s.golem_id, s.name, s.count, ", ".join(_starred(n, s.active) for n in s.heads), f"{s.last_at:%Y-%m-%d %H:%M}")
        for s in sessions
    ]
    print_table(out, "Conversations", ["golem", "session", "lines", "branches", "last"], rows)


def _content(content: str, covers: int) -> str:
    return f"(of {covers} messages) {content}" if covers else content


def _starred(name: str, active: str) -> str:
    return f"{name}*" if name == active else name
