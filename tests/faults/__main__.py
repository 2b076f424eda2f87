"""Plant the faults of the catalogue one by one, run the tests that must kill each: `python -m tests.faults`.

The tree is copied. A fault is planted in a copy, its tests run in a fork of this process, which has imported the large
libraries and nothing of the project, and the file is restored. A fault is killed if one of its tests fails. A fault
that survives, and a run that decides nothing, fail the command.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.faults.catalogue import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("bardo_pipeline", "dbt", "tests", "docs", "pyproject.toml")
LIBRARIES = ("numpy", "pandas", "pyarrow.dataset", "duckdb", "pydantic", "deltalake", "hypothesis", "pytest", "orjson")
PASSED, FAILED, OUT_OF_TIME = 0, 1, -1
_FIRST = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def copy_tree(target: Path) -> None:
    """Copy the files that the tests of the catalogue need."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__", "target", "logs"))
        else:
            shutil.copy2(source, target / name)


@dataclass
class Trial:
    """Tests that run in a copy of the tree, with a fault planted, or without one."""

    tree: Path
    tests: Sequence[str]
    fault: Fault | None = None
    pid: int = 0
    begun: float = 0.0

    @property
    def output(self) -> Path:
        """The file with pytest's output."""
        return self.tree / "output.txt"

    def begin(self) -> None:
        """Plant the fault and fork the process that runs the tests."""
        self._replace(reverse=False)
        self.begun = time.monotonic()
        self.pid = os.fork()
        if not self.pid:
            code = 70
            try:
                code = _run(self.tree, self.tests, self.output)
            finally:
                os._exit(code)

    def end(self) -> None:
        """Restore the file."""
        self._replace(reverse=True)

    def _replace(self, *, reverse: bool) -> None:
        """Exchange the fault's texts, without a compiled module of the other one: its date could be the same."""
        if self.fault is None:
            return
        path = self.tree / "bardo_pipeline" / self.fault.file
        path.write_text((ROOT / "bardo_pipeline" / self.fault.file).read_text() if reverse else self.faulty)
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            compiled.unlink()

    @property
    def faulty(self) -> str:
        """The text of the file with the fault."""
        assert self.fault is not None
        text = (ROOT / "bardo_pipeline" / self.fault.file).read_text()
        assert text.count(self.fault.old) == 1, f"{self.fault.name}: its old text does not occur once"
        return text.replace(self.fault.old, self.fault.new)


def _run(tree: Path, tests: Sequence[str], output: Path) -> int:
    """Run pytest in this forked process, on the copy."""
    log = os.open(output, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(tree)
    os.environ.update(PYTHONPATH=str(tree), TMPDIR=str(tree))
    for name in [n for n in sys.modules if n == "tests" or n.startswith("tests.")]:
        del sys.modules[name]
    sys.path[:] = [str(tree), *(p for p in sys.path if p not in ("", str(ROOT)))]
    importlib.invalidate_caches()
    code = int(sys.modules["pytest"].main(["-n", "0", "-q", "-x", "-p", "no:cacheprovider", "--tb=line", *tests]))
    sys.stdout.flush()
    return code


def wait(running: dict[int, Trial], seconds: float) -> tuple[Trial, int]:
    """Wait for a trial to end, and restore its file; end trials that are out of time."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in running:
            trial, code = running.pop(pid), os.waitstatus_to_exitcode(status)
            trial.end()
            return trial, code
        for late, trial in running.items():
            if time.monotonic() - trial.begun > seconds:
                os.kill(late, signal.SIGKILL)
                os.waitpid(late, 0)
                del running[late]
                trial.end()
                return trial, OUT_OF_TIME
        time.sleep(0.02)


def verdict(code: int, output: str) -> str:
    """Return "killed by TEST", "SURVIVED", or the error of a run that decided nothing."""
    if code == PASSED:
        return "SURVIVED"
    failed = _FIRST.search(output)
    if code == FAILED and failed:
        return f"killed by {failed[1]}"
    return f"NOT JUDGED (pytest ended with {code})\n{output[-2_000:]}"


def main() -> int:
    """Judge the chosen faults; return 1 if one is not killed."""
    options = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    options.add_argument("only", nargs="*", help="words of the names of the faults to plant (default: all)")
    options.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="processes at a time")
    options.add_argument("--seconds", type=float, default=300.0, help="limit for the tests of one fault")
    given = options.parse_args()
    chosen = [f for f in FAULTS if not given.only or any(word in f.name for word in given.only)]
    if not chosen:
        options.error(f"no fault is named {' '.join(given.only)}")
    for library in LIBRARIES:
        importlib.import_module(library)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bardo-faults-") as folder:
        trees = [Path(folder) / str(job) for job in range(given.jobs)]
        trees[0].mkdir()
        copy_tree(trees[0])
        trial = Trial(trees[0], sorted({test for fault in chosen for test in fault.tests}))
        trial.begin()
        _, code = wait({trial.pid: trial}, 10 * given.seconds)
        if code != PASSED:
            print(f"the tests fail without any fault:\n{trial.output.read_text()[-4_000:]}")
            return 1
        print(f"without a fault, {len(trial.tests)} tests pass ({time.monotonic() - start:.0f} s)", flush=True)
        for tree in trees[1:]:  # with the compiled modules
            shutil.copytree(trees[0], tree)
        return _judge(chosen, trees, given.seconds, start)


def _judge(chosen: Sequence[Fault], trees: list[Path], seconds: float, start: float) -> int:
    """Plant the faults, as many at a time as there are trees."""
    waiting, running, killed = list(reversed(chosen)), dict[int, Trial](), 0
    while waiting or running:
        while waiting and trees:
            fault = waiting.pop()
            trial = Trial(trees.pop(), fault.tests, fault)
            trial.begin()
            running[trial.pid] = trial
        trial, code = wait(running, seconds)
        trees.append(trial.tree)
        assert trial.fault is not None
        result = verdict(code, trial.output.read_text())
        killed += result.startswith("killed")
        took = time.monotonic() - trial.begun
        print(f"{trial.fault.row:7} {trial.fault.name:52} {took:5.1f} s  {result}", flush=True)
    print(f"{killed} of {len(chosen)} faults killed in {time.monotonic() - start:.0f} s")
    return int(killed < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
