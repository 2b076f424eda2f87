"""Build the wheel with the dbt project as package data; everything else is declared in pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

DBT_PROJECT = Path(__file__).parent / "dbt"


class BuildWithDbtProject(build_py):
    """Copy dbt/ to bardo_pipeline/dbt_project in a wheel. An editable install reads dbt/ itself."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "bardo_pipeline" / "dbt_project"
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(DBT_PROJECT, target, ignore=shutil.ignore_patterns("target", "logs", "dbt_packages"))


setup(cmdclass={"build_py": BuildWithDbtProject})
