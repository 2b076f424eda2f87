"""A steward lists, signs, shows, checks, compares and refuses bundles, and carries them to another home."""

from __future__ import annotations

import shutil
from pathlib import Path

import orjson
import pytest

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.legacy.bundle_signing import sign_all_bundles
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.keys.owner_signing_keys import OwnerKeys
from bardo_pipeline.storage.verification.verify import verify
from tests.conftest import NOW, copy_home
from tests.support.processes.bardo_command import bardo


@pytest.mark.full
@pytest.mark.row("INH-7", "INH-8")
def test_a_steward_lists_signs_verifies_compares_and_exports_a_bundle(brief_home: Path, tmp_path: Path) -> None:
    home, elsewhere, file = copy_home(brief_home, tmp_path / "home"), tmp_path / "elsewhere", tmp_path / "one.tar.gz"
    listed = orjson.loads(bardo("bundle", "show", "--format", "json", home=home))
    assert len(listed) > 1
    assert {row["signed_by"] for row in listed} == {None}
    first, other = listed[0], listed[1]

    output = bardo("bundle", "verify", first["golem"], home=home)
    assert f"bundle {first['bundle']}" in output
    assert " is valid: 10 files, unsigned" in output
    owners = {e["born"]["owner_id"] for e in DerivationContext.open(home).life("GolemBorn").to_pylist()}
    for owner in sorted(owners):
        assert "no backup holds it" in bardo("keys", "owner", owner, home=home)
    assert bardo("bundle", "sign", home=home).count("signed with") == len(listed)
    assert "nothing to sign" in bardo("bundle", "sign", home=home)
    output = bardo("bundle", "verify", first["bundle"], home=home)
    assert "the owner's" in output

    shown = orjson.loads(bardo("bundle", "show", first["golem"], "--format", "json", home=home))
    assert shown["entries"] == first["entries"] == sum(shown["domains"].values())
    assert "Testament of" in bardo("bundle", "show", first["golem"], home=home)
    changed = orjson.loads(bardo("bundle", "diff", first["golem"], other["golem"], "--format", "json", home=home))
    assert changed["same"] + len(changed["entries"]) >= shown["entries"]
    same = orjson.loads(bardo("bundle", "diff", first["golem"], first["bundle"], "--format", "json", home=home))
    assert (same["same"], same["entries"], same["playbook"], same["testament"]) == (shown["entries"], [], [], {})

    bardo("bundle", "export", first["golem"], str(file), home=home)
    before = file.read_bytes()
    bardo("bundle", "export", first["bundle"], str(file), home=home)
    assert file.read_bytes() == before, "two exports differ"
    stores = DerivationContext.open(home)
    signature = orjson.loads((home / "bundles" / shown["bundle"] / "signature.json").read_bytes())
    key = OwnerKeys(stores.home, stores.log).in_force()[signature["owner_id"]]

    Home.create(elsewhere, Policy(), NOW)
    assert "needs a public key of the owner" in bardo("bundle", "import", str(file), home=elsewhere, expect=2)
    assert "not with the owner's" in bardo(
        "bundle", "import", str(file), "--public", "ab" * 32, home=elsewhere, expect=2
    )
    assert not list((elsewhere / "bundles").iterdir()), "a refused import wrote files"
    assert "is imported" in bardo("bundle", "import", str(file), "--public", key.public_key, home=elsewhere)
    assert "was here already" in bardo("bundle", "import", str(file), "--public", key.public_key, home=elsewhere)
    assert verify(Home.open(elsewhere)).clean, "the home must verify clean"
    assert shown["bundle"] in bardo("bundle", "show", shown["bundle"], home=elsewhere)


@pytest.mark.row("INH-7")
def test_an_altered_bundle_is_refused_with_the_name_of_its_file(brief_home: Path, tmp_path: Path) -> None:
    home = copy_home(brief_home, tmp_path / "home")
    printed = orjson.loads(bardo("bundle", "show", "--format", "json", home=home))[0]
    (folder,) = (home / "bundles").glob(printed["bundle"] + "*")
    spoilt = tmp_path / "spoilt"
    shutil.copytree(folder, spoilt)
    (spoilt / "playbook.md").write_text("Trust me.")
    assert "playbook.md: altered" in bardo("bundle", "verify", str(spoilt), home=home, expect=1)
    assert "playbook.md: altered" in bardo("bundle", "import", str(spoilt), "--unsigned", home=home, expect=2)
    assert "no bundle matches" in bardo("bundle", "show", "g-nobody", home=home, expect=2)


@pytest.mark.full
@pytest.mark.row("INH-7", "X-9")
def test_a_damaged_signature_is_shown_as_damaged(brief_home: Path, tmp_path: Path) -> None:
    home = copy_home(brief_home, tmp_path / "home")
    stores = DerivationContext.open(home)
    for owner in {birth["born"]["owner_id"] for birth in stores.life("GolemBorn").to_pylist()}:
        OwnerKeys(stores.home, stores.log).make(owner, b"\1" * 32, NOW)
    sign_all_bundles(stores, now=NOW)
    path = sorted((home / "bundles").glob("*/signature.json"))[0]
    whole = path.read_bytes()
    for damaged in (whole.replace(b'"key_id"', b'"kez_id"'), whole[: len(whole) // 2], b""):
        path.write_bytes(damaged)
        assert "damaged: signature.json: not a signature" in bardo("bundle", "show", path.parent.name, home=home)
        assert "damaged: signature.json" in bardo("bundle", "show", "--format", "json", home=home)
    path.write_bytes(whole)
    assert "damaged" not in bardo("bundle", "show", path.parent.name, home=home)


@pytest.mark.full
@pytest.mark.row("INH-7")
def test_a_revoked_key_signs_no_bundle_and_a_new_key_signs_all(brief_home: Path, tmp_path: Path) -> None:
    home = copy_home(brief_home, tmp_path / "home")
    stores = DerivationContext.open(home)
    (owner,) = {e["born"]["owner_id"] for e in stores.life("GolemBorn").to_pylist()} - {"owner-2"}
    keys = OwnerKeys(stores.home, stores.log)
    first = keys.make(owner, b"\1" * 32, NOW)
    assert keys.make(owner, b"\2" * 32, NOW) == first, "an owner with a key must keep it"
    bardo("bundle", "sign", home=home)
    bardo("keys", "revoke-owner", owner, "--why", "it was lost", home=home)
    assert "nothing to sign" in bardo("bundle", "sign", home=home)
    second = keys.make(owner, b"\3" * 32, NOW)
    assert second.key_id != first.key_id
    assert second.key_id in bardo("bundle", "sign", home=home)
    (signed, *_) = [
        path
        for path in (home / "bundles").glob("*/signature.json")
        if orjson.loads(path.read_bytes())["owner_id"] == owner
    ]
    assert orjson.loads(signed.read_bytes())["key_id"] == second.key_id
