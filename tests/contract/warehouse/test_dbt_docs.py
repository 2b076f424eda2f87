"""The page of the dbt docs holds the manifest and the columns of the warehouse."""

from __future__ import annotations

from pathlib import Path

import duckdb
import orjson
import pytest

from bardo_pipeline.storage.warehouse.dbt_docs import catalogue, is_page_of, write_docs

MANIFEST = {
    "metadata": {"generated_at": "2026-03-01T00:00:00Z"},
    "nodes": {
        f"model.bardo.{name}": {"resource_type": "model", "name": name, "schema": "main", "database": "warehouse",
                                "description": "ends </script> early"}
        for name in ("fct_deaths", "stg_deaths")
    },
}  # fmt: skip


@pytest.mark.row("P-4")
def test_the_page_of_the_dbt_docs_needs_no_other_file(tmp_path: Path) -> None:
    with duckdb.connect() as connection:
        connection.execute("create table fct_deaths (golem_id text, tick bigint)")
        nodes = catalogue(MANIFEST, connection)["nodes"]
        assert list(nodes) == ["model.bardo.fct_deaths"], "a model without a table has no columns"
        columns = nodes["model.bardo.fct_deaths"]["columns"]
        assert {name: column["type"] for name, column in columns.items()} == {"golem_id": "VARCHAR", "tick": "BIGINT"}
        (tmp_path / "manifest.json").write_bytes(orjson.dumps(MANIFEST))
        write_docs(tmp_path / "manifest.json", connection, tmp_path / "page.html", "version-1")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "INLINE DATA" not in page.split("fct_deaths", 1)[1].split("</script>", 1)[0]
    assert "ends <\\/script> early" in page
    assert "ends </script> early" not in page
    assert is_page_of(tmp_path / "page.html", "version-1")
    assert not is_page_of(tmp_path / "page.html", "version-2"), "a changed project is described again"
    (tmp_path / "page.html").write_bytes(b"<")
    assert not is_page_of(tmp_path / "page.html", "version-1"), "an interrupted write is described again"
    assert not is_page_of(tmp_path / "none.html", "version-1")
