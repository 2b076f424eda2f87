"""Reports of `bardo eval`: output folder, progress, terminal tables, and HTML pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any

import orjson

from bardo_pipeline.cli.output.plots import Line, Mark, bars, lines
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
.plots { display: flex; flex-wrap: wrap; gap: 1rem }
.plots svg { max-width: 100%; height: auto }
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
