"""Locate files that belong to the project but are no Python modules: the dbt project and Dagster's code location.

In a checkout they are at its top level. A wheel ships the dbt project inside the package and has no code location.
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
IMPORT_ROOT = PACKAGE.parent
"""The folder from which `bardo_pipeline` is imported: the checkout or site-packages."""

_IN_CHECKOUT, _IN_WHEEL = IMPORT_ROOT / "dbt", PACKAGE / "dbt_project"


def checkout() -> Path | None:
    """Return the checkout that this package runs from, None for an installed wheel."""
    return IMPORT_ROOT if (IMPORT_ROOT / "definitions.py").exists() and _IN_CHECKOUT.is_dir() else None


DBT_PROJECT = _IN_WHEEL if _IN_WHEEL.is_dir() else _IN_CHECKOUT
"""The dbt project that describes the marts."""

COLUMN_TEXTS = PACKAGE / "storage" / "columns.yml"
"""Descriptions of the columns of tables, by `table.column` or `column`."""
