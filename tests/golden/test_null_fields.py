"""Fields of a record that never vary, with reasons: null_fields.json lists them, ADR 3 names them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.support.fleets.shared_fleets import crowd, heirs

HERE = Path(__file__).parent
LIST = json.loads((HERE / "null_fields.json").read_text())
DECISION = HERE.parents[1] / "docs" / "adr" / "0003-fields-of-a-record-beyond-the-source-document.md"

pytestmark = pytest.mark.row("HB-1")


def leaves(name: str, values: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    """Yield every leaf column below a column, without values below a null."""
    if pa.types.is_struct(values.type):
        present = values.drop_null()
        for i, child in enumerate(values.type):
            yield from leaves(f"{name}.{child.name}", present.field(i))
    elif pa.types.is_list(values.type):
        yield from leaves(f"{name}[]", values.flatten())
    else:
        yield name, values


def constant_fields(records: pa.Table) -> set[str]:
    """Leaf columns in which fewer than two values are found, or the whole column where it is null."""
    keys = set()
    for name in records.column_names:
        if records[name].null_count == len(records):
            keys.add(name)
            continue
        for leaf, values in leaves(name, records[name].combine_chunks()):
            if pc.count_distinct(values, mode="only_valid").as_py() < 2:
                keys.add(leaf)
    return keys


def test_every_field_outside_the_list_varies() -> None:
    constant = constant_fields(heirs().records) & constant_fields(crowd().records)
    assert constant == {*LIST["constant_by_nature"], *LIST["null_in_this_slice"]}


def test_fields_that_are_not_computed_are_null() -> None:
    for row in (*heirs().rows, *crowd().rows):
        for path in LIST["null_in_this_slice"]:
            values = [row]
            for name in path.split("."):
                values = [v.get(name.removesuffix("[]")) for v in values if v is not None]
                values = [v for group in values for v in group] if name.endswith("[]") else values
            assert set(values) <= {None}


def test_every_probe_with_a_source_varies_and_every_other_probe_is_absent() -> None:
    collected: dict[str, set[tuple[str | None, float | None]]] = {}
    for row in heirs().rows:
        for result in row["probe_results"]:
            collected.setdefault(result["probe"], set()).add((result["severity"], result["value"]))
    absent = {probe for probe, values in collected.items() if values == {(None, None)}}
    assert absent == set(LIST["absent_probes"])
    for probe, values in collected.items():
        assert probe in absent or len(values) > 1, probe


def test_adr_3_names_every_null_field() -> None:
    text = DECISION.read_text()
    consequences = text[text.index("Some fields are null") :].split("\n\n")[0]
    for path in (*LIST["null_in_this_slice"], *LIST["absent_probes"]):
        assert path.rsplit(".", 1)[-1] in consequences, path
