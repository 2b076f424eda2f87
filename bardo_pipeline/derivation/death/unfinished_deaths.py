"""Recorded deaths that are not completed, each with the reason and the cure.

Source: MEM ("No golem dies silent"), INH-2.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.incremental.retraction_tracking import RetractionCursor
from bardo_pipeline.derivation.legacy.death_queries import deaths_of
from bardo_pipeline.storage.log.stream_heads import TickRange, without_spans

_READY = "`bardo derive` completes it"


class UnfinishedDeath(NamedTuple):
    """A recorded death without its last phase. why: the reason and the cure, in words."""

    golem_id: str
    tick: int
    why: str

    @property
    def is_ready(self) -> bool:
        """Whether the records of the life are complete, so that a derivation completes the death."""
        return self.why == _READY


def unfinished_deaths(context: DerivationContext, golems: Collection[str] | None = None) -> list[UnfinishedDeath]:
    """Return the deaths that lack their last phase, of all or these golems, by golem."""
    completed = set(context.life("LegacyLeft", golems)["golem_id"].to_pylist())
    born = set(context.life("GolemBorn", golems)["golem_id"].to_pylist())
    waiting = {g: died.tick for g, (died, _) in sorted(deaths_of(context, golems).items()) if g not in completed}
    missing = missing_ticks(context, waiting)
    return [UnfinishedDeath(g, tick, _why(g, g in born, missing[g])) for g, tick in waiting.items()]


def dead_with_retractions(context: DerivationContext) -> list[str]:
    """Return the dead golems whose candidate bundle has not handled a retraction in their life, by golem."""
    pending = RetractionCursor(context, "candidates").pending(context.left_out())
    return sorted({cause.golem_id for cause in pending} & deaths_of(context).keys()) if pending else []


def waiting_lives(context: DerivationContext) -> list[tuple[str, str]]:
    """Return (golem, reason and cure) of the golems without a death whose records wait, by golem."""
    dead, born = deaths_of(context), set(context.life("GolemBorn")["golem_id"].to_pylist())
    living = sorted(set(context.log.heads()["golem_id"].to_pylist()) - dead.keys())
    missing = missing_ticks(context, living)
    return [(g, _why(g, g in born, missing[g])) for g in living if g not in born or missing[g]]


def missing_ticks(context: DerivationContext, golems: Collection[str]) -> dict[str, list[TickRange]]:
    """Return golem -> its runs of missing ticks, for each of these golems.

    The ticks between a golem's last record and its recorded death are missing, too.
    """
    missing: dict[str, list[TickRange]] = {golem_id: [] for golem_id in golems}
    for gap in context.log.gaps():
        if gap.golem_id in missing:
            missing[gap.golem_id].append(gap)
    for golem_id, (died, _) in deaths_of(context, golems).items():
        if golem_id in missing:
            head = context.log.head_of(golem_id)
            spans = without_spans([(head.highest + 1, died.tick)], head.accepted) if head.highest < died.tick else []
            missing[golem_id] += [TickRange(golem_id, *span) for span in spans]
    return missing


def _why(golem_id: str, is_born: bool, missing: list[TickRange]) -> str:
    if not is_born:
        return "its birth is not on record: send its GolemBorn event"
    if missing:
        _, first, last = missing[0]
        more = f" and {len(missing) - 1} more runs" if len(missing) > 1 else ""
        return (
            f"ticks {first} to {last}{more} are missing: send them, or "
            f'`bardo accept-gap {golem_id} {first} {last} --why "..."` accepts them as lost'
        )
    return _READY
