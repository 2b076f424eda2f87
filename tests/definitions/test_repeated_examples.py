"""A run of the first tier draws the same examples as the run before it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.example_count import DRAWN, draw_seed

LONELY = range(918_273_645, 918_273_945)
"""Numbers in no module of the project."""


def load_module_of_constants(folder: Path) -> None:
    """Import a module whose source holds the numbers of LONELY."""
    path = folder / "constants_of_a_module.py"
    path.write_text(f"NUMBERS = {list(LONELY)}\n")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[path.stem] = module


def drawn_numbers() -> list[int]:
    """Return the integers that a law of 200 examples is tried on under the profile in force."""
    drawn: list[int] = []

    @settings(max_examples=200)
    @given(st.integers())
    def law(number: int) -> None:
        drawn.append(number)

    law()
    return drawn


@pytest.mark.skipif(not settings.default.derandomize, reason="the full tier draws its examples")
def test_a_law_is_tried_on_the_same_examples_whatever_is_loaded(tmp_path: Path) -> None:
    before = drawn_numbers()
    load_module_of_constants(tmp_path)
    assert drawn_numbers() == before
    assert len(set(before)) > 100
    assert draw_seed() == draw_seed()


def test_the_full_tier_draws_other_examples_in_each_run() -> None:
    profile = settings.get_current_profile_name()
    settings.load_profile(DRAWN)
    try:
        assert drawn_numbers() != drawn_numbers()
        assert draw_seed() != draw_seed()
    finally:
        settings.load_profile(profile)
