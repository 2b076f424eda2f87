"""Upkeep of a served home: merges small files, runs due consolidations, and exchanges with clades, at intervals."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import datetime

from bardo_pipeline.derivation.clade.exchange_clades import back_up_clades, exchange_clades, exchange_public_posts
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.errors import BardoError
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


async def keep_exchanging(warm: WarmHome, address: str, *, clock: Callable[[], datetime], seconds: float) -> None:
    """Exchange for a home's owners with siblings and strangers, and back up, through a relay until cancelled.

    A failed relay is tried again.

    Parameters
    ----------
    address : of the relay
    seconds : time between exchanges
    """
    while True:
        try:
            done = await warm.read(None, lambda context: _exchanged(context, address, clock()))
            for owner, result in done:
                if isinstance(result, BardoError):
                    logger.warning("clade of %s: %s", owner, result)
        except Exception as error:
            logger.warning("the clades could not exchange: %s", error)
        await asyncio.sleep(seconds)


def _exchanged(context: DerivationContext, address: str, now: datetime) -> list[tuple[str, object]]:
    """Exchange with siblings and strangers, then back up what is due; return (owner, result) of each."""
    done: list[Mapping[str, object]] = [
        exchange_clades(context, address, now=now),
        exchange_public_posts(context, address, now=now),
        back_up_clades(context, address, now=now, is_due_only=True),
    ]
    return [(owner, result) for part in done for owner, result in part.items()]
