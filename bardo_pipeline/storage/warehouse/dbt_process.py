"""Runs of dbt in a process of its own, and the parsed project that they leave behind.

dbt's state is global and it keeps its database open, so no run shares this process. A parsed project is kept in
`target` of the dbt project, if that folder is writable: parsing takes two to three seconds. Source: P-4; ADR 0104.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson

from bardo_pipeline.errors import ConfigError, DerivationError
from bardo_pipeline.project_files import DBT_PROJECT, IMPORT_ROOT, checkout

MANIFEST = "manifest.json"
"""dbt's description of the parsed project, in the folder of a run."""

_COMMAND = "bardo_pipeline.storage.warehouse.dbt_command"
_PARSED = "partial_parse.msgpack"
_OUTPUT_LINES = 12


@dataclass(frozen=True)
class Ran:
    """One ended run of dbt: its exit code, its warnings and errors, and the result of each node that it executed."""

    code: int
    output: str
    results: list[dict[str, Any]]

    @property
    def last_lines(self) -> str:
        """The end of the output."""
        return "\n".join(self.output.strip().splitlines()[-_OUTPUT_LINES:])


def run_dbt(arguments: tuple[str, ...], folder: Path, environment: Mapping[str, str], project: Path) -> Ran:
    """Run dbt with a folder for everything that it writes, and keep the parsed project for the next run.

    Raises ConfigError if dbt or the project is not installed.
    """
    if find_spec("dbt.cli") is None or not (project / "dbt_project.yml").exists():
        raise ConfigError(f"building marts needs dbt-core and {project}: install the project again")
    parsed, report = _kept(project, _PARSED), folder / "report.json"
    is_parsed = parsed.exists()
    if is_parsed:
        shutil.copyfile(parsed, folder / _PARSED)
    report.unlink(missing_ok=True)
    places = ["--project-dir", project, "--profiles-dir", project, "--target-path", folder, "--log-path", folder]
    ran = subprocess.run(
        [sys.executable, "-m", _COMMAND, *map(str, (report, *arguments, *places))],
        env=dict(environment), cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if not is_parsed:
        _keep(folder / _PARSED, parsed)
    told = orjson.loads(report.read_bytes()) if report.exists() else {"says": [], "results": []}
    return Ran(ran.returncode, "\n".join([*told["says"], ran.stdout + ran.stderr]), told["results"])


def project_environment(database: str = "warehouse.duckdb") -> dict[str, str]:
    """Return this process's environment with the variables that dbt/profiles.yml reads.

    database: file name in dbt's working folder. It is the same for all homes, so that dbt reuses its parsed project.
    """
    paths = [str(IMPORT_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("DBT_")}
    return inherited | {
        "BARDO_WAREHOUSE": database,
        "PYTHONPATH": os.pathsep.join(paths),  # makes dbt's process load the plugin of this same code
        "DO_NOT_TRACK": "1",
    }


@cache
def manifest_of(project: Path = DBT_PROJECT) -> dict[str, Any]:
    """Return dbt's manifest of a project. dbt parses the project only if a file of it changed since the last parse.

    Raises DerivationError if dbt cannot parse the project.
    """
    kept = _kept(project, MANIFEST)
    if kept.exists():
        return orjson.loads(kept.read_bytes())
    with tempfile.TemporaryDirectory(prefix="bardo-dbt-") as name:
        folder = Path(name)
        ran = run_dbt(("parse",), folder, project_environment(), project)
        if ran.code:
            raise DerivationError(f"dbt cannot parse {project}:\n{ran.last_lines}")
        keep_manifest(folder, project)
        return orjson.loads((folder / MANIFEST).read_bytes())


def keep_manifest(folder: Path, project: Path) -> None:
    """Keep the manifest that a run left in its folder."""
    if not (kept := _kept(project, MANIFEST)).exists():
        _keep(folder / MANIFEST, kept)


def _kept(project: Path, name: str) -> Path:
    """Return the path of a kept file, named by the content of the project.

    dbt's partial parse of a changed project loses descriptions of data tests, so a changed project is parsed whole.
    """
    return project / "target" / f"{Path(name).stem}-{content_hash(project)}{Path(name).suffix}"


def content_hash(project: Path) -> str:
    """Return a hash of the content of a project's files and of the versions of dbt."""
    content = hashlib.sha256(f"{version('dbt-core')} {version('dbt-duckdb')}".encode())
    for path in sorted(_project_files(project)):
        text = path.read_bytes()
        content.update(f"\n{path.relative_to(project).as_posix()} {len(text)}\n".encode() + text)
    return content.hexdigest()[:16]


def _project_files(project: Path) -> Iterator[Path]:
    yield from project.glob("*.yml")
    for name in ("macros", "models", "tests"):
        yield from (path for path in (project / name).rglob("*") if path.is_file())


def _keep(made: Path, kept: Path) -> None:
    """Copy a file of a run into the project, if it is a writable checkout, in place of those of earlier states."""
    folder = kept.parent if kept.parent.exists() else kept.parents[1]
    if not (made.exists() and checkout() and os.access(folder, os.W_OK)):
        return
    kept.parent.mkdir(exist_ok=True)
    draft = kept.with_name(f"{kept.name}.{os.getpid()}")
    shutil.copyfile(made, draft)
    draft.replace(kept)
    for earlier in kept.parent.glob(f"{made.stem}*{made.suffix}"):
        if earlier != kept:
            earlier.unlink(missing_ok=True)
