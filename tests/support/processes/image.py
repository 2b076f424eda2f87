"""Builds the Dockerfile without a container engine: each stage is an overlay over this machine's root folder.

`COPY` and `RUN` are executed in a mount namespace of their own, so nothing outside the folder changes. The stages begin
with this machine's Python in place of the base image. `python -m tests.support.processes.image FOLDER` builds one.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PYTHON = Path(sys.executable).resolve()


@dataclass
class Stage:
    """A stage of a Dockerfile: instructions in order, and what the last ones of their kind state."""

    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    user: str = "0:0"
    folder: str = "/"
    stated: dict[str, list[str]] = field(default_factory=dict)


def stages_of(text: str) -> list[Stage]:
    """Parse a Dockerfile. Raises ValueError for an instruction that the builder does not know."""
    stages: list[Stage] = []
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for instruction in re.sub(r"\\\n", " ", lines).splitlines():
        if not instruction.strip():
            continue
        word, _, rest = instruction.strip().partition(" ")
        match word:
            case "FROM":
                stages.append(Stage(rest.partition(" AS ")[2] or "last"))
            case "ENV":
                stages[-1].variables |= dict(part.split("=", 1) for part in shlex.split(rest))
                stages[-1].steps.append((word, rest))
            case "WORKDIR":
                stages[-1].folder = rest
                stages[-1].steps.append((word, rest))
            case "USER":
                stages[-1].user = rest
            case "COPY" | "RUN":
                stages[-1].steps.append((word, rest.strip()))
            case "ENTRYPOINT" | "CMD" | "VOLUME":
                stages[-1].stated[word] = json.loads(rest)
            case "HEALTHCHECK":
                stages[-1].stated[word] = json.loads(rest[rest.index("[") :])
            case _:
                raise ValueError(f"{word}: the builder does not know this instruction")
    return stages


class Image:
    """The result of a build in a folder: one overlay for each stage."""

    def __init__(self, folder: Path, stages: Sequence[Stage]) -> None:
        self.folder, self.stages = folder, stages

    @property
    def last(self) -> Stage:
        """Return the stage that the image consists of."""
        return self.stages[-1]

    def build(self, context: Path = ROOT) -> None:
        """Execute all steps. Raises RuntimeError with the output of the failed one."""
        for stage in self.stages:
            lines = [self._mounted(stage), *_base_lines()]
            folder = "/"
            for word, rest in stage.steps:
                if word == "WORKDIR":
                    folder = rest
                    lines.append(f'mkdir -p "$root{rest}"')
                elif word == "ENV":
                    lines.append(f"export {shlex.join(shlex.split(rest))}")
                elif word == "COPY":
                    lines += self._copied(rest, folder, context)
                else:
                    lines.append(f"in_stage {shlex.quote(folder)} {shlex.quote(rest)}")
            self._run(stage, "\n".join(lines))

    @contextmanager
    def container(self) -> Iterator[Container]:
        """Hold the last stage mounted, in a network of its own; all its processes end with the block."""
        script = f"{self._mounted(self.last)}\nip link set lo up; echo ready; exec sleep infinity"
        apart = ["--mount", "--net", "--pid", "--fork", "--kill-child", "--propagation", "private"]
        command = ["unshare", *apart, "bash", "-euo", "pipefail", "-c", script]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
            assert holder.stdout is not None
            try:
                if holder.stdout.readline() != "ready\n":
                    raise RuntimeError("the last stage cannot be mounted")
                first = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()[0]
                yield Container(self, int(first))
            finally:
                holder.kill()

    def file(self, path: str) -> Path:
        """Return the place of a file that the last stage made."""
        return self.folder / self.last.name / "upper" / path.lstrip("/")

    def _mounted(self, stage: Stage) -> str:
        place = self.folder / stage.name
        for name in ("upper", "work", "root"):
            (place / name).mkdir(parents=True, exist_ok=True)
        layers = f"lowerdir=/,upperdir={place}/upper,workdir={place}/work"
        return f"""
root={place}/root
mountpoint -q "$root" || mount -t overlay overlay -o {layers} "$root"
for name in proc dev sys; do mount --rbind /$name "$root/$name"; done
mount -t tmpfs tmpfs "$root/tmp"
in_stage() {{ /usr/sbin/chroot "$root" /bin/sh -ec "cd $1 && $2"; }}"""

    def _copied(self, rest: str, folder: str, context: Path) -> list[str]:
        words = rest.split()
        source = context
        if words[0].startswith("--from="):
            source = self.folder / words.pop(0).removeprefix("--from=") / "upper"
        *paths, target = words
        place = target if target.startswith("/") else f"{folder}/{target.removeprefix('./')}"
        is_folder = len(paths) > 1 or target.endswith("/")
        lines = [f'mkdir -p "$root{place if is_folder else Path(place).parent}"']
        for path in paths:
            copied = shlex.quote(str(source / path.lstrip("/")))
            lines.append(f'cp -aT {copied} "$root{place}{"/" + Path(path).name if is_folder else ""}"')
        return lines

    def _run(self, stage: Stage, script: str) -> None:
        command = ["unshare", "--mount", "--propagation", "private", "bash", "-euxo", "pipefail", "-c", script]
        log = self.folder / f"{stage.name}.log"
        with log.open("wb") as out:
            done = subprocess.run(command, env=_environment(), stdout=out, stderr=out, check=False)
        if done.returncode:
            raise RuntimeError(f"stage {stage.name}: {log.read_text()[-4000:]}")


@dataclass(frozen=True)
class Container:
    """An image whose last stage is mounted by the process `pid`, the first one of its namespaces."""

    image: Image
    pid: int

    @property
    def entered(self) -> list[str]:
        """Return the words that begin a command in the container's network, with this machine's files."""
        return ["nsenter", f"--target={self.pid}", "--net", "--pid"]

    def command(self, words: Sequence[str], extra: Mapping[str, str]) -> list[str]:
        """Return the words that run a command in the container as its user, with these variables added to its own."""
        stage = self.image.last
        user, group = stage.user.split(":")
        variables = [f"{name}={value}" for name, value in {**stage.variables, **extra}.items()]
        prefix = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "--no-new-privs", "env", "-i"]
        inside = f"cd {shlex.quote(stage.folder)} && exec {shlex.join([*prefix, *variables, *words])}"
        return [*self._rooted, inside]

    def write(self, path: str, text: str) -> None:
        """Write a file that every user of the container may read."""
        script = f'mkdir -p "$(dirname {path})" && printf %s {shlex.quote(text)} > {path} && chmod 444 {path}'
        subprocess.run([*self._rooted, script], check=True)

    @property
    def _rooted(self) -> list[str]:
        root = self.image.folder / self.image.last.name / "root"
        return [*self.entered, "--mount", "/usr/sbin/chroot", str(root), "/bin/sh", "-ec"]


def _base_lines() -> list[str]:
    """Return the lines that let each user enter the folder of this machine's Python."""
    return [f'chmod o+x "$root{folder}"' for folder in PYTHON.parents if str(folder) != "/"]


def _environment() -> dict[str, str]:
    """Return the variables of this machine with which the steps begin; package clients find their index by them."""
    machine = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    path = {"PATH": f"{PYTHON.parent}:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    return {**machine, **path}


def can_build(folder: Path) -> bool:
    """Return whether this user may mount an overlay in a namespace, with its layers in this folder."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    try:
        with Image(folder, [Stage("probe")]).container():
            return True
    except RuntimeError:
        return False


def main() -> None:
    """Build the Dockerfile of this checkout in the named folder."""
    folder = Path(sys.argv[1]).absolute()
    image = Image(folder, stages_of((ROOT / "Dockerfile").read_text()))
    image.build()
    print(f"built in {folder / image.last.name}")


if __name__ == "__main__":
    main()
