"""Builds the answer of an ask as a document, equal for the command and the server. Pure but for the drift check."""

from __future__ import annotations

from typing import Any

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.memory.ask import GolemMoment
from bardo_pipeline.derivation.memory.embed_texts import pausing_check
from bardo_pipeline.policy import Policy
from bardo_pipeline.retrieval.retrieve import Answer
from bardo_pipeline.retrieval.scoring import FACTORS, weights_of


def answer_facts(moment: GolemMoment, answer: Answer, policy: Policy) -> dict[str, Any]:
    """Return golem, situation, weights and time of an answer. Its keys are stable; the hits are another table."""
    return {
        "golem_id": moment.golem_id,
        "died_at_tick": moment.died_at_tick,
        "situation": dict(vars(moment.situation)),
        "decision": dict(vars(answer.decision)),
        "contrarian": answer.contrarian,
        "awake": answer.awake,
        "asleep": answer.asleep,
        "as_of": dict(vars(moment.as_of)),
        "weights": dict(zip(FACTORS, weights_of(policy.retrieval), strict=True)),
    }


def drift_warning(context: DerivationContext) -> str | None:
    """Return the warning below an answer if the last check of the embedding model was critical; None if not."""
    failed_check = pausing_check(context)
    if failed_check is None:
        return None
    return (
        f"{context.embedder_name} had drifted from its recorded vectors at the last check "
        f"({failed_check.at:%Y-%m-%d %H:%M}): similarities here are unreliable; `bardo drift` shows details."
    )
