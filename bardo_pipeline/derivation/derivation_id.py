"""The derivation id: a hash of policy, passes and embedder, which determine projections together with the log. Pure.

Source: architecture ("They live under a derivation id (hash of policy, pass versions, embedder)").
"""

from __future__ import annotations

import hashlib

from bardo_pipeline.curator.curate import PASSES_EDITION
from bardo_pipeline.policy import Policy


def derivation_id(policy: Policy, embedder_key: str) -> str:
    """Return the id (12 hex characters) of policy, edition of the passes and embedder."""
    return identity_of(policy.hash, PASSES_EDITION, embedder_key)


def knowledge_id(policy: Policy) -> str:
    """Return the id of policy and passes, which determine a golem's knowledge without vectors."""
    return identity_of(policy.hash, PASSES_EDITION, "")


def identity_of(policy_hash: str, passes_edition: str, embedder_key: str) -> str:
    """Return the id for any edition of the passes."""
    return hashlib.sha256(f"{policy_hash}/{passes_edition}/{embedder_key}".encode()).hexdigest()[:12]
