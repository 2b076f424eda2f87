"""Owners' overrides, handmade and drawn, and golems whose owners record overrides during their lives."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.events.life.override_events import OVERRIDES, Order
from bardo_pipeline.heartbeat.fleet import Founding
from bardo_pipeline.runtime import fleet_run
from tests.support.fleets.memory_fleets import lively_market
from tests.support.records.handmade_records import START

FOUNDING = Founding(owners=("owner-1",), credit_share=0.03, lifespan_ticks=(320, 420))
RUN = fleet_run.Run("run", lively_market(460, 11), 2, 2, FOUNDING)
"""Two golems and their heirs; the first golem knows four facts from its sixth cycle on and dies in its eighth."""


class Interrupted(Exception):
    """A run that goes on later."""


def live_until(stores: DerivationContext, tick: int | None, at: datetime) -> None:
    """Run up to a tick, or to the end; ticks already recorded are computed again with the same result."""

    def stop(progress: fleet_run.Progress) -> None:
        if progress.ticks_done == tick:
            raise Interrupted

    with suppress(Interrupted):
        fleet_run.FleetRun(stores, RUN, lambda: at).live(stop)
    stores.log.close()


PLAIN: dict[str, Any] = {"why": "I was there", "cycle_seen": 0, "at": START}


def order(golem_id: str, number: int, kind: str, entry_id: str, tick_seen: int, **fields: Any) -> Order:
    """Return one override of an owner; `fields` changes any field."""
    return Order(
        golem_id, number, f"{golem_id}-{number}", kind, entry_id=entry_id, tick_seen=tick_seen, **PLAIN | fields
    )


corrections = st.fixed_dictionaries(
    {
        "confidence": st.none() | st.sampled_from((0.0, 0.04, 0.3, 0.62, 0.97, 1.0)),
        "verdict": st.sampled_from((None, "pays", "harms", "anti_knowledge")),
        "decay_class": st.sampled_from((None, "structural", "regime_conditional", "tactical", "ephemeral")),
    }
)
"""Fields of a correction, and unused combinations that have no effect."""


@st.composite
def orders(draw: st.DrawFn, entries: Sequence[tuple[str, str]], cycles: int, span: int) -> list[Order]:
    """Draw overrides of some of these entries (golem, entry id), each in one of the first cycles."""
    out: list[Order] = []
    seen = 0
    for number in range(1, draw(st.integers(1, 8)) + 1):
        seen = draw(st.integers(seen, max(seen, span * cycles)))
        golem_id, entry_id = draw(st.sampled_from(entries))
        kind = draw(st.sampled_from(list(OVERRIDES)))
        drawn = draw(corrections) if kind == "EntryCorrected" else {}
        at: datetime = START + timedelta(minutes=draw(st.integers(0, 3_000)))
        out.append(order(golem_id, number, kind, entry_id, seen, at=at, **drawn))
    return out
