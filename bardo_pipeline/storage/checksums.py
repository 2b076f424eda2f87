"""Checksums that are compared when a file of a home is read.

A data file has the CRC-32 of its content in its name; a file is checked once per process, and again when it changed.
A commit or a small JSON file has it in its content: a mark that is filled in last. Files of earlier versions have
neither and are read without a check. CRC-32 detects every flipped bit and every run of up to 32 altered bits; against
forgers there are the chains and manifests of the log.
Source: X-9.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from bardo_pipeline.errors import DamagedError

MARK = "crc32:00000000"
"""Placeholder of a checksum in a content; the first one counts."""

_FILLED = re.compile(rb"crc32:([0-9a-f]{8})")
_NAMED = re.compile(r"\.crc32-([0-9a-f]{8})\.[a-z]+$")
_BLOCK_BYTES = 1 << 20
_checked: dict[str, tuple[int, int, int]] = {}


def filled(content: bytes) -> bytes:
    """Return the content with its checksum in place of MARK."""
    return content.replace(MARK.encode(), f"crc32:{zlib.crc32(content):08x}".encode(), 1)


def checked_content(path: Path) -> bytes:
    """Read a file. Raises DamagedError if its content differs from its checksum."""
    content = path.read_bytes()
    if not matches(content):
        raise DamagedError(path, "its checksum does not match")
    return content


def matches(content: bytes) -> bool:
    """Return whether a content has the checksum in it. A content without one matches."""
    mark = _FILLED.search(content)
    if mark is None:
        return True
    at = mark.start(1)
    return zlib.crc32(content[:at] + b"00000000" + content[at + 8 :]) == int(mark.group(1), 16)


def checked_json(path: Path) -> Any:
    """Read a JSON file. Raises DamagedError if it is no JSON or differs from its checksum."""
    try:
        return orjson.loads(checked_content(path))
    except orjson.JSONDecodeError as error:
        raise DamagedError(path, f"it is no JSON: {error}") from error


def json_with_checksum(fields: Mapping[str, Any], option: int | None = None) -> bytes:
    """Return the fields as JSON, preceded by a checksum (`checksum`)."""
    return filled(orjson.dumps({"checksum": MARK, **fields}, option=option))


def named_by_checksum(path: Path) -> Path:
    """Rename a complete file so that its name holds its checksum; return the new path."""
    target = path.with_name(f"{path.stem}.crc32-{checksum(path):08x}{path.suffix}")
    os.replace(path, target)
    return target


def check_files(paths: Iterable[str]) -> None:
    """Compare files with the checksums in their names, unless this process did so before.

    Raises DamagedError for an altered file, FileNotFoundError for a missing one.
    """
    for path in paths:
        if name := _NAMED.search(path):
            check_file(path, int(name.group(1), 16))


def check_file(path: str, expected: int) -> None:
    """Compare a file with its checksum; see `check_files`."""
    status = os.stat(path)
    state = (status.st_ino, status.st_mtime_ns, status.st_size)
    if _checked.get(path) != state:
        if checksum(path) != expected:
            raise DamagedError(path, "its checksum does not match")
        _checked[path] = state


def matches_name(path: str) -> bool:
    """Return whether a file has the checksum in its name. A file without one matches."""
    name = _NAMED.search(path)
    return name is None or checksum(path) == int(name.group(1), 16)


def checksum(path: str | Path) -> int:
    """Return the CRC-32 of a file."""
    crc = 0
    with open(path, "rb", buffering=0) as file:
        while block := file.read(_BLOCK_BYTES):
            crc = zlib.crc32(block, crc)
    return crc
