"""Inverted lists of words over texts that grow by appending. Pure.

New texts form a sorted run; a run is merged with the one before while that one is less than twice as long, so adding n
texts one by one costs n log n in all. A reader keeps the runs that it took, because runs never change.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bardo_pipeline.arrays import Float32Array, Int64Array, IntegerArray

Int32Array = NDArray[np.int32]


class Run(NamedTuple):
    """Inverted lists of a stretch of texts.

    words: sorted distinct word numbers; starts: begin of each word's list, and the end of the last; texts: text of each
    pair; in_text: count of the word in the text; beside: count among the words beside the text (speaker, date).
    """

    words: Int32Array
    starts: Int64Array
    texts: Int32Array
    in_text: Float32Array
    beside: Float32Array


class Occurrences(NamedTuple):
    """The texts with a word, with its count in each text and in the words beside each text."""

    texts: Int32Array
    in_text: Float32Array
    beside: Float32Array


@dataclass
class Postings:
    """Inverted lists of one shard of texts."""

    runs: tuple[Run, ...] = field(default=())

    def add(self, text: Int64Array, word: Int64Array, is_beside: NDArray[np.bool_]) -> None:
        """Add the words of new texts, one row per occurrence. text: higher than every text before."""
        if not len(text):
            return
        span = int(text.max()) + 1
        places = np.sort((word * span + text) * 2 + is_beside)
        starts = _starts(places // 2)
        beside = np.add.reduceat(places % 2, starts[:-1]).astype(np.float32)
        words, texts = np.divmod(places[starts[:-1]] // 2, span)
        in_text = np.diff(starts).astype(np.float32) - beside
        runs = [*self.runs, _run(words.astype(np.int32), texts.astype(np.int32), in_text, beside)]
        while len(runs) > 1 and len(runs[-2].texts) < 2 * len(runs[-1].texts):
            last, before = runs.pop(), runs.pop()
            runs.append(_merged(before, last))
        self.runs = tuple(runs)


def occurrences(runs: tuple[Run, ...], word: int) -> Occurrences:
    """Return the occurrences of a word, by text."""
    parts = list(_parts(runs, word))
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return Occurrences(np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, np.float32))
    return Occurrences(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _parts(runs: tuple[Run, ...], word: int) -> Iterator[Occurrences]:
    for run in runs:
        at = int(run.words.searchsorted(np.int32(word)))  # of the same type, else the words are converted
        if at < len(run.words) and run.words[at] == word:
            span = slice(run.starts[at], run.starts[at + 1])
            yield Occurrences(run.texts[span], run.in_text[span], run.beside[span])


def _run(word: Int32Array, text: Int32Array, in_text: Float32Array, beside: Float32Array) -> Run:
    """Return the run of pairs that are sorted by word."""
    starts = _starts(word)
    return Run(word[starts[:-1]], starts, text, in_text, beside)


def _starts(ordered: IntegerArray) -> Int64Array:
    """Return the begin of each stretch of equal numbers, and the end of the last."""
    return np.concatenate([[0], np.flatnonzero(np.diff(ordered)) + 1, [len(ordered)]])


def _merged(before: Run, last: Run) -> Run:
    word = np.concatenate([np.repeat(run.words, np.diff(run.starts)) for run in (before, last)])
    order = np.argsort(word, kind="stable")
    return _run(word[order], *(np.concatenate([a, b])[order] for a, b in zip(before[2:], last[2:], strict=True)))
