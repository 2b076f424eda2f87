"""Checks whether a reworded sentence makes exactly the claim of the original sentence. Pure.

A claim is read from the words: the banded vocabulary (grimoire/entry_text.py), the testament's vocabulary, names and
numbers. A wording is accepted if all of these equal the sentence's own, in the same order; the scene may move, and
words without a claim (PLAIN) are free. Unknown words are refused, because they might be a claim.
Source: INH-3, canon 42.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from bardo_pipeline.grimoire import entry_text as vocabulary

LENGTH_FACTOR, LENGTH_SPARE = 1.5, 40
"""Maximal length of a wording: LENGTH_FACTOR x the sentence's length + LENGTH_SPARE characters."""

PLAIN = frozenset(
    (
        "a", "am", "an", "and", "are", "as", "at", "be", "did", "do", "does", "for", "found", "had", "has",
        "have", "having", "here", "i", "in", "is", "it", "its", "learned", "me", "my", "of", "on", "saw",
        "seen", "that", "the", "their", "them", "then", "there", "these", "they", "this", "those", "to",
        "was", "we", "were", "what", "when", "where", "which", "while", "with",
    )
)  # fmt: skip
"""Words without a claim of their own."""

_PUNCTUATION = frozenset(" .,:;?()'-")
_SIZE = f"(?:{'|'.join(vocabulary.SIZE_WORDS)})"
_BE = "(?:is|was|were|are|be|been|being)"


def _bare(phrase: str) -> str:
    """Return a phrase without its leading article."""
    return re.sub(r"^(?:an?|the) ", "", phrase)


def _scenes() -> dict[str, str]:
    """Return concept -> pattern for regimes, ranges and gas."""
    patterns = {}
    for phrase in map(_bare, vocabulary.REGIME_WORDS.values()):
        kind, noun = phrase.split()
        patterns[phrase] = rf"{kind} {noun}|{noun} (?:{_BE} )?{kind}"
    for phrase in vocabulary.ANOMALY_WORDS.values():
        patterns[phrase] = phrase.replace(" its ", " (?:its|the) ")
    for phrase in vocabulary.GAS_WORDS.values():
        price = phrase.removeprefix("gas ")
        patterns[phrase] = rf"gas (?:{_BE} )?{price}|{price} gas"
    return patterns | {"usually": "usually", "about": "about", "half of": "half (?:of )?"}


_CAUSES = {_bare(phrase): _bare(phrase) for phrase in {**vocabulary.CAUSE_WORDS, **vocabulary.EFFECT_WORDS}.values()}

_PHRASES = {
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
    **{word: word for word in vocabulary.SIZE_WORDS},
    **{unit: unit for unit in ("gwei", "dollars", "ppm", "times")},
    **{figure: rf"{figure}s?" for figure in ("cost", "trade", "slip")},
}
"""Concept -> pattern of statements, comparisons and hedges. Derived sentences never use "turned round"."""

_SCENES = _scenes()
_CONCEPTS = _SCENES | _CAUSES | _PHRASES
_NAMES = {f"c{number}": concept for number, concept in enumerate(_CONCEPTS)}


@cache
def _scanner() -> re.Pattern[str]:
    """Compile the pattern of one token: concepts (longest pattern first), names, numbers, words, other characters."""
    groups = sorted(_NAMES, key=lambda name: (-len(_CONCEPTS[_NAMES[name]]), name))
    concepts = "|".join(rf"(?P<{name}>{_CONCEPTS[_NAMES[name]]})" for name in groups)
    number = r"(?P<number>-?\d[\d,]*(?:\.\d+)?)"
    name = r"(?P<name>[^\s,;:?()]*(?:[_/]|[A-Za-z]\d|\d[A-Za-z])[^\s,;:?()]*)"
    return re.compile(
        rf"(?<![\w/])(?:{concepts})(?![\w/])|(?<![\w/]){name}|(?<![\w/]){number}(?![\w/])|(?P<word>[^\W\d_]+)|(?P<else>.)",
        re.IGNORECASE | re.DOTALL,
    )


@dataclass(frozen=True)
class Claim:
    """The claim of a sentence. concepts: concepts in order, immediate repetitions merged. scenes: regimes, ranges, gas.
    words: other words that may be claims, names included. marks: other characters."""

    concepts: tuple[str, ...]
    scenes: frozenset[str]
    numbers: tuple[str, ...]
    words: frozenset[str]
    questions: int
    marks: frozenset[str]


def claim_of(sentence: str) -> Claim:
    """Read the claim of a sentence from its words."""
    concepts: list[str] = []
    scenes, words, marks, numbers = set(), set(), set(), []
    for match in _scanner().finditer(sentence):
        kind, text = str(match.lastgroup), match.group()
        concept = _NAMES.get(kind)
        if concept in _SCENES:
            scenes.add(concept)
        elif concept is not None:
            concepts += [concept] if concepts[-1:] != [concept] else []
        elif kind == "number":
            numbers.append(text.rstrip(","))
        elif kind == "else":
            marks.add(text)
        elif kind == "name":
            words.add(text.rstrip("."))
        elif text.lower() not in PLAIN:
            words.add(text.lower() if text.istitle() else text)
    return Claim(
        tuple(concepts), frozenset(scenes), tuple(numbers), frozenset(words), sentence.count("?"), frozenset(marks)
    )


def fault_of(sentence: str, wording: str) -> str | None:
    """Return why a wording cannot replace a sentence; None if both make the same claim."""
    most = int(LENGTH_FACTOR * len(sentence)) + LENGTH_SPARE
    if len(wording) > most:
        return f"{len(wording)} characters, {most} are enough for this sentence"
    original, reworded = claim_of(sentence), claim_of(wording)
    if foreign_marks := reworded.marks - original.marks - _PUNCTUATION:
        return f"the mark {min(foreign_marks)!r} is not the sentence's"
    if (reworded.questions, wording.endswith("?")) != (original.questions, sentence.endswith("?")):
        return "a question stays a question, and nothing else becomes one"
    for name, expected, actual in (
        ("numbers", original.numbers, reworded.numbers),
        ("scene", tuple(sorted(original.scenes)), tuple(sorted(reworded.scenes))),
        ("words", tuple(sorted(original.words)), tuple(sorted(reworded.words))),
        ("claim", original.concepts, reworded.concepts),
    ):
        if expected != actual:
            return _difference(name, expected, actual)
    return None


def _difference(name: str, expected: tuple[str, ...], actual: tuple[str, ...]) -> str:
    """Name the additions of a wording, else its omissions, else its different order."""
    added = [item for item in actual if item not in expected]
    missing = [item for item in expected if item not in actual]
    if added:
        return f"{name}: {', '.join(added)} is added"
    if missing:
        return f"{name}: {', '.join(missing)} is left out"
    return f"{name}: {', '.join(actual)}, not {', '.join(expected)}"
