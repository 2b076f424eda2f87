"""Bundles on disk (content-addressed folders; each read verifies the hash), and which of them are published."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.compute as pc

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.record_queries import values_by_golem
from bardo_pipeline.errors import BundleError, QueryError
from bardo_pipeline.inheritance.bundle_files import FILE_BYTES_MAX, Bundle, read_bundle
from bardo_pipeline.inheritance.bundle_inspection import FILE_NAMES, is_hash
from bardo_pipeline.storage.home import Home, make_folder, sync_file, sync_folder
from bardo_pipeline.storage.log.owner_log import LogOfOwner


def write_bundle(folder: Path, bundle: Bundle) -> Path:
    """Write a bundle durably to the folder named by its hash; a whole one is kept, a damaged one is replaced."""
    target = folder / bundle.bundle_hash
    if is_whole(target):
        return target
    make_folder(folder)
    draft = Path(tempfile.mkdtemp(dir=folder, prefix=".draft-"))
    try:
        paths = [draft / name for name in bundle.files]
        with ThreadPoolExecutor(len(paths)) as threads:  # a disk syncs several files as fast as one
            list(threads.map(_write, paths, bundle.files.values()))
        sync_folder(draft)
        if target.exists() and not is_whole(target):
            target.rename(draft / ".damaged")
        os.replace(draft, target)
        shutil.rmtree(target / ".damaged", ignore_errors=True)
        sync_folder(folder)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        if not is_whole(target):
            raise
    return target


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    sync_file(path)


def is_whole(folder: Path) -> bool:
    """Return whether a folder holds the bundle of its name, unaltered."""
    try:
        return folder.exists() and read_bundle_folder(folder).bundle_hash == folder.name
    except BundleError:
        return False


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
        if path.name not in FILE_NAMES:
            raise BundleError(f"{path.name}: no file of a bundle")
        if path.stat().st_size > FILE_BYTES_MAX:
            raise BundleError(f"{path.name}: larger than {FILE_BYTES_MAX:,} bytes, which no bundle needs")
        files[path.name] = path.read_bytes()
    return files


def bundle_folders(context: DerivationContext) -> list[Path]:
    """Return the folders of the home's bundles by hash; in a view of one owner, those that the owner may see."""
    folders, log = sorted(p for p in context.home.bundles.glob("[!.]*") if p.is_dir()), context.log
    if not isinstance(log, LogOfOwner):
        return folders
    return [folder for folder in folders if log.ownership.sees_bundle(log.owner, folder.name)]


def find_bundle(context: DerivationContext, target: str) -> str:
    """Return the hash of the bundle of this home with this hash or prefix, or of this dead golem.

    Raises QueryError unless exactly one matches.
    """
    published = published_bundles(context, [target])
    if target in published:
        return published[target]
    matches = [path.name for path in bundle_folders(context) if path.name.startswith(target)]
    if len(matches) != 1 or not target:
        fact = f"{len(matches)} bundles match" if matches else "no bundle matches"
        raise QueryError(f"{target!r}: {fact}: `bardo bundle show` lists them")
    return matches[0]


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
    events = context.life_fields("BundlePublished", "bundle_hash", golems=golem_ids)
    for event in events.sort_by([("observed_at", "ascending"), ("event_id", "ascending")]).to_pylist():
        published.setdefault(event["golem_id"], []).append(event["bundle_hash"])
    republished = [golem_id for golem_id, hashes in published.items() if len(hashes) > 1]
    candidates = _candidate_hashes(context, republished)
    return {g: candidates[g] if candidates.get(g) in hashes else hashes[-1] for g, hashes in published.items()}


def bundles_published_by(context: DerivationContext) -> set[str]:
    """Return the hashes of the bundles that this derivation published."""
    rows = context.life_fields("BundlePublished", "bundle_hash", "derivation_id")
    return set(rows.filter(pc.equal(rows["derivation_id"], context.derivation_id))["bundle_hash"].to_pylist())


def stale_bundles(context: DerivationContext) -> list[tuple[str, str]]:
    """Return (golem, hash) of published bundles made before a retraction of their sources, by golem.

    They keep their folders; heirs inherit the newer bundle.
    """
    rows = context.life_fields("BundlePublished", "bundle_hash", golems=context.left_out().golem_ids)
    published = zip(rows["golem_id"].to_pylist(), rows["bundle_hash"].to_pylist(), strict=True)
    candidates = _candidate_hashes(context, rows["golem_id"].unique().to_pylist())
    return sorted((golem_id, name) for golem_id, name in published if candidates.get(golem_id) != name)


def invalid_publications(context: DerivationContext) -> list[str]:
    """Return the hashes of published bundles that lack a passing verdict or do not match their hash."""
    verdicts = context.life_fields("BundleJudged", "bundle_hash", "passed")
    passed = set(verdicts.filter(verdicts["passed"])["bundle_hash"].to_pylist())
    published = context.life_fields("BundlePublished", "bundle_hash")["bundle_hash"].to_pylist()
    return sorted(name for name in published if name not in passed or not is_whole(context.home.bundles / name))


def _candidate_hashes(context: DerivationContext, golem_ids: Sequence[str]) -> dict[str, str]:
    if not golem_ids:
        return {}
    rows = context.projections.growing("candidates").read(["golem_id", "bundle_hash"], golems=golem_ids)
    return values_by_golem(rows, "bundle_hash")
