"""The only wiring: assets, checks, jobs, schedules, sensors and the one resource. Nothing imports it."""

from __future__ import annotations

import dagster as dg

from assets import (
    credits,
    curation,
    dreams,
    episodes,
    katabasis,
    legacy,
    library,
    log,
    marts,
    quarantine,
    scars,
    thanatopsis,
)
from assets.checks import CHECKS
from assets.health_checks import health
from assets.resources import home
from jobs.curator import curator_job
from jobs.death import death_job
from jobs.dream import dream_job
from jobs.drift import drift_job
from jobs.maintenance import maintenance_job
from jobs.observe import observe_job
from jobs.proposals import proposal_job
from jobs.rebuild import rebuild_job
from jobs.schedules import every_four_hours, every_fourth_hour, every_hour, every_night, every_ten_minutes, every_week
from jobs.spool import spool_job
from jobs.succession import succession_job
from jobs.verification import verification_job
from sensors.closed_cycles import cycles_closed
from sensors.due_dreams import dreams_queued
from sensors.due_successions import successions_due
from sensors.journal_backlog import writers_outrun_the_drainer
from sensors.recorded_deaths import deaths_recorded
from sensors.silent_golems import golems_silent
from sensors.spool_files import files_dropped

defs = dg.Definitions(
    assets=[
        log.log,
        quarantine.quarantine,
        episodes.episodes,
        episodes.episode_index,
        curation.curate,
        episodes.facts,
        credits.credits,
        dreams.dream,
        episodes.links,
        episodes.crossings,
        scars.failures,
        scars.scars,
        katabasis.vote,
        katabasis.consensus,
        legacy.testaments,
        legacy.bundle_candidates,
        legacy.verdicts,
        legacy.bundles,
        scars.bloodstains,
        library.shelve,
        thanatopsis.thanatopsis,
        marts.warehouse,
    ],
    asset_checks=[*CHECKS, health],
    jobs=[
        curator_job,
        death_job,
        dream_job,
        drift_job,
        maintenance_job,
        observe_job,
        proposal_job,
        rebuild_job,
        spool_job,
        succession_job,
        verification_job,
    ],
    schedules=[every_ten_minutes, every_hour, every_four_hours, every_fourth_hour, every_night, every_week],
    sensors=[
        deaths_recorded,
        cycles_closed,
        dreams_queued,
        writers_outrun_the_drainer,
        files_dropped,
        golems_silent,
        successions_due,
    ],
    resources={"home": home},
    executor=dg.in_process_executor,  # a step in a process of its own costs a second, and these take milliseconds
)
