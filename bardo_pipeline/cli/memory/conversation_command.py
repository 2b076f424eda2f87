"""`bardo conversation append | show | branch | compact | list`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

from typer import Argument, Option, Typer

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.options import format_option, now, open_log
from bardo_pipeline.cli.output.tables import print_json, print_line, print_table
from bardo_pipeline.storage.conversations.conversations import DEFAULT_SESSION, Conversations, conversation_tail
from bardo_pipeline.storage.log.owner_log import golems_in_view

app = Typer(help="Conversations of owners and golems, stored next to the log as JSON lines.")

SessionOption = Annotated[str, Option("--session", help="Session name.")]


@app.command()
def append(
    golem: opt.Golem,
    content: Annotated[str, Argument(help="Message text; - reads standard input.")],
    role: Annotated[str, Option(help="Author: owner, golem, system or tool.")] = "owner",
    session: SessionOption = DEFAULT_SESSION,
    home: opt.Home = None,
) -> None:
    """Append a message to the active branch of a session; print its id when it is durable."""
    text = sys.stdin.read() if content == "-" else content
    with open_log(home, golem) as log:
        message = Conversations(log.home, log).append(golem, role, text, now(), session=session)
    print_line(message.message_id)


@app.command()
def show(
    golem: opt.Golem,
    session: SessionOption = DEFAULT_SESSION,
    branch: Annotated[str | None, Option(help="Branch (default: the active one).")] = None,
    tail: Annotated[int | None, Option(min=1, help="Only the last N messages, as the workspace gets them.")] = None,
    whole: Annotated[bool, Option("--whole", help="Show all messages instead of summaries.")] = False,
    format: Annotated[
        str, format_option("table", "json", help="Output format: table or json (one line per message).")
    ] = "table",
    home: opt.Home = None,
) -> None:
    """Show the messages of a branch, with summaries instead of the messages they replace."""
    with open_log(home, golem) as log:
        if tail is not None and branch is None and not whole:
            messages = list(conversation_tail(log.home, golem, tail, session=session))
            torn = b""
        else:
            conversations = Conversations(log.home, log)
            messages = conversations.view(golem, session, branch=branch, whole=whole)[-(tail or 0) :]
            torn = conversations.session(golem, session).torn
    if format == "json":
        for message in messages:
            print_json(asdict(message))
    else:
        rows = [
            (
                m.message_id,
                f"{m.at:%Y-%m-%d %H:%M}",
                m.role,
                f"(of {m.covers} messages) {m.content}" if m.covers else m.content,
            )
            for m in messages
        ]
        print_table(None, ["id", "at", "role", "content"], rows)
    if torn:
        print_line(f"the unfinished last line is left out ({len(torn)} bytes)", to=sys.stderr)


@app.command()
def branch(
    golem: opt.Golem,
    name: Annotated[str, Argument(help="Branch to make active.")],
    behind: Annotated[str | None, Option(help="Start the branch after this message (id, or a unique prefix).")] = None,
    session: SessionOption = DEFAULT_SESSION,
    home: opt.Home = None,
) -> None:
    """Start a branch after a message, or switch to a branch."""
    with open_log(home, golem) as log:
        Conversations(log.home, log).branch(golem, name, now(), behind=behind, session=session)
    print_line(f"golem {golem}: session {session} continues in branch {name}")


@app.command()
def compact(
    golem: opt.Golem,
    summary: Annotated[str, Option(help="Text of the summary.")],
    keep: Annotated[int, Option(min=0, help="Number of newest messages to keep.")] = 10,
    session: SessionOption = DEFAULT_SESSION,
    home: opt.Home = None,
) -> None:
    """Replace older messages by a summary; move them to an archive file."""
    with open_log(home, golem) as log:
        covered = Conversations(log.home, log).compact(golem, summary, now(), keep=keep, session=session)
    print_line(f"golem {golem}: a summary replaces {covered} messages of session {session}")


@app.command("list")
def list_(home: opt.Home = None) -> None:
    """List sessions with message count, branches and time of the last message."""
    with open_log(home) as log:
        stored, visible = Conversations(log.home, log).sessions(), golems_in_view(log, None)
    rows = [
        (s.golem_id, s.name, s.count, ", ".join(f"{name}*" if name == s.active else name for name in s.heads),
         f"{s.last_at:%Y-%m-%d %H:%M}")
        for s in stored if visible is None or s.golem_id in visible
    ]  # fmt: skip
    print_table("Conversations", ["golem", "session", "lines", "branches", "last"], rows)
