"""The page docs/configuration.md, generated from the configuration models."""

from __future__ import annotations

from bardo_pipeline.policy.golem_configuration import CLADE, NOT_READ, RUN, VAULT, keys, reader_of, sections, setting_of
from bardo_pipeline.policy.toml_config import toml

_HEAD = """# Configuration

`bardo.toml` in the home, or a file named by `--config`, configures the golems of this home. The format is TOML. Every
key is optional: an omitted key keeps its active value, or the default below if no value is active yet. A run records
the complete active configuration in an event `ConfigurationAdopted` when it begins; `bardo config adopt --why ...`
does so between runs.

```console
$ bardo config check     validates the file and lists the changes it would make
$ bardo config show      lists every key: active value, value in the file, reader
$ bardo config adopt     activates the file between runs
```

A key that affects derived tables creates a new policy: the tables are derived again under that policy in a separate
folder and then activated, as by `bardo adopt`. A key that only affects operations takes effect at once.

Keys read by **nothing** belong to features that do not exist yet. They are validated and recorded, and have no effect.

This page is generated from the models (`BARDO_GOLDEN=write pytest tests/unit/project/test_configuration.py`).
"""

_READERS = {
    RUN: "the run or the succession",
    CLADE: "`bardo clade sync`",
    VAULT: "`bardo clade backup`",
    NOT_READ: "**nothing** yet",
}


def configuration_page() -> str:
    """Return the page: one table per section."""
    parts = [_HEAD]
    for name, model in sorted(sections().items(), key=lambda section: section[0].count(".")):
        own = [key for key in keys() if key.rpartition(".")[0] == name]
        if not own:
            continue
        parts.append(f"\n## [{name}]\n\n{model.__doc__}\n\n| key | default | meaning | read by |\n|---|---|---|---|\n")
        for key in own:
            field, mapped = keys()[key], setting_of(key)
            reader = _READERS.get(reader_of(key), f"`{reader_of(key)}`" if mapped else "")
            parts.append(f"| `{key.rpartition('.')[2]}` | {toml(field.default)} | {field.description} | {reader} |\n")
    return "".join(parts)
