"""Tending: maintenance of a home that knows which derivations are in force."""

from __future__ import annotations

from datetime import datetime

from bardo_pipeline.derivation.identity import derivation_id
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.embedders import EMBEDDERS, embedder_version
from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.log import EventLog
from bardo_pipeline.storage.maintenance import MaintenanceReport, maintain


def tend(home: Home, log: EventLog, policy: Policy, *, now: datetime, dry_run: bool = False) -> MaintenanceReport:
    """Do what is due (`maintain`); what this code derives under this policy stays, with whichever embedder."""
    in_force = {derivation_id(policy, embedder_version(name)) for name in EMBEDDERS}
    return maintain(home, log, policy, now=now, in_force=in_force, dry_run=dry_run)
