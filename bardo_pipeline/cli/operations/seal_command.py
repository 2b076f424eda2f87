"""The command `bardo seal`: make a golem's seal key, destroy it, open a record while it is there, list keys."""

from __future__ import annotations

import secrets
from datetime import datetime
from typing import Annotated

import orjson
import pyarrow.compute as pc
import typer
from rich.console import Console

from bardo_pipeline.cli.options import HomeOption, now, root_of
from bardo_pipeline.cli.output.tables import print_table
from bardo_pipeline.errors import QueryError
from bardo_pipeline.events.custody.sealing import SECRET_BYTES, open_parts
from bardo_pipeline.events.record.model import Sealed
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.keys.golem_seal_keys import SealKeys, states_of
from bardo_pipeline.storage.log.event_log import EventLog

app = typer.Typer(help="Private parts of records: a key per golem; destroying it makes them unreadable everywhere.")
out = Console(soft_wrap=False)

Golem = Annotated[str, typer.Argument(help="The golem.")]


@app.command()
def make(golem: Golem, home: HomeOption = None) -> None:
    """Give a golem a key: from here on its reasoning and positions are only taken sealed."""
    place = Home.open(root_of(home))
    with EventLog(place) as log:
        key = SealKeys(place).make(log, golem, secrets.token_bytes(SECRET_BYTES), now())
    out.print(f"golem {golem}: sealed under {key.key_id} from now on", highlight=False)
    out.print(f"the key is in {SealKeys(place).path(golem)}; no backup holds it", highlight=False, soft_wrap=True)


@app.command()
def destroy(
    golem: Golem, why: Annotated[str, typer.Option(help="Why; it is recorded.")], home: HomeOption = None
) -> None:
    """Record that a golem's key is gone, and destroy it: nobody reads again what it sealed."""
    place = Home.open(root_of(home))
    with EventLog(place) as log:
        SealKeys(place).destroy(log, golem, why, now())
    out.print(f"golem {golem}: its key is destroyed; what it sealed is unreadable", highlight=False)


@app.command("open")
def open_(
    golem: Golem, tick: Annotated[int, typer.Argument(min=1, help="The tick of the record.")], home: HomeOption = None
) -> None:
    """Show the private parts of a record as JSON, while its key is there."""
    place = Home.open(root_of(home))
    with EventLog(place) as log:
        found = log.read_cycles(["tick", "sealed"], golems=[golem])
        rows = found.filter(pc.equal(found.column("tick"), tick)).to_pylist()
        if not rows:
            raise QueryError(f"golem {golem} has no record of tick {tick}: `bardo status` shows how far it has come")
        if rows[0]["sealed"] is None:
            raise QueryError(f"golem {golem}: nothing in the record of tick {tick} is sealed: read it in the log")
        sealed = Sealed.model_validate(rows[0]["sealed"])
        parts = open_parts(sealed, golem, tick, SealKeys(place).to_open(log, golem, sealed.key_id))
    typer.echo(orjson.dumps(parts.model_dump(), option=orjson.OPT_INDENT_2).decode())


@app.command("list")
def list_(home: HomeOption = None) -> None:
    """Every key on record: since when, until when and why, and whether its file is there."""
    place = Home.open(root_of(home))
    with EventLog(place) as log:
        states = states_of(place, log)
    rows = [(s.golem_id, s.key_id, _day(s.made_at), _day(s.destroyed_at), s.why or "-") for s in states]
    print_table(out, "Seal keys", ["golem", "key", "made", "destroyed", "why"], rows)
    for state in states:
        if state.present == (state.destroyed_at is not None):
            cure = "destroy it again" if state.present else "put its file back"
            there = "is still on file" if state.present else "is not on file"
            typer.echo(f"golem {state.golem_id}: {state.key_id} {there}: {cure}", err=True)


def _day(moment: datetime | None) -> str:
    return "-" if moment is None else f"{moment:%Y-%m-%d}"
