"""Row digests of nested columns."""

from __future__ import annotations

import pyarrow as pa

from bardo_pipeline.events.record.row_digest import row_digests

MAP = pa.map_(pa.string(), pa.string())
PAIRS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.string())]))


def test_a_map_has_the_digest_of_its_list_of_pairs() -> None:
    maps = [[("a", "1"), ("b", "2")], [], None, [("a", "1"), ("b", "3")], [("b", "2"), ("a", "1")]]
    lists = [None if pairs is None else [{"key": k, "value": v} for k, v in pairs] for pairs in maps]
    digests = row_digests(pa.table({"situation": pa.array(maps, MAP)}))
    assert digests.tolist() == row_digests(pa.table({"situation": pa.array(lists, PAIRS)})).tolist()
    assert len({tuple(digest) for digest in digests.tolist()}) == len(maps)
    parts = pa.chunked_array([pa.array(maps, MAP)[:2], pa.array(maps, MAP)[2:]])
    assert row_digests(pa.table({"situation": parts})).tolist() == digests.tolist()
