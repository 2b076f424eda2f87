"""Findings: what a verification saw, collected as it goes: the first break of each kind, and how many there were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from bardo_pipeline.storage.log.stream_heads import TickRange


@dataclass(frozen=True)
class Break:
    """Something that is not as it was recorded: of what kind, in which file, of which golem, at which tick and link."""

    kind: str
    fact: str
    file: str | None = None
    golem_id: str | None = None
    tick: int | None = None
    number: int | None = None

    def sentence(self) -> str:
        """The fact with all that it is about."""
        about = [
            self.file,
            None if self.golem_id is None else f"golem {self.golem_id}",
            None if self.tick is None else f"tick {self.tick}",
            None if self.number is None else f"link {self.number}",
        ]
        return f"{', '.join(part for part in about if part)}: {self.fact}"


@dataclass(frozen=True)
class Report:
    """What `verify` found.

    breaks: the first of each kind; counts: how many of each kind; files: all that something broken was found in, below
    the home. digest: the log's version and the hash over all tips.
    """

    breaks: tuple[Break, ...]
    counts: dict[str, int]
    files: tuple[str, ...]
    facts: dict[str, int]
    gaps: tuple[TickRange, ...]
    digest: str

    @property
    def clean(self) -> bool:
        """Whether nothing is broken."""
        return not self.breaks


@dataclass
class Findings:
    """Breaks by kind, and facts by name."""

    first: dict[str, Break] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    files: set[str] = field(default_factory=set)
    facts: Counter[str] = field(default_factory=Counter)

    def broken(
        self,
        kind: str,
        fact: str,
        *,
        file: str | None = None,
        golem_id: str | None = None,
        tick: int | None = None,
        number: int | None = None,
        count: int = 1,
    ) -> None:
        """Something is broken. count: how many such breaks this stands for, the first of them named."""
        self.first.setdefault(kind, Break(kind, fact, file, golem_id, tick, number))
        self.counts[kind] += count
        if file is not None:
            self.files.add(file)

    def unreadable(self, file: str, error: Exception) -> None:
        """A file is not what its name says."""
        self.broken("file", f"it cannot be read: {str(error).splitlines()[0] if str(error) else error!r}", file=file)

    def report(self, gaps: Sequence[TickRange], digest: str) -> Report:
        """All of it, breaks in the order in which they were met."""
        breaks, files = tuple(self.first.values()), tuple(sorted(self.files))
        return Report(breaks, dict(self.counts), files, dict(self.facts), tuple(gaps), digest)
