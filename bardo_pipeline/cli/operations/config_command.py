"""Configuring: `bardo config show | check | adopt`, what bardo.toml says and what is in force."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console

from bardo_pipeline.cli.options import ConfigOption, HomeOption, JsonOption, now, require_born, root_of
from bardo_pipeline.cli.output.tables import print_json, print_table
from bardo_pipeline.derivation.configuration import in_force_now, put_in_force, record_configuration
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.versions.adoption import settle
from bardo_pipeline.errors import ConfigError, NoHomeError
from bardo_pipeline.policy import Policy
from bardo_pipeline.policy.golem_configuration import NOT_READ, Configuration, keys, reader_of
from bardo_pipeline.policy.toml_config import (
    NO_CONFIG_FILE,
    ConfigFile,
    canonical,
    configuration_hash,
    flat,
    to_toml,
    toml,
)
from bardo_pipeline.storage.configuration_file import FILE, stated_in

app = typer.Typer(help="A golem's configuration: bardo.toml, its documented defaults, and what is in force.")
out = Console(soft_wrap=False, highlight=False)


@app.command()
def show(
    config: ConfigOption = None,
    home: HomeOption = None,
    golem: Annotated[str | None, typer.Option(help="What this golem was born with, instead.")] = None,
    as_toml: Annotated[bool, typer.Option("--toml", help="As a bardo.toml with every key.")] = False,
    json: JsonOption = False,
) -> None:
    """Every key: its value in force, what the file says, and who reads it."""
    root = root_of(home)
    stated = stated_in(root, config)
    stores = _stores(root)
    standing, recorded = _standing(stores, golem)
    if as_toml:
        typer.echo(to_toml(standing), nl=False)
    elif json:
        print_json(_told(standing, recorded, stated))
    else:
        values = flat(standing)
        rows = [
            (key, toml(values[key]), toml(stated.values[key]) if key in stated.values else "", reader_of(key))
            for key in keys()
        ]
        print_table(out, None, ["key", "in force", f"in {FILE}", "read by"], rows)
        where = "recorded" if recorded else "not recorded yet: a run or `bardo config adopt` records it"
        out.print(f"configuration {configuration_hash(canonical(standing))}, {where}", soft_wrap=True)


@app.command()
def check(config: ConfigOption = None, home: HomeOption = None, json: JsonOption = False) -> None:
    """Validate the file: one sentence that names file, key, value and the cure, exit 2; else what it would change."""
    root = root_of(home)
    stated = stated_in(root, config)
    stores = _stores(root)
    policy = Policy() if stores is None else stores.policy
    wanted, standing = stated.complete(policy), _standing(stores, None)[0]
    stated.policy(policy)
    before, after = flat(standing), flat(wanted)
    changed = [(key, before[key], after[key]) for key in keys() if before[key] != after[key]]
    unread = [key for key in stated.values if reader_of(key) == NOT_READ]
    if json:
        rows = [{"key": k, "in_force": b, "stated": a} for k, b, a in changed]
        print_json({"source": stated.source, "keys": len(stated.values), "changes": rows, "read_by_nothing": unread})
        return
    out.print(f"{stated.source}: {len(stated.values)} keys, all in order", soft_wrap=True)
    if changed:
        shown = [(key, toml(old), toml(new)) for key, old, new in changed]
        print_table(out, "Not in force yet", ["key", "in force", "stated"], shown)
    if unread:
        out.print(f"nothing reads these yet; they are only recorded: {', '.join(unread)}", soft_wrap=True)


@app.command()
def adopt(
    why: Annotated[str, typer.Option(help="Why; it is recorded.")],
    config: ConfigOption = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Put the file in force now, without a run: recorded as an event; every command, job and the next fleet follow."""
    if not why.strip():
        raise ConfigError("an adoption is recorded with its reason: say --why")
    root = root_of(home)
    stated = stated_in(root, config)
    if stated is NO_CONFIG_FILE:
        raise ConfigError(f"there is no {root / FILE}: write it, or name a file with --config")
    before = DerivationContext.open(root)
    stores = put_in_force(before, stated, now=now(), why=why.strip())
    said = record_configuration(stores, stated, now=now(), why=why.strip())
    if stores.derivation_id != before.derivation_id:
        settle(DerivationContext.open(root), now=now())
    if json:
        print_json(said.model_dump() | {"derivation_id": stores.derivation_id})
        return
    out.print(f"configuration {said.configuration_hash} is in force; derivation {stores.derivation_id}")
    if stores.derivation_id != before.derivation_id:
        out.print(f"golems are known by another policy now; `bardo adopt {before.derivation_id}` would go back")


def _stores(root: Any) -> DerivationContext | None:
    try:
        return DerivationContext.open(root)
    except NoHomeError:
        return None


def _standing(stores: DerivationContext | None, golem: str | None) -> tuple[Configuration, bool]:
    """The configuration in force, and whether it is on record."""
    if stores is None:
        if golem is not None:
            raise NoHomeError(f"golem {golem}: there is no home yet: `bardo run` makes one")
        return NO_CONFIG_FILE.complete(Policy()), False
    require_born(stores, golem)
    found = in_force_now(stores, golem)
    return found.configuration, found.event is not None


def _told(standing: Configuration, recorded: bool, stated: ConfigFile) -> dict[str, Any]:
    values = flat(standing)
    return {
        "configuration_hash": configuration_hash(canonical(standing)),
        "recorded": recorded,
        "source": stated.source,
        "keys": [
            {"key": key, "in_force": values[key], "stated": stated.values.get(key), "read_by": reader_of(key)}
            for key in keys()
        ],
    }
