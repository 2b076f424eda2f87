"""Evaluation: what every `bardo eval` command needs: a folder for its page, progress, bounds as a table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from bardo_pipeline.cli.output.tables import print_table
from bardo_pipeline.errors import ConfigError
from bardo_pipeline.quality.memory_targets import Bound
from bardo_pipeline.runtime.memory_evaluation import Tell

out = Console(soft_wrap=False)


def room_for(target: Path) -> Path:
    """The folder of a page, made before the minutes of work are begun. Raises ConfigError where it cannot be."""
    try:
        target.mkdir(parents=True, exist_ok=True)
        (target / "index.html").touch()
    except OSError as error:
        raise ConfigError(f"--out {target}: {error.strerror}: name a folder that can be written to") from error
    return target


def keep(target: Path, page: str, report: dict[str, Any]) -> str:
    """Write page and report; returns the report's JSON."""
    said = orjson.dumps(report, option=orjson.OPT_INDENT_2)
    (target / "index.html").write_text(page, "utf-8")
    (target / "report.json").write_bytes(said)
    return said.decode()


def print_bounds(found: tuple[Bound, ...]) -> None:
    """Each bound with what was measured and the verdict."""
    rows = [(b.name, b.value, f"{b.way} {b.limit:g}", "kept" if b.kept else "MISSED", b.said) for b in found]
    print_table(out, "Bounds", ["bound", "measured", "asked", "verdict", "of what"], rows)


@contextmanager
def told(*, quiet: bool) -> Iterator[Tell]:
    """Progress on the terminal, one bar a stage; quiet: on standard error, so that JSON stays alone."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True) if quiet else out
    with Progress(*columns, console=console, transient=True) as progress:
        tasks: dict[str, Any] = {}

        def tell(stage: str, share: float) -> None:
            if stage not in tasks:
                for task in tasks.values():
                    progress.update(task, completed=1.0)
                tasks[stage] = progress.add_task(stage, total=1.0)
            progress.update(tasks[stage], completed=share)

        yield tell
