"""The benchmarks start: their imports exist. `make bench` shows their figures."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import benchmarks


@pytest.mark.parametrize("module", [item.name for item in pkgutil.iter_modules(benchmarks.__path__)])
def test_every_benchmark_module_can_be_imported(module: str) -> None:
    made = importlib.import_module(f"benchmarks.{module}")
    assert any(getattr(value, "__module__", None) == made.__name__ for value in vars(made).values()), (
        "the module defines something"
    )
