"""Faults: what a disk refuses, as a typed error that names the place and the cure."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bardo_pipeline.errors import StoreError

_CURES = {
    errno.ENOSPC: "free some space on its disk",
    errno.EDQUOT: "free some space on its disk, or ask for a larger quota",
    errno.EFBIG: "raise the limit on the size of a file",
    errno.EMFILE: "raise the limit on open files",
    errno.EACCES: "let this user write there",
    errno.EPERM: "let this user write there",
    errno.EROFS: "mount its disk for writing",
}


@contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """Raise StoreError for whatever the system refuses inside. path: what is being written."""
    try:
        yield
    except OSError as error:
        cure = _CURES.get(error.errno or 0, "look at its disk")
        raise StoreError(f"{path} cannot be written ({error}): {cure}, then try again") from error
