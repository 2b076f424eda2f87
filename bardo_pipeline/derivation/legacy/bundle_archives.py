"""Exports a bundle as one archive file and imports bundles from other homes.

An archive is a deterministic gzip-compressed tar of the bundle's files. An import is unpacked and inspected in memory
within size limits before anything is written, so no path, link or device of an archive reaches the disk.
Source: INH-7.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from datetime import datetime, timedelta
from pathlib import Path

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.record_queries import last_event_time
from bardo_pipeline.derivation.legacy.bundle_store import bundle_files, is_whole, load_bundle, write_bundle
from bardo_pipeline.errors import BundleError
from bardo_pipeline.events.life.bundle_events import BundleImported
from bardo_pipeline.events.life.events import LifeEvent, life_event
from bardo_pipeline.inheritance.bundle_files import ENTRIES, FILE_BYTES_MAX, MANIFEST, Bundle
from bardo_pipeline.inheritance.bundle_inspection import FILE_NAMES, inspected
from bardo_pipeline.inheritance.bundle_signature import signature_fault, signature_of
from bardo_pipeline.storage.home import replace_file
from bardo_pipeline.storage.keys.owner_signing_keys import OwnerKeys

ARCHIVE_BYTES_MAX = 2 * FILE_BYTES_MAX
"""Maximum size of an unpacked archive, tar headers included."""

_BLOCK = 1 << 20


def pack_archive(bundle: Bundle) -> bytes:
    """Pack a bundle into an archive with sorted names and without times and owners."""
    tar_bytes = io.BytesIO()
    with tarfile.open(fileobj=tar_bytes, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(bundle.files):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(bundle.files[name]), 0o644
            tar.addfile(entry, io.BytesIO(bundle.files[name]))
    return gzip.compress(tar_bytes.getvalue(), compresslevel=6, mtime=0)


def unpack_archive(content: bytes) -> dict[str, bytes]:
    """Return name -> content of an archive's files, not inspected yet.

    Raises BundleError unless it is an archive within the size limit that contains only files of a bundle, each once
    and without a path. Only plain headers are read, so no extended header can name a larger, sparse or linked file.
    """
    files: dict[str, bytes] = {}
    tar, at = memoryview(_decompress(content)), 0
    while True:
        try:
            entry = tarfile.TarInfo.frombuf(bytes(tar[at : at + tarfile.BLOCKSIZE]), "utf-8", "surrogateescape")
        except tarfile.TarError as error:
            if not files or any(tar[at:]):
                raise BundleError(f"this is no whole archive of a bundle ({error}): export it again") from None
            return files
        if entry.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
            raise BundleError(f"{entry.name!r}: no plain file, and a bundle holds nothing else")
        if entry.name not in FILE_NAMES:
            raise BundleError(f"{entry.name!r}: no file of a bundle")
        if entry.name in files:
            raise BundleError(f"{entry.name}: in the archive twice")
        begin = at + tarfile.BLOCKSIZE
        files[entry.name] = bytes(tar[begin : begin + entry.size])
        if not 0 <= entry.size == len(files[entry.name]):
            raise BundleError(f"{entry.name}: {entry.size:,} bytes are not in the archive: export it again")
        at = begin + -(-entry.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


def read_bundle_files(path: Path) -> dict[str, bytes]:
    """Return the files of a bundle's folder or archive. Raises BundleError for anything else."""
    if path.is_dir():
        return bundle_files(path)
    try:
        if not path.is_file() and path.exists():
            raise BundleError(f"{path}: no plain file: name a folder, or an archive that was exported")
        if path.stat().st_size > ARCHIVE_BYTES_MAX:
            raise BundleError(f"{path}: larger than {ARCHIVE_BYTES_MAX:,} bytes, which no bundle needs")
        return unpack_archive(path.read_bytes())
    except FileNotFoundError:
        raise BundleError(f"there is no bundle at {path}: name a folder, or an archive that was exported") from None


def export_bundle(context: DerivationContext, bundle_hash: str, target: Path) -> Bundle:
    """Write a published bundle with its signature as an archive, atomically. Raises BundleError."""
    bundle = load_bundle(context.home, bundle_hash)
    replace_file(target, pack_archive(bundle))
    return bundle


def import_bundle(
    context: DerivationContext, files: dict[str, bytes], *, public_key: str | None, now: datetime
) -> tuple[Bundle, bool]:
    """Import a bundle as `store_import` does, and record the event. Return the bundle, and whether it was new."""
    bundle, event, is_new = store_import(context, files, public_key=public_key, now=now)
    if event is not None:
        context.log.record([event], now)
    return bundle, is_new


def store_import(
    context: DerivationContext,
    files: dict[str, bytes],
    *,
    public_key: str | None,
    now: datetime,
    owner: tuple[str, str] | None = None,
) -> tuple[Bundle, LifeEvent | None, bool]:
    """Inspect a bundle and store its files, which are durable before the caller records the event.

    Storing a recorded bundle again restores missing or damaged files. Raises BundleError listing all faults, also for a
    death that lies ahead of the clock and of this home's events.

    Parameters
    ----------
    public_key : the owner's, 64 hex digits; None accepts an unsigned bundle or a valid signature, which names an owner
        if it is that owner's key in force here
    owner : owner and id of the secret that proves it; None without a proof

    Returns
    -------
    the bundle; the event to record, None for a known bundle; and whether the home did not have its files
    """
    bundle = inspected(files, context.policy.inheritance)
    died_at = datetime.fromisoformat(bundle.manifest["died_at"])
    ahead = timedelta(seconds=context.policy.writer.clock_ahead_seconds_max)  # a simulated market may lead the clock
    if died_at - now > ahead and died_at - (last_event_time(context.whole) or now) > ahead:
        raise BundleError(
            f"{MANIFEST}: died_at {died_at} lies ahead of the clock and of all events here: correct the clock"
        )
    fault = signature_fault(bundle, public_key)
    signature = signature_of(bundle)
    if fault is not None and (public_key is not None or signature is not None):
        raise BundleError(fault)
    was_whole = is_whole(context.home.bundles / bundle.bundle_hash)
    write_bundle(context.home.bundles, bundle)
    for kind in ("BundleImported", "BundlePublished"):
        if bundle.bundle_hash in context.life_fields(kind, "bundle_hash")["bundle_hash"].to_pylist():
            return bundle, None, not was_whole
    if signature is not None:
        in_force = OwnerKeys(context.home, context.whole.log).in_force().get(signature["owner_id"])
        if signature["public_key"] in (public_key, in_force and in_force.public_key):
            owner = signature["owner_id"], signature["key_id"]
    owner_id, key_id = owner or (None, None)
    payload = BundleImported(
        bundle_hash=bundle.bundle_hash, from_golem_id=bundle.golem_id, owner_id=owner_id, key_id=key_id,
        entry_count=len(bundle.rows(ENTRIES)),
    )  # fmt: skip
    return bundle, life_event(bundle.golem_id, died_at, payload), True


def _decompress(content: bytes) -> bytes:
    """Decompress a gzip file; stop with BundleError once it exceeds ARCHIVE_BYTES_MAX."""
    decompressor, parts, size = zlib.decompressobj(wbits=31), [], 0
    view = memoryview(content)
    for start in range(0, len(view), _BLOCK):
        part = bytes(view[start : start + _BLOCK])
        while part:
            try:
                out = decompressor.decompress(part, ARCHIVE_BYTES_MAX + 1 - size)
            except zlib.error as error:
                raise BundleError(f"this is no archive of a bundle ({error}): export it again") from None
            size += len(out)
            if size > ARCHIVE_BYTES_MAX:
                raise BundleError(
                    f"the archive unfolds into more than {ARCHIVE_BYTES_MAX:,} bytes, which no bundle needs"
                )
            parts.append(out)
            part = decompressor.unconsumed_tail
    if not decompressor.eof or decompressor.unused_data:
        raise BundleError("the archive is cut short, or something stands behind it: export it again")
    return b"".join(parts)
