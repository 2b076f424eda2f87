"""Reports of `bardo eval`: output folder, progress, terminal tables, and HTML pages with plots as inline SVG."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from bardo_pipeline.cli.output.tables import err, out, print_json, print_table, progress_bar, say
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.grimoire.confidence import PPM
from bardo_pipeline.policy import WorthPolicy
from bardo_pipeline.quality.calibration import Calibration
from bardo_pipeline.quality.grimoire_precision import VERDICTS, Look
from bardo_pipeline.quality.memory_targets import Bound
from bardo_pipeline.runtime.memory_evaluation import OnProgress, RecordedCalibration, Report

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2327; max-width: 1180px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2rem }
table { border-collapse: collapse }
th, td { padding: .25rem .9rem .25rem 0; text-align: left; border-bottom: 1px solid #d8dee2 }
td.number { text-align: right; font-variant-numeric: tabular-nums }
.kept { color: #22733c; font-weight: 600 } .missed { color: #b3261e; font-weight: 600 }
.plots { display: flex; flex-wrap: wrap; gap: 1rem } figure { margin: 0 } figcaption { font-weight: 600 }
svg { max-width: 100%; height: auto } .small { font-size: 11px; fill: #46525a }
.grid { stroke: #e4e9ec } .empty { fill: #eef2f4 }
.mark { stroke: #8b98a1; stroke-dasharray: 5 4 }
"""


def worth_page(report: Report, policy: WorthPolicy) -> str:
    """Return the page of a graded synthetic market."""
    grading, last = report.grading, report.looks[-1]
    head = (
        f"{grading.golems} golems lived {grading.days} days of the graded market of seed {grading.seed} and wrote "
        f"{report.records:,} records. From day {grading.turn_bar / 1_440:g} on, excursions no longer revert and "
        "large moves no longer drain liquidity."
    )
    sections = [
        f"<h2>Bounds</h2>{bounds_table(report.bounds)}",
        f'<h2>Day by day</h2><div class="plots">{_days(report, policy)}{_verdicts(report.looks)}</div>',
        f'<h2>Truths above one sigma</h2><div class="plots">{_truths(last, policy)}{_time_to_learn(report)}</div>',
        f'<h2>Expired truths</h2><div class="plots">{_fades(report, policy)}</div>',
        f"<h2>Retrieval</h2><p>{escape(_asked(report))}</p>",
        f"<h2>Calibration</h2>{_calibration(report.calibration, report.stated_calibration)}",
        f"<h2>Null market</h2><p>{escape(_null_market(report))}</p>",
        f"<h2>Wrong entries on the last day</h2>{_wrong(last)}",
    ]
    return page("Proof of worth: memory", head, sections)


def foretold_page(result: RecordedCalibration) -> str:
    """Return the page of a recorded market, graded against the following day."""
    head = f"{result.golems} golems lived through {result.market} and wrote {result.records:,} records."
    return page(
        "Proof of worth: calibration",
        head,
        [f"<h2>Calibration</h2>{_calibration(result.calibration, result.stated_calibration)}"],
    )


def page(title: str, head: str, sections: Sequence[str]) -> str:
    """Return an HTML page: title, first paragraph, sections of HTML."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1><p>{escape(head)}</p>{''.join(sections)}</body></html>\n"
    )


def table(names: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return an HTML table; cells are escaped unless they begin with <span."""
    cells = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(_cell(value) for value in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    if isinstance(value, float | int) and not isinstance(value, bool):
        return f'<td class="number">{value:{",.3g" if isinstance(value, float) else ","}}</td>'
    text = "-" if value is None else str(value)
    return f"<td>{text}</td>" if text.startswith("<span") else f"<td>{escape(text)}</td>"


def bounds_table(bounds: Sequence[Bound]) -> str:
    """Return an HTML table of bounds with measured values and verdicts."""
    rows = [
        (b.name, b.value, f"{b.way} {b.limit:g}", f'<span class="{word}">{word}</span>', b.detail)
        for b in bounds
        for word in ("kept" if b.kept else "missed",)
    ]
    return table(("bound", "measured", "asked", "verdict", "of what"), rows)


def _days(report: Report, policy: WorthPolicy) -> str:
    curves = [
        Line(name, [(look.day, value) for look in report.looks if (value := getattr(look, name)) is not None])
        for name in ("precision", "recall", "junk")
    ]
    marks = [Mark("turn", report.grading.turn_bar / 1_440, upright=True)]
    marks += [Mark(f"{limit:g}", limit) for limit in (policy.precision_min, policy.recall_min, policy.junk_max)]
    return lines("Precision, recall and junk", "day", curves, marks)


def _verdicts(looks: Sequence[Look]) -> str:
    curves = [Line(word, [(look.day, float(look.count(code))) for look in looks]) for code, word in enumerate(VERDICTS)]
    top = max((y for line in curves for _, y in line.points), default=1.0)
    return lines("Living entries by verdict", "day", curves, top=max(top, 1.0))


def _truths(last: Look, policy: WorthPolicy) -> str:
    values = [
        (t.name, t.share if t.met else None, f"{t.held} of {t.met} golems, {t.strength:.1f} sigma")
        for t in last.recalled
    ]
    return bars("Share of golems that hold each truth, of those that met it often enough", values, policy.recall_min)


def _time_to_learn(report: Report) -> str:
    shares: dict[str, list[tuple[float, float]]] = {}
    for look in report.looks:
        for truth in look.recalled:
            if truth.met:
                shares.setdefault(truth.name, []).append((look.day, truth.share))
    held = {name: points for name, points in shares.items() if points[-1][1] > 0}
    return lines("Time to learn", "day", [Line(name[:22], points) for name, points in sorted(held.items())[:12]])


def _fades(report: Report, policy: WorthPolicy) -> str:
    curves = [Line(f.name.replace("acting in ", "")[:22], f.means) for f in report.faded[:12]]
    marks = [Mark("retrieval", policy.retrieval_confidence)]
    rows = [
        (f.name, f.holders, f.half_life_days, f.days_below, f.left, "yes" if f.kept else "no") for f in report.faded
    ]
    names = ("truth", "golems", "half-life, days", "below after, days", "left after two half-lives", "faded in time")
    return lines("Mean confidence of expired truths", "days since the turn", curves, marks) + table(names, rows)


def _asked(report: Report) -> str:
    asked = report.asked
    if not asked.number:
        return "No golem holds a correct entry to ask for."
    return (
        f"{asked.number:,} questions about correct entries, in different words than the entries: the answer "
        f"is among the first {asked.first} for {asked.hit_rate:.0%}; mean reciprocal rank {asked.reciprocal_rank:.2f}."
    )


def _calibration(calibration: Calibration, stated: Calibration) -> str:
    if not calibration.belief_count:
        return "<p>No belief could be compared with a decision of the following day.</p>"
    rows = calibration.bands.to_pylist()
    points = {
        name: [(row["confidence_mean_ppm"] / PPM, row[column] / PPM) for row in rows]
        for name, column in (("beliefs that held", "held_ppm"), ("decisions that agreed", "agreed_ppm"))
    }
    points["perfect calibration"] = [(0.0, 0.0), (1.0, 1.0)]
    curves = [Line(name, line) for name, line in points.items()]
    table_rows = [
        (f"{r['confidence_low_ppm'] / PPM:.1f} to {r['confidence_high_ppm'] / PPM:.1f}", r["belief_count"],
         r["held_ppm"] / PPM, r["outcome_count"], r["agreed_ppm"] / PPM)
        for r in rows
    ]  # fmt: skip
    summary = (
        f"<p>{calibration.belief_count:,} beliefs at the close of a cycle could be compared with decisions of the "
        f"following day. Brier score {(calibration.brier_held_ppm or 0) / PPM:.3f}; of the base rate "
        f"{(calibration.brier_base_ppm or 0) / PPM:.3f}, of the stated confidence "
        f"{(stated.brier_held_ppm or 0) / PPM:.3f} (a coin: 0.250).</p>"
    )
    names = ("confidence", "beliefs", "held", "decisions", "agreed")
    plot = lines("Confidence and accuracy", "confidence", curves)
    by_subject = table(("subject", "beliefs", "foretold", "held", "Brier", "base rate"), subject_rows(calibration))
    return f'{summary}<div class="plots">{plot}</div>{table(names, table_rows)}{by_subject}'


def subject_rows(calibration: Calibration) -> list[tuple[str, int, float, float, float, float]]:
    """Return by subject: beliefs, mean foretold confidence, share that held, Brier scores of both."""
    return [
        (r["subject"], r["belief_count"], r["confidence_mean_ppm"] / PPM, r["held_ppm"] / PPM,
         r["brier_held_ppm"] / PPM, r["brier_base_ppm"] / PPM)
        for r in calibration.subjects.to_pylist()
    ]  # fmt: skip


def _null_market(report: Report) -> str:
    null = report.nothing
    return (
        f"{null.golems} golems lived as long in a market without any truth: they tested {null.tested:,} rules "
        f"and links, held {null.ever:,} of them at some time and hold {null.living:,} now; "
        f"{null.golems_with} golems hold at least one."
    )


def _wrong(last: Look) -> str:
    counted = Counter(
        (row["verdict"], row["subject"], row["truth"] or row["structure"], row["sign"])
        for row in last.verdicts.to_pylist()
        if row["verdict"] not in ("right", "expired")
    )
    listed = sorted(counted.items(), key=lambda item: (-item[1], item[0]))[:30]
    return table(("verdict", "subject", "about", "sign", "golems"), [(*key, count) for key, count in listed])


WIDTH, HEIGHT = 560, 260
LEFT, RIGHT, TOP, BOTTOM = 52, 132, 14, 38
Place = Callable[[float, float], tuple[float, float]]
"""Maps data coordinates to page coordinates."""

COLOURS = ("#1b6ca8", "#c2571a", "#2f8f4e", "#8a4fbf", "#b03060", "#5f6b73")


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
    title: str, across: str, curves: Sequence[Line], marks: Sequence[Mark] = (), top: float = 1.0, bottom: float = 0.0
) -> str:
    """Return a plot of lines; x runs from 0 to the largest x, y from `bottom` to `top`."""
    curves = [line for line in curves if line.points]
    right = max([x for line in curves for x, _ in line.points] + [m.at for m in marks if m.upright] + [1e-9])

    def place(x: float, y: float) -> tuple[float, float]:
        wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return LEFT + wide * x / right, TOP + high * (1.0 - (min(max(y, bottom), top) - bottom) / (top - bottom))

    parts = _frame(across, place, right, (bottom, top))
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


def _frame(across: str, place: Place, right: float, ends: tuple[float, float]) -> list[str]:
    parts = []
    bottom, top = ends
    for step in range(5):
        height = bottom + (top - bottom) * step / 4
        (x1, y), (x2, _) = place(0.0, height), place(right, height)
        parts.append(f'<line class="grid" x1="{x1:.1f}" y1="{y:.1f}" x2="{x2:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="small" text-anchor="end" x="{x1 - 6:.1f}" y="{y + 4:.1f}">{height:.2g}</text>')
        x, base = place(right * step / 4, bottom)
        parts.append(
            f'<text class="small" text-anchor="middle" x="{x:.1f}" y="{base + 16:.1f}">{right * step / 4:.3g}</text>'
        )
    middle = LEFT + (WIDTH - LEFT - RIGHT) / 2
    parts.append(f'<text class="small" text-anchor="middle" x="{middle:.1f}" y="{HEIGHT - 6}">{escape(across)}</text>')
    return parts


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    caption = escape(title)
    return (
        f"<figure><figcaption>{caption}</figcaption>"
        f'<svg role="img" aria-label="{caption}" viewBox="0 0 {WIDTH} {height:.0f}" '
        f'width="{WIDTH}" height="{height:.0f}">{"".join(parts)}</svg></figure>'
    )


def make_output_folder(target: Path) -> Path:
    """Create the output folder before the minutes of work. Raises ConfigError if it is not writable."""
    try:
        target.mkdir(parents=True, exist_ok=True)
        (target / "index.html").touch()
    except OSError as error:
        raise ConfigError(f"--out {target}: {error.strerror}: name a writable folder") from error
    return target


def write_report(target: Path, page: str, report: dict[str, Any], show: Callable[[], None], *, json: bool) -> None:
    """Write index.html and report.json; print the report's JSON, or call `show` and print the page's path."""
    content = orjson.dumps(report, option=orjson.OPT_INDENT_2)
    (target / "index.html").write_text(page, "utf-8")
    (target / "report.json").write_bytes(content)
    if json:
        print_json(report, indent=True)
        return
    show()
    say(f"Page: {target / 'index.html'}")


def print_bounds(bounds: tuple[Bound, ...]) -> None:
    """Print each bound with its measured value and verdict."""
    rows = [(b.name, b.value, f"{b.way} {b.limit:g}", "kept" if b.kept else "MISSED", b.detail) for b in bounds]
    print_table("Bounds", ["bound", "measured", "asked", "verdict", "of what"], rows)


@contextmanager
def report_progress(*, quiet: bool) -> Iterator[OnProgress]:
    """Show one progress bar per stage; on standard error if `quiet`, so that standard output has only JSON."""
    with progress_bar(err if quiet else out) as progress:
        tasks: dict[str, Any] = {}

        def on_progress(stage: str, share: float) -> None:
            if stage not in tasks:
                for task in tasks.values():
                    progress.update(task, completed=1.0)
                tasks[stage] = progress.add_task(stage, total=1.0)
            progress.update(tasks[stage], completed=share)

        yield on_progress
