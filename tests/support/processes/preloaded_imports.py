"""Imports of the process that is forked for commands: the command line and all its libraries, without a terminal.

No import here starts a thread, because a forked process would lack it.
"""

import gc
import importlib
import os
import pkgutil

# A console fixes its colours and a given width at creation, so tests give each command its own console.
os.environ["TERM"] = "dumb"
os.environ.pop("COLUMNS", None)

import duckdb  # noqa: F401

# Libraries that check bundles: three seconds in each command in which a golem dies. OpenBLAS starts their one thread,
# which a forked process starts again.
import great_expectations
import great_expectations.expectations  # noqa: F401

# Libraries of the embedder, without the runtime of its model, which starts a thread.
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

# The objects loaded so far stay: a forked process neither collects them nor copies their pages.
gc.collect()
gc.freeze()
