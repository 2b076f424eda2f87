"""Completes deaths in a process of its own, while the fleet steps on.

The process opens the same home, so the locks of the home keep both apart, as they do for Dagster's jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.derive_home import complete_deaths
from bardo_pipeline.derivation.legacy.bundle_store import published_bundles
from bardo_pipeline.derivation.legacy.bundle_verdicts import cached_run
from bardo_pipeline.errors import DerivationError
from bardo_pipeline.policy import Policy


class DeathProcess:
    """A process that completes one batch of deaths at a time. It ends with this process or when it is closed."""

    def __init__(self, context: DerivationContext) -> None:
        spawn = get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        home = context.home.root, context.policy, context.embedder_name, context.derivation_id
        self._process = spawn.Process(target=_complete_batches, args=(theirs, *home), daemon=True)
        self._process.start()
        theirs.close()
        self.is_busy = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the pipe, which ends the process after its present batch, and wait for its end."""
        self._pipe.close()
        self._process.join()

    def begin(self, golem_ids: Sequence[str], now: datetime) -> None:
        """Complete the recorded deaths of these golems, without waiting. Raises DerivationError if the process ended.

        now: recording time of the events.
        """
        assert not self.is_busy, "one batch at a time"
        try:
            self._pipe.send((tuple(golem_ids), now))
        except OSError as error:
            raise self._ended() from error
        self.is_busy = True

    def has_finished(self) -> bool:
        """Return whether the batch is complete."""
        return self.is_busy and self._pipe.poll()

    def bundles(self) -> dict[str, str]:
        """Wait for the batch; return golem -> hash of its published bundle.

        Raises DerivationError with the error of the batch, or if the process ended.
        """
        try:
            answer: dict[str, str] | str = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise self._ended() from error
        self.is_busy = False
        if isinstance(answer, str):
            raise DerivationError(f"deaths are not complete: {answer}: remove the cause and run again")
        return answer

    def _ended(self) -> DerivationError:
        self._process.join()
        return DerivationError(
            f"the process that completes deaths ended with exit code {self._process.exitcode}: run again, which "
            "completes the recorded deaths"
        )


def _complete_batches(pipe: Connection, root: Path, policy: Policy, embedder: str, derivation_id: str) -> None:
    """Complete batches until the other end closes. Slow imports and the model are loaded before the first batch."""
    context = DerivationContext.open(root, policy=policy, embedder=embedder)
    assert context.derivation_id == derivation_id, "both processes derive into the same tables"
    cached_run(context.policy)
    _ = context.embedder
    while True:
        try:
            golem_ids, now = pipe.recv()
        except EOFError:
            break
        try:
            complete_deaths(context, now=now, golems=golem_ids)
            pipe.send(published_bundles(context, golem_ids))
        except Exception as error:
            pipe.send(f"{type(error).__name__}: {error}")
    context.log.close()
