"""Detached signatures of spool files in `<file>.sig`, which must exist before the file is renamed into the spool.

Lines: line N of the signatures signs line N of the file, as "KEY_ID BASE64"; an empty line is no signature.
Arrow: each line is a JSON object {"golem_id", "key_id", "signature", "batch"} and signs a golem's slice of a record
batch (from 0). events/custody/hash_chain.py defines the signed bytes.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import partial
from io import BufferedReader
from pathlib import Path

import orjson

from bardo_pipeline.errors import SignatureError
from bardo_pipeline.events.custody.hash_chain import Signature

_LINE_BYTES_MAX = 4096


class LineSignatures:
    """Reads the signatures of a file of lines in step with the file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb") if path.exists() else None
        self._number = 0

    def of(self, numbers: Sequence[int]) -> list[Signature | SignatureError | None] | None:
        """Return the signatures of these lines, ascending over all calls; None without a file of signatures."""
        if self._file is None:
            return None
        signatures = []
        for number in numbers:
            line = b""
            while self._number < number:
                line = _bounded_line(self._file)
                self._number += 1
            signatures.append(_signature(line, number))
        return signatures

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def _bounded_line(file: BufferedReader) -> bytes:
    """Read a line; return its first bytes if it is long."""
    line = part = file.readline(_LINE_BYTES_MAX)
    while part and not part.endswith(b"\n"):
        part = file.readline(_LINE_BYTES_MAX)
    return line


def _signature(line: bytes, number: int) -> Signature | SignatureError | None:
    if not line.strip():
        return None
    try:
        return signature_of(line)
    except SignatureError as error:
        return SignatureError(f"line {number} of the signatures: {error}")


def signature_of(text: bytes) -> Signature:
    """Return the signature that `KEY_ID BASE64` states. Raises SignatureError for a text of another form."""
    key_id, _, value = text.strip().rpartition(b" ")
    try:
        return Signature(_key_id(key_id.decode()), _value(value))
    except ValueError:  # also the base class of the errors of UTF-8 and base64
        raise SignatureError(f'the signature is not "KEY_ID BASE64" with 64 bytes: {text!r:.100}') from None


def slice_signatures(path: Path) -> dict[int, dict[str, Signature]]:
    """Return the signatures of an Arrow file by batch and golem. Raises SignatureError for an invalid line."""
    signatures: dict[int, dict[str, Signature]] = {}
    if not path.exists():
        return signatures
    with path.open("rb") as file:
        for number, line in enumerate(iter(partial(_bounded_line, file), b""), 1):
            if not line.strip():
                continue
            try:
                fields = orjson.loads(line)
                golem_id, batch = str(fields["golem_id"]), int(fields.get("batch", 0))
                signature = Signature(_key_id(fields["key_id"]), _value(fields["signature"].encode()))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                named = "golem_id, key_id, signature (base64) and batch"
                raise SignatureError(f"line {number} of the signatures is no object with {named}") from error
            signatures.setdefault(batch, {})[golem_id] = signature
    return signatures


def _key_id(text: str) -> str:
    if not 0 < len(text) <= 256:
        raise ValueError("no key id")
    return text


def _value(text: bytes) -> bytes:
    value = base64.b64decode(text, validate=True)
    if len(value) != 64:
        raise ValueError("not 64 bytes")
    return value
