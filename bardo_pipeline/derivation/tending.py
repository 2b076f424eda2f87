"""Tending: maintenance of a home that knows which derivations are in force."""

from __future__ import annotations

from datetime import datetime

from bardo_pipeline.derivation.identity import derivation_id
from bardo_pipeline.derivation.in_force import in_force
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.embedders import EMBEDDERS, embedder_version
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.log import EventLog
from bardo_pipeline.storage.maintenance import MaintenanceReport, maintain


def tend(home: Home, log: EventLog, policy: Policy, *, now: datetime, dry_run: bool = False) -> MaintenanceReport:
    """Do what is due (`maintain`); what is in force stays, with whichever embedder, and what this code would make."""
    adoptions = log.life("DerivationAdopted")
    kept = {derivation_id(policy, embedder_version(name)) for name in EMBEDDERS}
    if adoptions.num_rows:
        kept = {in_force(adoptions, name).derivation_id for name in EMBEDDERS}
    return maintain(home, log, policy, now=now, in_force=kept, dry_run=dry_run)
