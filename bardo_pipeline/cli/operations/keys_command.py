"""The command `bardo keys`: whose signatures count, from which tick on. Private keys never enter the home."""

from __future__ import annotations

import re
import secrets
from pathlib import Path
from typing import Annotated

import typer
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
from pydantic import ValidationError
from rich.console import Console

from bardo_pipeline.cli.options import FormatOption, HomeOption, check_format, now, root_of
from bardo_pipeline.cli.output.tables import print_json, print_table
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.events.custody.hash_chain import Key, KeyRing, rotation_message
from bardo_pipeline.events.life.events import KeyRegistered, KeyRevoked, KeyRotated, life_event
from bardo_pipeline.events.record.model import Part
from bardo_pipeline.inheritance.bundle_signature import key_id_of
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.intake.json_reader import sentence_of
from bardo_pipeline.storage.keys.owner_signing_keys import OwnerKeys
from bardo_pipeline.storage.log.event_log import EventLog

app = typer.Typer(help="Signing keys of golems and owners: registered, rotated and revoked by events on record.")
out = Console(soft_wrap=True, highlight=False)

Golem = Annotated[str, typer.Argument(help="The golem.")]
Public = Annotated[str | None, typer.Option(help="The Ed25519 public key, 64 hex digits.")]
File = Annotated[Path | None, typer.Option(help="A PEM file with the Ed25519 public key.")]
KeyId = Annotated[str | None, typer.Option(help="Its id (default: the beginning of its SHA-256).")]
FromTick = Annotated[
    int | None, typer.Option(min=1, help="The first tick that it signs (default: the one after the last on record).")
]


@app.command()
def register(
    golem: Golem,
    public: Public = None,
    file: File = None,
    from_tick: FromTick = None,
    key_id: KeyId = None,
    home: HomeOption = None,
) -> None:
    """Register a golem's first key: from that tick on, only what it signed is taken."""
    public_key = public_key_given(public, file)
    with EventLog(Home.open(root_of(home))) as log:
        tick = _next_tick(log, golem, from_tick)
        new_id = key_id or key_id_of(public_key)
        _record(log, golem, KeyRegistered, key_id=new_id, public_key=public_key, tick_from=tick)
    out.print(f"golem {golem}: {new_id} signs from tick {tick} on", markup=False)


@app.command()
def rotate(
    golem: Golem,
    why: Annotated[str, typer.Option(help="Why; it is recorded.")],
    public: Public = None,
    file: File = None,
    from_tick: FromTick = None,
    key_id: KeyId = None,
    old_key: Annotated[
        Path | None, typer.Option(help="A PEM file with the private key in force: it signs here, and is not kept.")
    ] = None,
    signature: Annotated[
        str | None, typer.Option(help="What the key in force signed elsewhere, 128 hex digits.")
    ] = None,
    home: HomeOption = None,
) -> None:
    """Let another key sign from a tick on. The one in force signs for it, unless it was revoked."""
    public_key = public_key_given(public, file)
    with EventLog(Home.open(root_of(home))) as log:
        last = _newest(log.ring_of(golem))
        tick, new_id = _next_tick(log, golem, from_tick), key_id or key_id_of(public_key)
        message = rotation_message(golem, new_id, public_key, tick)
        if old_key is not None:
            signature = private_key_in(old_key).sign(message).hex()
        if signature is None and last.revoked_from is None:
            raise ConfigError(
                f"golem {golem}: {last.key_id} is in force: give --old-key, or sign these bytes (hex) with it and give "
                f"--signature: {message.hex()}"
            )
        _check_hex("--signature", signature, 128)
        said = {"key_id": new_id, "public_key": public_key, "previous_key_id": last.key_id, "tick_from": tick}
        _record(log, golem, KeyRotated, **said, signature=signature, why=why)
    out.print(f"golem {golem}: {new_id} signs from tick {tick} on, in place of {last.key_id}", markup=False)


@app.command()
def revoke(
    golem: Golem,
    why: Annotated[str, typer.Option(help="Why; it is recorded.")],
    key_id: Annotated[str | None, typer.Option(help="Which key (default: the newest).")] = None,
    from_tick: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="The first tick that it no longer signs (default: the one after the last on record). What it signed "
            "from there on is named by `bardo verify` until it is struck.",
        ),
    ] = None,
    home: HomeOption = None,
) -> None:
    """Take nothing more that this key signed, from a tick on."""
    with EventLog(Home.open(root_of(home))) as log:
        head = log.head_of(golem)
        tick, revoked = from_tick or head.highest + 1, key_id or _newest(log.ring_of(golem)).key_id
        _record(log, golem, KeyRevoked, key_id=revoked, tick_from=tick, why=why)
    out.print(f"golem {golem}: what {revoked} signs from tick {tick} on is refused", markup=False)
    if tick <= head.highest:
        out.print(f"ticks {tick} to {head.highest} are on record: `bardo strike` those that it signed", markup=False)


@app.command("owner")
def owner(
    owner: Annotated[str, typer.Argument(help="The owner.")],
    public: Public = None,
    file: File = None,
    home: HomeOption = None,
) -> None:
    """Give an owner the key that signs what its dead leave: one made here, or the public half of one kept elsewhere."""
    place = Home.open(root_of(home))
    with EventLog(place) as log:
        keys = OwnerKeys(place, log)
        if public is None and file is None:
            key = keys.make(owner, secrets.token_bytes(32), now())
        else:
            key = keys.register(owner, public_key_given(public, file), now())
    where = keys.path(owner)
    kept = f"its private half is in {where}; no backup holds it" if where.exists() else "its private half is elsewhere"
    out.print(f"owner {owner}: key {key.key_id} signs bundles ({key.public_key}); {kept}", markup=False)


@app.command("revoke-owner")
def revoke_owner(
    owner: Annotated[str, typer.Argument(help="The owner.")],
    why: Annotated[str, typer.Option(help="Why; it is recorded.")],
    home: HomeOption = None,
) -> None:
    """Let an owner's key sign nothing more; what it signed before is to be signed anew (`bardo bundle sign`)."""
    place = Home.open(root_of(home))
    with EventLog(place) as log:
        key = OwnerKeys(place, log).revoke(owner, why, now())
    out.print(f"owner {owner}: {key.key_id} signs nothing more", markup=False)


@app.command("list")
def list_(
    golem: Annotated[str | None, typer.Argument(help="Only this golem's.")] = None,
    home: HomeOption = None,
    format: FormatOption = "table",
) -> None:
    """Every key that is on record."""
    check_format(format)
    with EventLog(Home.open(root_of(home))) as log:
        golems = [golem] if golem is not None else sorted(set(log.life("KeyRegistered")["golem_id"].to_pylist()))
        keys = [(name, *_shown(key)) for name in golems for key in log.ring_of(name).keys]
    names = ["golem", "key", "public_key", "from_tick", "revoked_from"]
    if format == "json":
        print_json([dict(zip(names, key, strict=True)) for key in keys])
    else:
        print_table(out, None, names, keys)


def _shown(key: Key) -> tuple[str, str, int, int | None]:
    return key.key_id, key.public_key, key.tick_from, key.revoked_from


def _record(log: EventLog, golem: str, kind: type[Part], **said: object) -> None:
    moment = now()
    try:
        event = life_event(golem, moment, kind.model_validate(said))
    except ValidationError as error:
        raise ConfigError(sentence_of(error)) from None
    log.record([event], moment)


def _next_tick(log: EventLog, golem: str, asked: int | None) -> int:
    """From which tick on a key signs: none that is on record, for those were taken under the rules of then."""
    highest = log.head_of(golem).highest
    if asked is not None and asked <= highest:
        raise ConfigError(f"golem {golem} has ticks up to {highest} on record: give --from-tick {highest + 1} or more")
    return asked or highest + 1


def _newest(ring: KeyRing) -> Key:
    if not ring.keys:
        raise ConfigError(f"golem {ring.golem_id} has no key: `bardo keys register` gives it one")
    return ring.keys[-1]


def public_key_given(public: str | None, file: Path | None) -> str:
    """The public key that was given, in hex."""
    if (public is None) == (file is None):
        raise ConfigError("give the public key with --public HEX, or with --file PEM")
    if file is None:
        _check_hex("--public", public, 64)
        return str(public)
    content = _content(file)
    if b"PRIVATE KEY" in content:
        raise ConfigError(f"{file} holds a private key: give its public half (openssl pkey -pubout)")
    try:
        key = load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{file} holds no public key in PEM: {error}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"{file} holds another key than Ed25519: make one (openssl genpkey -algorithm ed25519)")
    return key.public_bytes_raw().hex()


def private_key_in(file: Path) -> Ed25519PrivateKey:
    """The private key in a PEM file, which is not kept. Raises ConfigError for one that is locked or no Ed25519 key."""
    try:
        key = load_pem_private_key(_content(file), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"{file} holds no open private key in PEM ({error}): sign elsewhere, give --signature"
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{file} holds another key than Ed25519")
    return key


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error


def _check_hex(what: str, value: str | None, digits: int) -> None:
    if value is not None and not re.fullmatch(rf"[0-9a-f]{{{digits}}}", value):
        raise ConfigError(f"{what} {value!r}: give {digits} hex digits, in small letters")
