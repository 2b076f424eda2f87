"""Conversion of operating-system write errors to StoreError with the path and the remedy."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bardo_pipeline.errors import StoreError

_REMEDIES = {
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
    """Raise StoreError, naming the path, for any OSError in the block."""
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "look at its disk")
        raise StoreError(f"{path} cannot be written ({error}): {remedy}, then try again") from error
