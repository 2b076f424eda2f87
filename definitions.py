"""The only wiring: assets, checks, jobs, schedules, sensors and the one resource. Nothing imports it.

With BARDO_OWNER set, the code location has only the views of that owner: its assets show rows, and derive nothing.
"""

from __future__ import annotations

import os

import dagster as dg

from assets import (
    checks,
    katabasis,
    legacy,
    log,
    marts,
    memory,
    owner_views,
    upkeep,
)
from assets.resources import HomeResource
from bardo_pipeline.storage.home import owner_of_environment
from jobs.home_jobs import (
    consolidation_job,
    curator_job,
    death_job,
    dream_job,
    drift_job,
    maintenance_job,
    marts_job,
    notices_job,
    observe_job,
    proposal_job,
    rebuild_job,
    spool_job,
    succession_job,
    verification_job,
)
from jobs.schedules import (
    dreams_every_four_hours,
    every_night,
    every_quarter_hour,
    every_ten_minutes,
    every_week,
    proposals_every_four_hours,
)
from sensors.home_sensors import (
    cycles_closed,
    deaths_recorded,
    dreams_queued,
    files_dropped,
    golems_silent,
    marts_behind,
    notices_waiting,
    runs_failed,
    successions_due,
    upkeep_due,
    writers_outrun_the_drainer,
)


def whole_home() -> dg.Definitions:
    """Return the code location of the whole home."""
    return dg.Definitions(
        assets=[
            log.log,
            log.quarantine,
            memory.episodes,
            memory.episode_index,
            memory.curate,
            memory.facts,
            memory.credits,
            memory.dream,
            memory.links,
            memory.crossings,
            katabasis.failures,
            katabasis.scars,
            katabasis.vote,
            katabasis.consensus,
            legacy.testaments,
            legacy.bundle_candidates,
            legacy.verdicts,
            legacy.bundles,
            katabasis.bloodstains,
            legacy.shelve,
            legacy.thanatopsis,
            marts.warehouse,
            upkeep.maintenance,
            upkeep.verification,
            upkeep.drift,
        ],
        asset_checks=dg.load_asset_checks_from_modules([checks]),
        jobs=[
            consolidation_job,
            curator_job,
            death_job,
            dream_job,
            drift_job,
            maintenance_job,
            marts_job,
            notices_job,
            observe_job,
            proposal_job,
            rebuild_job,
            spool_job,
            succession_job,
            verification_job,
        ],
        schedules=[
            every_ten_minutes,
            every_quarter_hour,
            dreams_every_four_hours,
            proposals_every_four_hours,
            every_night,
            every_week,
        ],
        sensors=[
            deaths_recorded,
            cycles_closed,
            dreams_queued,
            writers_outrun_the_drainer,
            files_dropped,
            golems_silent,
            marts_behind,
            notices_waiting,
            successions_due,
            runs_failed,
            upkeep_due,
        ],
        resources={"home": HomeResource()},
        executor=dg.in_process_executor,  # a step in a process of its own costs a second, and these take milliseconds
    )


def one_owner() -> dg.Definitions:
    """Return the code location of one owner: views of that owner's rows."""
    return dg.Definitions(
        assets=owner_views.VIEWS,
        jobs=[owner_views.show_job],
        resources={"home": HomeResource()},
        executor=dg.in_process_executor,
    )


defs = whole_home() if owner_of_environment(os.environ) is None else one_owner()
