"""Bundles on disk (content-addressed folders; each read verifies the hash), and which of them are published."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.errors import BundleError
from bardo_pipeline.inheritance.bundle_files import FILE_BYTES_MAX, Bundle, read_bundle
from bardo_pipeline.inheritance.bundle_inspection import is_hash
from bardo_pipeline.storage.home import Home


def write_bundle(folder: Path, bundle: Bundle) -> Path:
    """Write a bundle to the folder named by its hash, atomically; an existing one is kept."""
    target = folder / bundle.bundle_hash
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=folder, prefix=".draft-"))
    try:
        for name, content in bundle.files.items():
            (draft / name).write_bytes(content)
        os.replace(draft, target)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        if not target.exists():
            raise
    return target


def read_bundle_folder(folder: Path) -> Bundle:
    """Read a bundle from its folder. Raises BundleError if a file is missing, altered or foreign."""
    return read_bundle(bundle_files(folder))


def bundle_files(folder: Path) -> dict[str, bytes]:
    """Return name -> content of a bundle folder's files, not inspected yet.

    Raises BundleError unless it is a folder of plain files within the size limit.
    """
    if not folder.is_dir():
        raise BundleError(f"there is no bundle in {folder}: name a folder under bundles/")
    files = {}
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or not path.is_file():
            raise BundleError(f"{path.name}: no plain file, and a bundle holds nothing else")
        if path.stat().st_size > FILE_BYTES_MAX:
            raise BundleError(f"{path.name}: larger than {FILE_BYTES_MAX:,} bytes, which no bundle needs")
        files[path.name] = path.read_bytes()
    return files


def load_bundle(home: Home, bundle_hash: str) -> Bundle:
    """Load a published bundle. Raises BundleError if it is missing or does not match its hash."""
    if not is_hash(bundle_hash):
        raise BundleError(f"{bundle_hash!r} is no bundle's hash: 64 hex digits, as `bardo bundle show` lists them")
    bundle = read_bundle_folder(home.bundles / bundle_hash)
    if bundle.bundle_hash != bundle_hash:
        raise BundleError(f"bundle {bundle_hash} holds another bundle ({bundle.bundle_hash}): restore it from a copy")
    return bundle


def published_bundles(context: DerivationContext, golem_ids: Collection[str] | None = None) -> dict[str, str]:
    """Return golem -> hash of its current published bundle, for all or the given golems.

    A retraction may lead to several bundles of one golem. The current one equals the golem's candidate, or is the last
    published one while the candidate waits for its verdict.
    """
    published: dict[str, list[str]] = {}
    events = context.life("BundlePublished", golem_ids)
    events = events.select(["golem_id", "observed_at", "event_id", "published"])
    events = events.sort_by([("observed_at", "ascending"), ("event_id", "ascending")])
    hashes_in_order = pc.struct_field(events["published"].combine_chunks(), "bundle_hash").to_pylist()
    for golem_id, bundle_hash in zip(events["golem_id"].to_pylist(), hashes_in_order, strict=True):
        published.setdefault(golem_id, []).append(bundle_hash)
    republished = [golem_id for golem_id, hashes in published.items() if len(hashes) > 1]
    candidates = _candidate_hashes(context, republished)
    return {g: candidates[g] if candidates.get(g) in hashes else hashes[-1] for g, hashes in published.items()}


def bundles_published_by(context: DerivationContext) -> set[str]:
    """Return the hashes of the bundles that this derivation published."""
    hashes, derivation_ids = (
        event_field(context, "BundlePublished", "published", name) for name in ("bundle_hash", "derivation_id")
    )
    return set(hashes.filter(pc.equal(derivation_ids, context.derivation_id)).to_pylist())


def stale_bundles(context: DerivationContext) -> list[tuple[str, str]]:
    """Return (golem, hash) of published bundles made before a retraction of their sources, by golem.

    They keep their folders; heirs inherit the newer bundle.
    """
    events = context.life("BundlePublished", context.left_out().golem_ids).select(["golem_id", "published"]).to_pylist()
    published = [(e["golem_id"], e["published"]["bundle_hash"]) for e in events]
    candidates = _candidate_hashes(context, sorted({golem_id for golem_id, _ in published}))
    return sorted(
        (golem_id, bundle_hash) for golem_id, bundle_hash in published if candidates.get(golem_id) != bundle_hash
    )


def invalid_publications(context: DerivationContext) -> list[str]:
    """Return the hashes of published bundles that lack a passing verdict or do not match their hash."""
    judged, is_passed = (event_field(context, "BundleJudged", "judged", name) for name in ("bundle_hash", "passed"))
    passed, invalid = set(judged.filter(is_passed).to_pylist()), []
    for bundle_hash in sorted(event_field(context, "BundlePublished", "published", "bundle_hash").to_pylist()):
        try:
            is_intact = read_bundle_folder(context.home.bundles / bundle_hash).bundle_hash == bundle_hash
        except BundleError:
            is_intact = False
        if bundle_hash not in passed or not is_intact:
            invalid.append(bundle_hash)
    return invalid


def _candidate_hashes(context: DerivationContext, golem_ids: Sequence[str]) -> dict[str, str]:
    """Golem -> hash of its candidate bundle."""
    if not golem_ids:
        return {}
    rows = context.projections.growing("candidates").read(["golem_id", "bundle_hash"], golems=golem_ids)
    return dict(zip(rows["golem_id"].to_pylist(), rows["bundle_hash"].to_pylist(), strict=True))


def event_field(context: DerivationContext, kind: str, attribute: str, field: str) -> pa.Array:
    """Return one field of the content of all life events of a kind."""
    return pc.struct_field(context.life(kind)[attribute].combine_chunks(), field)
