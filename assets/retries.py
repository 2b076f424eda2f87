"""Retries of a step whose files or network failed for a moment.

A step is tried again in its run only for such a failure. Refused input, damage and every other typed error fail the
step at once, because the same input fails the same way. Sensors count runs, so these retries are no attempts of theirs.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import isgeneratorfunction
from typing import Any, TypeVar

import dagster as dg
import duckdb

from assets.resources import LazyStores

Compute = TypeVar("Compute", bound=Callable[..., Any])

RETRIES_MAX = 2
PAUSE_SECONDS = 2.0
"""Pause before each retry. A longer outage is left to the next request of a sensor or schedule."""

_MOMENTARY = (OSError, duckdb.IOException)
_LASTING = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENAMETOOLONG}
"""Causes that an operator has to remove."""


def retried(compute: Compute) -> Compute:
    """Decorate the function of an op or asset with the resource `home`, so that momentary failures are retried.

    The retry opens the home again: what the failed try read or half wrote is forgotten.
    """
    if isgeneratorfunction(compute):

        @wraps(compute)
        def yielding(*context: Any, **given: Any) -> Iterator[Any]:
            with _momentary_failures_retried(given["home"]):
                yield from compute(*context, **given)

        return yielding  # type: ignore[return-value]

    @wraps(compute)
    def returning(*context: Any, **given: Any) -> Any:
        with _momentary_failures_retried(given["home"]):
            return compute(*context, **given)

    return returning  # type: ignore[return-value]


@contextmanager
def _momentary_failures_retried(home: LazyStores) -> Iterator[None]:
    """Raise dg.RetryRequested in place of a momentary failure; every other error passes."""
    try:
        yield
    except _MOMENTARY as error:
        if isinstance(error, OSError) and error.errno in _LASTING:
            raise
        home.forget()
        raise dg.RetryRequested(max_retries=RETRIES_MAX, seconds_to_wait=PAUSE_SECONDS) from error
