"""`bardo doctor`: what a home needs from its machine, each finding with a cure."""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, requires
from importlib.metadata import version as version_of
from pathlib import Path
from stat import S_IMODE
from tempfile import TemporaryDirectory

import httpx
import pyarrow.compute as pc
import yaml  # type: ignore[import-untyped]
from packaging.requirements import Requirement
from typer import Exit

from bardo_pipeline.cli import options as opt
from bardo_pipeline.cli.options import now, root_of
from bardo_pipeline.cli.output.tables import print_json, print_table
from bardo_pipeline.client.running_server import LOCK, is_locked, running_server
from bardo_pipeline.derivation.context import DerivationContext
from bardo_pipeline.derivation.legacy.death_queries import owners_of
from bardo_pipeline.errors import BardoError, NoHomeError
from bardo_pipeline.policy import Policy
from bardo_pipeline.project_files import IMPORT_ROOT, checkout
from bardo_pipeline.server.connections import HOST
from bardo_pipeline.server.serve import ServeSettings
from bardo_pipeline.storage.home import Home, replace_file, sync_folder
from bardo_pipeline.storage.keys.golem_seal_keys import SealKeys, states_of
from bardo_pipeline.storage.keys.owner_signing_keys import OwnerKeys
from bardo_pipeline.storage.keys.owner_tokens import OwnerTokens
from bardo_pipeline.storage.locks import held
from bardo_pipeline.storage.operations.health_metrics import untaken

PORTS = ((ServeSettings.port, "bardo serve --port 0"), (3000, "bardo ui --port 3001"))
"""Ports of the server and of Dagster's UI, and the command that takes another one."""

NEEDED_SETTINGS = (("run_monitoring", "enabled"), ("run_retries", "enabled"), ("concurrency", "pools"))
"""Sections of dagster.yaml without which a run that a reboot ended blocks the runs after it."""

LOCKS = ("requirements.lock", "deploy/requirements.lock")
"""Locks of a checkout and of the image."""

_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==(\S+?)(?:\s*;[^\\]*)?\s*\\?$", re.MULTILINE)
_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True)
class Finding:
    """Result of a check. state: ok, warning or failed. cure: empty if the state is ok."""

    check: str
    state: str
    fact: str
    cure: str = ""


def doctor(home: opt.Home = None, json: opt.Json = False) -> None:
    """Check disk, file system, clock, versions, keys, ports, server, Dagster and spool; exit 1 if a check failed."""
    findings = findings_of(root_of(home), now)
    if json:
        print_json([asdict(finding) for finding in findings])
    else:
        print_table(None, ["check", "state", "fact", "cure"], [tuple(asdict(f).values()) for f in findings])
    if any(finding.state == "failed" for finding in findings):
        raise Exit(1)


def findings_of(root: Path, clock: Callable[[], datetime]) -> list[Finding]:
    """Return the findings on a home and its machine; without a home, on the machine alone."""
    findings = [*versions(), disk(root), *ports(root)]
    try:
        opened = Home.open(root)
        findings += [Finding("home", "ok", str(root)), file_system(root), server(root), dagster(opened)]
        context = DerivationContext.open(root)
        findings += [clock_of(context, clock), *keys(context), spool(opened, clock()), *restores(opened)]
    except NoHomeError as error:
        findings.append(Finding("home", "failed", str(error), f"`bardo init {root}` makes one"))
    except BardoError as error:
        findings.append(Finding("home", "failed", str(error), "`bardo verify` lists every damaged file"))
    return findings


def versions() -> Iterator[Finding]:
    """Compare the installed packages with the library's requirements and, in a checkout, with the lock."""
    try:
        needed = [
            requirement for text in requires("bardo-pipeline") or () if _applies(requirement := Requirement(text))
        ]
    except PackageNotFoundError:
        yield Finding("versions", "failed", "bardo-pipeline is not installed", "install the wheel, or run `make venv`")
        return
    unfit = [
        f"{need.name} {installed or 'is missing'}, needed {need.specifier}"
        for need in needed
        if (installed := _installed(need.name)) is None or not need.specifier.contains(installed, prereleases=True)
    ]
    if unfit:
        yield Finding("versions", "failed", "; ".join(unfit), "install the wheel again, or run `make venv`")
        return
    locks = [IMPORT_ROOT / name for name in LOCKS if checkout() is not None and (IMPORT_ROOT / name).exists()]
    pinned = dict(_PINNED.findall(locks[0].read_text())) if locks else {}
    other = [
        f"{name} {installed}, locked {locked}"
        for name, locked in pinned.items()
        if (installed := _installed(name)) not in (None, locked)
    ]
    if other:
        yield Finding("versions", "warning", "; ".join(other), "`make venv` installs the locked versions")
    else:
        yield Finding("versions", "ok", f"{len(needed)} requirements met; {len(pinned)} packages locked")


def _applies(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})


def _installed(name: str) -> str | None:
    try:
        return version_of(name)
    except PackageNotFoundError:
        return None


def disk(root: Path) -> Finding:
    """Compare the free space on the disk of a home with the threshold of the policy, and with a tenth of it."""
    folder = next(path for path in (root, *root.parents) if path.exists())
    free, needed = shutil.disk_usage(folder).free, Policy().growth.free_bytes_min
    state = "ok" if free >= needed else "warning" if free >= needed // 10 else "failed"
    cure = "" if state == "ok" else f"free {needed:,} bytes; `bardo maintain` removes files that no reader needs"
    return Finding("disk", state, f"{free:,} bytes are free in {folder}", cure)


def file_system(root: Path) -> Finding:
    """Try what the home relies on: rename over a file, links, fsync of files and folders, locks, mode bits."""
    try:
        with TemporaryDirectory(prefix=".doctor-", dir=root) as name:
            folder = Path(name)
            replace_file(folder / "file", b"old")
            replace_file(folder / "file", b"new")
            os.link(folder / "file", folder / "link")
            sync_folder(folder)
            with held(folder / "lock"):
                is_exclusive = is_locked(folder / "lock")
            mode = S_IMODE((folder / "file").stat().st_mode)
            content = (folder / "link").read_bytes()
    except OSError as error:
        return Finding(
            "file system", "failed", str(error), f"move the home to a local disk on which {root} is writable"
        )
    wrong = [
        fact
        for fact, is_wrong in (
            ("a renamed file has its old content", content != b"new"),
            ("a lock is given twice", not is_exclusive),
            (f"a private file has mode {mode:o}, not 600", mode != 0o600),
        )
        if is_wrong
    ]
    cure = "move the home to a local file system of this machine, such as ext4 or xfs" if wrong else ""
    fact = "; ".join(wrong) or "rename, link, fsync, locks and mode bits work"
    return Finding("file system", "failed" if wrong else "ok", fact, cure)


def clock_of(context: DerivationContext, clock: Callable[[], datetime]) -> Finding:
    """Compare the clock with itself and with the newest moment of recording in the log."""
    first, second = clock(), clock()
    recorded = [context.log.life()["recorded_at"], context.log.read_cycles(["recorded_at"])["recorded_at"]]
    newest = max((at for at in map(pc.max, recorded) if at.is_valid), key=lambda at: at.as_py(), default=None)
    ahead = 0.0 if newest is None else (newest.as_py() - second).total_seconds()
    if second < first or ahead > 0:
        fact = "the clock runs backwards" if second < first else f"the newest event was recorded {ahead:,.0f} s ahead"
        cure = "synchronize the clock of this machine (NTP); records are refused until it passes the newest event"
        return Finding("clock", "failed", fact, cure)
    return Finding("clock", "ok", f"{second:%Y-%m-%d %H:%M:%S} UTC, not before the newest event")


def keys(context: DerivationContext) -> Iterator[Finding]:
    """Check the key files: modes, content, keys on record without a file; and owners whose bundles are unsigned."""
    home, log = context.home, context.log
    open_files = [path for path in (home.keys, *home.keys.glob("*")) if path.exists() and path.stat().st_mode & 0o077]
    if open_files:
        cure = f"chmod 700 {home.keys} && chmod 600 {home.keys}/*"
        yield Finding("keys", "failed", f"other users may read {', '.join(map(str, open_files))}", cure)
    signing = OwnerKeys(home, log)
    current = signing.in_force()
    checks: list[Callable[[], object]] = [partial(signing.private, key) for key in current.values()]
    for check in (*checks, OwnerTokens(home).on_file):
        try:
            check()
        except BardoError as error:
            yield Finding("keys", "failed", str(error), "restore the file from your copy of the keys")
    for state in states_of(home, log):
        if state.destroyed_at is None and not state.present:
            fact = f"golem {state.golem_id}: {SealKeys(home).path(state.golem_id)} does not hold {state.key_id}"
            yield Finding("keys", "failed", fact, "restore the file from your copy of the keys")
    unsigned = sorted(set(owners_of(context).values()) - set(current))
    if unsigned:
        fact = f"bundles of {', '.join(unsigned)} are not signed"
        yield Finding("keys", "warning", fact, f"`bardo keys owner {unsigned[0]}` makes a key")
    elif not open_files:
        yield Finding("keys", "ok", f"{len(current)} owners sign; no other user may read a key")


def ports(root: Path) -> Iterator[Finding]:
    """Look at the ports of `bardo serve` and `bardo ui`: free, of this home, or of another program."""
    running = running_server(root)
    own = None if running is None else int(running.url.rpartition(":")[2])
    for port, command in PORTS:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                if port == own:
                    yield Finding(f"port {port}", "ok", "the server of this home listens")
                else:
                    yield Finding(f"port {port}", "warning", f"taken by {_listener_of(port)}", f"`{command}`")
            else:
                yield Finding(f"port {port}", "ok", "free")


def _listener_of(port: int) -> str:
    """Return the program that listens on a port, as far as this user may see it."""
    inodes = {
        f"socket:[{fields[9]}]"
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
        if (fields := line.split())[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port
    }
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):  # the program closed it meanwhile, or belongs to another user
            if os.readlink(link) in inodes:
                process = link.parents[1]
                return f"process {process.name}, {(process / 'comm').read_text().strip()}"
    return "a program of another user"


def server(root: Path) -> Finding:
    """Ask the running server of the home whether it answers."""
    running = running_server(root)
    if running is None:
        if not is_locked(root / LOCK):
            return Finding("server", "ok", "none runs")
        return Finding("server", "warning", "a server of another user runs", "run `bardo doctor` as its user")
    try:
        httpx.get(f"{running.url}/healthz", timeout=_TIMEOUT_SECONDS).raise_for_status()
    except httpx.HTTPError as error:
        cure = f"stop process {running.pid}, then start it again by `bardo serve`"
        return Finding("server", "failed", f"{running.url} does not answer ({error!r})", cure)
    return Finding("server", "ok", f"process {running.pid} answers at {running.url}")


def dagster(home: Home) -> Finding:
    """Check the settings of the home's Dagster instance."""
    file = home.dagster / "dagster.yaml"
    try:
        settings = yaml.safe_load(file.read_text()) or {}
        missing = [section for section, key in NEEDED_SETTINGS if not settings.get(section, {}).get(key)]
    except FileNotFoundError:
        return Finding("dagster", "ok", "no instance yet; `bardo ui` writes its settings")
    except (OSError, AttributeError, yaml.YAMLError) as error:
        missing = [str(error)]
    if not missing:
        return Finding("dagster", "ok", f"{file} has run monitoring, retries and pools")
    cure = f"delete {file}: `bardo ui` writes it again"
    return Finding("dagster", "warning", f"{file} lacks {', '.join(missing)}", cure)


def restores(home: Home) -> Iterator[Finding]:
    """Look for unfinished restores of clades."""
    for mark in sorted(home.root.glob("clade/*/restoring")):
        owner = mark.read_text()
        fact = f"the restore of the clade of {owner} was interrupted"
        yield Finding("restore", "failed", fact, f"`bardo clade restore {owner}` goes on with it")


def spool(home: Home, at: datetime) -> Finding:
    """Look for files in the spool that no ingestion takes."""
    never = untaken(home, at)
    if not never.files:
        return Finding("spool", "ok", "every file in it is taken")
    cure = f"name it *.jsonl or *.arrow, or remove it from {home.spool}"
    return Finding("spool", "warning", f"{never.files} files are never taken, such as {never.oldest}", cure)
