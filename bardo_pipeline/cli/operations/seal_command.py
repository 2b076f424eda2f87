"""`bardo seal make | destroy | open | list`: seal keys of golems."""

from __future__ import annotations

import secrets
from typing import Annotated

import orjson
import pyarrow.compute as pc
import typer
from rich.console import Console

from bardo_pipeline.cli.options import GolemArgument, HomeOption, WhyOption, now, root_of
from bardo_pipeline.cli.output.tables import day, print_table
from bardo_pipeline.errors import QueryError
from bardo_pipeline.events.custody.sealing import SECRET_BYTES, open_parts
from bardo_pipeline.events.record.model import Sealed
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.keys.golem_seal_keys import SealKeys, states_of
from bardo_pipeline.storage.log.event_log import EventLog

app = typer.Typer(help="Sealed parts of records: one key per golem; destroying it makes them unreadable.")
out = Console(soft_wrap=False)


@app.command()
def make(golem: GolemArgument, home: HomeOption = None) -> None:
    """Make a golem's key: from now on its reasoning and positions are accepted only sealed."""
    place = Home.open(root_of(home))
    with EventLog(place) as log:
        key = SealKeys(place).make(log, golem, secrets.token_bytes(SECRET_BYTES), now())
    out.print(f"golem {golem}: sealed under {key.key_id} from now on", highlight=False)
    out.print(f"the key is in {SealKeys(place).path(golem)}; no backup holds it", highlight=False, soft_wrap=True)


@app.command()
def destroy(golem: GolemArgument, why: WhyOption, home: HomeOption = None) -> None:
    """Record the destruction of a golem's key and delete it: its sealed parts become unreadable."""
    place = Home.open(root_of(home))
    with EventLog(place) as log:
        SealKeys(place).destroy(log, golem, why, now())
    out.print(f"golem {golem}: its key is destroyed; its sealed parts are unreadable", highlight=False)


@app.command("open")
def open_(
    golem: GolemArgument,
    tick: Annotated[int, typer.Argument(min=1, help="Tick of the record.")],
    home: HomeOption = None,
) -> None:
    """Print the sealed parts of a record as JSON; needs the key."""
    place = Home.open(root_of(home))
    with EventLog(place) as log:
        cycles = log.read_cycles(["tick", "sealed"], golems=[golem])
        rows = cycles.filter(pc.equal(cycles.column("tick"), tick)).to_pylist()
        if not rows:
            raise QueryError(f"golem {golem} has no record of tick {tick}: `bardo status` shows its last tick")
        if rows[0]["sealed"] is None:
            raise QueryError(f"golem {golem}: the record of tick {tick} has no sealed parts: read it in the log")
        sealed = Sealed.model_validate(rows[0]["sealed"])
        parts = open_parts(sealed, golem, tick, SealKeys(place).to_open(log, golem, sealed.key_id))
    typer.echo(orjson.dumps(parts.model_dump(), option=orjson.OPT_INDENT_2).decode())


@app.command("list")
def list_(home: HomeOption = None) -> None:
    """List keys: creation, destruction, reason; warn if a key file does not match the record."""
    place = Home.open(root_of(home))
    with EventLog(place) as log:
        states = states_of(place, log)
    rows = [(s.golem_id, s.key_id, day(s.made_at), day(s.destroyed_at), s.why or "-") for s in states]
    print_table(out, "Seal keys", ["golem", "key", "made", "destroyed", "why"], rows)
    for state in states:
        if state.present == (state.destroyed_at is not None):
            fault = "file still exists: destroy it again" if state.present else "file is missing: restore it"
            typer.echo(f"golem {state.golem_id}: {state.key_id}: {fault}", err=True)
