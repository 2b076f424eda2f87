"""Judges candidate bundles with Great Expectations' Data Docs, also those that were judged without Data Docs.

The Data Docs of each run are a folder below `data_docs/` of the home. Source: P-5.
"""

from __future__ import annotations

import shutil
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.legacy import publish_legacies
from bardo_pipeline.derivation.legacy.bundle_verdicts import Verdicts, judge
from bardo_pipeline.storage.home import Home

_DOCUMENTED = "bundles.txt"
"""File in the Data Docs folder of a run: the hashes of the bundles that the run judged."""


class Documented(NamedTuple):
    """Verdicts of a run, the repeated verdicts of bundles without Data Docs, and the bundles whose verdict changed."""

    fresh: Verdicts
    again: Verdicts
    changed: tuple[str, ...]

    @property
    def page(self) -> Path | None:
        """Index page of the Data Docs of this run, None if every verdict had Data Docs before."""
        return self.fresh.data_docs or self.again.data_docs


def judge_with_docs(context: DerivationContext, *, now: datetime, run: str) -> Documented:
    """Judge the candidates without a verdict, record the verdicts, and write Data Docs for every judged candidate.

    Parameters
    ----------
    now : recording time of the verdicts
    run : name of the run; its Data Docs are in `data_docs/{run}`, those of repeated verdicts in `data_docs/{run}-again`
    """
    folder = data_docs(context.home)
    fresh = publish_legacies.judge_candidates(context, now=now, data_docs_dir=folder / run)
    _document(folder / run, fresh)
    events = context.life_fields("BundleJudged", "bundle_hash", "passed").to_pylist()
    passed = {event["bundle_hash"]: event["passed"] for event in events}
    site = folder / f"{run}-again"
    again = _judged_again(context, passed, site)
    _document(site, again)
    changed = tuple(v.bundle_hash for v in again.judged if v.passed != passed[v.bundle_hash])
    return Documented(fresh, again, changed)


def data_docs(home: Home) -> Path:
    """Return the folder that holds the Data Docs of each run."""
    return home.root / "data_docs"


def newest_page(home: Home) -> Path | None:
    """Return the index page of the newest Data Docs, None without any."""
    pages = sorted(data_docs(home).glob("*/index.html"), key=lambda page: page.stat().st_mtime)
    return pages[-1] if pages else None


def documented_bundles(run: Path) -> list[str]:
    """Return the hashes of the bundles in the Data Docs of a run. A damaged hash is no bundle's."""
    listed = run / _DOCUMENTED
    return listed.read_text("utf-8", "replace").split() if listed.exists() else []


def _document(site: Path, verdicts: Verdicts) -> None:
    """Write the judged bundle hashes into the site, and link its static files (4 MB) to the shared copy."""
    if verdicts.data_docs is None:
        return
    (site / _DOCUMENTED).write_text("".join(f"{v.bundle_hash}\n" for v in verdicts.judged))
    own, shared = site / "static", site.parent / "static"
    if own.is_dir() and not own.is_symlink():
        if shared.exists():
            shutil.rmtree(own)
        else:
            own.rename(shared)
        own.symlink_to(Path("..") / "static", target_is_directory=True)


def _judged_again(context: DerivationContext, passed: dict[str, bool], site: Path) -> Verdicts:
    """Judge again the candidates that have a verdict but no Data Docs. Records nothing."""
    wanted = passed.keys() - {name for run in data_docs(context.home).glob("*/") for name in documented_bundles(run)}
    rows = publish_legacies.candidate_rows(context, sorted(wanted))
    if not rows:
        return Verdicts((), None)
    return judge(publish_legacies.candidates_of(context, rows), context.policy, site)
