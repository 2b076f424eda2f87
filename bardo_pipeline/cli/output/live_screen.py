"""The screen of `bardo live`: a table of golems and a table of their last decisions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bardo_pipeline.visible_text import visible


class Shown(Protocol):
    """Shows the golems of a live run."""

    def __call__(self, golems: Sequence[dict[str, Any]]) -> None:
        """Replace what is shown."""


@contextmanager
def live_screen(console: Console) -> Iterator[Shown]:
    """Show golems until the block ends; the last state stays on the terminal."""
    with Live(console=console, refresh_per_second=4) as live:
        yield lambda golems: live.update(_screen(golems))


def _screen(golems: Sequence[dict[str, Any]]) -> Group:
    states = Table(title="Golems", title_justify="left")
    for name in (
        "golem",
        "tick",
        "market time",
        "state",
        "phase",
        "mood",
        "vitality",
        "worth $",
        "position",
        "budget",
        "prefetch",
    ):
        states.add_column(name)
    thoughts = Table(title="Last decisions", title_justify="left")
    for name in ("golem", "tick", "decision", "reason"):
        thoughts.add_column(name)
    for golem in golems:
        pleasure, arousal, dominance = golem["mood"]
        states.add_row(*map(_text, (
            golem["golem_id"], f"{golem['tick']:,}", golem["at"][:16].replace("T", " "), golem["state"], golem["phase"],
            f"{golem['emotion']} ({pleasure:+.2f}, {arousal:+.2f}, {dominance:+.2f})", f"{golem['vitality']:.0%}",
            f"{golem['net_asset_value_micros'] / 1e6:,.2f}", "; ".join(golem["positions"]) or "none",
            f"{golem['spent_share']:.0%} of the day", rate_text(golem["prefetch_hit_rate"]),
        )))  # fmt: skip
        for each in golem["decisions"]:
            words = [each["reason"], *each["actions"], *(f"steer: {intent}" for intent in each["steers"])]
            thoughts.add_row(*map(_text, (golem["golem_id"], f"{each['tick']:,}", each["decision"], "; ".join(words))))
    return Group(states, thoughts)


def rate_text(rate: float | None) -> str:
    """Return a hit rate in percent, "-" without one."""
    return "-" if rate is None else f"{rate:.0%}"


def _text(words: str) -> Text:
    return Text(visible(words))


def line_of(golem: dict[str, Any]) -> str:
    """Return a golem's state as one line, for an output that is no terminal."""
    return (
        f"{golem['at'][:19]} {golem['golem_id']} tick {golem['tick']}: {golem['phase']}, {golem['emotion']}, "
        f"worth ${golem['net_asset_value_micros'] / 1e6:,.2f}, {golem['reason']}"
    )
