"""A database of one owner's rows of the warehouse, in memory, for the time of one query.

The warehouse is detached before the query runs, and no file can be opened after that, so SQL reaches no other row.
Source: X-12; ADR 0065.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import duckdb

from bardo_pipeline.errors import QueryError
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.warehouse.build import answer, attach, marts_of

SHARED = "fct_consensus"
"""The only mart without owners: anonymous, and limited to the propositions that the owner may see."""


def query_of_owner(
    home: Home, owner: str, propositions: Collection[str], sql: str, limit: int | None = None
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Run SQL on the owner's rows of the marts. Returns column names and rows, as `query` does.

    Parameters
    ----------
    propositions : ids of the propositions whose consensus the owner may see

    Raises
    ------
    QueryError : there is no warehouse, an older version built it, or DuckDB rejects the SQL
    """
    with duckdb.connect(":memory:") as connection:
        attach(connection, home)
        for mart in marts_of(connection):
            column, values = ("proposition_id", list(propositions)) if mart == SHARED else ("owner_id", [owner])
            try:
                connection.execute(
                    f'create table "{mart}" as from warehouse."{mart}" where list_contains($values, "{column}")',
                    {"values": values},
                )
            except duckdb.BinderException as error:
                raise QueryError(
                    f"mart {mart} does not name the owners of its rows: `bardo derive` builds the warehouse again"
                ) from error
        connection.execute("detach warehouse")
        for setting in ("temp_directory = ''", "enable_external_access = false", "python_enable_replacements = false"):
            connection.execute(f"set {setting}")
        connection.execute("set lock_configuration = true")
        return answer(connection, sql, limit)
