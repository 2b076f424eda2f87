"""Lines as ranges of the bytes that contain them."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from bardo_pipeline.storage.intake.line_buffer import Lines

pytestmark = pytest.mark.row("EV-4")


def some(random: Random) -> tuple[Lines, list[bytes]]:
    """Draw lines and the same lines as a list; some lines are empty or follow extra bytes."""
    text, kept, bounds = b"#", [], []
    for _ in range(random.randrange(1, 12)):
        line = random.choice([b"", b"{}", b"{" + b"x" * random.randrange(9) + b"}", b"y" * 5, b"{y", b"y}"])
        text += random.choice([b"\n", b"\n", b"\r\n", b"\nskipped\n"])
        bounds.append((len(text), len(text) + len(line)))
        text, kept = text + line, [*kept, line]
    return Lines(text, np.array(bounds)), kept


def test_lines_equal_the_bytes_between_their_bounds() -> None:
    random = Random(3)
    for _ in range(200):
        lines, kept = some(random)
        assert list(lines) == kept == list(Lines.of(kept))
        assert lines[1:] == kept[1:]
        assert lines[-1] == kept[-1]
        run = range(random.randrange(len(kept)), len(kept))
        assert bytes(lines.joined(run)) == b"\n".join(kept[run.start :])
        assert lines.enclosed(run, b"{", b"}") == all(
            line[:1] == b"{" and line[-1:] == b"}" for line in kept[run.start :]
        )
        which = np.array(random.sample(range(len(kept)), random.randrange(len(kept) + 1)), np.int64)
        assert lines.column(which).to_pylist() == [kept[at] for at in which.tolist()]


def test_a_run_has_a_maximum_of_bytes_and_at_least_one_line() -> None:
    lines = Lines.of([b"x" * 3, b"x" * 3, b"x" * 3, b"x" * 50, b"x", b""])
    assert list(lines.runs(11)) == [range(3), range(3, 4), range(4, 6)]
    assert list(lines.runs(10)) == [range(2), range(2, 3), range(3, 4), range(4, 6)]
    assert list(Lines.of([]).runs(10)) == []
    assert Lines.of([]).column(np.array([], np.int64)).to_pylist() == []
