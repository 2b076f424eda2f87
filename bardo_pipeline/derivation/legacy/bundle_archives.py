"""Archives of bundles: one file to carry a bundle in, and the door through which one comes in.

An archive is a gzip-compressed tar of the bundle's files, the same bytes for the same bundle. What comes from elsewhere
is read in memory, within bounds, before anything is written: no path, link or device of an archive ever reaches the
disk, and one that unfolds into more than a bundle is not unfolded to its end. Source: INH-7.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from datetime import datetime
from pathlib import Path

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.legacy.bundle_store import bundle_files, load_bundle, write_bundle
from bardo_pipeline.errors import BundleError
from bardo_pipeline.events.life.bundle_events import BundleImported
from bardo_pipeline.events.life.events import life_event
from bardo_pipeline.inheritance.bundle_files import ENTRIES, FILE_BYTES_MAX, Bundle
from bardo_pipeline.inheritance.bundle_inspection import file_names, inspected
from bardo_pipeline.inheritance.bundle_signature import signature_fault, signature_of
from bardo_pipeline.storage.home import replace_file

ARCHIVE_BYTES_MAX = 2 * FILE_BYTES_MAX
"""What an archive may unfold into, headers included."""

_BLOCK = 1 << 20


def pack_archive(bundle: Bundle) -> bytes:
    """The bundle as one file: names in order, no times, no owners."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(bundle.files):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(bundle.files[name]), 0o644
            tar.addfile(entry, io.BytesIO(bundle.files[name]))
    return gzip.compress(packed.getvalue(), compresslevel=6, mtime=0)


def unpack_archive(content: bytes) -> dict[str, bytes]:
    """The files of an archive, before anything of them is believed.

    Raises BundleError for what is no archive, unfolds into too much, or holds anything but files of a bundle, each
    once, without a path.
    """
    files: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(_unfolded(content)), mode="r:") as tar:
            for entry in tar:
                if not entry.isreg():
                    raise BundleError(f"{entry.name!r}: no plain file, and a bundle holds nothing else")
                if entry.name not in file_names():
                    raise BundleError(f"{entry.name!r}: no file of a bundle")
                if entry.name in files:
                    raise BundleError(f"{entry.name}: in the archive twice")
                source = tar.extractfile(entry)
                assert source is not None, "a plain file has content"
                files[entry.name] = source.read()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise BundleError(f"this is no whole archive of a bundle ({error}): export it again") from None
    return files


def read_bundle_files(path: Path) -> dict[str, bytes]:
    """The files of a bundle's folder or archive. Raises BundleError for anything else."""
    if path.is_dir():
        return bundle_files(path)
    try:
        if path.stat().st_size > ARCHIVE_BYTES_MAX:
            raise BundleError(f"{path}: larger than {ARCHIVE_BYTES_MAX:,} bytes, which no bundle needs")
        return unpack_archive(path.read_bytes())
    except FileNotFoundError:
        raise BundleError(f"there is no bundle at {path}: name a folder, or an archive that was exported") from None


def export_bundle(context: DerivationContext, bundle_hash: str, target: Path) -> Bundle:
    """Write a published bundle, with its signature, as an archive, whole or not at all. Raises BundleError."""
    bundle = load_bundle(context.home, bundle_hash)
    replace_file(target, pack_archive(bundle))
    return bundle


def import_bundle(
    context: DerivationContext, files: dict[str, bytes], *, public_key: str | None, now: datetime
) -> tuple[Bundle, bool]:
    """Take a bundle from elsewhere into this home. Returns it, and whether it is new here.

    public_key: the owner's, 64 hex digits; None takes a bundle that nobody vouches for, or somebody unknown. Nothing is
    written before all of it was inspected. Raises BundleError with every fault.
    """
    bundle = inspected(files, context.policy.inheritance)
    fault = signature_fault(bundle, public_key)
    said = signature_of(bundle)
    if fault is not None and (public_key is not None or said is not None):
        raise BundleError(fault)
    known = {e["imported"]["bundle_hash"] for e in context.life("BundleImported").select(["imported"]).to_pylist()}
    known |= {e["published"]["bundle_hash"] for e in context.life("BundlePublished").select(["published"]).to_pylist()}
    if bundle.bundle_hash in known:
        return bundle, False
    write_bundle(context.home.bundles, bundle)
    payload = BundleImported(
        bundle_hash=bundle.bundle_hash,
        from_golem_id=bundle.golem_id,
        owner_id=said["owner_id"] if said else None,
        key_id=said["key_id"] if said else None,
        entry_count=len(bundle.rows(ENTRIES)),
    )
    died_at = datetime.fromisoformat(bundle.manifest["died_at"])
    context.log.record([life_event(bundle.golem_id, died_at, payload)], now)
    return bundle, True


def _unfolded(content: bytes) -> bytes:
    """The tar in a gzip, unfolded no further than a bundle can be."""
    unfold, parts, size = zlib.decompressobj(wbits=31), [], 0
    view = memoryview(content)
    for start in range(0, len(view), _BLOCK):
        part = bytes(view[start : start + _BLOCK])
        while part:
            try:
                out = unfold.decompress(part, ARCHIVE_BYTES_MAX + 1 - size)
            except zlib.error as error:
                raise BundleError(f"this is no archive of a bundle ({error}): export it again") from None
            size += len(out)
            if size > ARCHIVE_BYTES_MAX:
                raise BundleError(
                    f"the archive unfolds into more than {ARCHIVE_BYTES_MAX:,} bytes, which no bundle needs"
                )
            parts.append(out)
            part = unfold.unconsumed_tail
    if not unfold.eof or unfold.unused_data:
        raise BundleError("the archive is cut short, or something stands behind it: export it again")
    return b"".join(parts)
