"""Shared by the `bardo eval` commands: output folder, report files, progress, table of bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from typer import echo

from bardo_pipeline.cli.output.tables import out, print_table, progress_bar, say
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.quality.memory_targets import Bound
from bardo_pipeline.runtime.memory_evaluation import Tell


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
        echo(content.decode())
        return
    show()
    say(f"Page: {target / 'index.html'}")


def print_bounds(bounds: tuple[Bound, ...]) -> None:
    """Print each bound with its measured value and verdict."""
    rows = [(b.name, b.value, f"{b.way} {b.limit:g}", "kept" if b.kept else "MISSED", b.detail) for b in bounds]
    print_table("Bounds", ["bound", "measured", "asked", "verdict", "of what"], rows)


@contextmanager
def report_progress(*, quiet: bool) -> Iterator[Tell]:
    """Show one progress bar per stage; on standard error if `quiet`, so that standard output has only JSON."""
    with progress_bar(Console(stderr=True) if quiet else out) as progress:
        tasks: dict[str, Any] = {}

        def tell(stage: str, share: float) -> None:
            if stage not in tasks:
                for task in tasks.values():
                    progress.update(task, completed=1.0)
                tasks[stage] = progress.add_task(stage, total=1.0)
            progress.update(tasks[stage], completed=share)

        yield tell
