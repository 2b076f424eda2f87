"""In place: what of a table's rows is not as it was, and rows exchanged where they lie. Pure, column by column.

Tables that are renewed every cycle stay as they were in most rows. To compare a column costs a tenth of digesting it,
and one that is the same need not be made again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bardo_pipeline.arrays import BoolArray
from bardo_pipeline.events.record.arrow_columns import one, present
from bardo_pipeline.grimoire.entry_columns import to_bools
from bardo_pipeline.grimoire.integer_joins import Pairs, matched, places


def chosen(rows: pa.Table, column: str, words: pa.Array) -> pa.Table:
    """The rows that have one of these words in a column; the same table where all have."""
    found = pc.is_in(rows[column], value_set=words)
    return rows if pc.all(found, min_count=0).as_py() else rows.filter(found)


class Differing(NamedTuple):
    """Which rows of a table are not as they were, and which of those that take their place are new. bool [rows] each"""

    gone: BoolArray
    come: BoolArray


def differing(held: pa.Table, rows: pa.Table, key: Sequence[str]) -> Differing | None:
    """What tells rows from those that are held (of the same columns), each found by its key, columns of text.

    None where what has the same key differs in a column of lists or structs, or a key stands there more than once.
    """
    if held.num_rows == rows.num_rows and all(one(held[k]).equals(one(rows[k])) for k in key):
        apart = _apart(held, rows)
        return None if apart is None else Differing(apart, apart)
    place = one(pc.index_in(_joined(rows, key), value_set=_joined(held, key)))
    known = pc.is_valid(place)
    apart = _apart(held.take(place.drop_null()), rows.filter(known))
    if apart is None:
        return None
    come = ~to_bools(known)
    come[np.flatnonzero(~come)[apart]] = True
    gone = np.ones(held.num_rows, bool)
    gone[place.drop_null().to_numpy()[~apart]] = False
    return None if np.count_nonzero(~gone) != np.count_nonzero(~come) else Differing(gone, come)


def _joined(rows: pa.Table, key: Sequence[str]) -> pa.Array:
    return one(pc.binary_join_element_wise(*(rows[name] for name in key), "\x1f"))


def _apart(rows: pa.Table, others: pa.Table) -> BoolArray | None:
    """Which rows are not as those in their places; None where a column of lists or structs differs. bool [rows]"""
    apart = np.zeros(rows.num_rows, bool)
    for name in rows.column_names:
        mine, theirs = one(rows[name]), one(others[name])
        if mine.equals(theirs):
            continue
        if pa.types.is_nested(mine.type):
            return None
        here, there = present(mine), present(theirs)
        apart |= (here != there) | (here & to_bools(pc.fill_null(pc.not_equal(mine, theirs), False)))
    return apart


class Amended(NamedTuple):
    """The rows that others took the place of, and all rows as they are then."""

    gone: pa.Table
    rows: pa.Table


def amended(held: pa.Table, rows: pa.Table, by: Sequence[str]) -> Amended:
    """Rows (of the same columns) put in place of those held ones that are like them in some columns (by).

    Where each is like one, it lies where that one lay, and columns that do not change are those of the held rows; else
    what is put comes after what is left.
    """
    pairs = _alike(held, rows, by)
    if len(pairs.left) == rows.num_rows == len(np.unique(pairs.left)) == len(np.unique(pairs.right)):
        gone = held.take(pa.array(pairs.left))
        ordered = rows if (np.diff(pairs.right) > 0).all() else rows.take(pa.array(pairs.right))
        return Amended(gone, _exchanged(held, pairs.left, gone, ordered))
    like = np.zeros(held.num_rows, bool)
    like[pairs.left] = True
    return Amended(held.filter(pa.array(like)), pa.concat_tables([held.filter(pa.array(~like)), rows]))


def _alike(rows: pa.Table, others: pa.Table, by: Sequence[str]) -> Pairs:
    """The pairs of rows that are the same in these columns."""
    words = {name: pc.unique(others[name]) for name in by}
    return matched(*([places(table[name], words[name]) for name in by] for table in (rows, others)))


def _exchanged(held: pa.Table, at: NDArray[np.intp], gone: pa.Table, rows: pa.Table) -> pa.Table:
    """The held rows with these in the places (at) of those that are gone."""
    order = np.arange(held.num_rows)
    order[at] = held.num_rows + np.arange(len(at))
    place = pa.array(order)
    columns = []
    for name in held.column_names:
        before, after = one(gone[name]), one(rows[name])
        kept = one(held[name])
        columns.append(kept if before.equals(after) else pa.concat_arrays([kept, after]).take(place))
    return pa.table(columns, schema=held.schema)
