"""A PostgreSQL server of this machine's packages on a port of 127.0.0.1, for Dagster's storage in tests."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bardo_pipeline.storage.home import Home

USER = PASSWORD = "dagster"


def programs() -> Path | None:
    """Return the folder of PostgreSQL's programs; None if they are not installed."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return folders[-1] if folders else None


@contextmanager
def postgres_server() -> Iterator[int]:
    """Start a server with an empty database in a new folder, yield its port, stop it and delete the folder.

    PostgreSQL refuses to run as root, so root starts it as the user `postgres`.
    """
    bin = programs()
    assert bin is not None, "PostgreSQL is not installed"
    user = "postgres" if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="bardo-postgres-", dir="/tmp"))  # its user may not enter a private TMPDIR
    secret = folder / "password"
    secret.write_text(PASSWORD)
    if user is not None:
        account = pwd.getpwnam(user)
        for path in (folder, secret):
            os.chown(path, account.pw_uid, account.pw_gid)
    data, log = folder / "data", folder / "log"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    create = [bin / "initdb", "-D", data, "-U", USER, "--auth=scram-sha-256", f"--pwfile={secret}", "--no-sync"]
    subprocess.run(create, user=user, cwd="/", check=True, capture_output=True)
    options = f"-h 127.0.0.1 -p {port} -k {folder}"
    subprocess.run([bin / "pg_ctl", "-D", data, "-l", log, "-w", "-o", options, "start"],
                   user=user, cwd="/", check=True, stdout=subprocess.DEVNULL)  # fmt: skip
    try:
        yield port
    finally:
        subprocess.run([bin / "pg_ctl", "-D", data, "-m", "immediate", "stop"], user=user, cwd="/", check=True,
                       stdout=subprocess.DEVNULL)  # fmt: skip
        shutil.rmtree(folder)


def use_postgres(home: Home, port: int) -> None:
    """Add the server as Dagster's storage to dagster.yaml of the home, as docs/guide/operations.md shows it."""
    settings = home.dagster / "dagster.yaml"
    storage = f"""
storage:
  postgres:
    postgres_db:
      scheme: postgresql+psycopg2
      username: {USER}
      password: {PASSWORD}
      hostname: 127.0.0.1
      port: {port}
      db_name: postgres
"""
    settings.write_text(settings.read_text() + storage)
