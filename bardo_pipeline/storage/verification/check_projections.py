"""Verify the derived tables of every derivation, their candidates and the indexes of episodes.

`damaged_tables` compares what every reader compares: commits, checkpoints, data files and row counts.
`check_projections` also compares every row with the newest digest. Both only read; `bardo derive` cures a break.
Source: X-4, X-9.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bardo_pipeline.errors import BardoError, BundleError, DamagedError, SchemaVersionError, StoreError
from bardo_pipeline.inheritance.bundle_files import read_bundle
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.checksums import check_files, matches_name
from bardo_pipeline.storage.delta.checksum_manifest import CHECKPOINT, COMMIT
from bardo_pipeline.storage.delta.durable_commits import (
    actions_of,
    checkpoint_matches,
    noted_version,
    opened,
    stored_files,
)
from bardo_pipeline.storage.delta.files_by_version import absolute
from bardo_pipeline.storage.delta.table_specs import TABLES
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.index.lance_tables import check_index_files
from bardo_pipeline.storage.projections.derivation_folders import derivation_folders, description
from bardo_pipeline.storage.projections.projections import Projections
from bardo_pipeline.storage.verification.report import Findings


def damaged_tables(projections: Projections) -> Iterator[DamagedError]:
    """Yield what is damaged in a derivation, at most one error a table or candidate. Reads every file once."""
    try:
        description(projections.root)
    except DamagedError as error:
        yield error
    for name in _existing(projections.root):
        try:
            projections.digest(name)
            path = projections.root / name
            check_files(absolute(path, file.path) for file in stored_files(opened(path)))
        except FileNotFoundError as error:
            yield DamagedError(error.filename or projections.root / name, "it is missing")
        except DamagedError as error:
            yield error
        else:
            if name == "candidates":
                yield from _damaged_candidates(projections)


def _damaged_candidates(projections: Projections) -> Iterator[DamagedError]:
    for bundle_hash in projections.growing("candidates").read(["bundle_hash"])["bundle_hash"].to_pylist():
        folder = projections.root / "bundles" / bundle_hash
        try:
            read_bundle({path.name: path.read_bytes() for path in folder.iterdir()})
        except (FileNotFoundError, BundleError) as error:
            yield DamagedError(folder, str(error))


def _existing(root: Path) -> list[str]:
    """Return the tables that have a commit or checkpoint, or had one; opening any other would create it."""
    # a full disk that breaks off the first commit leaves an empty log, perhaps with a draft (`_commit_*`)
    logs = {name: root / name / "_delta_log" for name in TABLES}
    return [name for name, log in logs.items() if noted_version(log.parent) >= 0 or any(log.glob("[0-9]*"))]


def check_projections(home: Home, findings: Findings) -> None:
    """Check every table of every derivation, and the indexes of episodes."""
    for folder in derivation_folders(home):
        projections = Projections(folder, home.bucket_count, Policy())
        try:
            description(folder)
        except DamagedError as error:
            _broken(home, error, findings)
        for name in _existing(folder):
            try:
                _check_log(home, folder / name, findings)
                _check_rows(projections, name)
            except FileNotFoundError as error:
                if folder.exists():  # else it was dropped meanwhile
                    _broken(home, DamagedError(error.filename or folder / name, "it is missing"), findings)
            except SchemaVersionError:
                findings.facts["derived tables of another version, whose rows were not read"] += 1
            except StoreError as error:
                _broken(home, error, findings, folder / name)
            findings.facts["derived tables"] += 1
    for index in sorted((home.index / "episodes").glob("*/*")):
        try:
            check_index_files(index)
        except DamagedError as error:
            _broken(home, error, findings)


def _check_log(home: Home, table: Path, findings: Findings) -> None:
    """Check every commit and checkpoint of a table, and each data file of its newest version."""
    for path in sorted((table / "_delta_log").iterdir()):
        try:
            if COMMIT.fullmatch(path.name):
                actions_of(path)
            elif (match := CHECKPOINT.fullmatch(path.name)) and not checkpoint_matches(table, int(match.group(1))):
                raise DamagedError(path, "its checksum does not match")
        except DamagedError as error:
            _broken(home, error, findings)
    for file in stored_files(opened(table)):
        data = absolute(table, file.path)
        if not matches_name(data):
            _broken(home, DamagedError(data, "its checksum does not match"), findings)


def _check_rows(projections: Projections, name: str) -> None:
    if projections.recounted(name) != projections.digest(name):
        raise DamagedError(projections.root / name, "its rows differ from the digest in its newest commit")


def _broken(home: Home, error: BardoError, findings: Findings, path: Path | None = None) -> None:
    place = Path(error.path if isinstance(error, DamagedError) else path or home.root)
    findings.broken("projection", str(error), file=place.relative_to(home.root).as_posix())
