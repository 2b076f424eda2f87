"""The benchmarks start: their imports exist. `make bench` shows their figures."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import benchmarks


@pytest.mark.parametrize("module", [item.name for item in pkgutil.iter_modules(benchmarks.__path__)])
def test_a_bench_finds_everything_that_it_imports(module: str) -> None:
    made = importlib.import_module(f"benchmarks.{module}")
    assert any(getattr(value, "__module__", None) == made.__name__ for value in vars(made).values()), (
        "there is something in it"
    )
