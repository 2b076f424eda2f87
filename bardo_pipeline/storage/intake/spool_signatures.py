"""Detached signatures of spool files: `<file>.sig`, which is there before its file is renamed into the spool.

For lines: line N signs line N of the file, as "KEY_ID BASE64"; an empty line signs nothing. For Arrow: one JSON object
a line, {"golem_id", "key_id", "signature", "batch"}, each signing a golem's slice of a record batch (from 0).
What is signed: events/custody/hash_chain.py.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

import orjson

from bardo_pipeline.errors import SignatureError
from bardo_pipeline.events.custody.hash_chain import Signature

_LINE_BYTES_MAX = 4096


class LineSignatures:
    """The signatures of a file of lines, read in step with it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb") if path.exists() else None
        self._number = 0

    def of(self, numbers: Sequence[int]) -> list[Signature | SignatureError | None] | None:
        """The signature of each of these lines, which only ascend from call to call; None where there is no file."""
        if self._file is None:
            return None
        return [self._of(number) for number in numbers]

    def _of(self, number: int) -> Signature | SignatureError | None:
        assert self._file is not None
        line = b""
        while self._number < number:
            line = self._line()
            self._number += 1
        return _signature(line, number)

    def _line(self) -> bytes:
        assert self._file is not None
        line = part = self._file.readline(_LINE_BYTES_MAX)
        while part and not part.endswith(b"\n"):
            part = self._file.readline(_LINE_BYTES_MAX)
        return line

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()


def _signature(line: bytes, number: int) -> Signature | SignatureError | None:
    if not line.strip():
        return None
    key_id, _, value = line.strip().rpartition(b" ")
    try:
        return Signature(_key_id(key_id.decode()), _value(value))
    except ValueError:  # what UTF-8 and base64 raise is one, too
        return SignatureError(f'line {number} of the signatures is not "KEY_ID BASE64" with 64 bytes: {line!r:.100}')


def slice_signatures(path: Path) -> dict[int, dict[str, Signature]]:
    """The signatures of an Arrow file, by record batch and golem. Raises SignatureError for a line that is none."""
    found: dict[int, dict[str, Signature]] = {}
    if not path.exists():
        return found
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            said = orjson.loads(line)
            golem_id, batch = str(said["golem_id"]), int(said.get("batch", 0))
            signature = Signature(_key_id(said["key_id"]), _value(said["signature"].encode()))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise SignatureError(
                f"line {number} of the signatures is no object with golem_id, key_id, signature (base64) and batch"
            ) from error
        found.setdefault(batch, {})[golem_id] = signature
    return found


def _key_id(text: str) -> str:
    if not 0 < len(text) <= 256:
        raise ValueError("no key id")
    return text


def _value(text: bytes) -> bytes:
    value = base64.b64decode(text, validate=True)
    if len(value) != 64:
        raise ValueError("not 64 bytes")
    return value
