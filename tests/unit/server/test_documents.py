"""Data Docs over HTTP: pages lose scripts and remote files, and no path leads out of their folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from bardo_pipeline.errors import ServerError
from bardo_pipeline.server.documents import documented_runs, file_below, runs_page, without_remote_files

PAGE = """<html><head><link rel="stylesheet" href="https://cdn.example/a.css"><script src="//cdn.example/a.js"></script>
<style>a { background: url('https://cdn.example/b.png') }</style></head><body><img alt="x" src="https://cdn.example/c.png"/>
<label class="btn" onclick="show('all')">kept</label><script>let x = "<b>";</script><img src="own.png"></body></html>"""


@pytest.mark.row("X-11")
def test_a_page_keeps_its_text_and_loses_scripts_and_remote_files() -> None:
    page = without_remote_files(PAGE)
    for absent in ("cdn.example", "<script", "onclick"):
        assert absent not in page
    for present in ("kept", 'src="own.png"', "<style>"):
        assert present in page


@pytest.mark.row("X-11", "X-12")
def test_only_pages_below_the_folder_are_sent(tmp_path: Path) -> None:
    folder, secret = tmp_path / "data_docs", tmp_path / "keys.html"
    run = folder / "run-1"
    (run / "validations").mkdir(parents=True)
    for path in (secret, run / "index.html", run / "validations" / "<b>.html", run / "notes.txt"):
        path.write_text("a bundle\n")
    (run / "link.html").symlink_to(secret)
    assert file_below(folder, "run-1/validations/<b>.html").read_text() == "a bundle\n"
    for wrong in ("../keys.html", "run-1/link.html", "run-1/notes.txt", str(secret), "run-1", "a" * 5_000, "\0.html"):
        with pytest.raises(ServerError, match="have no page"):
            file_below(folder, wrong)
    listed = runs_page(documented_runs(folder))
    assert "run-1/validations/%3Cb%3E.html" in listed
    assert "<b>" not in listed
    assert "No bundle is judged yet" in runs_page([])


def test_a_damaged_list_of_bundles_breaks_no_page(tmp_path: Path) -> None:
    run = tmp_path / "run-1"
    run.mkdir()
    (run / "index.html").touch()
    (run / "bundles.txt").write_bytes(b"a1b2\n\xff3d4\n")
    assert [listed.bundles for listed in documented_runs(tmp_path)] == [2]
