"""A message about a key, secret or signature names the step with which the command succeeds."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

import bardo_pipeline
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.keys.clade_secrets import clade_secret_path
from bardo_pipeline.storage.keys.owner_signing_keys import OwnerKeys
from bardo_pipeline.storage.log.event_log import EventLog
from tests.support.homes.two_owners import CORAL, belongings
from tests.support.processes.bardo_command import bardo
from tests.support.processes.printed_cures import cure_in, value_in

pytestmark = [pytest.mark.row("P-4"), pytest.mark.full]

OPENSSL = r"\((openssl [^)]+)\)"


def openssl(words: str, source: Path | None, target: Path, *more: str) -> Path:
    """Run a printed command of openssl, from a file to a file."""
    given = [word for word in shlex.split(words) if word not in ("-in", "FILE", "-out", "NEW")]
    files = [*([] if source is None else ["-in", str(source)]), "-out", str(target)]
    subprocess.run([*given, *more, *files], check=True, capture_output=True)
    return target


def private_key(folder: Path, name: str = "golem") -> Path:
    return openssl("openssl genpkey -algorithm ed25519", None, folder / f"{name}.pem")


def public_key(private: Path) -> Path:
    return openssl("openssl pkey -pubout", private, private.with_suffix(".pub"))


def test_a_public_key_is_made_as_its_message_says(founded: Path, tmp_path: Path) -> None:
    private = private_key(tmp_path)
    for name, wrong in (("private", private), ("text", tmp_path / "text")):
        (tmp_path / "text").write_text("no key")
        refused = bardo("keys", "register", "g-1", "--file", str(wrong), home=founded, expect=2)
        made = openssl(value_in(refused, OPENSSL), private, tmp_path / f"{name}.pub")
    bardo("keys", "register", "g-1", "--file", str(made), home=founded)


def test_a_key_of_another_algorithm_is_made_again(founded: Path, tmp_path: Path) -> None:
    other = openssl("openssl genpkey -algorithm ed448", None, tmp_path / "other.pem")
    refused = bardo("keys", "register", "g-1", "--file", str(public_key(other)), home=founded, expect=2)
    made = openssl(value_in(refused, OPENSSL), None, tmp_path / "new.pem")
    bardo("keys", "register", "g-1", "--file", str(public_key(made)), home=founded)
    refused = bardo("report", "g-1", "move", "0.5", "--key", str(other), home=founded, expect=2)
    again = openssl(value_in(refused, OPENSSL), None, tmp_path / "again.pem")
    assert b"PRIVATE" in again.read_bytes()
    bardo("report", "g-1", "move", "0.5", "--key", str(made), home=founded)


def test_a_key_of_too_few_digits_gets_the_stated_number(founded: Path) -> None:
    refused = bardo("keys", "register", "g-1", "--public", "12", home=founded, expect=2)
    digits = int(value_in(refused, r"give (\d+) lowercase hex digits"))
    bardo("keys", "register", "g-1", "--public", "1" * digits, home=founded)


def test_a_key_that_begins_too_early_begins_at_the_stated_tick(founded: Path) -> None:
    bardo("report", "g-1", "move", "0.5", home=founded)
    words = ("keys", "register", "g-1", "--public", "1" * 64, "--from-tick")
    tick = value_in(bardo(*words, "1", home=founded, expect=2), r"give --from-tick (\d+) or more")
    bardo(*words, tick, home=founded)


def test_a_second_key_is_a_rotation_that_the_first_signs(founded: Path, tmp_path: Path) -> None:
    first, second = private_key(tmp_path, "first"), private_key(tmp_path, "second")
    bardo("keys", "register", "g-1", "--file", str(public_key(first)), home=founded)
    bardo("report", "g-1", "move", "0.5", "--key", str(first), home=founded)
    file = str(public_key(second))
    refused = bardo("keys", "register", "g-1", "--file", file, home=founded, expect=2)
    assert "rotate it" in refused
    rotated = ("keys", "rotate", "g-1", "--file", file, "--why", "new")
    option = value_in(bardo(*rotated, home=founded, expect=2), r"give (--old-key)")
    assert "in place of" in bardo(*rotated, option, str(first), home=founded)


def test_a_rotation_is_signed_elsewhere(founded: Path, tmp_path: Path) -> None:
    first, second = private_key(tmp_path, "first"), private_key(tmp_path, "second")
    bardo("keys", "register", "g-1", "--file", str(public_key(first)), home=founded)
    bardo("report", "g-1", "move", "0.5", "--key", str(first), home=founded)
    words = ("keys", "rotate", "g-1", "--file", str(public_key(second)), "--why", "new")
    message = value_in(bardo(*words, home=founded, expect=2), r"sign these bytes .* give --signature: ([0-9a-f]+)")
    (tmp_path / "message").write_bytes(bytes.fromhex(message))
    signed = ["openssl", "pkeyutl", "-sign", "-rawin", "-inkey", str(first), "-in", str(tmp_path / "message")]
    signature = subprocess.run(signed, check=True, capture_output=True).stdout.hex()
    bardo(*words, "--signature", signature, home=founded)


def test_a_rotation_at_the_first_tick_of_a_key_gets_a_later_tick(founded: Path, tmp_path: Path) -> None:
    first, second = private_key(tmp_path, "first"), private_key(tmp_path, "second")
    bardo("keys", "register", "g-1", "--file", str(public_key(first)), home=founded)
    words = ("keys", "rotate", "g-1", "--file", str(public_key(second)), "--why", "new", "--old-key", str(first))
    tick = int(value_in(bardo(*words, home=founded, expect=2), r"from tick (\d+); the next key needs a later tick"))
    bardo(*words, "--from-tick", str(tick + 1), home=founded)


def test_a_report_without_its_key_is_signed_by_the_named_option(founded: Path, tmp_path: Path) -> None:
    key, stranger = private_key(tmp_path), private_key(tmp_path, "stranger")
    bardo("keys", "register", "g-1", "--file", str(public_key(key)), home=founded)
    words = ("report", "g-1", "move", "0.5")
    refused = bardo(*words, home=founded, expect=2)
    option = value_in(refused, r"or (--key) to `bardo report`")
    foreign = bardo(*words, option, str(stranger), home=founded, expect=2)
    assert "sign with it" in foreign
    bardo(*words, option, str(key), home=founded)
    assert "is recorded" in bardo(*words, option, str(key), home=founded)


def test_a_key_with_a_name_of_its_own_signs_under_that_name(founded: Path, tmp_path: Path) -> None:
    key = private_key(tmp_path)
    bardo("keys", "register", "g-1", "--file", str(public_key(key)), "--key-id", "mine", home=founded)
    words = ("report", "g-1", "move", "0.5", "--key", str(key))
    refused = bardo(*words, "--key-id", "other", home=founded, expect=2)
    bardo(*words, "--key-id", value_in(refused, r"asks for key (\w+), not \w+: sign with it"), home=founded)
    bardo(*words, home=founded)


def test_an_encrypted_private_key_is_decrypted_as_its_message_says(founded: Path, tmp_path: Path) -> None:
    key = private_key(tmp_path)
    bardo("keys", "register", "g-1", "--file", str(public_key(key)), home=founded)
    locked = openssl("openssl pkey -aes256", key, tmp_path / "locked.pem", "-passout", "pass:x")
    refused = bardo("report", "g-1", "move", "0.5", "--key", str(locked), home=founded, expect=2)
    plain = openssl(value_in(refused, OPENSSL), locked, tmp_path / "plain.pem", "-passin", "pass:x")
    bardo("report", "g-1", "move", "0.5", "--key", str(plain), home=founded)


def test_a_file_that_is_missing_gives_way_to_a_readable_one(founded: Path, tmp_path: Path) -> None:
    words = ("keys", "register", "g-1", "--file")
    assert "name a readable file" in bardo(*words, str(tmp_path / "none"), home=founded, expect=2)
    bardo(*words, str(public_key(private_key(tmp_path))), home=founded)


def test_a_second_seal_key_is_made_when_the_first_is_destroyed(founded: Path) -> None:
    bardo("seal", "make", "g-1", home=founded)
    assert "destroy it before you make another" in bardo("seal", "make", "g-1", home=founded, expect=2)
    bardo("seal", "destroy", "g-1", "--why", "x", home=founded)
    bardo("seal", "make", "g-1", home=founded)


def test_a_lost_seal_key_is_restored_or_destroyed(founded: Path) -> None:
    bardo("seal", "make", "g-1", home=founded)
    (path,) = (founded / "keys").glob("*.key")
    kept = path.read_bytes()
    words = ("conversation", "append", "g-1", "hello")
    path.write_bytes(b"short")
    assert f"{path} is not a seal key: restore the right file" in bardo(*words, home=founded, expect=2)
    path.write_bytes(kept)
    bardo(*words, home=founded)
    path.unlink()
    refused = bardo(*words, home=founded, expect=2)
    assert "restore it, or" in refused
    path.write_bytes(kept)
    bardo(*words, home=founded)
    path.unlink()
    bardo(*cure_in(refused, "seal destroy"), "g-1", "--why", "lost", home=founded)
    bardo("seal", "make", "g-1", home=founded)
    bardo("conversation", "append", "g-1", "hello", "--session", "new", home=founded)


def test_a_missing_sealed_record_leads_to_the_records_of_the_golem(founded: Path) -> None:
    bardo("report", "g-1", "move", "0.5", home=founded)
    refused = bardo("seal", "open", "g-1", "9", home=founded, expect=2)
    assert "g-1:1" in bardo(*cure_in(refused), home=founded)
    refused = bardo("seal", "open", "g-1", "1", home=founded, expect=2)
    reader = getattr(bardo_pipeline, value_in(refused, r"is not sealed: `(\w+)` reads it"))
    assert [record.tick for record in reader(founded, "g-1")] == [1]


@pytest.mark.parametrize(
    ("content", "cure"),
    [
        (b"short", "is not a signing key: restore the right file"),
        (bytes(32), "restore it, or revoke the key"),
        (bytes(32), "keys revoke-owner"),
    ],
)
def test_a_spoilt_owner_key_is_restored_or_revoked(content: bytes, cure: str, owned: Path) -> None:
    with EventLog(Home.open(owned)) as log:
        path = OwnerKeys(log.home, log).path(CORAL)
    kept = path.read_bytes()
    path.write_bytes(content)
    refused = bardo("bundle", "sign", home=owned, expect=2)
    assert cure in refused
    if cure.startswith("keys"):
        bardo(*cure_in(refused, cure), CORAL, "--why", "lost", home=owned)
        bardo("keys", "owner", CORAL, home=owned)
    else:
        path.write_bytes(kept)
    assert "signed with" in bardo("bundle", "sign", home=owned)


def test_the_key_of_one_owner_signs_with_its_owner_named(owned: Path, tmp_path: Path) -> None:
    key = private_key(tmp_path)
    option = value_in(bardo("bundle", "sign", "--key", str(key), home=owned, expect=2), r"give (--owner) too")
    refused = bardo("bundle", "sign", "--key", str(key), option, CORAL, home=owned, expect=2)
    words = (*cure_in(refused), CORAL, "--file", str(public_key(key)))
    bardo("keys", "revoke-owner", CORAL, "--why", "new", home=owned)
    bardo(*words, home=owned)
    bardo("bundle", "sign", "--key", str(key), option, CORAL, home=owned)


def test_a_signature_by_an_unknown_key_is_checked_by_the_named_option(owned: Path, tmp_path: Path) -> None:
    bardo("bundle", "sign", home=owned)
    file = tmp_path / "bundle.tar.gz"
    bardo("bundle", "export", belongings(owned, CORAL).bundle, str(file), home=owned)
    other = tmp_path / "other"
    bardo("init", str(other), home=other)
    option = value_in(bardo("bundle", "verify", str(file), home=other), r"an unknown key: give (--public) or --file")
    public = value_in(bardo("keys", "owner", CORAL, home=owned), r"\(([0-9a-f]{64})\)")
    assert "the owner's" in bardo("bundle", "verify", str(file), option, public, home=other)


def test_a_secret_of_a_clade_is_given_whole_and_never_replaced(founded: Path, tmp_path: Path) -> None:
    whole, short = tmp_path / "whole", tmp_path / "short"
    bardo("clade", "key", "ann", home=founded)
    path = clade_secret_path(Home.open(founded), "ann")
    whole.write_bytes(path.read_bytes()[::-1])
    short.write_bytes(whole.read_bytes()[:-1])
    assert "give the whole file" in bardo("clade", "key", "ann", "--file", str(short), home=founded, expect=2)
    refused = bardo("clade", "key", "ann", "--file", str(whole), home=founded, expect=2)
    Path(value_in(refused, r"in (\S+): remove that file first")).unlink()
    bardo("clade", "key", "ann", "--file", str(whole), home=founded)
    assert "name a readable file" in bardo(
        "clade", "key", "ann", "--file", str(tmp_path / "no"), home=founded, expect=2
    )
    path.write_bytes(b"short")
    refused = bardo("clade", "identity", "ann", home=founded, expect=2)
    assert f"{path} is no secret of a clade: restore it from a copy" in refused
    path.write_bytes(whole.read_bytes())
    bardo("clade", "identity", "ann", home=founded)
