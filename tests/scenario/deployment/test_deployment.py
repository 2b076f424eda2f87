"""The image of the Dockerfile is built and its services run as compose.yaml states, without a container engine."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

from tests.support.processes.image import Container, Image, Stage, can_build, stages_of
from tests.support.processes.postgres import PASSWORD, postgres

pytestmark = pytest.mark.row("P-4")

ROOT = Path(__file__).resolve().parents[3]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
UNITS = sorted((ROOT / "deploy" / "systemd").glob("bardo-*.*"))
STATUS = "import dagster; print(dagster.DagsterInstance.get().get_runs(limit=1)[0].status.value)"
PATIENCE = 600
"""Seconds for a busy machine."""

PINNED = r"(?m)^([A-Za-z0-9._-]+==\S+)"


def test_the_files_of_the_deployment_pass_their_linters() -> None:
    tools = Path(sys.executable).parent
    for command in (
        [tools / "hadolint", "--failure-threshold", "info", "Dockerfile"],
        [tools / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", "compose.yaml"],
        [tools / "check-jsonschema", "--builtin-schema", "vendor.github-workflows", ".github/workflows/ci.yml"],
    ):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_image_installs_a_part_of_the_lock_by_hashes() -> None:
    import re

    whole = set(re.findall(PINNED, (ROOT / "requirements.lock").read_text()))
    part = (ROOT / "deploy" / "requirements.lock").read_text()
    assert set(re.findall(PINNED, part)) <= whole
    assert "dagster-postgres==" in part
    assert "pytest==" not in part
    assert part.count("==") <= part.count("--hash=sha256:")
    assert "--require-hashes" in (ROOT / "Dockerfile").read_text()


def test_services_run_without_rights_and_check_their_health() -> None:
    assert stages_of((ROOT / "Dockerfile").read_text())[-1].user.partition(":")[0] != "0"
    for name, service in COMPOSE["services"].items():
        if name != "memory":  # the image's own check
            assert service["healthcheck"]["test"][0] == "CMD"
        assert service["secrets"] == ["postgres_password"]
        assert "postgres_password" not in str(service["environment"]).replace("/run/secrets/postgres_password", "")
        if name != "postgres":
            assert service["cap_drop"] == ["ALL"]
            assert service["read_only"] is True
    published = [port for service in COMPOSE["services"].values() for port in service.get("ports", ())]
    assert published == ["127.0.0.1:3000:3000"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_a_unit_is_valid_and_runs_without_rights(unit: Path, tmp_path: Path) -> None:
    text = unit.read_text().replace("/opt/bardo/.venv/bin/", f"{Path(sys.executable).parent}/")
    (tmp_path / unit.name).write_text(text.replace("User=bardo\nGroup=bardo\n", "User=daemon\nGroup=daemon\n"))
    for other in UNITS:
        if other != unit:
            (tmp_path / other.name).write_text("[Service]\nExecStart=/bin/true\n")
    try:
        command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", tmp_path / unit.name]
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("systemd is not installed")
    assert done.returncode == 0, done.stderr
    assert unit.name not in done.stderr
    if unit.suffix == ".service":
        assert {"User=bardo", "NoNewPrivileges=yes", "ProtectSystem=strict"} <= set(unit.read_text().splitlines())


def test_the_builder_refuses_an_instruction_that_it_does_not_know() -> None:
    with pytest.raises(ValueError, match="ONBUILD"):
        stages_of("FROM x\nONBUILD RUN true\n")
    (stage,) = stages_of("FROM x AS y\nENV A=1 B=2\n# a comment\nRUN a \\\n  && b\n")
    assert (stage.name, stage.variables) == ("y", {"A": "1", "B": "2"})
    assert stage.steps[-1] == ("RUN", "a    && b")
    assert isinstance(stage, Stage)


def test_the_workflow_uses_the_wheel_on_every_supported_python_and_limits_its_time() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    assert jobs["wheel"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13", "3.14"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    scripts = [word for command in commands for word in command.split() if word.startswith(".ci/")]
    assert set(scripts) == {".ci/run", ".ci/wheel"}
    assert all((ROOT / script).exists() for script in scripts)
    assert all("timeout-minutes" in job for job in jobs.values())


def test_the_hooks_run_tools_of_the_environment_and_fetch_nothing() -> None:
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert local["repo"] == "local"
    for hook in local["hooks"]:
        program, *words = hook["entry"].split()
        assert hook["language"] == "system"
        assert program.startswith(".venv/bin/")
        tool = Path(sys.executable).with_name(Path(program).name)
        assert subprocess.run([tool, *words[:1], "--help"], capture_output=True).returncode == 0


@contextmanager
def service(container: Container, name: str, variables: dict[str, str], log: Path) -> Iterator[None]:
    """Run a service of compose.yaml until the end of the block."""
    stated = COMPOSE["services"][name]
    words = [*container.image.last.stated["ENTRYPOINT"], *stated["command"]]
    with log.open("wb") as out:
        process = subprocess.Popen(container.command(words, environment(stated, variables)), stdout=out, stderr=out)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def environment(stated: dict[str, Any], variables: dict[str, str]) -> dict[str, str]:
    plain = {name: value for name, value in stated["environment"].items() if not value.startswith("${")}
    return {**plain, **variables}


def until_healthy(container: Container, name: str, variables: dict[str, str], log: Path) -> None:
    """Run the health check of a service until it passes."""
    stated = COMPOSE["services"][name]
    check = stated["healthcheck"]["test"][1:] if "healthcheck" in stated else container.image.last.stated["HEALTHCHECK"]
    deadline = time.monotonic() + PATIENCE
    command = container.command(check, environment(stated, variables))  # an engine runs it without the entry point
    while (done := subprocess.run(command, capture_output=True)).returncode:
        assert time.monotonic() < deadline, f"{name}: {done.stderr.decode()[-2000:]}\n{log.read_text()[-4000:]}"
        time.sleep(1)


@pytest.fixture
def image(tmp_path: Path) -> Iterator[Image]:
    """The built image; its gigabytes are deleted after the test."""
    if not can_build(tmp_path):
        pytest.skip("this user may not mount an overlay")
    with TemporaryDirectory(prefix="image-", dir=tmp_path) as folder:
        built = Image(Path(folder), stages_of((ROOT / "Dockerfile").read_text()))
        built.build()
        yield built


@pytest.mark.full
def test_the_services_of_the_image_become_healthy_and_a_job_runs(image: Image, tmp_path: Path) -> None:
    with ExitStack() as stack:
        container = stack.enter_context(image.container())
        place = stack.enter_context(postgres(container.entered))
        container.write("/run/secrets/postgres_password", PASSWORD)
        container.write("/var/lib/bardo/dagster/dagster.yaml", (ROOT / "deploy" / "dagster.yaml").read_text())
        variables = {name: value for name, value in place.items() if "PASSWORD" not in name}
        variables["BARDO_CODE_HOST"] = "127.0.0.1"

        def output(*words: str) -> str:
            entry = image.last.stated["ENTRYPOINT"]
            command = container.command([*entry, *words], environment(COMPOSE["services"]["daemon"], variables))
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        for name in ("code", "daemon", "webserver", "memory"):
            log = tmp_path / f"{name}.log"
            stack.enter_context(service(container, name, variables, log))
            until_healthy(container, name, variables, log)
        assert "answers at http://127.0.0.1:8642" in output("bardo", "doctor", "--json")
        output("dagster", "job", "launch", "--workspace", "deploy/workspace.yaml", "--job", "curator_job")
        deadline = time.monotonic() + PATIENCE
        while (status := output("python", "-c", STATUS).split()[-1]) != "SUCCESS":
            assert status != "FAILURE"
            assert time.monotonic() < deadline, status
