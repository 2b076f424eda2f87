"""Secrets of clades: one file for each owner, outside the log and outside backups, with mode 0600.

Each home of an owner has a copy of the same file, which the owner carries from one to the other. Source: KAT-9.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from bardo_pipeline.errors import SealError
from bardo_pipeline.events.custody.clade_secret import SECRET_BYTES, CladeSecret
from bardo_pipeline.storage.home import Home, make_folder, replace_file


def clade_secret_path(home: Home, owner_id: str) -> Path:
    """Return the path of an owner's secret: a hash, because an id may be an invalid file name."""
    return home.keys / f"clade-{hashlib.sha256(owner_id.encode()).hexdigest()[:40]}.key"


def read_clade_secret(home: Home, owner_id: str) -> CladeSecret:
    """Return an owner's secret. Raises SealError without a valid file."""
    path = clade_secret_path(home, owner_id)
    try:
        secret = path.read_bytes()
    except FileNotFoundError:
        raise SealError(
            f"owner {owner_id} has no secret of a clade here: run `bardo clade key {owner_id}`, with --file for a copy "
            "of another home's"
        ) from None
    if len(secret) != SECRET_BYTES:
        raise SealError(f"{path} is no secret of a clade: restore it from a copy")
    return CladeSecret(secret)


def write_clade_secret(home: Home, owner_id: str, secret: bytes) -> tuple[CladeSecret, bool]:
    """Write an owner's secret unless the same is there. Return it, and whether it was written.

    Raises SealError for a secret of another length, and if another secret is there.
    """
    new, path = CladeSecret(secret), clade_secret_path(home, owner_id)
    with home.lock("keys"):
        if path.exists():
            if path.read_bytes() == secret:
                return new, False
            raise SealError(f"owner {owner_id} has another secret in {path}: remove that file first")
        make_folder(path.parent)
        path.parent.chmod(0o700)
        replace_file(path, secret)  # a draft has mode 0600
    return new, True
