"""Derivation ids, and the derivation in force, which all commands, jobs and fleets of a home use. Reads the log only.

The last `DerivationAdopted` names it. A home without an adoption uses the specification's policy and this version's
passes. A derivation by another edition of the passes is frozen: it can be read, but not updated. Source: architecture
("Projections"), X-10.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa
from pydantic import ValidationError

from bardo_pipeline.curator.curate import PASSES_EDITION
from bardo_pipeline.errors import DerivationError
from bardo_pipeline.events.life.events import Adopted
from bardo_pipeline.policy import OPERATIONAL, Policy
from bardo_pipeline.storage.embedding.embedders import embedder_version, split_turn

FIRST_EMBEDDER = "minilm"
"""The embedder of a home without an adoption."""


@dataclass(frozen=True)
class InForce:
    """The derivation in force.

    Parameters
    ----------
    frozen : reason for which this version cannot update it; None if it can
    adopted : the adoption; None for a home without one
    """

    derivation_id: str
    policy: Policy
    embedder: str
    frozen: str | None = None
    adopted: Adopted | None = None


def in_force(adoptions: pa.Table, embedder: str | None = None) -> InForce:
    """Return the derivation in force by these life events (kind DerivationAdopted).

    Raises DerivationError if the adopted policy has a value that this version does not allow.

    Parameters
    ----------
    embedder : return the derivation of this embedder under the same policy and passes
    """
    recorded = adoptions_of(adoptions)
    if not recorded:
        policy, name = Policy(), embedder or FIRST_EMBEDDER
        return InForce(derivation_id(policy, embedder_version(name)), policy, name)
    adopted = recorded[-1]
    policy, name = understood(adopted.policy, adopted.derivation_id), embedder or adopted.embedder
    if name == split_turn(adopted.embedder)[0]:
        name = adopted.embedder  # a name without a turn means the turn in force
    own_id = derivation_id(policy, embedder_version(name))
    adopted_id = adopted.derivation_id
    if name != adopted.embedder:
        adopted_id = identity_of(adopted.policy_hash, adopted.passes_edition, embedder_version(name))
    return InForce(adopted_id, policy, name, _frozen(adopted, adopted_id, own_id), adopted)


def adoptions_of(events: pa.Table) -> list[Adopted]:
    """Return the adoptions among life events, oldest first."""
    ordered = events.sort_by([("observed_at", "ascending"), ("event_id", "ascending")])
    return [Adopted.model_validate(row) for row in ordered["adopted"].to_pylist() if row is not None]


def understood(content: str, name: str) -> Policy:
    """Read a recorded policy with this version: unknown fields are dropped, new ones get their defaults.

    Raises DerivationError for an invalid value. name: derivation, for the error.
    """
    try:
        return Policy.model_validate(_known_fields(orjson.loads(content), Policy))
    except (ValidationError, orjson.JSONDecodeError) as error:
        raise DerivationError(
            f"the policy of derivation {name} is not one of this version's ({error}): "
            "read it with the version that adopted it"
        ) from error


def _known_fields(content: dict[str, Any], model: type[Any]) -> dict[str, Any]:
    parts = {n: f.annotation for n, f in model.model_fields.items() if model is not Policy or n not in OPERATIONAL}
    return {
        name: _known_fields(value, parts[name]) if isinstance(value, dict) else value
        for name, value in content.items()
        if name in parts
    }


def _frozen(adopted: Adopted, adopted_id: str, own_id: str) -> str | None:
    if adopted_id == own_id:
        return None
    why = "by another version's policy or embedder"
    if adopted.passes_edition != PASSES_EDITION:
        why = f"by edition {adopted.passes_edition} of the passes, and this version has edition {PASSES_EDITION}"
    return (
        f"derivation {adopted_id} is in force and was made {why}: it can be read, not continued. "
        f"`bardo whatif` builds {own_id} beside it and compares; `bardo adopt {own_id}` switches to it"
    )


def derivation_id(policy: Policy, embedder_key: str) -> str:
    """Return the id (12 hex characters) of policy, edition of the passes and embedder."""
    return identity_of(policy.hash, PASSES_EDITION, embedder_key)


def knowledge_id(policy: Policy) -> str:
    """Return the id of policy and passes, which determine a golem's knowledge without vectors."""
    return identity_of(policy.hash, PASSES_EDITION, "")


def identity_of(policy_hash: str, passes_edition: str, embedder_key: str) -> str:
    """Return the id for any edition of the passes."""
    return hashlib.sha256(f"{policy_hash}/{passes_edition}/{embedder_key}".encode()).hexdigest()[:12]
