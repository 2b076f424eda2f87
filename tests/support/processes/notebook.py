"""The notebook of examples/analysts, executed by a kernel of its own."""

from __future__ import annotations

import base64
import io
import os
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
from matplotlib.image import imread
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parents[3] / "examples/analysts/five_questions.ipynb"


@dataclass(frozen=True)
class Answer:
    """The outputs of the cell below a question: its sentence, the rows as HTML, and its plots as PNG."""

    sentence: str
    rows: str
    plots: tuple[bytes, ...]

    @property
    def has_colour(self) -> bool:
        """Whether a plot shows coloured marks; the note about a home without rows is black."""
        pixels = [imread(io.BytesIO(plot), format="png")[..., :3] for plot in self.plots]
        return any(((rows.max(axis=-1) - rows.min(axis=-1)) > 0.15).sum() > 200 for rows in pixels)


def answers(home: Path, scratch: Path) -> dict[str, Answer]:
    """Execute every cell of the notebook with BARDO_HOME, and return each question with its answer."""
    book = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(book, timeout=120, resources={"metadata": {"path": str(NOTEBOOK.parent)}})
    folders = {name: str(scratch) for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR")}
    with pytest.MonkeyPatch.context() as patch:
        for name, folder in folders.items():
            patch.setenv(name, folder)
        client.execute(env={**os.environ, "BARDO_HOME": str(home)})
    asked = {}
    for above, cell in zip(book.cells, book.cells[1:], strict=False):
        if above.cell_type == "markdown" and above.source.startswith("## "):
            shown = [output["data"] for output in cell.outputs if "data" in output]
            asked[above.source.splitlines()[0]] = Answer(
                "".join(output.get("text", "") for output in cell.outputs),
                "".join(data.get("text/html", "") for data in shown),
                tuple(base64.b64decode(data["image/png"]) for data in shown if "image/png" in data),
            )
    return asked
