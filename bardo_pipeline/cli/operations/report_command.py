"""`bardo report`: records an action of a golem's runtime with its situation and its reward."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import orjson
from typer import Argument, Option

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.operations.keys_command import signer_in
from bardo_pipeline.cli.options import moment_of, now, open_context
from bardo_pipeline.cli.output.tables import print_json, say
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.events.experience.reported_experience import GENERAL, record_of, report
from bardo_pipeline.storage.journal.event_writer import EventWriter


def report_action(
    golem: opt.Golem,
    action: Annotated[str, Argument(help="Action that was taken, for example swap.")],
    reward: Annotated[float, Argument(help="Reward from -1 to 1; after -- if it is negative.")],
    home: opt.Home = None,
    situation: Annotated[str, Option(help="Conditions at the decision, as a JSON object.")] = "{}",
    alternatives: Annotated[
        str, Option(help="Considered actions: a JSON list of names, or an object with the reward of each.")
    ] = "[]",
    read: Annotated[
        list[str] | None, Option(help="Entry that was read before the decision, by its id; repeat it for more.")
    ] = None,
    domain: Annotated[str, Option(help="Domain of the actions.")] = GENERAL,
    tick: Annotated[int | None, Option(help="Tick of the record (default: the next one).")] = None,
    at: Annotated[str | None, Option("--at", help="Time of the action (ISO 8601, UTC; default: now).")] = None,
    key: Annotated[Path | None, Option(help="PEM file with the golem's private key; it signs the record.")] = None,
    key_id: Annotated[str | None, Option(help="Registered id of that key (default: the golem's newest).")] = None,
    json: opt.Json = False,
) -> None:
    """Record a situation, an action and its reward as the record of a tick."""
    reported = report(
        _value("--situation", situation, dict), action, reward, alternatives=_value("--alternatives", alternatives),
        entries_read=read or (),
    )  # fmt: skip
    context, moment = open_context(home), now()
    opt.require_born(context, golem)
    keys = context.log.ring_of(golem).keys
    signer = None if key is None else signer_in(key, key_id or (keys[-1].key_id if keys else None))
    with EventWriter.open(context.home, golem, signer=signer, clock=now, drain="none") as writer:
        observed_at = moment if at is None else moment_of(at, "--at")
        ack = writer.append(record_of(golem, tick or writer.next_tick, observed_at, [reported], domain=domain))
    if json:
        print_json({"golem_id": golem, "tick": ack.tick, "repeated": ack.repeated})
    else:
        say(f"golem {golem}: tick {ack.tick} {'was recorded before' if ack.repeated else 'is recorded'}")


def _value(option: str, text: str, *kinds: type) -> Any:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f'{option} is no JSON ({error}): for example \'{{"gas": "low"}}\'') from None
    if not isinstance(value, kinds or (dict, list)):
        raise ConfigError(f"{option} {text:.80}: give a JSON object" + ("" if kinds else " or list"))
    return value
