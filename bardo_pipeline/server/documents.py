"""Data Docs and dbt docs over HTTP: pages that load nothing from another host.

Great Expectations writes its pages for a browser with access to nine hosts of style sheets and scripts. The pages here
are the same tables without scripts, with a style sheet inside. Its index is a table that a script fills, so this module
writes the list of runs. Source: X-11, P-5; ADR 0087.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import quote

from bardo_pipeline.derivation.legacy.data_docs import documented_bundles
from bardo_pipeline.errors import ServerError

DATA_SECURITY = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; img-src 'self' data:; font-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
"""Headers of the Data Docs: no script runs, because their texts come from golems."""

DBT_SECURITY = {
    **DATA_SECURITY,
    "content-security-policy": "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'unsafe-inline'; img-src 'self' data:; font-src data:; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'none'",
}
"""Headers of the dbt docs: their script is part of the page, and their texts are those of the dbt project."""

MEDIA = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".png": "image/png",
         ".gif": "image/gif", ".svg": "image/svg+xml", ".ico": "image/x-icon", ".otf": "font/otf"}  # fmt: skip
"""Types of the files that are sent."""

_REMOTE = "(?:https?:)?//"
_DROPPED = tuple(
    re.compile(pattern, re.IGNORECASE | re.DOTALL)
    for pattern in (
        r"<script\b.*?</script\s*>",
        rf"<link\b[^>]*\bhref\s*=\s*[\"']?{_REMOTE}[^>]*>",
        rf"<img\b[^>]*\bsrc\s*=\s*[\"']?{_REMOTE}[^>]*>",
        rf"url\(\s*[\"']?{_REMOTE}[^)]*\)",
        r"(?<=[\s\"'])on\w+\s*=\s*(?:\"[^\"]*\"|'[^']*')(?=[^<>]*>)",
        r"<link\b[^>]*\brel\s*=\s*[\"']?shortcut icon[^>]*>",
    )
)
_STYLE = """<style>
body{font:15px/1.5 system-ui,sans-serif;max-width:1080px;margin:1rem auto;padding:0 1rem 3rem}
table{border-collapse:collapse;width:100%}th,td{text-align:left;vertical-align:top;padding:.3rem .6rem;
border:1px solid #8886}.modal,.ge-walkthrough-modal,.btn-group,.popover,footer,#ge-cta-footer{display:none!important}
nav,.navbar,.sticky{position:static!important;height:auto!important;max-height:none!important}
.sticky .card:first-child{display:none}.show-scrollbars{max-height:none!important}
</style>"""


class DocumentedRun(NamedTuple):
    """A run of the Data Docs. pages: path below the run -> title, in the order of their paths."""

    name: str
    bundles: int
    pages: Sequence[tuple[str, str]]


def without_remote_files(page: str) -> str:
    """Return a page without scripts and without references that a browser would load from another host."""
    for pattern in _DROPPED:
        page = pattern.sub("", page)
    return page.replace("</head>", f"{_STYLE}</head>", 1)


def documented_runs(folder: Path) -> list[DocumentedRun]:
    """Return the runs below a folder of Data Docs, the newest first."""
    runs = []
    for index in folder.glob("*/index.html"):
        run = index.parent
        pages = sorted(run.glob("validations/**/*.html")) + sorted(run.glob("expectations/**/*.html"))
        names = tuple((page.relative_to(run).as_posix(), _title(page.relative_to(run))) for page in pages)
        runs.append((index.stat().st_mtime, DocumentedRun(run.name, len(documented_bundles(run)), names)))
    return [run for _, run in sorted(runs, key=lambda timed: (-timed[0], timed[1].name))]


def runs_page(runs: Sequence[DocumentedRun]) -> str:
    """Return the list of runs as HTML."""
    rows = []
    for run in runs:
        links = " ".join(f'<a href="{quote(f"{run.name}/{path}")}">{escape(title)}</a>' for path, title in run.pages)
        rows.append(f"<tr><td>{escape(run.name)}</td><td>{run.bundles:,}</td><td>{links}</td></tr>")
    table = (
        f"<table><thead><tr><th>run</th><th>bundles</th><th>pages</th></tr></thead><tbody>{''.join(rows)}</tbody></table>"
        if runs
        else "<p>No bundle is judged yet: <code>bardo derive</code> judges the bundles of dead golems.</p>"
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Data Docs</title>{_STYLE}</head><body>'
        f"<h1>Data Docs</h1><p>Checks of the bundles that golems left, the newest run first.</p>{table}</body></html>\n"
    )


def file_below(folder: Path, path: str) -> Path:
    """Return the file of a path below a folder. Raises ServerError 404 for another path, and for a link out of it."""
    root = folder.resolve()
    try:
        page = (root / PurePosixPath(path)).resolve()
        is_ours = page.is_relative_to(root) and page.suffix in MEDIA and page.is_file()
    except (OSError, ValueError):  # a name that is too long, or with a null byte
        is_ours = False
    if not is_ours:
        raise ServerError(404, "UnknownPathError", f"the Data Docs have no page {path[:100]!r}",
                          "GET /docs/data/ lists them")  # fmt: skip
    return page


def _title(page: Path) -> str:
    kind, name = page.parts[0].removesuffix("s"), page.stem
    return f"{kind} {name}"
