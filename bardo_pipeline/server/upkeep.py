"""Upkeep of a served home: merges small files of life events and runs due consolidations, at intervals."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime

from bardo_pipeline.server.tool_calls import ToolRunner
from bardo_pipeline.server.warm_home import WarmHome
from bardo_pipeline.storage.operations.maintenance import merge_life_files

logger = logging.getLogger("bardo.server")


async def keep_up(warm: WarmHome, runner: ToolRunner, *, clock: Callable[[], datetime], seconds: float) -> None:
    """Keep a home up until cancelled, over each door: each call of a tool appends a file of life events.

    Parameters
    ----------
    seconds : time between passes
    """
    while True:
        await asyncio.sleep(seconds)
        try:
            await warm.read(None, lambda context: merge_life_files(context.home, context.policy, now=clock()))
        except Exception as error:
            logger.warning("the files of life events could not be merged: %s", error)
        try:
            await runner.consolidate_due()
        except Exception as error:
            logger.warning("stored episodes could not be consolidated: %s", error)
