"""What the process that others are forked from imports: the command, all that it may need, and no terminal.

Nothing here starts a thread when it is imported: whoever is forked would be without it.
"""

import gc
import importlib
import os
import pkgutil

# A console settles its colours when it is made, and its width if it is told one: tests tell each command its own.
os.environ["TERM"] = "dumb"
os.environ.pop("COLUMNS", None)

import duckdb  # noqa: F401

# What judges bundles: three seconds, of every command under which a golem dies. Its one thread is OpenBLAS's own, which
# is made again in whoever is forked.
import great_expectations
import great_expectations.expectations  # noqa: F401

# What the embedder needs; but not the runtime of its model, which starts a thread.
import huggingface_hub.hf_api  # noqa: F401
import lance_namespace  # noqa: F401  # a second of LanceDB's own import; the rest of that starts a thread
import PIL.Image  # noqa: F401
import tokenizers  # noqa: F401

import bardo_pipeline

for module in pkgutil.walk_packages(bardo_pipeline.__path__, "bardo_pipeline."):
    if module.name != "bardo_pipeline.storage.warehouse.dbt_plugin":  # dbt's parts take longer than all others
        importlib.import_module(module.name)

from bardo_pipeline.cli.app import command  # noqa: E402

command()

# What is here by now stays: whoever is forked need neither look through it nor copy its pages for that.
gc.collect()
gc.freeze()
