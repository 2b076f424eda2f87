"""The only wiring: assets, checks, jobs, schedules, sensors and the one resource. Nothing imports it."""

from __future__ import annotations

import dagster as dg

from assets import curation, dreams, dying, katabasis, legacy, library, log, marts, memory, quarantine, retrieval, scars
from assets.checks import CHECKS
from assets.health_checks import health
from assets.stores import home
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
from sensors.cycles import cycles_closed
from sensors.deaths import deaths_recorded
from sensors.dreams import dreams_queued
from sensors.lag import writers_outrun_the_drainer
from sensors.silence import golems_silent
from sensors.spool import files_dropped
from sensors.successions import successions_due

defs = dg.Definitions(
    assets=[
        log.log,
        quarantine.quarantine,
        memory.episodes,
        memory.episode_index,
        curation.curate,
        memory.facts,
        retrieval.credits,
        dreams.dream,
        memory.links,
        memory.crossings,
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
        dying.thanatopsis,
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
