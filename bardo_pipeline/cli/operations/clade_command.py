"""`bardo clade | relay`: what golems of one owner share through a relay, and their backup there."""

from __future__ import annotations

import os
import secrets
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Argument, Option, Typer

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.options import named_owner, now, open_context, require_named, root_for_owner
from bardo_pipeline.cli.output.rendering import show_report
from bardo_pipeline.cli.output.tables import print_json, print_line, say, show_log
from bardo_pipeline.client.lethe_client import LetheClient
from bardo_pipeline.client.relay_client import RelayClient
from bardo_pipeline.derivation.clade.clade_backup import BackedUp, back_up, require_restored
from bardo_pipeline.derivation.clade.clade_exchange import Exchange, exchange
from bardo_pipeline.derivation.clade.clade_notes import clade_golems, note_rows
from bardo_pipeline.derivation.clade.clade_restore import restore_clade
from bardo_pipeline.derivation.clade.lethe_exchange import LetheExchange, exchange_posts
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.reports.lethe_report import belief_rows, pheromone_rows
from bardo_pipeline.errors import ConfigError, NoServerError
from bardo_pipeline.events.custody.clade_secret import SECRET_BYTES, CladeSecret
from bardo_pipeline.process_settings import CladeSettings
from bardo_pipeline.relay.serve_relay import RelaySettings, serve_relay
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.keys.clade_secrets import clade_secret_path, read_clade_secret, write_clade_secret

app = Typer(help="Knowledge that living golems of one owner share through a relay.")

Clade = Annotated[str | None, Argument(help="Owner whose golems share (default: --owner or BARDO_OWNER).")]
Address = Annotated[str | None, Option("--relay", help="Address of the relay (default: BARDO_RELAY).")]


@app.command("key")
def make_key(
    owner: Clade = None,
    file: Annotated[Path | None, Option(help="File with the secret of another home.")] = None,
    home: opt.Home = None,
) -> None:
    """Make the secret of an owner's clade, or copy that of another home."""
    name, opened = _owner(owner), Home.open(root_for_owner(home))
    path = clade_secret_path(opened, name)
    if file is None and path.exists():
        say(f"owner {name}: the secret of the clade is in {path}; `--file` copies it to another home")
        return
    content = secrets.token_bytes(SECRET_BYTES) if file is None else _read(file)
    secret, is_new = write_clade_secret(opened, name, content)
    say(f"owner {name}: {secret.key_id} {'is in' if is_new else 'was already in'} {path}; no backup holds it")


@app.command()
def sync(
    owner: Clade = None,
    relay: Address = None,
    watch: Annotated[
        bool, Option("--watch", help="Go on: exchange at each push of the relay, and after --every seconds.")
    ] = False,
    every: Annotated[float, Option(min=1.0, max=86_400.0, help="With --watch: longest pause in seconds.")] = 60.0,
    json: opt.Json = False,
    home: opt.Home = None,
) -> None:
    """Share what is due, receive what siblings and strangers share, and back up what is due."""
    name = _owner(owner)
    secret = read_clade_secret(Home.open(root_for_owner(home)), name)
    with RelayClient(_address(relay), secret.topic, secret.token) as topic:
        while True:
            try:
                context = open_context(home)
                require_restored(context.home, name)
                done = exchange(context, name, secret, topic, now=now())
                lethe = exchange_posts(context, name, secret, LetheClient(_address(relay)), now=now())
                _report(done, lethe, name, json)
                _report_backup(_back_up(context, name, secret, _address(relay), is_due_only=True), name, json)
                if not watch:
                    return
                topic.wait(topic.newest(), every)
            except NoServerError as error:
                if not watch:
                    raise
                print_line(f"{error}; the next attempt follows", to=sys.stderr)
                time.sleep(every)


@app.command()
def backup(
    owner: Clade = None,
    relay: Address = None,
    json: opt.Json = False,
    home: opt.Home = None,
) -> None:
    """Send the relay an encrypted snapshot of the new records and events of golems with `styx.vault_enabled`."""
    name, context = _owner(owner), open_context(home)
    done = _back_up(context, name, read_clade_secret(context.home, name), _address(relay), is_due_only=False)
    if not done.golems:
        raise ConfigError(f"no golem of {name} has `styx.vault_enabled`: set it in bardo.toml, `bardo config adopt` it")
    if json:
        print_json(asdict(done))
    else:
        _report_backup(done, name, json)
        say(f"backup of the clade of {name}: {len(done.golems)} golems, up to snapshot {done.number}")


@app.command()
def restore(
    owner: Clade = None,
    relay: Address = None,
    from_home: Annotated[
        str | None, Option("--from", help="Begin of the id of the home to restore, if the relay has several.")
    ] = None,
    incomplete: Annotated[
        bool, Option("--incomplete", help="Restore what precedes the first message that the relay lacks.")
    ] = False,
    json: opt.Json = False,
    home: opt.Home = None,
) -> None:
    """Record what the relay's backup of an owner's golems holds and this home lacks; derives nothing."""
    name, context = _owner(owner), DerivationContext.open(root_for_owner(home))
    vault = read_clade_secret(context.home, name).vault
    with RelayClient(_address(relay), vault.topic, vault.token) as topic:
        done = restore_clade(context, name, vault, topic, home_id=from_home, is_partial=incomplete)
    if json:
        print_json(asdict(done) | {"made_at": done.made_at.isoformat()})
        return
    say(
        f"clade of {name}: {len(done.golems)} golems of home {done.home_id[:8]}, "
        f"as of {done.made_at:%Y-%m-%d %H:%M} UTC; {done.records:,} records, {done.events:,} life events and "
        f"{done.bundles:,} bundles were new here"
    )
    for message_id, reason in done.refused:
        print_line(f"message {message_id}: {reason}", to=sys.stderr)
    if done.missing:
        print_line(f"{done.missing}; {done.snapshots} snapshots are restored", to=sys.stderr)
    say("`bardo derive` derives their grimoires and playbooks")


@app.command("members")
def list_members(owner: Clade = None, home: opt.Home = None) -> None:
    """List the living golems here that share: those with `styx.clade_enabled` in their configuration."""
    name = _owner(owner)
    for golem_id, lives in clade_golems(open_context(home), name).items():
        if lives:
            print_line(golem_id)


@app.command("notes")
def list_notes(json: opt.Json = False, home: opt.Home = None) -> None:
    """List what siblings told: scars, shifts of regime, playbooks, words, and reflections at a death."""
    show_report("clade notes", note_rows(open_context(home)), as_json=json)


@app.command("identity")
def show_identity(owner: Clade = None, home: opt.Home = None) -> None:
    """Print the identity by which a relay's registry knows an owner as a verified author."""
    print_line(read_clade_secret(Home.open(root_for_owner(home)), _owner(owner)).identity_name)


@app.command("beliefs")
def list_beliefs(json: opt.Json = False, home: opt.Home = None) -> None:
    """List the consensus of the anonymous votes that golems received."""
    show_report("clade beliefs", belief_rows(open_context(home)), as_json=json)


@app.command("pheromones")
def list_pheromones(json: opt.Json = False, home: opt.Home = None) -> None:
    """List the threats and opportunities that golems received, by market."""
    show_report("clade pheromones", pheromone_rows(open_context(home)), as_json=json)


def relay(
    database: Annotated[Path, Argument(help="File of the messages; it is made if it does not exist.")],
    host: Annotated[str, Option(help="Address to listen on.")] = RelaySettings.host,
    port: Annotated[int, Option(min=0, max=65_535, help="Port; 0 for any free one.")] = RelaySettings.port,
    registry: Annotated[
        Path | None, Option(help="JSON file of identities and scores: those with 50 or more may post in public.")
    ] = None,
) -> None:
    """Run a relay: it keeps encrypted messages between siblings, and a board of anonymous public posts."""
    show_log()

    def on_ready(url: str) -> None:
        print_line(f"the relay answers at {url} (stop it with Ctrl-C)", to=sys.stderr)

    serve_relay(database, RelaySettings(host=host, port=port, registry=registry), clock=now, on_ready=on_ready)


def _owner(owner: str | None) -> str:
    name = owner or named_owner()
    if name is None:
        raise ConfigError("no owner is named: give OWNER, or --owner")
    require_named(name)
    return name


def _address(relay: str | None) -> str:
    address = relay or CladeSettings.of(os.environ).relay
    if address is None:
        raise ConfigError("no relay is named: give --relay ADDRESS, or set BARDO_RELAY")
    return address


def _back_up(
    context: DerivationContext, owner: str, secret: CladeSecret, address: str, *, is_due_only: bool
) -> BackedUp:
    vault = secret.vault
    with RelayClient(address, vault.topic, vault.token) as topic:
        return back_up(context, owner, vault, topic, now=now(), is_due_only=is_due_only)


def _report_backup(done: BackedUp, owner: str, json: bool) -> None:
    if done.messages and not json:
        say(
            f"vault of {owner}: {done.records:,} records and {done.events:,} life events "
            f"in {done.snapshots} snapshots; {done.messages} messages sent"
        )


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read ({error.strerror}): name a readable file") from None


def _report(done: Exchange, lethe: LetheExchange, owner: str, json: bool) -> None:
    if json:
        print_json(asdict(done) | {"lethe": asdict(lethe)})
        return
    received = ", ".join(f"{golem} {count}" for golem, count in sorted(done.delivered_entries.items())) or "none"
    say(
        f"clade of {owner}: {len(done.members)} members here; {done.shared_entries} entries shared, "
        f"{done.sent_parcels} parcels sent, {done.received_parcels} received; {done.told_notes} notes told, "
        f"{done.received_notes} received; entries delivered: {received}"
    )
    if lethe.members:
        say(
            f"Lethe: {len(lethe.members)} members here; {lethe.sent_posts} posts sent, {lethe.waiting_posts} wait for "
            f"their time, {lethe.received_posts} received"
        )
    if lethe.refusal is not None:
        print_line(f"own posts wait: {lethe.refusal}", to=sys.stderr)
    for number, reason in lethe.refused:
        print_line(f"post {number}: {reason}", to=sys.stderr)
    if done.waiting_parcels:
        say(f"{done.waiting_parcels} deliveries wait for the next hour of their golem")
    for message_id, reason in done.refused:
        print_line(f"message {message_id}: {reason}", to=sys.stderr)
