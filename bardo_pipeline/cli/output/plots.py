"""Plots as SVG, for the pages of `bardo eval` and the metadata of marts: lines, and horizontal bars."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

_STYLE = """
svg { background: #fff; font-family: system-ui, sans-serif } .small { font-size: 11px; fill: #46525a }
.grid { stroke: #e4e9ec } .empty { fill: #eef2f4 } .mark { stroke: #8b98a1; stroke-dasharray: 5 4 }
"""
WIDTH, HEIGHT = 560, 280
LEFT, RIGHT, TOP, BOTTOM = 52, 132, 34, 38
_LABELS_MAX = 5
Place = Callable[[float, float], tuple[float, float]]
"""Maps data coordinates to page coordinates."""

COLOURS = ("#1b6ca8", "#c2571a", "#2f8f4e", "#8a4fbf", "#b03060", "#5f6b73", "#0891b2", "#65a30d")


class Line(NamedTuple):
    """One line of a plot; points in ascending x."""

    name: str
    points: Sequence[tuple[float, float]]


class Mark(NamedTuple):
    """A dashed line across a plot: horizontal at a y, or vertical at an x if `upright`."""

    name: str
    at: float
    upright: bool = False


def lines(
    title: str,
    across: str,
    curves: Sequence[Line],
    marks: Sequence[Mark] = (),
    top: float = 1.0,
    bottom: float = 0.0,
    points: Sequence[str] = (),
) -> str:
    """Return a plot of lines; x runs from 0 to the largest x, y from `bottom` to `top`.

    points : names of the points at x = 0, 1, ..., shown instead of numbers
    """
    curves = [line for line in curves if line.points]
    right = max([x for line in curves for x, _ in line.points] + [m.at for m in marks if m.upright] + [1e-9])

    def place(x: float, y: float) -> tuple[float, float]:
        wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return LEFT + wide * x / right, TOP + high * (1.0 - (min(max(y, bottom), top) - bottom) / (top - bottom))

    every = -(-len(points) // _LABELS_MAX)
    named = [(float(x), escape(points[x])) for x in range(0, len(points), every or 1)]
    steps = named or [(right * step / 4, f"{right * step / 4:.3g}") for step in range(5)]
    parts = _frame(across, place, steps, (0.0, right), (bottom, top))
    for mark in marks:
        ends = ((mark.at, bottom), (mark.at, top)) if mark.upright else ((0.0, mark.at), (right, mark.at))
        (x1, y1), (x2, y2) = (place(*end) for end in ends)
        parts.append(f'<line class="mark" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')
        below = 10 if mark.upright else -3
        parts.append(f'<text class="small" x="{x2 + 3:.1f}" y="{y2 + below:.1f}">{escape(mark.name)}</text>')
    for number, line in enumerate(curves):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*p) for p in line.points))
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{path}"/>')
        parts += [
            f'<circle fill="{colour}" r="2.5" cx="{x:.1f}" cy="{y:.1f}"/>' for x, y in (place(*p) for p in line.points)
        ]
        at = TOP + 12 + 16 * number
        parts.append(f'<rect x="{WIDTH - RIGHT + 12}" y="{at - 8}" width="9" height="9" fill="{colour}"/>')
        parts.append(f'<text class="small" x="{WIDTH - RIGHT + 25}" y="{at}">{escape(line.name)}</text>')
    return _svg(title, HEIGHT, parts)


def bars(title: str, values: Sequence[tuple[str, float | None, str]], limit: float | None = None) -> str:
    """Return horizontal bars, one per (name, share in [0, 1] or None, label)."""
    left, high = 250, 22
    wide = WIDTH - left - 150
    parts = []
    for number, (name, value, label) in enumerate(values):
        y = TOP + high * number
        length = wide * min(max(value or 0.0, 0.0), 1.0)
        parts.append(f'<text class="small" text-anchor="end" x="{left - 8}" y="{y + 13}">{escape(name)}</text>')
        parts.append(f'<rect x="{left}" y="{y + 3}" width="{wide}" height="13" class="empty"/>')
        parts.append(f'<rect x="{left}" y="{y + 3}" width="{length:.1f}" height="13" fill="{COLOURS[0]}"/>')
        parts.append(f'<text class="small" x="{left + wide + 8}" y="{y + 13}">{escape(label)}</text>')
    bottom = TOP + high * len(values)
    if limit is not None:
        x = left + wide * limit
        parts.append(f'<line class="mark" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}"/>')
    return _svg(title, bottom + 8, parts)


def _frame(
    across: str, place: Place, steps: Sequence[tuple[float, str]], wide: tuple[float, float], high: tuple[float, float]
) -> list[str]:
    parts = []
    for step in range(5):
        height = high[0] + (high[1] - high[0]) * step / 4
        (x1, y), (x2, _) = (place(x, height) for x in wide)
        parts.append(f'<line class="grid" x1="{x1:.1f}" y1="{y:.1f}" x2="{x2:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="small" text-anchor="end" x="{x1 - 6:.1f}" y="{y + 4:.1f}">{height:.3g}</text>')
    for at, label in steps:
        x, base = place(at, high[0])
        parts.append(f'<text class="small" text-anchor="middle" x="{x:.1f}" y="{base + 16:.1f}">{label}</text>')
    middle = LEFT + (WIDTH - LEFT - RIGHT) / 2
    parts.append(f'<text class="small" text-anchor="middle" x="{middle:.1f}" y="{HEIGHT - 6}">{escape(across)}</text>')
    return parts


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(title)}" '
        f'viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}"><style>{_STYLE}</style>'
        f'<text font-weight="600" x="0" y="{TOP - 18}">{escape(title)}</text>{"".join(parts)}</svg>'
    )
