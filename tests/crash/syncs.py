"""Source lines that sync, and whether each is needed: without it an acknowledged record is lost."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson

from tests.crash.outage import Life, Workload, failing

NEEDED = Path(__file__).parents[1] / "golden" / "fsyncs.json"
"""Every syncing line with a workload, cut and mode in which its absence loses a record."""


def lines_of(lives: Sequence[tuple[Workload, Life]]) -> dict[str, str]:
    """Return the syncing places of these workloads as source text, independent of line numbers; a repeat has a
    number.
    """
    sites = {site for _, life in lives for site in life.disk.sites()}
    collected: dict[str, str] = {}
    for site in sorted(sites, key=lambda site: [int(part) if part.isdigit() else part for part in site.split(":")]):
        line = re.sub(r"\.py:\d+: ", ".py: ", site.removeprefix("bardo_pipeline/storage/"))
        again = sum(each.startswith(line) for each in collected.values())
        collected[site] = f"{line} ({again + 1})" if again else line
    return collected


def unneeded(lives: Sequence[tuple[Workload, Life]], lines: Mapping[str, str], *, write: bool = False) -> list[str]:
    """Return the syncing lines whose absence loses no record. write: store the evidence for each line in the golden
    file.
    """
    hints = orjson.loads(NEEDED.read_bytes())
    by_key = {line: failing(lives, site, hints.get(line, ())) for site, line in lines.items()}
    if write:
        shown = {line: failure[:3] for line, failure in by_key.items() if failure is not None}
        NEEDED.write_bytes(orjson.dumps(shown, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    return [line for line, failure in by_key.items() if failure is None]
