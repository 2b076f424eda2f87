"""The chain of custody by command: verify, keys, backup and restore."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.versions.rebuild import rebuild
from bardo_pipeline.errors import SignatureError
from bardo_pipeline.events.custody.hash_chain import slice_contents, verified
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.log.event_log import EventLog
from bardo_pipeline.storage.operations.backup import back_up, restore
from bardo_pipeline.storage.verification.verify import verify
from tests.conftest import NOW, copy_home
from tests.support.homes import tampered_homes
from tests.support.homes.tampered_homes import ARROW, SIGNED, signature_of
from tests.support.processes.bardo_command import bardo
from tests.support.records.drawn_records import records


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tampered_homes.make(tmp_path_factory.mktemp("commands") / "home").root


@pytest.fixture
def root(kept: Path, tmp_path: Path) -> Path:
    shutil.copytree(kept, tmp_path / "home")
    return tmp_path / "home"


# verify


@pytest.mark.row("EV-3", "X-9")
def test_verify_reports_clean_broken_or_unreadable_by_exit_code(root: Path, tmp_path: Path) -> None:
    output = bardo("verify", home=root)
    assert output.splitlines()[-1] == "clean"
    digest = output.split("digest of the fleet")[1].split()[0]
    bardo("verify", "--expect", digest, home=root)
    path = tampered_homes.data_files(Home.open(root))[0]
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    broken = json.loads(bardo("verify", "--format", "json", home=root, expect=1))
    assert not broken["clean"]
    assert broken["files"] == [path.relative_to(root).as_posix()]
    assert {each["kind"] for each in broken["breaks"]} >= {"sum"}
    assert path.name in bardo("verify", home=root, expect=1)
    path.write_bytes(content)
    assert "digest of the fleet" in bardo("verify", "--expect", "0" * 64, home=root, expect=1)
    assert "bardo: " in bardo("verify", home=tmp_path / "none", expect=2)
    assert "VERSION:HEX" in bardo("verify", "--expect", "12", home=root, expect=2)


# keys


def pem(folder: Path, name: str, key: Ed25519PrivateKey) -> tuple[Path, Path]:
    """The private and the public key in files, as openssl makes them."""
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private, public


def keys_of(root: Path, golem: str) -> list[dict]:
    return json.loads(bardo("keys", "list", golem, "--format", "json", home=root))


@pytest.mark.row("X-9")
def test_registered_rotated_and_revoked_keys_decide_accepted_signatures(root: Path, tmp_path: Path) -> None:
    first, second = (Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n in (1, 2))
    (old, public), (_, other) = pem(tmp_path, "first", first), pem(tmp_path, "second", second)
    golem = "young-0000"

    def append(tick: int, key: Ed25519PrivateKey | None, key_id: str = "") -> None:
        table = records(1, golems=1, tick=tick, seed=tick, prefix="young")
        content = slice_contents(table, [0, 1])[0]
        signatures = None if key is None else {golem: signature_of(golem, content, key, key_id)}
        with EventLog(Home.open(root)) as log:
            log.append(table, writer="young", segment=tick, recorded_at=NOW, signatures=signatures)

    append(1, None)
    bardo("keys", "register", golem, "--file", str(public), "--key-id", "one", home=root)
    assert [(key["key"], key["from_tick"]) for key in keys_of(root, golem)] == [("one", 2)]
    with pytest.raises(SignatureError, match="not signed"):
        append(2, None)
    append(2, first, "one")

    refused = bardo("keys", "rotate", golem, "--file", str(other), "--why", "age", home=root, expect=2)
    assert "--old-key" in refused
    bardo(
        "keys",
        "rotate",
        golem,
        "--file",
        str(other),
        "--key-id",
        "two",
        "--why",
        "age",
        "--old-key",
        str(old),
        home=root,
    )
    with pytest.raises(SignatureError, match="two is valid there"):
        append(3, first, "one")
    append(3, second, "two")

    output = bardo("keys", "revoke", golem, "--from-tick", "3", "--why", "stolen", home=root)
    assert "bardo strike" in output
    with pytest.raises(SignatureError, match="revoked"):
        append(4, second, "two")
    broken = bardo("verify", home=root, expect=1)
    assert golem in broken
    assert "revoked from tick 3" in broken
    assert [key["revoked_from"] for key in keys_of(root, golem)] == [None, 3]
    assert not any(old.read_bytes() in path.read_bytes() for path in root.rglob("*") if path.is_file())


@pytest.mark.row("X-9")
def test_a_key_rotation_accepts_an_external_signature(root: Path, tmp_path: Path) -> None:
    new = "ab" * 32
    refused = bardo("keys", "rotate", SIGNED, "--public", new, "--why", "age", home=root, expect=2)
    message = bytes.fromhex("".join(refused.split("--signature:")[1].split()))
    signature = tampered_homes.KEY.sign(message)
    assert verified(tampered_homes.PUBLIC, signature, message)
    bardo("keys", "rotate", SIGNED, "--public", new, "--why", "age", "--signature", signature.hex(), home=root)
    assert keys_of(root, SIGNED)[-1]["public_key"] == new
    assert verify(Home.open(root)).clean


@pytest.mark.row("X-9")
def test_a_key_valid_from_a_recorded_tick_is_refused(root: Path, tmp_path: Path) -> None:
    private, _ = pem(tmp_path, "first", Ed25519PrivateKey.from_private_bytes(bytes(32)))
    assert "--from-tick 13" in bardo(
        "keys", "register", ARROW, "--public", "ab" * 32, "--from-tick", "3", home=root, expect=2
    )
    assert "give the public key" in bardo("keys", "register", ARROW, "--file", str(private), home=root, expect=2)
    assert "64 lowercase hex digits" in bardo("keys", "register", ARROW, "--public", "ab", home=root, expect=2)
    output = bardo("keys", "register", ARROW, "--public", "ab" * 32, "--key-id", "k" * 300, home=root, expect=2)
    assert "key_id" in output
    assert "no key" in bardo("keys", "revoke", ARROW, "--why", "none", home=root, expect=2)
    assert "rotate" in bardo("keys", "register", SIGNED, "--public", "ab" * 32, home=root, expect=2)


# backup and restore


@pytest.mark.row("X-9")
def test_a_backup_is_made_and_restored_by_command(root: Path, tmp_path: Path) -> None:
    folder, made = tmp_path / "backup", tmp_path / "again"
    digest = bardo("backup", str(folder), home=root).split("digest of the fleet")[1].split()[0]
    output = bardo("restore", str(folder), "--home", str(made), home=root)
    assert "bardo drain" in output
    bardo("verify", "--expect", digest, home=made)
    bardo("drain", home=made)
    assert bardo("verify", home=made).splitlines()[-1] == "clean"
    assert "not empty" in bardo("restore", str(folder), "--home", str(made), home=root, expect=2)
    assert "holds no backup" in bardo(
        "restore", str(tmp_path / "none"), "--home", str(tmp_path / "x"), home=root, expect=2
    )
    assert "Seal keys are excluded" in " ".join(bardo("backup", "--help", home=root).split())


@pytest.mark.full
@pytest.mark.row("X-1", "X-9")
def test_a_restored_home_derives_equal_tables(brief_home: Path, tmp_path: Path) -> None:
    home = copy_home(brief_home, tmp_path / "home")
    back_up(Home.open(home), tmp_path / "backup", NOW)
    made, _ = restore(tmp_path / "backup", tmp_path / "again", NOW)
    assert verify(made).clean
    here, there = (rebuild(DerivationContext.open(root), now=NOW) for root in (home, made.root))
    assert all(table.equal for table in [*here, *there])
    assert [(t.table, t.row_count, t.fingerprint) for t in here] == [
        (t.table, t.row_count, t.fingerprint) for t in there
    ]
    assert subprocess.run(["diff", "-r", home / "bundles", made.bundles], capture_output=True).returncode == 0
