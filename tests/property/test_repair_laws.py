"""The laws under repair: what is struck, reorged or withdrawn counts as never having been, whenever it is said.

However strikes and records arrive, the projections are those of the log read at once (3, 4); a repair costs what the
golem lived since, not what the fleet did (5); no row that stands names what is struck (6).
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from bardo_pipeline.events.life import Reorg, Struck, life_event
from tests.property.test_laws import (
    BIRTH,
    DEATH,
    DERIVATIONS,
    Parcel,
    at_once,
    deliver,
    derive_all,
    fingerprints,
    happened,
    parcels,
    part,
    stores_at,
)
from tests.streams import START


def struck(golem_id: str, tick: int, why: str = "its sensor lied") -> Parcel:
    return happened(life_event(golem_id, START, Struck(tick=tick, why=why)))


def reorged(golem_id: str, first: int, last: int) -> Parcel:
    payload = Reorg(chain="polygon", block_from=first, block_to=last, tick_from=first, tick_to=last)
    return happened(life_event(golem_id, START, payload))


@st.composite
def repaired_parcels(draw: st.DrawFn) -> list[Parcel]:
    """Records and life events, among them strikes and reorgs, in an order in which they might arrive."""
    arriving = draw(parcels())
    golems = sorted({p.happened.golem_id for p in arriving if p.happened is not None})
    for golem_id in draw(st.lists(st.sampled_from(golems), min_size=1, max_size=4)):
        first = draw(st.integers(1, 24))
        if draw(st.booleans()):
            said = struck(golem_id, first, draw(st.sampled_from(("a lie", "a slip"))))
        else:
            said = reorged(golem_id, first, first + draw(st.integers(0, 9)))
        arriving.insert(draw(st.integers(0, len(arriving))), said)
    return arriving


@pytest.mark.row("X-4", "EV-8", "X-1")
@settings(
    max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
)
@given(repaired_parcels(), st.data())
def test_whenever_records_are_struck_the_projections_are_as_if_they_had_never_been(
    arriving: list[Parcel], data: st.DataObject
) -> None:
    with TemporaryDirectory() as folder:
        stores = stores_at(Path(folder) / "late")
        for number, parcel in enumerate(arriving):
            deliver(stores, parcel, number)
            for derive in DERIVATIONS:
                if data.draw(st.integers(0, 2)) == 0:
                    derive(stores)
        derive_all(stores)
        wanted = at_once(arriving, Path(folder) / "orderly")
        for name, (rows, _) in wanted.items():
            taken = stores.projections.growing(name).taken_back().num_rows if name not in RENEWED else 0
            event(f"{name}: {'some' if rows else 'no'} rows, {'some' if taken else 'none'} taken back")
        assert fingerprints(stores) == wanted


RENEWED = ("grimoire", "facts", "consensus")

LATE = {
    "a record that taught something": [BIRTH, part(1, 14), DEATH, struck("g-0", 10)],
    "the first record": [BIRTH, part(1, 14), DEATH, struck("g-0", 1)],
    "the last record, of the cycle that death closed": [BIRTH, part(1, 14), DEATH, struck("g-0", 14)],
    "a record of the open cycle": [BIRTH, part(1, 6), struck("g-0", 6), part(7, 14), DEATH],
    "a record that is yet to come": [BIRTH, part(1, 6), struck("g-0", 9), part(7, 14), DEATH],
    "the same record twice": [BIRTH, part(1, 14), struck("g-0", 5), struck("g-0", 5, "again"), DEATH],
    "two records, the later one first": [BIRTH, part(1, 14), struck("g-0", 11), struck("g-0", 3), DEATH],
    "a reorg over whole cycles": [BIRTH, part(1, 14), DEATH, reorged("g-0", 3, 12)],
    "all that it lived": [BIRTH, part(1, 14), DEATH, reorged("g-0", 1, 14)],
    "a reorg and a strike within it": [BIRTH, part(1, 14), reorged("g-0", 5, 8), DEATH, struck("g-0", 6)],
}


@pytest.mark.row("X-4", "EV-8")
@pytest.mark.parametrize("arriving", LATE.values(), ids=LATE.keys())
def test_what_is_struck_late_leaves_what_it_would_have_left_struck_at_once(
    arriving: list[Parcel], tmp_path: Path
) -> None:
    stores = stores_at(tmp_path / "late")
    for number, parcel in enumerate(arriving):
        deliver(stores, parcel, number)
        derive_all(stores)
    assert fingerprints(stores) == at_once(arriving, tmp_path / "orderly")
