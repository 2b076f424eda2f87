"""Splits texts into stemmed words without stop words, and dates into the words in which a question names them. Pure.

Stemmer: Snowball English (py-rust-stemmers). Words of other languages pass through it alike in texts and questions.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from py_rust_stemmers import SnowballStemmer

from bardo_pipeline.arrays import Int64Array

STOP_WORDS = frozenset(
    """
    a about above after again against all also am an and any are arent as at be because been before being below
    between both but by can cannot cant could couldnt did didnt do does doesnt doing dont down during each ever few
    for from further had hadnt has hasnt have havent having he hed her here hers herself hes him himself his how hows
    i if im in into is isnt it its itself ive just kind let lets m may me might more most mustnt my myself no nor not
    of off on once only or other ought our ours ourselves out over own s same shall shant she shes should shouldnt so
    some such t than that thats the their theirs them themselves then there theres these they theyd theyll theyre
    theyve this those through to too under until up us very was wasnt we were werent weve what whats when whens where
    wheres which while who whom whos whose why whys will with wont would wouldnt yes you youd youll your youre yours
    yourself yourselves youve
    """.split()  # noqa: SIM905
) - {"may"}
"""English words that occur in any text. `may` is kept, because it is a month."""

_MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip
_SHORT_MONTHS = {name[:3]: name for name in _MONTHS} | {"sept": "september"}
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_NO_WORD = r"[^\p{L}\p{N}\p{M}]+"
_APOSTROPHE = r"['’]((s|ll|d|re|ve|m)\b)?"
_ASCII_APOSTROPHE, _ASCII_WORD = re.compile(r"'((s|ll|d|re|ve|m)\b)?"), re.compile(r"[a-z0-9]+")
_FEW = 64
_ISO_DATE = r"\b\d{4}-\d{2}-\d{2}"
_ISO_PARTS = re.compile(r"\b(\d{4})-(\d{2})-(\d{2})(?=\b|t\d)")
_NUMBER = re.compile(r"(\d+)(?:st|nd|rd|th)?")
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_DAY = re.compile(
    rf"\b(?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?: of)? (?P<month>{_MONTH})[.,]* (?P<year>\d{{4}})"
    rf"|\b(?P<month_first>{_MONTH})\.? (?P<day_last>\d{{1,2}})(?:st|nd|rd|th)?,? (?P<year_last>\d{{4}})"
)
_STEMMER = SnowballStemmer("english")


def stems(texts: Sequence[str]) -> tuple[Int64Array, list[str], Int64Array]:
    """Return the words of the texts, in order: the text of each, the distinct stems, and the stem of each.

    Words are lower-case runs of letters and digits. Stop words are left out, an ordinal counts as its number, and an
    ISO date as year, month and day.
    """
    if len(texts) <= _FEW and all(text.isascii() for text in texts):
        return _stems_of_few(texts)
    lower = pc.utf8_lower(pa.array(texts, pa.string()))
    lower = pc.replace_substring_regex(lower, pattern=_APOSTROPHE, replacement="")
    is_dated = pc.match_substring_regex(lower, pattern=_ISO_DATE)
    if pc.any(is_dated, min_count=0).as_py():
        spelled = [_ISO_PARTS.sub(_spelled, text) for text in lower.filter(is_dated).to_pylist()]
        lower = pc.replace_with_mask(lower, is_dated, pa.array(spelled, pa.string()))
    split = pc.split_pattern_regex(lower, pattern=_NO_WORD)
    encoded = pc.list_flatten(split).dictionary_encode()
    owner = pc.list_parent_indices(split).to_numpy(zero_copy_only=False).astype(np.int64)
    distinct: dict[str, int] = {}
    stem_of_word = np.full(len(encoded.dictionary), -1, np.int64)
    for place, word in enumerate(encoded.dictionary.to_pylist()):
        if (root := stem_of(word)) is not None:
            stem_of_word[place] = distinct.setdefault(root, len(distinct))
    stem = stem_of_word[encoded.indices.to_numpy(zero_copy_only=False)] if len(encoded) else np.zeros(0, np.int64)
    is_kept = stem >= 0
    return owner[is_kept], list(distinct), stem[is_kept]


def _stems_of_few(texts: Sequence[str]) -> tuple[Int64Array, list[str], Int64Array]:
    """Return the same as `stems` for a few texts in ASCII, without the overhead of Arrow's kernels."""
    distinct: dict[str, int] = {}
    owner, stem = [], []
    for place, text in enumerate(texts):
        lower = _ISO_PARTS.sub(_spelled, _ASCII_APOSTROPHE.sub("", text.lower()))
        for word in _ASCII_WORD.findall(lower):
            if (root := stem_of(word)) is not None:
                owner.append(place)
                stem.append(distinct.setdefault(root, len(distinct)))
    return np.array(owner, np.int64), list(distinct), np.array(stem, np.int64)


@lru_cache(maxsize=65_536)
def stem_of(word: str) -> str | None:
    """Return the stem of a lower-case word without accents; None for a stop word."""
    if not word or word in STOP_WORDS:
        return None
    if (number := _NUMBER.fullmatch(word)) is not None:
        return number[1].lstrip("0") or "0"
    if not word.isascii():
        word = "".join(c for c in unicodedata.normalize("NFKD", word) if not unicodedata.combining(c))
    stem: str = _STEMMER.stem_word(_SHORT_MONTHS.get(word, word))
    return stem or None


def date_words(moment: datetime) -> str:
    """Return weekday, day, month and year of a moment as a question names them."""
    return f"{_DAYS[moment.weekday()]} {moment.day} {_MONTHS[moment.month - 1]} {moment.year}"


def day_of(text: str) -> str:
    """Return the first day that a text names with its year, such as 2023-05-08; "" for none."""
    if (iso := _ISO_PARTS.search(text.lower())) is not None:
        return iso[0]
    if (day := _DAY.search(text.lower())) is None:
        return ""
    month = _MONTHS.index(_SHORT_MONTHS[(day["month"] or day["month_first"])[:3]]) + 1
    return f"{day['year'] or day['year_last']}-{month:02}-{int(day['day'] or day['day_last']):02}"


def _spelled(match: re.Match[str]) -> str:
    year, month, day = match.groups()
    return f"{year} {_MONTHS[int(month) - 1]} {day} " if 1 <= int(month) <= 12 else match[0]
