"""Which examples a law is tried on, and how many: `BARDO_EXAMPLES=10 make test` tries ten times as many.

The profile REPEATED is in force unless `--hypothesis-profile=drawn` is given. It draws the same examples in each run,
whichever modules are loaded and however busy the machine is. The profile DRAWN draws other examples in each run.
"""

from __future__ import annotations

import os
import random

from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture import providers

REPEATED, DRAWN = "repeated", "drawn"

FIXED_SEED = 2_026

_constants_of_loaded_modules = providers._get_local_constants
_no_constants = providers.Constants()


def _constants() -> providers.Constants:
    """Return the constants of loaded modules that Hypothesis mixes into examples: none where examples are repeated.

    With them an example would depend on which tests the process ran before.
    """
    return _no_constants if settings.default.derandomize else _constants_of_loaded_modules()


def use_repeated_examples() -> None:
    """Register both profiles and load REPEATED. Neither has a deadline nor a check of speed."""
    slow = [HealthCheck.too_slow]
    settings.register_profile(
        REPEATED, derandomize=True, database=None, deadline=None, suppress_health_check=slow, print_blob=True
    )
    settings.register_profile(DRAWN, derandomize=False, deadline=None, suppress_health_check=slow, print_blob=True)
    settings.load_profile(REPEATED)
    providers._get_local_constants = _constants


def draw_seed() -> int:
    """Return and print the seed of a test that draws its own samples: fixed under REPEATED, new under DRAWN."""
    seed = FIXED_SEED if settings.default.derandomize else random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")  # pytest shows it when the test fails
    return seed


def times(count: int) -> int:
    """Return this number of examples, multiplied by BARDO_EXAMPLES."""
    return max(1, round(count * float(os.environ.get("BARDO_EXAMPLES", "1"))))


def some(count: int) -> settings:
    """Settings of a slow law: the same few examples each time, none of them made smaller when it fails."""
    return settings(
        max_examples=times(count), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )  # fmt: skip
