"""Findings of a verification: the first break of each kind and the number of breaks by kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from bardo_pipeline.storage.log.stream_heads import TickRange


@dataclass(frozen=True)
class Break:
    """A deviation from the recorded data: kind, file, golem, tick and link number."""

    kind: str
    fact: str
    file: str | None = None
    golem_id: str | None = None
    tick: int | None = None
    number: int | None = None

    def sentence(self) -> str:
        """Return the fact, preceded by file, golem, tick and link."""
        about = [
            self.file,
            None if self.golem_id is None else f"golem {self.golem_id}",
            None if self.tick is None else f"tick {self.tick}",
            None if self.number is None else f"link {self.number}",
        ]
        return f"{', '.join(part for part in about if part)}: {self.fact}"


@dataclass(frozen=True)
class Report:
    """Result of `verify`.

    Parameters
    ----------
    breaks : the first of each kind
    counts : number of breaks by kind
    files : paths below the home of files with a break
    digest : version of the log and hash over all tips
    unaccepted : recorded life events that the log would refuse today, with the reason; no breaks
    """

    breaks: tuple[Break, ...]
    counts: dict[str, int]
    files: tuple[str, ...]
    facts: dict[str, int]
    gaps: tuple[TickRange, ...]
    digest: str
    unaccepted: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether there is no break."""
        return not self.breaks


@dataclass
class Findings:
    """Breaks by kind, and facts by name."""

    first: dict[str, Break] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    files: set[str] = field(default_factory=set)
    facts: Counter[str] = field(default_factory=Counter)
    unaccepted: list[str] = field(default_factory=list)

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
        """Record `count` breaks of a kind; the arguments describe the first of them."""
        self.first.setdefault(kind, Break(kind, fact, file, golem_id, tick, number))
        self.counts[kind] += count
        if file is not None:
            self.files.add(file)

    def unreadable(self, file: str, error: Exception) -> None:
        """Record a file that cannot be read."""
        self.broken("file", f"it cannot be read: {str(error).splitlines()[0] if str(error) else error!r}", file=file)

    def report(self, gaps: Sequence[TickRange], digest: str) -> Report:
        """Return the report, with breaks in the order of discovery."""
        breaks, files = tuple(self.first.values()), tuple(sorted(self.files))
        return Report(breaks, dict(self.counts), files, dict(self.facts), tuple(gaps), digest, tuple(self.unaccepted))
