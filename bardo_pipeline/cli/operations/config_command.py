"""`bardo config show | check | adopt`: compare bardo.toml with the active configuration; put it in force."""

from __future__ import annotations

from typing import Annotated

from typer import Option, Typer

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.options import context_or_none, now, require_born, root_for_owner, root_of
from bardo_pipeline.cli.output.tables import out, print_json, print_line, print_table, say
from bardo_pipeline.derivation.configuration import in_force_now, put_in_force, record_configuration
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.versions.side_derivations import settle
from bardo_pipeline.errors import ConfigError, NoHomeError
from bardo_pipeline.policy import Policy
from bardo_pipeline.policy.golem_configuration import NOT_READ, Configuration, keys, reader_of
from bardo_pipeline.policy.toml_config import NO_CONFIG_FILE, canonical, configuration_hash, flat, to_toml, toml
from bardo_pipeline.storage.home import CONFIGURATION, stated_in

app = Typer(help="Configuration of golems: bardo.toml, defaults, and the active values.")


@app.command()
def show(
    config: opt.Config = None,
    home: opt.Home = None,
    golem: Annotated[str | None, Option(help="Show the configuration of this golem instead.")] = None,
    as_toml: Annotated[bool, Option("--toml", help="Print a bardo.toml with every key.")] = False,
    json: opt.Json = False,
) -> None:
    """Show every key: its active value, its value in the file, and the component that reads it."""
    stated = stated_in(root_for_owner(home), config)
    active, recorded = _active(context_or_none(home), golem)
    values, in_file = flat(active), stated.values
    if as_toml:
        print_line(to_toml(active).rstrip("\n"))
    elif json:
        rows = [
            {"key": key, "in_force": values[key], "stated": in_file.get(key), "read_by": reader_of(key)}
            for key in keys()
        ]
        active_hash = configuration_hash(canonical(active))
        print_json({"configuration_hash": active_hash, "recorded": recorded, "source": stated.source, "keys": rows})
    else:
        cells = [
            (key, toml(values[key]), toml(in_file[key]) if key in in_file else "", reader_of(key)) for key in keys()
        ]
        print_table(None, ["key", "in force", f"in {CONFIGURATION}", "read by"], cells)
        where = "recorded" if recorded else "not recorded yet: a run or `bardo config adopt` records it"
        say(f"configuration {configuration_hash(canonical(active))}, {where}")


@app.command()
def check(config: opt.Config = None, home: opt.Home = None, json: opt.Json = False) -> None:
    """Validate the file and show its changes; exit 2 with file, key, value and cure if it is invalid."""
    stated, stores = stated_in(root_for_owner(home), config), context_or_none(home)
    policy = Policy() if stores is None else stores.policy
    wanted, active = stated.complete(policy), _active(stores, None)[0]
    stated.policy(policy)
    before, after = flat(active), flat(wanted)
    changed = [(key, before[key], after[key]) for key in keys() if before[key] != after[key]]
    unread = [key for key in stated.values if reader_of(key) == NOT_READ]
    if json:
        rows = [{"key": k, "in_force": b, "stated": a} for k, b, a in changed]
        print_json({"source": stated.source, "keys": len(stated.values), "changes": rows, "read_by_nothing": unread})
        return
    say(f"{stated.source}: {len(stated.values)} keys, all valid")
    if changed:
        shown = [(key, toml(old), toml(new)) for key, old, new in changed]
        print_table("Not in force yet", ["key", "in force", "stated"], shown)
    if unread:
        say(f"recorded, but not read by any component yet: {', '.join(unread)}")


@app.command()
def adopt(
    why: Annotated[str, Option(help="Reason; recorded.")],
    config: opt.Config = None,
    home: opt.Home = None,
    json: opt.Json = False,
) -> None:
    """Put the file in force without a run, recorded as an event; all commands, jobs and new fleets use it."""
    if not why.strip():
        raise ConfigError("--why is empty: an adoption needs a reason")
    root = root_of(home)
    stated = stated_in(root, config)
    if stated is NO_CONFIG_FILE:
        raise ConfigError(f"{root / CONFIGURATION} is missing: write it, or give --config FILE")
    before = DerivationContext.open(root)
    stores = put_in_force(before, stated, now=now(), why=why.strip())
    recorded = record_configuration(stores, stated, now=now(), why=why.strip())
    if stores.derivation_id != before.derivation_id:
        settle(DerivationContext.open(root), now=now())
    if json:
        print_json(recorded.model_dump() | {"derivation_id": stores.derivation_id})
        return
    out.print(f"configuration {recorded.configuration_hash} is in force; derivation {stores.derivation_id}")
    if stores.derivation_id != before.derivation_id and before.projections.root.exists():
        out.print(f"the policy has changed; `bardo adopt {before.derivation_id}` switches back")


def _active(stores: DerivationContext | None, golem: str | None) -> tuple[Configuration, bool]:
    if stores is None:
        if golem is not None:
            raise NoHomeError(f"golem {golem}: the home is missing: `bardo run` creates it")
        return NO_CONFIG_FILE.complete(Policy()), False
    require_born(stores, golem)
    active = in_force_now(stores, golem)
    return active.configuration, active.event is not None
