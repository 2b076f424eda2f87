"""Places: how far a reader has come in a table, in a file of its own, with rows that it keeps beside.

A place only saves time: gone, or not to be read, its reader begins anew.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import orjson
import pyarrow as pa

_NAME = "place.json"
_UNREADABLE = (orjson.JSONDecodeError, KeyError, TypeError, pa.ArrowInvalid)
"""What a file gives that a power cut left short: nothing here is synced, since all of it can be made again."""


class Kept(NamedTuple):
    """The version up to which a table was read, and the rows that were kept then."""

    version: int
    rows: pa.Table


def place_of(folder: Path) -> int | None:
    """The version up to which a table was read by the one who keeps this folder."""
    try:
        return int(orjson.loads((folder / _NAME).read_bytes())["version"])
    except (FileNotFoundError, *_UNREADABLE):
        return None


def kept_at(folder: Path, what: str) -> Kept | None:
    """What was kept there under this word."""
    try:
        place = orjson.loads((folder / _NAME).read_bytes())
        with pa.memory_map(str(folder / place[what])) as source, pa.ipc.open_file(source) as file:
            return Kept(int(place["version"]), file.read_all())
    except (FileNotFoundError, *_UNREADABLE):
        return None


def keep_place(folder: Path, version: int, **kept: pa.Table) -> None:
    """Keep the place: rows go into files first, then their names and the version into another, at once."""
    folder.mkdir(parents=True, exist_ok=True)
    names = {what: f"{what}-{version}.arrow" for what in kept}
    for what, rows in kept.items():
        draft = folder / f".{names[what]}"
        with pa.OSFile(str(draft), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as out:
            out.write_table(rows)
        os.replace(draft, folder / names[what])
    draft = folder / f".{_NAME}"
    draft.write_bytes(orjson.dumps({"version": version, **names}))
    os.replace(draft, folder / _NAME)
    for what, name in names.items():
        for old in folder.glob(f"{what}-*.arrow"):
            if old.name != name:
                old.unlink()
