"""The dbt docs as one page that needs no other file: descriptions, columns, tests and lineage of all marts.

dbt's own page reads two JSON files. Here both are inside it, so a browser opens it from a disk or a server. The
columns are read from the warehouse, which saves a second run of dbt. Source: P-4; ADR 0087.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from io import SEEK_END
from pathlib import Path
from typing import Any

import duckdb
import orjson

from bardo_pipeline.errors import ConfigError
from bardo_pipeline.storage.home import Home

_INLINE = {"manifest": '"MANIFEST.JSON INLINE DATA"', "catalog": '"CATALOG.JSON INLINE DATA"'}
"""Document -> its place in dbt's page."""

_WRONG_ICON = re.compile(r"<link rel=\"shortcut icon\" href=\"\$\{[^>]*>")
_EARLY_IMAGE = re.compile(r"(?<!ng-attr-)xlink:href=(?=\\?[\"']\{\{ *getIcon)")
"""Images whose name dbt's script fills in: without `ng-attr` a browser asks for the unfilled name first."""


def docs_page(home: Home) -> Path:
    """Return the path of the dbt docs of a home; `build_warehouse` writes the page."""
    return home.root / "dbt_docs.html"


def is_page_of(page: Path, version: str) -> bool:
    """Whether the page exists and describes this version of the project, so that a build need not write it again."""
    if not page.exists():
        return False
    mark = _mark(version)
    with page.open("rb") as file:
        file.seek(-min(len(mark), page.stat().st_size), SEEK_END)
        return file.read() == mark


def _mark(version: str) -> bytes:
    return f"\n<!-- {version} -->\n".encode()


def write_docs(manifest: Path, connection: duckdb.DuckDBPyConnection, target: Path, version: str) -> None:
    """Write the page of a built project, which ends with the version of the project.

    Parameters
    ----------
    manifest : manifest.json of the build
    connection : the built warehouse
    target : file to write
    version : hash of the project's files
    """
    described = orjson.loads(manifest.read_bytes())
    page = _WRONG_ICON.sub("", _template().read_text(encoding="utf-8"))
    page = _EARLY_IMAGE.sub("ng-attr-xlink:href=", page)
    for name, document in (("manifest", described), ("catalog", catalogue(described, connection))):
        assert _INLINE[name] in page, f"dbt's page has no place for its {name}"
        page = page.replace(_INLINE[name], orjson.dumps(document).decode().replace("</", "<\\/"))
    target.write_bytes(page.encode() + _mark(version))


def catalogue(manifest: dict[str, Any], connection: duckdb.DuckDBPyConnection) -> dict[str, Any]:
    """Return dbt's catalog.json: the columns and types of each model that is a table of the warehouse."""
    columns: dict[str, dict[str, Any]] = {}
    for table, name, kind, index in connection.execute(
        "select table_name, column_name, data_type, column_index from duckdb_columns() where not internal order by all"
    ).fetchall():
        columns.setdefault(table, {})[name] = {"type": kind, "index": index, "name": name, "comment": None}
    nodes = {}
    for unique_id, node in manifest["nodes"].items():
        table = node.get("alias") or node["name"]
        if node["resource_type"] == "model" and table in columns:
            facts = {"type": "BASE TABLE", "schema": node["schema"], "name": table, "database": node["database"],
                     "comment": None, "owner": None}  # fmt: skip
            nodes[unique_id] = {"metadata": facts, "columns": columns[table], "stats": {}, "unique_id": unique_id}
    generated = manifest["metadata"]["generated_at"]
    version = "https://schemas.getdbt.com/dbt/catalog/v1.json"
    return {"metadata": {"dbt_schema_version": version, "generated_at": generated, "env": {}},
            "nodes": nodes, "sources": {}, "errors": None}  # fmt: skip


def _template() -> Path:
    """Return dbt's page. Raises ConfigError if dbt-core is not installed."""
    module = find_spec("dbt.task.docs")
    if module is None or module.origin is None:
        raise ConfigError("the dbt docs need dbt-core: install the project again")
    return Path(module.origin).with_name("index.html")
