"""The prose of the project: constructions that make a reader stop are counted, and the count only goes down."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
READ = (
    "bardo_pipeline", "assets", "jobs", "sensors", "benchmarks", "examples", "stubs", "tests", "docs",
    "dbt/macros", "dbt/models", "dbt/tests", "deploy", "README.md", "ARCHITECTURE.md", "CHANGELOG.md",
    "CONTRIBUTING.md", "SECURITY.md",
)  # fmt: skip

SUFFIXES = {".py", ".pyi", ".ipynb", ".md", ".yml", ".yaml", ".sql", ".rs"}

PLACES_MAX = 2
"""Places today: texts that are sent to a model, and false alarms. Never raise it."""

LINES_MAX = 98_303
"""Source lines of the package, assets, jobs and sensors. Lower it after each clean-up; never raise it."""

MODULES_MAX = 20
"""Modules in one folder of the package."""

SHARED_STEMS = {"__init__", "catalogue", "schema", "model"}
"""File stems that several sub-packages may use, because the sub-package gives them their meaning."""

RIDDLES = [
    r"(?:^|[.:;] |\n\s*)"
    r"(?:Who|Whoever|Whose|What|Whatever|Of what|Of whom|Of a|Of an|Where nothing|Nobody)\b(?![^.?]*\?)",
    r"(?i)\b(?:he|she|him|her|nobody|somebody|anybody|whoever|everybody)\b",
    r"(?i)\b(?:of what|to what|in what|by what|from what|than what|for what) (?:is|was|came|they|it|others)\b",
    r"(?i)\bas (?:it|they) (?:was|were|lay|stood|lies?|stands?)\b",
    r"(?i)\b(?:lies? where|lay where|puts? in (?:its|the) place|is none of|there is none|that there is|are none"
    r"|comes? of it|came of it|to come|beside it)\b",
    r"(?i)\b(?:told|tells|tell|said|says|say) (?:of|by|what|that|whose|when|where)\b",
]
"""Sentences without a named subject, persons where a component is meant, and turns of phrase where a verb would do."""


def passages(path: Path) -> Iterator[str]:
    """Yield docstrings and comments of modules, lines of Markdown, texts of notebooks, descriptions of YAML, comments
    of SQL and Rust.
    """
    text = path.read_text()
    if path.suffix == ".md":
        yield from (line for line in text.splitlines() if not line.startswith(("```", "    ", "|", "$")))
    elif path.suffix == ".ipynb":
        yield from ("".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown")
    elif path.suffix in {".yml", ".yaml"}:
        yield from descriptions(yaml.safe_load(text))
        yield from (line for line in text.splitlines() if line.lstrip().startswith("#"))
    elif path.suffix in {".sql", ".rs"}:
        yield from (match.strip() for match in re.findall(r"(?:--|//[/!]?|\{#)(.*?)(?:#\}|\n)", text))
    else:
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, documented))
        yield from filter(None, map(ast.get_docstring, nodes))
        yield from re.findall(r"(?m)(?:^|\s\s)\s*# ?(\S.*)$", text)


def descriptions(node: object) -> Iterator[str]:
    """Yield every description of a YAML document."""
    if isinstance(node, list):
        for item in node:
            yield from descriptions(item)
    elif isinstance(node, dict):
        for name, value in node.items():
            yield from (value,) if name == "description" else descriptions(value)


def files() -> Iterator[Path]:
    """Yield every file whose prose counts."""
    for name in READ:
        root = ROOT / name
        rows = [root] if root.is_file() else sorted(root.rglob("*"))
        yield from (path for path in rows if path.suffix in SUFFIXES)


def riddles_in(text: str) -> bool:
    return any(re.search(pattern, text) for pattern in RIDDLES)


def test_the_patterns_match_known_examples() -> None:
    assert riddles_in("Who comes second finds it done.")
    assert riddles_in("The writer that nobody waits for.")
    assert not riddles_in("The writer retries the commit.")


def test_matches_of_the_patterns_do_not_increase() -> None:
    places = [
        f"{path.relative_to(ROOT)}: {text[:80]!r}" for path in files() for text in passages(path) if riddles_in(text)
    ]
    assert len(places) <= PLACES_MAX, "\n".join(places[-20:])


def test_source_lines_do_not_increase() -> None:
    sources = (path for name in ("bardo_pipeline", "assets", "jobs", "sensors") for path in (ROOT / name).rglob("*.py"))
    assert sum(path.read_text().count("\n") for path in sources) <= LINES_MAX


def test_folders_are_small_and_file_stems_are_unique() -> None:
    modules = list((ROOT / "bardo_pipeline").rglob("*.py"))
    sizes = Counter(path.parent for path in [*modules, *(ROOT / "tests").rglob("*.py")])
    assert [folder for folder, count in sizes.items() if count > MODULES_MAX] == []
    stems = Counter(path.stem for path in modules)
    assert [stem for stem, count in stems.items() if count > 1 and stem not in SHARED_STEMS] == []
