"""The list of environment variables in the guide names those that the code reads."""

import re
from pathlib import Path

from bardo_pipeline.process_settings import ProcessSettings

ROOT = Path(__file__).resolve().parents[3]
_NAME = re.compile(r"\bBARDO_[A-Z_]+[A-Z]\b")


def test_the_guide_lists_the_environment_variables_that_the_code_reads() -> None:
    folders = ("bardo_pipeline", "assets", "jobs", "sensors", "dbt")
    sources = [p for name in folders for p in (ROOT / name).rglob("*") if p.suffix in {".py", ".yml", ".sql"}]
    read = {name for path in [*sources, ROOT / "definitions.py"] for name in _NAME.findall(path.read_text())}
    read |= {f"BARDO_{name.upper()}" for settings in ProcessSettings.__subclasses__() for name in settings.model_fields}
    page = (ROOT / "docs" / "guide" / "operators.md").read_text()
    table = page.split("## Environment variables")[1].split("\n## ")[0]
    listed = {
        name for line in table.splitlines() if line.startswith("| `") for name in _NAME.findall(line.split("|")[1])
    }
    assert listed == read
