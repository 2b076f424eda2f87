"""The layout of a home, the folder that holds all of a fleet's data, and its description in home.json.

Source: architecture ("The bucket is SHA-256(golem id) modulo a count fixed when the log is made").
"""

import errno
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from stat import S_ISREG
from typing import Any, Self

import orjson

from bardo_pipeline.errors import (
    BardoError,
    ConfigError,
    DiskFullError,
    NoHomeError,
    ReadOnlyError,
    SchemaVersionError,
    StoreError,
)
from bardo_pipeline.events.record.model import SCHEMA_VERSION
from bardo_pipeline.policy import Policy
from bardo_pipeline.policy.toml_config import NO_CONFIG_FILE, ConfigFile, parse
from bardo_pipeline.process_settings import HomeSettings
from bardo_pipeline.storage import locks
from bardo_pipeline.storage.checksums import MARK, checked_json, json_with_checksum

CONFIGURATION = "bardo.toml"
"""In the home's own folder, unless --config names another."""

DESCRIPTION = "home.json"
"""In the folder of every home."""

MANIFEST = "MANIFEST.json"
"""In the folder of a backup, in place of home.json."""

_BYTES_MAX = 1_000_000
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_REMEDIES = {
    errno.ENOSPC: "free some space on its disk",
    errno.EDQUOT: "free some space on its disk, or ask for a larger quota",
    errno.EFBIG: "raise the limit on the size of a file",
    errno.EMFILE: "raise the limit on open files",
    errno.EACCES: "let this user write there",
    errno.EPERM: "let this user write there",
    errno.EROFS: "mount its disk for writing",
    errno.ENAMETOOLONG: "use a shorter name",
    errno.ENOTDIR: "name a folder",
}
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # two letters at least; one is a drive of Windows
_FULL, _READ_ONLY = (errno.ENOSPC, errno.EDQUOT), (errno.EROFS, errno.EACCES, errno.EPERM)
_MISNAMED = (errno.ENAMETOOLONG, errno.ENOTDIR)


def home_root(environ: Mapping[str, str]) -> Path:
    """Return the folder named by BARDO_HOME, or ./.bardo."""
    return local_folder(HomeSettings.of(environ).home)


def local_folder(path: Path | str) -> Path:
    """Return a home's folder as an absolute path. Raises ConfigError for an address with a scheme."""
    if _SCHEME.match(str(path)):
        raise ConfigError(
            f"{str(path)!r} has a scheme: a home is a folder of this machine: name a local or mounted one"
        )
    return Path(path).absolute()


def owner_of_environment(environ: Mapping[str, str]) -> str | None:
    """Return the owner named by BARDO_OWNER, for whom commands and assets work; None for the whole home."""
    return HomeSettings.of(environ).owner


def bucket_of(golem_id: str, count: int) -> int:
    """Return the golem's hash bucket in [0, count): SHA-256 of its id, as a big-endian number, modulo the count."""
    return int.from_bytes(hashlib.sha256(golem_id.encode()).digest(), "big") % count


class Home:
    """Paths and locks under one root folder; obtained from `create` or `open`, which both read home.json.

    owner: for whom the functions of the public API work; None for the whole home.
    """

    owner: str | None = None

    def __init__(self, root: Path, *, bucket_count: int, schema_version: int, created_at: datetime) -> None:
        self.root = root
        self.bucket_count, self.schema_version, self.created_at = bucket_count, schema_version, created_at
        self.cycles = root / "log" / "cycles"
        self.life = root / "log" / "life"
        self.vectors = root / "log" / "vectors"
        self.embedding = root / "log" / "embedding"
        self.bundles = root / "bundles"
        self.derivations = root / "derivations"
        self.index = root / "index"
        self.warehouse = root / "warehouse.duckdb"
        self.dagster = root / "dagster"
        self.playbooks = root / "playbooks"
        self.locks = root / "locks"
        self.journal = root / "journal"
        self.leases = root / "leases"
        self.spool = root / "spool"
        self.live = root / "live"
        self.quarantine = root / "log" / "quarantine"
        self.keys = root / "keys"
        self.conversations = root / "conversations"
        self.archives = root / "archives"

    def derivation(self, derivation_id: str) -> Path:
        """Return the folder of one derivation's projections."""
        return self.derivations / derivation_id

    def playbook(self, golem_id: str) -> Path:
        """Return the golem's PLAYBOOK.md."""
        return self.playbooks / _folder_name(golem_id) / "PLAYBOOK.md"

    def archive_folder(self, golem_id: str) -> Path:
        """Return the folder of the golem's exported archives."""
        return self.archives / _folder_name(golem_id)

    @property
    def models(self) -> Path:
        """The folder of embedding models: the home's own if it exists, else BARDO_EMBEDDERS, which homes may share."""
        own, shared = self.root / "models", HomeSettings.of(os.environ).embedders
        return own if own.exists() or shared is None else shared

    @contextmanager
    def lock(self, name: str, *, shared: bool = False) -> Iterator[None]:
        """Hold the named lock, after waiting for it. The kernel releases it when the process dies.

        shared: allow other shared holders; an exclusive holder is still excluded.
        """
        self.locks.mkdir(exist_ok=True)
        with locks.held(self.locks / f"{name}.lock", shared=shared):
            yield

    @classmethod
    def open(cls, root: Path) -> Self:
        """Open the home in this folder.

        Raises NoHomeError without a home, SchemaVersionError for a newer one, StoreError for an unreadable home.json.
        """
        mark = root / DESCRIPTION
        try:
            facts = checked_json(mark)
            bucket_count, schema_version = int(facts["bucket_count"]), int(facts["schema_version"])
            created_at = datetime.fromisoformat(facts["created_at"])
        except FileNotFoundError:
            if (root / MANIFEST).exists():
                raise ReadOnlyError(
                    f"{root} is a backup, which status, ask, search, lineage, verify and sql can read: "
                    "`bardo restore` makes a home of it"
                ) from None
            raise NoHomeError(
                f"there is no home in {root}: make one by `bardo init`, by a fleet (`bardo demo`, `bardo run`), or "
                "for a runtime's golem (`bardo golem birth`)"
            ) from None
        except NotADirectoryError:
            raise NoHomeError(f"{root} is not a folder: name the folder of a home by --home or BARDO_HOME") from None
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(
                f"{mark} is not a valid description of a home ({error!r}): restore it from a copy of the home"
            ) from error
        if schema_version > SCHEMA_VERSION:
            raise SchemaVersionError(f"{root} was made by version {schema_version} of the log: upgrade bardo-pipeline")
        return cls(root, bucket_count=bucket_count, schema_version=schema_version, created_at=created_at)

    def raise_version(self) -> None:
        """Raise home.json's schema version to today's, so that older code refuses to open the home."""
        if self.schema_version >= SCHEMA_VERSION:
            return
        facts = checked_json(self.root / DESCRIPTION) | {"schema_version": SCHEMA_VERSION, "checksum": MARK}
        replace_file(self.root / DESCRIPTION, _described(facts))
        self.schema_version = SCHEMA_VERSION

    @classmethod
    def create(cls, root: Path, policy: Policy, now: datetime) -> Self:
        """Create the home, or open the existing one without changing its home.json.

        Raises StoreError if its folder cannot be made.
        """
        if now.utcoffset() is None:
            raise ConfigError(f"the creation time of a home needs a time zone: {now}")
        with writing_to(root, "name another folder"):
            make_folder(root)
        if not (root / DESCRIPTION).exists():
            facts = {
                "bucket_count": policy.log.bucket_count,
                "schema_version": SCHEMA_VERSION,
                "created_at": now.astimezone(UTC).isoformat(),
            }
            _write_first(root / DESCRIPTION, _described(facts))
        home = cls.open(root)
        for folder in (
            home.cycles.parent,
            home.bundles,
            home.derivations,
            home.index,
            home.dagster,
            home.playbooks,
            home.journal,
            home.leases,
            home.spool,
        ):
            folder.mkdir(parents=True, exist_ok=True)
        sync_folder(root)  # includes the name home.json
        return home


def _folder_name(golem_id: str) -> str:
    """Return a golem's id as the name of a folder, or the hash of an id that is no word."""
    plain = _PLAIN.fullmatch(golem_id) is not None
    return golem_id if plain else f"id-{hashlib.sha256(golem_id.encode()).hexdigest()[:40]}"


def _described(facts: Mapping[str, object]) -> bytes:
    return json_with_checksum(facts, orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


@contextmanager
def writing_to(path: Path, remedy: str = "look at its disk") -> Iterator[None]:
    """Raise StoreError (DiskFullError, ReadOnlyError), naming the path, for any OSError in the block.

    remedy: for an error whose number has none of its own
    """
    try:
        yield
    except OSError as error:
        kind = DiskFullError if error.errno in _FULL else ReadOnlyError if error.errno in _READ_ONLY else StoreError
        remedy = _REMEDIES.get(error.errno or 0, remedy)
        raise kind(f"{path} cannot be written ({error}): {remedy}, then try again") from error


def disk_error(error: BaseException) -> StoreError | None:
    """Return the typed error if a full disk, a read-only one or a wrong name caused an error of any library; else None.

    Libraries in other languages raise errors of their own, which have the system's words and no number.
    """
    cause: BaseException | None = error
    while cause is not None:
        for kind, numbers in ((DiskFullError, _FULL), (ReadOnlyError, _READ_ONLY), (StoreError, _MISNAMED)):
            for number in numbers:
                if getattr(cause, "errno", None) == number or os.strerror(number) in str(cause):
                    remedy = _REMEDIES[number].replace("write there", "read and write there")
                    return kind(f"{str(cause).rstrip('.')}: {remedy}, then try again")
        cause = cause.__cause__ or cause.__context__
    return None


@contextmanager
def typed_disk_errors() -> Iterator[None]:
    """Raise the typed error in place of any library's error in the block, if a full or read-only disk is behind it."""
    try:
        yield
    except BardoError:
        raise
    except Exception as error:
        if (typed := disk_error(error)) is None:
            raise
        raise typed from error


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically and durably: a reader sees the old content or the new content."""
    os.replace(_write_draft(path, content), path)
    sync_folder(path.parent)


def _write_draft(path: Path, content: bytes) -> str:
    """Write the content durably to a new file in the folder of this path; return the name of the new file."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    return name


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents, with durable names. Raises NotADirectoryError below a file."""
    if not path.is_dir():
        make_folder(path.parent)
        try:
            path.mkdir(exist_ok=True)
        except FileExistsError as error:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from error
    sync_folder(path.parent)  # also if it exists: its creator may have been killed before this line


def sync_file(path: Path) -> None:
    """Make the content of a file durable; its name needs `sync_folder`."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    sync_file(path)


def statuses(paths: Iterable[Path]) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield each path that exists with its status; links are not followed.

    A home lives while it is walked: a file whose name was listed may be gone when it is looked at.
    """
    for path in paths:
        with suppress(FileNotFoundError, NotADirectoryError):
            yield path, path.lstat()


def children(folder: Path) -> list[Path]:
    """Return what a folder holds, sorted; nothing if it is missing or no folder."""
    try:
        return sorted(folder / name for name in os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def all_below(folder: Path) -> list[Path]:
    """Return all files and folders below a folder, sorted; those that vanish meanwhile are left out."""

    def fail(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise error

    walk = os.walk(folder, onerror=fail)
    return sorted(Path(parent, name) for parent, folders, files in walk for name in (*folders, *files))


def files_below(folder: Path) -> list[tuple[Path, os.stat_result]]:
    """Return the files below a folder with their status, sorted; those that vanish meanwhile are left out."""
    return [(path, status) for path, status in statuses(all_below(folder)) if S_ISREG(status.st_mode)]


def remove_tree(path: Path) -> None:
    """Remove a file, or a folder with all that is below it, parts of which may vanish meanwhile.

    A folder into which another process writes meanwhile stays.
    """

    def fail(function: object, name: str, failure: Any) -> None:
        if not isinstance(failure[1], FileNotFoundError) and failure[1].errno != errno.ENOTEMPTY:
            raise failure[1]

    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, onerror=fail)
    else:
        path.unlink(missing_ok=True)


def _write_first(path: Path, content: bytes) -> None:
    """Create the file atomically unless it exists; the caller makes its name durable."""
    draft = _write_draft(path, content)
    try:
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        os.unlink(draft)


def stated_in(root: Path, named: Path | None = None) -> ConfigFile:
    """Parse the named file, or the home's own; without either, return NO_CONFIG_FILE.

    Raises ConfigError if the named file is missing, is not UTF-8, or is rejected by `parse`.
    """
    path = named or root / CONFIGURATION
    try:
        with path.open("rb") as file:
            content = file.read(_BYTES_MAX + 1)
    except FileNotFoundError:
        if named is None:
            return NO_CONFIG_FILE
        raise ConfigError(f"--config {path}: there is no such file") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}: a configuration is a TOML file") from error
    if len(content) > _BYTES_MAX:
        raise ConfigError(f"{path} is longer than {_BYTES_MAX:,} bytes: a configuration has a few dozen keys")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 (byte {error.start}): save it as UTF-8") from None
    return parse(text, str(path))
