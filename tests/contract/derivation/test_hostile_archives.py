"""Archives that lie about their size, their kind or their text are refused, within bounded memory."""

from __future__ import annotations

import gzip
import io
import os
import resource
import tarfile
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.legacy.bundle_archives import (
    import_bundle,
    pack_archive,
    read_bundle_files,
    unpack_archive,
)
from bardo_pipeline.errors import BundleError, ToolError
from bardo_pipeline.events.life.events import LifeEvent, life_event
from bardo_pipeline.heartbeat.fleet import Founding, born
from bardo_pipeline.inheritance.bundle_files import (
    ENTRIES,
    EPISODES,
    FILE_BYTES_MAX,
    FILES,
    LINKS,
    MANIFEST,
    PLAYBOOK,
    TESTAMENT,
    TESTAMENT_PAGE,
    Bundle,
    seal,
)
from bardo_pipeline.inheritance.bundle_inspection import faults_of, inspected
from bardo_pipeline.inheritance.bundle_signature import signed, with_signature_file
from bardo_pipeline.inheritance.canonical_json import canonical
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.keys.owner_signing_keys import OwnerKeys
from bardo_pipeline.tools.archives import read_archive
from bardo_pipeline.tools.tool_call import ToolCall
from tests.conftest import NOW
from tests.support.knowledge.handmade_bundles import bundle_of
from tests.support.knowledge.handmade_grimoires import POLICY, entry
from tests.support.processes.bardo_command import bardo
from tests.support.processes.forked_processes import CONTEXT

WHOLE = bundle_of(entry(about="w", kind="warning", sign=-1, is_anti_knowledge=True))
MEMORY_MAX = 256 * 2**20


def header(name: str, kind: bytes, size: int) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.size = kind, size
    return made


def sparse_file() -> bytes:
    """An archive of 192 bytes whose only file has 6 GiB, nearly all of it a hole (GNU format)."""
    block = bytearray(header(ENTRIES, tarfile.GNUTYPE_SPARSE, 0).tobuf(tarfile.GNU_FORMAT))
    block[386:398], block[398:410] = b"%011o\0" % 0, b"%011o\0" % 0
    block[483:495] = b"%011o\0" % (6 * 2**30)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return gzip.compress(bytes(block) + bytes(1_024))


def pax(**keys: str) -> bytes:
    """An archive whose file has an extended header with these keys."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        made = header(ENTRIES, tarfile.REGTYPE, 3)
        made.pax_headers = keys
        tar.addfile(made, io.BytesIO(b"{}\n"))
    return gzip.compress(packed.getvalue())


def chain(kind: bytes) -> bytes:
    return gzip.compress(header("x", kind, 0).tobuf(tarfile.USTAR_FORMAT) * 5_000)


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "a sparse file of 192 bytes": (sparse_file, "no plain file"),
    "a sparse file by extended header": (
        lambda: pax(**{"GNU.sparse.map": "0,1", "GNU.sparse.size": "6442450944"}), "no plain file"),
    "another size by extended header": (lambda: pax(size="6442450944"), "no plain file"),
    "five thousand extended headers": (lambda: chain(tarfile.XHDTYPE), "no plain file"),
    "five thousand long names": (lambda: chain(tarfile.GNUTYPE_LONGNAME), "no plain file"),
    "a contiguous file": (lambda: chain(tarfile.CONTTYPE), "no plain file"),
    "a pipe": (lambda: chain(tarfile.FIFOTYPE), "no plain file"),
    "a folder": (lambda: chain(tarfile.DIRTYPE), "no plain file"),
    "a size beyond its end": (
        lambda: gzip.compress(header(ENTRIES, tarfile.REGTYPE, 10**6).tobuf() + bytes(9)), "are not in the archive"),
    "a size below zero": (
        lambda: gzip.compress(header(ENTRIES, tarfile.REGTYPE, -512).tobuf(tarfile.GNU_FORMAT) + bytes(1_024)),
        "are not in the archive"),
    "nothing in it": (lambda: gzip.compress(bytes(10_240)), "no whole archive"),
    "no tar": (lambda: gzip.compress(b"x" * 10_240), "no whole archive"),
    "a second tar behind it": (
        lambda: gzip.compress(gzip.decompress(pack_archive(WHOLE)) + b"x" * 512), "no whole archive"),
}  # fmt: skip


@pytest.mark.row("INH-7")
@pytest.mark.parametrize("name", HOSTILE)
def test_an_archive_with_other_members_than_plain_files_is_refused(name: str) -> None:
    make, reason = HOSTILE[name]
    with pytest.raises(BundleError, match=reason):
        unpack_archive(make())


def test_the_sparse_archive_has_192_bytes_or_less() -> None:
    assert len(sparse_file()) <= 192


@pytest.mark.row("INH-7")
@pytest.mark.parametrize("name", [*FILES])
def test_a_text_that_is_not_utf8_is_refused_even_with_a_valid_manifest(name: str) -> None:
    files = resealed({name: b"\xff" + WHOLE.files[name]})
    assert faults_of(files, POLICY.inheritance) == [f"{name}: not UTF-8 (byte 0)"]


@pytest.mark.row("INH-7")
def test_a_deeply_nested_manifest_is_refused() -> None:
    for content in (b'{"x":' * 900 + b"1" + b"}" * 900, b"[" * 5_000, b'{"files":%s}' % (b"[" * 900 + b"]" * 900)):
        assert faults_of({**WHOLE.files, MANIFEST: content}, POLICY.inheritance)


def resealed(changed: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the bundle's files with others in their place, and a manifest that lists them."""
    head = {n: v for n, v in WHOLE.manifest.items() if n not in ("files", "bundle_hash")}
    return dict(seal({n: changed.get(n, WHOLE.files[n]) for n in FILES}, head).files)


def filled(name: str, unit: bytes, between: bytes = b"") -> bytes:
    """An archive in which this file has the largest size, and a valid manifest."""
    count = (FILE_BYTES_MAX - len(b'{"x":[]}')) // len(unit + between)
    content = b'{"x":[%s]}' % between.join([unit] * count) if between else unit * count
    return pack_archive(Bundle(resealed({name: content}), {}))


HEAVY: dict[str, Callable[[], bytes]] = {
    "zeros": lambda: gzip.compress(bytes(2**26), compresslevel=1),
    "empty lists": lambda: filled(TESTAMENT, b"[]", b","),
    "nested lists": lambda: filled(TESTAMENT, b"[" * 500 + b"]" * 500, b","),
    "empty objects": lambda: filled(EPISODES, b"{}\n"),
    "empty lines": lambda: filled(LINKS, b"\n"),
    "short texts": lambda: filled(TESTAMENT, '"é"'.encode(), b","),
    "numbers": lambda: filled(TESTAMENT, b"1.5", b","),
    "a long line": lambda: filled(ENTRIES, b"x"),
    "a long page": lambda: filled(PLAYBOOK, b"x\r"),
    "64 MB of noise": lambda: gzip.compress(os.urandom(2**26), compresslevel=1),
}


SLOW = ("zeros", "empty lists", "64 MB of noise")  # archives of the full tier


def _peak_of_import(path: str) -> None:
    """Exit with 1 unless the archive is refused within the limit of memory."""
    low = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        inspected(read_bundle_files(Path(path)), POLICY.inheritance)
    except BundleError as error:
        used = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - low) * 1_024
        print(f"{used / 2**20:,.0f} MiB: {error!s:.120}")
        os._exit(0 if used < MEMORY_MAX else 1)
    os._exit(2)


@pytest.mark.row("INH-7")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.full) if name in SLOW else name for name in HEAVY]
)
def test_no_archive_takes_256_megabytes_of_memory(name: str, tmp_path: Path) -> None:
    path = tmp_path / "bundle.tar.gz"
    path.write_bytes(HEAVY[name]())
    assert path.stat().st_size < 65 * 2**20
    process = CONTEXT.Process(target=_peak_of_import, args=(str(path),))
    process.start()
    process.join()
    assert process.exitcode == 0


LISTED: dict[str, bytes] = {"empty lists": b"[]", "short texts": '"é"'.encode(), "numbers": b"1.5"}


def _peak_of_reading(path: str, policy: Policy) -> None:
    """Exit with 1 unless the archive of a grimoire is refused within the limit of memory."""
    home = SimpleNamespace(archives=Path(path).parent, archive_folder=Path)
    context = SimpleNamespace(home=home, policy=policy, ownership=lambda: SimpleNamespace(golems={}))
    low = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        read_archive(cast("ToolCall", SimpleNamespace(context=context, caller=SimpleNamespace(owner=None))), path)
    except ToolError:
        used = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - low) * 1_024
        os._exit(0 if used < MEMORY_MAX else 1)
    os._exit(2)


@pytest.mark.row("INH-7", "MEM-20")
@pytest.mark.parametrize("unit", LISTED)
def test_no_archive_of_a_grimoire_takes_256_megabytes_of_memory(unit: str, tmp_path: Path) -> None:
    archive, policy = tmp_path / "grimoire.json", Policy()
    count = (policy.tools.archive_bytes_max - 200) // len(LISTED[unit] + b",")
    items = b",".join([LISTED[unit]] * count)
    archive.write_bytes(b'{"content_hash":"","grimoire":{"episodes":[' + items + b"]}}")
    process = CONTEXT.Process(target=_peak_of_reading, args=(str(archive), policy))
    process.start()
    process.join()
    assert process.exitcode == 0


@pytest.mark.row("INH-7")
@pytest.mark.parametrize("path", ["/dev/zero", "pipe"])
def test_a_device_is_no_archive(path: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BundleError, match="no plain file"):
        read_bundle_files(tmp_path / path)


@pytest.mark.row("INH-7", "X-9")
def test_a_bundle_of_a_death_ahead_of_the_clock_is_refused_unless_the_events_of_the_home_lead_it(home: Home) -> None:
    died_at, stores = NOW + timedelta(hours=1), DerivationContext.open(home.root)
    bundle = bundle_of(entry(about="w", kind="warning", sign=-1, is_anti_knowledge=True), died_at=died_at)
    with pytest.raises(BundleError, match="lies ahead of the clock and of all events here: correct the clock"):
        import_bundle(stores, dict(bundle.files), public_key=None, now=NOW)
    assert stores.log.life().num_rows == 0, "else each later event of the home would carry this time"
    assert not (home.bundles / bundle.bundle_hash).exists()
    simulated = birth_at(died_at)
    stores.log.record([simulated], NOW)
    assert import_bundle(stores, dict(bundle.files), public_key=None, now=NOW)[1]


@pytest.mark.row("INH-7", "X-12")
def test_a_bundle_that_a_stranger_signed_in_the_name_of_an_owner_is_not_that_owners(home: Home) -> None:
    stranger = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    forged = with_signature_file(WHOLE, canonical(signed(WHOLE, "owner-2", stranger)))
    public, stores = stranger.public_key().public_bytes_raw().hex(), DerivationContext.open(home.root)
    OwnerKeys(home, stores.log).register("owner-1", public, NOW)
    import_bundle(stores, dict(forged.files), public_key=None, now=NOW)
    assert stores.life_fields("BundleImported", "owner_id")["owner_id"].to_pylist() == [None]
    own = bundle_of(entry(about="v", kind="warning", sign=-1, is_anti_knowledge=True))
    own = with_signature_file(own, canonical(signed(own, "owner-1", stranger)))
    import_bundle(stores, dict(own.files), public_key=None, now=NOW)
    owners = stores.life_fields("BundleImported", "owner_id")["owner_id"].to_pylist()
    assert set(owners) == {None, "owner-1"}, "the key is registered for owner-1"
    OwnerKeys(home, stores.log).revoke("owner-1", "it leaked", NOW)
    leaked = bundle_of(entry(about="u", kind="warning", sign=-1, is_anti_knowledge=True))
    leaked = with_signature_file(leaked, canonical(signed(leaked, "owner-1", stranger)))
    import_bundle(stores, dict(leaked.files), public_key=None, now=NOW)
    owners = stores.life_fields("BundleImported", "owner_id")["owner_id"].to_pylist()
    assert owners.count(None) == 2, "a revoked key proves no owner"


def birth_at(moment: datetime) -> LifeEvent:
    payload = born(
        lineage_id="g-2", generation=0, owner_id="owner-2", founding=Founding(), market="m", market_hash="-",
        derivation_id="d", policy=POLICY,
    )[1]  # fmt: skip
    return life_event("g-2", moment, payload)


def test_the_command_refuses_a_sparse_archive_in_one_line(home: Home, tmp_path: Path) -> None:
    (tmp_path / "sparse.tar.gz").write_bytes(sparse_file())
    files = resealed({TESTAMENT_PAGE: b"\xff\xfe"})
    (tmp_path / "bytes.tar.gz").write_bytes(pack_archive(Bundle(files, {})))
    for name, reason in (("sparse", "no plain file"), ("bytes", "testament.md: not UTF-8")):
        archive = str(tmp_path / f"{name}.tar.gz")
        for words in (("import", archive, "--unsigned"), ("show", archive)):
            output = bardo("bundle", *words, home=home.root, expect=2)
            assert reason in output
            assert "Traceback" not in output
