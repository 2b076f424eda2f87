"""MkDocs hook: publish the Markdown pages of the root, and list the decisions in the navigation."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add docs/adr to the navigation, in the order of the numbers."""
    decisions = sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs" / "adr").glob("0*.md"))
    config.nav.insert(-2, {"Decisions": ["adr/index.md", *decisions]})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the repository's root, with links that fit their place in the site."""
    for source, target in PAGES.items():
        text = re.sub(r"\]\(docs/", "](", (ROOT / source).read_text())
        for name, page in PAGES.items():
            text = text.replace(f"]({name}", f"]({page}")
        files.append(File.generated(config, target, content=text))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Point links to pages of the root at their place in the site."""
    for name, page in PAGES.items():
        markdown = re.sub(rf"\]\((?:\.\./)+{re.escape(name)}", f"](../{page}", markdown)
    return markdown
