"""Lines of a spool file, in blocks."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from random import Random

import pytest

from bardo_pipeline.storage.intake import spool_blocks
from bardo_pipeline.storage.intake.quarantine import Kept
from bardo_pipeline.storage.intake.spool_blocks import Block, blocks_of
from tests.fuzz import physical

pytestmark = pytest.mark.row("EV-4")


def kept(chunks: Iterable[bytes]) -> Kept:
    return Kept("", len(b"".join(chunks)))


def blocks(content: bytes, block_bytes: int, line_bytes_max: int = 50) -> list[Block]:
    return list(blocks_of(io.BytesIO(content), block_bytes=block_bytes, line_bytes_max=line_bytes_max, keep=kept))


def test_lines_and_their_numbers_do_not_depend_on_the_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(5)
    for _ in range(300):
        some = [b"\n", b"\r\n", b" ", b"\t", b"a", b"x" * random.randrange(30), b"y" * 90 + b"\n"]
        content = b"".join(random.choice(some) for _ in range(random.randrange(30)))
        monkeypatch.setattr(spool_blocks, "_LOOK_BYTES", random.randrange(1, 50))
        result = blocks(content, random.choice([random.randrange(4, 80), random.randrange(200, 1_000)]))
        lines = [line for block in result for line in block.lines]
        assert lines == [line for line in physical(content) if len(line) <= 50]
        numbered = {number for block in result for number in block.numbers}
        numbered |= {number for block in result for number, _ in block.long}
        there = (line.removesuffix(b"\r") for line in content.split(b"\n"))
        assert numbered == {number for number, line in enumerate(there, 1) if line.strip(b" \t\r")}


def test_blocks_are_small_at_both_ends_and_include_an_unterminated_last_line() -> None:
    content = b"\n".join([b"0123456789"] * 80)
    assert [len(block.lines) for block in blocks(content, 220)] == [5, 20, 20, 20, 9, 6]
    assert [len(block.lines) for block in blocks(content[: 11 * 50 - 1], 220)] == [5, 20, 15, 6, 4]
    assert [len(block.lines) for block in blocks(content[: 11 * 7 - 1], 220)] == [5, 2]


def test_lines_appended_during_the_read_are_included() -> None:
    file = io.BytesIO(b"0123456789\n" * 20)
    rows = []
    for block in blocks_of(file, block_bytes=80, line_bytes_max=50, keep=kept):
        rows += block.lines
        if len(rows) < 60:
            at = file.tell()
            file.seek(0, os.SEEK_END)
            file.write(b"9876543210\n" * 5)
            file.seek(at)
    assert rows[:20] == [b"0123456789"] * 20
    assert set(rows[20:]) == {b"9876543210"}
    assert len(rows) >= 60
    assert b"\n".join([*rows, b""]) == file.getvalue()
