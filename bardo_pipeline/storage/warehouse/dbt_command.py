"""Run one command of dbt: `python -m bardo_pipeline.storage.warehouse.dbt_command RESULTS ARGUMENT...`.

dbt's own program formats each of its 4,000 events for a log that is switched off, and Python looks for unused cycles
among its objects again and again: together a fifth of the time of a build. Source: ADR 0104.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import orjson

_LEVELS = ("warn", "error")


def run(arguments: list[str]) -> tuple[bool, dict[str, Any]]:
    """Run a command. Returns whether it succeeded, its warnings and errors, and the result of each executed node."""
    from dbt.artifacts.schemas.run import RunExecutionResult
    from dbt.cli.main import dbtRunner
    from dbt_common.events.base_types import EventMsg

    says: list[str] = []

    def hear(event: EventMsg) -> None:
        if event.info.level in _LEVELS:
            says.append(f"[{event.info.level}] {event.info.msg}")

    ran = dbtRunner(callbacks=[hear]).invoke(["--log-level", "none", "--log-level-file", "none", *arguments])
    if ran.exception is not None and not says:
        says.append(f"[error] {ran.exception}")
    results = ran.result.results if isinstance(ran.result, RunExecutionResult) else []
    described = [
        {
            "unique_id": result.node.unique_id,
            "status": str(result.status),
            "failures": result.failures,
            "message": result.message,
            "compiled_code": getattr(result.node, "compiled_code", None),
        }
        for result in results
    ]
    return ran.success, {"says": says, "results": described}


if __name__ == "__main__":
    gc.disable()  # the process ends with its command; its unused cycles hold 30 MB
    succeeded, report = run(sys.argv[2:])
    Path(sys.argv[1]).write_bytes(orjson.dumps(report))
    sys.exit(0 if succeeded else 1)
