"""The derivation id: what decides the content of every projection beside the events. Pure.

Source: architecture ("They live under a derivation id (hash of policy, pass versions, embedder)").
"""

from __future__ import annotations

import hashlib

from bardo_pipeline.curator.curate import PASSES_EDITION
from bardo_pipeline.policy import Policy


def derivation_id(policy: Policy, embedder_key: str) -> str:
    """12 hex characters over the policy, the version of the passes and the embedder."""
    return identity_of(policy.hash, PASSES_EDITION, embedder_key)


def knowledge_id(policy: Policy) -> str:
    """The same, over what decides what a golem knows: policy and passes alone, for no vector decides it."""
    return identity_of(policy.hash, PASSES_EDITION, "")


def identity_of(policy_hash: str, passes_edition: str, embedder_key: str) -> str:
    """The same, of any edition of the passes."""
    return hashlib.sha256(f"{policy_hash}/{passes_edition}/{embedder_key}".encode()).hexdigest()[:12]
