"""The page docs/configuration.md, made from the models of the configuration."""

from __future__ import annotations

from bardo_pipeline.policy.golem_configuration import NOT_READ, RUN, keys, reader_of, sections, setting_of
from bardo_pipeline.policy.toml_config import toml

_HEAD = """# Configuration

`bardo.toml` in the home, or a file named by `--config`, says how golems of this home are born, live and die. It is
TOML; every key may be left out. What is left out stays as it is in force: by default, as it is written here. What is in
force is recorded, whole, as an event `ConfigurationAdopted` when a run begins, or by `bardo config adopt --why ...`.

```console
$ bardo config check     validates the file, and says what it would change
$ bardo config show      every key: in force, in the file, read by whom
$ bardo config adopt     puts it in force between runs
```

A key that sets a number by which something is derived makes another policy of it: what is known is derived again under
that one, beside, and then adopted, as `bardo adopt` does. A key that only says how the home is run acts at once.

Keys that **nothing** reads are for what is not built yet. They are validated and recorded, so that a file may have
them; they change nothing.

This page is made from the models (`BARDO_GOLDEN=write pytest tests/unit/test_configuration.py`).
"""

_READERS = {RUN: "the run, or the succession", NOT_READ: "**nothing** yet"}


def configuration_page() -> str:
    """The whole page: a table for each section."""
    parts = [_HEAD]
    for name, model in sections().items():
        own = [key for key in keys() if key.rpartition(".")[0] == name]
        if not own:
            continue
        parts.append(f"\n## [{name}]\n\n{model.__doc__}\n\n| key | default | is | read by |\n|---|---|---|---|\n")
        for key in own:
            field, mapped = keys()[key], setting_of(key)
            reader = _READERS.get(reader_of(key), f"`{reader_of(key)}`" if mapped else "")
            parts.append(f"| `{key.rpartition('.')[2]}` | {toml(field.default)} | {field.description} | {reader} |\n")
    return "".join(parts)
