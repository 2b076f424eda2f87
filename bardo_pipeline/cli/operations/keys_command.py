"""`bardo keys | seal`: signing keys of golems and owners, seal keys. Private signing keys of golems stay outside."""

from __future__ import annotations

import re
import secrets
import sys
from pathlib import Path
from typing import Annotated

import pyarrow.compute as pc
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
from pydantic import ValidationError
from typer import Argument, Option, Typer

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.options import named_owner, now, open_log, require_named, root_for_owner, root_of
from bardo_pipeline.cli.output.tables import day, print_json, print_line, print_rows, print_table, say
from bardo_pipeline.errors import ConfigError, QueryError
from bardo_pipeline.events.custody.hash_chain import Key, KeyRing, rotation_message
from bardo_pipeline.events.custody.sealing import SECRET_BYTES, open_parts
from bardo_pipeline.events.life.events import KeyRegistered, KeyRevoked, KeyRotated, life_event
from bardo_pipeline.events.record.model import Part, Sealed
from bardo_pipeline.inheritance.bundle_signature import key_id_of
from bardo_pipeline.signing import Signer
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.intake.json_reader import sentence_of
from bardo_pipeline.storage.keys.golem_seal_keys import SealKeys, states_of
from bardo_pipeline.storage.keys.owner_signing_keys import OwnerKeys
from bardo_pipeline.storage.keys.owner_tokens import OwnerTokens
from bardo_pipeline.storage.log.event_log import EventLog

app = Typer(help="Signing keys of golems and owners: registered, rotated and revoked by recorded events.")

Public = Annotated[str | None, Option(help="Ed25519 public key, 64 hex digits.")]
File = Annotated[Path | None, Option(help="PEM file with the Ed25519 public key.")]
KeyId = Annotated[str | None, Option(help="Key id (default: a prefix of its SHA-256).")]
FromTick = Annotated[
    int | None, Option(min=1, help="First tick that it signs (default: the one after the last on record).")
]


@app.command()
def register(
    golem: opt.Golem,
    public: Public = None,
    file: File = None,
    from_tick: FromTick = None,
    key_id: KeyId = None,
    home: opt.Home = None,
) -> None:
    """Register a golem's first key: from that tick on, only records signed by it are accepted."""
    public_key = public_key_given(public, file)
    with open_log(home, golem) as log:
        tick = _next_tick(log, golem, from_tick)
        new_id = key_id or key_id_of(public_key)
        _record(log, golem, KeyRegistered, key_id=new_id, public_key=public_key, tick_from=tick)
    say(f"golem {golem}: {new_id} signs from tick {tick} on")


@app.command()
def rotate(
    golem: opt.Golem,
    why: opt.Why,
    public: Public = None,
    file: File = None,
    from_tick: FromTick = None,
    key_id: KeyId = None,
    old_key: Annotated[
        Path | None, Option(help="PEM file with the current private key; used to sign here and not stored.")
    ] = None,
    signature: Annotated[
        str | None, Option(help="Signature by the current key, made elsewhere, 128 hex digits.")
    ] = None,
    home: opt.Home = None,
) -> None:
    """Replace the signing key from a tick on. The current key signs the change unless it is revoked."""
    public_key = public_key_given(public, file)
    with open_log(home, golem) as log:
        last = _newest(log.ring_of(golem))
        tick, new_id = _next_tick(log, golem, from_tick), key_id or key_id_of(public_key)
        message = rotation_message(golem, new_id, public_key, tick)
        if old_key is not None:
            signature = signer_in(old_key).key.sign(message).hex()
        if signature is None and last.revoked_from is None:
            raise ConfigError(
                f"golem {golem}: {last.key_id} must sign the rotation: give --old-key, or sign these bytes (hex) with "
                f"it and give --signature: {message.hex()}"
            )
        _check_hex("--signature", signature, 128)
        rotation = {"key_id": new_id, "public_key": public_key, "previous_key_id": last.key_id, "tick_from": tick}
        _record(log, golem, KeyRotated, **rotation, signature=signature, why=why)
    say(f"golem {golem}: {new_id} signs from tick {tick} on, in place of {last.key_id}")


@app.command()
def revoke(
    golem: opt.Golem,
    why: opt.Why,
    key_id: Annotated[str | None, Option(help="Key id (default: the newest).")] = None,
    from_tick: Annotated[
        int | None,
        Option(
            min=1,
            help="First tick that it no longer signs (default: the one after the last on record). `bardo verify` lists "
            "later records signed by it until they are struck.",
        ),
    ] = None,
    home: opt.Home = None,
) -> None:
    """Revoke a key: from a tick on, records signed by it are refused."""
    with open_log(home, golem) as log:
        head = log.head_of(golem)
        tick, revoked = from_tick or head.highest + 1, key_id or _newest(log.ring_of(golem)).key_id
        _record(log, golem, KeyRevoked, key_id=revoked, tick_from=tick, why=why)
    say(f"golem {golem}: records signed by {revoked} from tick {tick} on are refused")
    if tick <= head.highest:
        say(f"ticks {tick} to {head.highest} are on record: `bardo strike` the ones that it signed")


@app.command("owner")
def owner(owner: opt.Owner, public: Public = None, file: File = None, home: opt.Home = None) -> None:
    """Make or register the key that signs bundles of an owner's golems: made here, or a public key made elsewhere."""
    require_named(owner)
    with open_log(home) as log:
        keys = OwnerKeys(log.home, log)
        if public is None and file is None:
            key = keys.make(owner, secrets.token_bytes(32), now())
        else:
            key = keys.register(owner, public_key_given(public, file), now())
    where = keys.path(owner)
    kept = f"its private half is in {where}; no backup holds it" if where.exists() else "its private half is elsewhere"
    say(f"owner {owner}: key {key.key_id} signs bundles ({key.public_key}); {kept}")


@app.command("revoke-owner")
def revoke_owner(owner: opt.Owner, why: opt.Why, home: opt.Home = None) -> None:
    """Revoke an owner's key; bundles that it signed need a new signature (`bardo bundle sign`)."""
    require_named(owner)
    with open_log(home) as log:
        key = OwnerKeys(log.home, log).revoke(owner, why, now())
    say(f"owner {owner}: {key.key_id} is revoked")


@app.command("token")
def issue_token(
    owner: Annotated[str | None, Argument(help="Owner whose golems the token opens.")] = None,
    whole_home: Annotated[bool, Option("--whole-home", help="Make a token for the whole home.")] = False,
    home: opt.Home = None,
) -> None:
    """Issue a token for the server of the home and print it; the home stores its hash only."""
    if (owner is None) != whole_home:
        raise ConfigError("a token needs a view: name an owner, or give --whole-home")
    if owner is None:
        root_of(home)  # a named owner may not open the whole home
    else:
        require_named(owner)
    opened = Home.open(root_for_owner(home))
    print_line(OwnerTokens(opened).issue(owner, secrets.token_urlsafe(32), now()))
    print_line("the token is shown once: keep it; `bardo keys revoke-token` revokes it", to=sys.stderr)


@app.command("tokens")
def list_tokens(home: opt.Home = None, format: opt.Format = "table") -> None:
    """List the issued tokens: id, owner and date."""
    named = named_owner()
    rows = [
        (token.token_id, token.owner_id, day(token.made_at))
        for token in OwnerTokens(Home.open(root_for_owner(home))).on_file()
        if named in (None, token.owner_id)
    ]
    print_rows(["token", "owner", "made"], rows, format)


@app.command("revoke-token")
def revoke_token(
    token_id: Annotated[str, Argument(help="Id of the token, as `bardo keys tokens` lists it.")], home: opt.Home = None
) -> None:
    """Revoke a token: the server refuses it at once."""
    tokens, named = OwnerTokens(Home.open(root_for_owner(home))), named_owner()
    visible = {token.token_id for token in tokens.on_file() if named in (None, token.owner_id)}
    if token_id not in visible:
        raise ConfigError(f"token {token_id}: there is no such token: `bardo keys tokens` lists the tokens")
    tokens.revoke(token_id)
    say(f"token {token_id} is revoked")


@app.command("list")
def list_(
    golem: Annotated[str | None, Argument(help="Only keys of this golem.")] = None,
    home: opt.Home = None,
    format: opt.Format = "table",
) -> None:
    """List the recorded keys of golems."""
    with open_log(home, golem) as log:
        golems = [golem] if golem is not None else sorted(set(log.life("KeyRegistered")["golem_id"].to_pylist()))
        keys = [
            (name, key.key_id, key.public_key, key.tick_from, key.revoked_from)
            for name in golems
            for key in log.ring_of(name).keys
        ]
    print_rows(["golem", "key", "public_key", "from_tick", "revoked_from"], keys, format)


def _record(log: EventLog, golem: str, kind: type[Part], **payload: object) -> None:
    moment = now()
    try:
        event = life_event(golem, moment, kind.model_validate(payload))
    except ValidationError as error:
        raise ConfigError(sentence_of(error)) from None
    log.record([event], moment)


def _next_tick(log: EventLog, golem: str, wanted: int | None) -> int:
    """Return the first tick that a key signs. Raises ConfigError for a recorded tick, which was accepted without it."""
    highest = log.head_of(golem).highest
    if wanted is not None and wanted <= highest:
        raise ConfigError(f"golem {golem} has ticks up to {highest} on record: give --from-tick {highest + 1} or more")
    return wanted or highest + 1


def _newest(ring: KeyRing) -> Key:
    if not ring.keys:
        raise ConfigError(f"golem {ring.golem_id} has no key: `bardo keys register` registers one")
    return ring.keys[-1]


def public_key_given(public: str | None, file: Path | None) -> str:
    """Return the public key of --public or --file in hex. Raises ConfigError unless exactly one is valid."""
    if (public is None) == (file is None):
        raise ConfigError("a public key is missing: give --public HEX or --file PEM")
    if file is None:
        _check_hex("--public", public, 64)
        return str(public)
    content = _content(file)
    if b"PRIVATE KEY" in content:
        raise ConfigError(f"{file} holds a private key: give the public key (openssl pkey -pubout)")
    try:
        key = load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{file} is not a PEM public key ({error}): give one (openssl pkey -pubout)") from error
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"{file} is not an Ed25519 key: make one (openssl genpkey -algorithm ed25519)")
    return key.public_bytes_raw().hex()


def signer_in(file: Path, key_id: str | None = None) -> Signer:
    """Read the Ed25519 private key in a PEM file. Raises ConfigError if it is encrypted or of another type."""
    try:
        key = load_pem_private_key(_content(file), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{file} is no unencrypted private key: give one (openssl pkey -in FILE -out NEW)") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{file} is not an Ed25519 key: give one (openssl genpkey -algorithm ed25519)")
    return Signer(key_id or key_id_of(key.public_key().public_bytes_raw().hex()), key)


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read ({error.strerror}): name a readable file") from error


def _check_hex(what: str, value: str | None, digits: int) -> None:
    if value is not None and not re.fullmatch(rf"[0-9a-f]{{{digits}}}", value):
        raise ConfigError(f"{what} {value!r} is invalid: give {digits} lowercase hex digits")


seal_app = Typer(help="Sealed parts of records: one key per golem; destroying it makes them unreadable.")


@seal_app.command()
def make(golem: opt.Golem, home: opt.Home = None) -> None:
    """Make a golem's key: from now on its reasoning and positions are accepted only sealed."""
    with open_log(home, golem) as log:
        key = SealKeys(log.home).make(log, golem, secrets.token_bytes(SECRET_BYTES), now())
    say(f"golem {golem}: sealed under {key.key_id} from now on")
    say(f"the key is in {SealKeys(log.home).path(golem)}; no backup holds it")


@seal_app.command()
def destroy(golem: opt.Golem, why: opt.Why, home: opt.Home = None) -> None:
    """Record the destruction of a golem's key and delete it: its sealed parts become unreadable."""
    with open_log(home, golem) as log:
        SealKeys(log.home).destroy(log, golem, why, now())
    say(f"golem {golem}: its key is destroyed; its sealed parts are unreadable")


@seal_app.command("open")
def open_sealed(
    golem: opt.Golem, tick: Annotated[int, Argument(min=1, help="Tick of the record.")], home: opt.Home = None
) -> None:
    """Print the sealed parts of a record as JSON; needs the key."""
    with open_log(home, golem) as log:
        cycles = log.read_cycles(["tick", "sealed"], golems=[golem])
        rows = cycles.filter(pc.equal(cycles.column("tick"), tick)).to_pylist()
        if not rows:
            raise QueryError(f"golem {golem} has no record of tick {tick}: `bardo ticks` shows its records")
        if rows[0]["sealed"] is None:
            raise QueryError(f"golem {golem}: the record of tick {tick} is not sealed: `read_records` reads it")
        sealed = Sealed.model_validate(rows[0]["sealed"])
        parts = open_parts(sealed, golem, tick, SealKeys(log.home).to_open(log, golem, sealed.key_id))
    print_json(parts.model_dump(), indent=True)


@seal_app.command("list")
def list_seal_keys(home: opt.Home = None) -> None:
    """List keys: creation, destruction, reason; warn if a key file does not match the record."""
    with open_log(home) as log:
        states = states_of(log.home, log)
    rows = [(s.golem_id, s.key_id, day(s.made_at), day(s.destroyed_at), s.why or "-") for s in states]
    print_table("Seal keys", ["golem", "key", "made", "destroyed", "why"], rows)
    for state in states:
        if state.present == (state.destroyed_at is not None):
            fault = "file still exists: destroy it again" if state.present else "file is missing: restore it"
            print_line(f"golem {state.golem_id}: {state.key_id}: {fault}", to=sys.stderr)
