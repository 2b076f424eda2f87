"""The advice of a golem, from its current grimoire."""

from __future__ import annotations

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.dreams.derive_lessons import known_entries
from bardo_pipeline.derivation.memory.ask import golem_moment
from bardo_pipeline.grimoire.entry_columns import confidence_of
from bardo_pipeline.retrieval.advice import Advice


def advice_of(context: DerivationContext, golem_id: str) -> Advice:
    """Return the golem's rules about reported actions, with their confidence at its newest record.

    Raises QueryError for an unknown golem.
    """
    as_of = golem_moment(context, golem_id).situation.at_us
    entries = known_entries(context, [golem_id])
    return Advice.of(entries, confidence_of(entries, as_of, context.policy.decay))
