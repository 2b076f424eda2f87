"""The curator's output for one fixed stream, stored as text and compared byte for byte.

To accept an intended change: BARDO_GOLDEN=write pytest tests/golden, then review the difference.
"""

import os
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from pathlib import Path

import pytest

from bardo_pipeline.curator.curate import Curation, curate
from bardo_pipeline.curator.playbook import Playbooks
from bardo_pipeline.curator.state.grimoire_state import GrimoireState
from tests.support.records.handmade_records import (
    BAD,
    FOG,
    GOOD,
    KEEN,
    LULL,
    MILD,
    RALLY,
    SILENCE,
    STORIES,
    STORM,
    Life,
    cycles_of,
    stream,
)

HERE = Path(__file__).parent
STREAM = (
    Life("g-wise", {STORM: STORIES[0], LULL: STORIES[1], RALLY: (BAD, BAD)}, (3, 1, 4), timedelta(minutes=3), 16),
    Life("g-torn", {STORM: STORIES[3], FOG: STORIES[4]}, (2,), timedelta(hours=2), 27),
    Life("g-old", {LULL: (GOOD, GOOD, *[SILENCE] * 5, GOOD), FOG: (MILD, MILD)}, (3, 0, 0), timedelta(days=3), 32),
)
"""Three golems: one learns when to act and when not, one learns the opposite, one forgets."""


@cache
def made() -> Curation:
    records, policy = stream(STREAM), KEEN
    return curate(GrimoireState(), Playbooks(), records, cycles_of(records), policy=policy, policy_hash="by hand")


def decisions() -> str:
    """Return each decision: golem, cycle, operation, entry, confidence before and after, evidence and text."""
    lines = []
    for row in made().decisions.to_pylist():
        interval = f"{row['effect_mean_ppm']} [{row['effect_low_ppm']}, {row['effect_high_ppm']}]"
        mood = "/".join(str(row[f"{n}_sum_milli"]) for n in ("pleasure", "arousal", "dominance"))
        lines += [
            f"{row['golem_id']} {row['cycle']}.{row['seq']} {row['operation']} {row['entry_id']} {row['status']} "
            f"{row['kind']}{' anti' * row['is_anti_knowledge']} {row['confidence_before_ppm']} -> "
            f"{row['confidence_ppm']}, n={row['own_count']}, {interval}, mood {mood}, ticks {row['cause_ticks']}",
            f"    {row['text']}",
            f"    {row['reason']}",
        ]
    return "\n".join(lines) + "\n"


def playbooks() -> str:
    """Every version of every golem's PLAYBOOK.md, one after the other."""
    return "\n".join(f"<!-- cycle {row['cycle']} -->\n{row['markdown']}" for row in made().playbooks.to_pylist())


@pytest.mark.row("MEM-6", "MEM-7")
@pytest.mark.parametrize(("name", "text"), [("decisions.txt", decisions), ("playbooks.md", playbooks)])
def test_the_output_of_the_curator_equals_the_golden_file(name: str, text: Callable[[], str]) -> None:
    kept = HERE / name
    if os.environ.get("BARDO_GOLDEN") == "write":
        kept.write_text(text(), encoding="utf-8")
    assert text() == kept.read_text(encoding="utf-8")


def test_the_golden_stream_covers_every_operation() -> None:
    keys = set(made().decisions["operation"].to_pylist())
    assert keys == {"staged", "created", "reinforced", "contradicted", "promoted", "pruned"}
    assert len(made().playbooks) > 4
