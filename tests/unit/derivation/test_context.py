"""A derivation context opens its embedder once, also for threads that ask for it at the same time."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from bardo_pipeline.derivation import context as context_module
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.policy import Policy
from bardo_pipeline.storage.home import Home
from tests.conftest import NOW


def test_threads_open_the_embedder_of_a_context_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Home.create(tmp_path, Policy(), NOW)
    context, opened, together = DerivationContext.open(tmp_path), list[str](), Barrier(2)

    def slowly_opened(name: str, models: Path) -> object:
        opened.append(name)
        time.sleep(0.05)
        return object()

    def embedder_of(_: int) -> object:
        together.wait(10)
        return context.embedder

    monkeypatch.setattr(context_module, "open_embedder", slowly_opened)
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(embedder_of, range(2))
    assert first is second
    assert opened == [context.embedder_name]
