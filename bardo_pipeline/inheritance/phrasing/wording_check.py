"""Phrasing: whether another wording of a sentence says what the sentence says, and no more. Pure.

A testament is derived; a language model may phrase it and may not add a claim. What a sentence claims is read off its
words: the canon's banded vocabulary (grimoire/entry_text.py) and the testament's own, its names and its numbers. A
wording
is taken where all of these are the sentence's own. Between them it may use words that claim nothing (PLAIN), and put
the scene elsewhere; what is said of what, which way, how surely and how strongly stays in its order.
Whatever is not understood is refused: it might be a claim. Source: INH-3, canon 42.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from bardo_pipeline.grimoire.entry_text import (
    ANOMALY_WORDS,
    CAUSE_WORDS,
    EFFECT_WORDS,
    GAS_WORDS,
    REGIME_WORDS,
    SIZE_WORDS,
)

LENGTH_FACTOR, LENGTH_SPARE = 1.5, 40
"""A wording is at most so many times as long as its sentence, and so many characters more."""

PLAIN = frozenset(
    (
        "a", "am", "an", "and", "are", "as", "at", "be", "did", "do", "does", "for", "found", "had", "has",
        "have", "having", "here", "i", "in", "is", "it", "its", "learned", "me", "my", "of", "on", "saw",
        "seen", "that", "the", "their", "them", "then", "there", "these", "they", "this", "those", "to",
        "was", "we", "were", "what", "when", "where", "which", "while", "with",
    )
)  # fmt: skip
"""Words that claim nothing by themselves."""

_PUNCTUATION = frozenset(" .,:;?()'-")
_SIZE = f"(?:{'|'.join(SIZE_WORDS)})"
_BE = "(?:is|was|were|are|be|been|being)"


def _bare(phrase: str) -> str:
    """A phrase without its article."""
    return re.sub(r"^(?:an?|the) ", "", phrase)


def _scenes() -> dict[str, str]:
    """Where and when something holds: concept to pattern."""
    found = {}
    for phrase in map(_bare, REGIME_WORDS.values()):
        kind, noun = phrase.split()
        found[phrase] = rf"{kind} {noun}|{noun} (?:{_BE} )?{kind}"
    for phrase in ANOMALY_WORDS.values():
        found[phrase] = phrase.replace(" its ", " (?:its|the) ")
    for phrase in GAS_WORDS.values():
        price = phrase.removeprefix("gas ")
        found[phrase] = rf"gas (?:{_BE} )?{price}|{price} gas"
    return found | {"usually": "usually", "about": "about", "give or take": "give or take"}


_CAUSES = {_bare(phrase): _bare(phrase) for phrase in {**CAUSE_WORDS, **EFFECT_WORDS}.values()}

_SAID = {
    "turned round": rf"{_BE} (?:{_SIZE} )?(?:beat|beaten|outperformed|moved|lost|preferred)",
    "predictions stopped": "predictions stopped holding",
    "credits ran out": "credits ran out",
    "time was up": "time was up",
    "fell silent": "fell silent",
    "do not act": "(?:do|did|does) not act|don't act",
    "did not last": "(?:did|has) not last(?:ed)?|didn't last",
    "do not prove": "(?:do|does|did) not prove|don't prove",
    "could not tell": "could not tell|couldn't tell",
    "later disagreed": "(?:what )?(?:came )?later disagreed",
    "point both ways": "point(?:ed)? both ways",
    "too few": "too few",
    "could be judged": "(?:could be|were) judged",
    "suspect": "suspect(?:ed)?",
    "open": "open",
    "whether": "whether|if",
    "prefer": "prefer(?:red)?",
    "re-centring": "re-?cent(?:ring|ering|re|er)|rebalancing",
    "entering": "entering|to enter",
    "leaving": "leaving|to leave",
    "holding": "holding|to hold",
    "beat": "beats?|outperforms?",
    "beaten": "beaten|outperformed",
    "lose": "loses? to|underperforms?",
    "lost": "lost to|underperformed",
    "move": "moves?",
    "up": "up|upwards?",
    "down": "down|downwards?",
    "at once": "at once|immediately",
    "one tick later": "one tick later",
    "ticks later": "ticks later",
    **{word: word for word in SIZE_WORDS},
    **{unit: unit for unit in ("gwei", "dollars", "ppm", "times")},
    **{figure: rf"{figure}s?" for figure in ("cost", "trade", "slip")},
}
"""What is said, and how surely: concept to pattern. Nothing derived is ever turned round."""

_SCENES = _scenes()
_CONCEPTS = _SCENES | _CAUSES | _SAID
_NAMES = {f"c{number}": concept for number, concept in enumerate(_CONCEPTS)}


def _scanner() -> re.Pattern[str]:
    """Concepts, the longest pattern first; then names, numbers, words and whatever else stands there."""
    groups = sorted(_NAMES, key=lambda name: (-len(_CONCEPTS[_NAMES[name]]), name))
    concepts = "|".join(rf"(?P<{name}>{_CONCEPTS[_NAMES[name]]})" for name in groups)
    number = r"(?P<number>-?\d[\d,]*(?:\.\d+)?)"
    name = r"(?P<name>[^\s,;:?()]*(?:[_/]|[A-Za-z]\d|\d[A-Za-z])[^\s,;:?()]*)"
    return re.compile(
        rf"(?<![\w/])(?:{concepts})(?![\w/])|(?<![\w/]){name}|(?<![\w/]){number}(?![\w/])|(?P<word>[^\W\d_]+)|(?P<else>.)",
        re.IGNORECASE | re.DOTALL,
    )


_SCANNER = _scanner()


@dataclass(frozen=True)
class Claim:
    """What a sentence claims. said: concepts in their order, at once repeated ones once; scenes: where it holds;
    numbers in their order; words: all others that might claim something, names among them; questions: how many."""

    said: tuple[str, ...]
    scenes: frozenset[str]
    numbers: tuple[str, ...]
    words: frozenset[str]
    questions: int
    marks: frozenset[str]


def claim_of(sentence: str) -> Claim:
    """Read a sentence's claim off its words."""
    said: list[str] = []
    scenes, words, marks, numbers = set(), set(), set(), []
    for match in _SCANNER.finditer(sentence):
        kind, text = str(match.lastgroup), match.group()
        concept = _NAMES.get(kind)
        if concept in _SCENES:
            scenes.add(concept)
        elif concept is not None:
            said += [concept] if said[-1:] != [concept] else []
        elif kind == "number":
            numbers.append(text.rstrip(","))
        elif kind == "else":
            marks.add(text)
        elif kind == "name":
            words.add(text.rstrip("."))
        elif text.lower() not in PLAIN:
            words.add(text.lower() if text.istitle() else text)
    return Claim(
        tuple(said), frozenset(scenes), tuple(numbers), frozenset(words), sentence.count("?"), frozenset(marks)
    )


def fault_of(sentence: str, wording: str) -> str | None:
    """Why a wording may not stand for a sentence, None where it claims exactly what the sentence claims."""
    most = int(LENGTH_FACTOR * len(sentence)) + LENGTH_SPARE
    if len(wording) > most:
        return f"{len(wording)} characters, {most} are enough for this sentence"
    mine, its = claim_of(sentence), claim_of(wording)
    if strange := its.marks - mine.marks - _PUNCTUATION:
        return f"the mark {min(strange)!r} is not the sentence's"
    if (its.questions, wording.endswith("?")) != (mine.questions, sentence.endswith("?")):
        return "a question stays a question, and nothing else becomes one"
    for name, wanted, found in (
        ("numbers", mine.numbers, its.numbers),
        ("scene", tuple(sorted(mine.scenes)), tuple(sorted(its.scenes))),
        ("words", tuple(sorted(mine.words)), tuple(sorted(its.words))),
        ("claim", mine.said, its.said),
    ):
        if wanted != found:
            return _differing(name, wanted, found)
    return None


def _differing(name: str, wanted: tuple[str, ...], found: tuple[str, ...]) -> str:
    """What a wording adds, else what it leaves out, else that it says the same in another order."""
    added = [one for one in found if one not in wanted]
    missing = [one for one in wanted if one not in found]
    if added:
        return f"{name}: {', '.join(added)} is added"
    if missing:
        return f"{name}: {', '.join(missing)} is left out"
    return f"{name}: {', '.join(found)}, not {', '.join(wanted)}"
