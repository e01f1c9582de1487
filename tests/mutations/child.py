"""Child process of a mutation run: runs selected tests with a mutated module or with the original source."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import hypothesis
import pytest
from tests.mutations.serve import serve


@attrs.frozen(kw_only=True)
class Job:
    """What a child does."""

    root: Path
    """Folder of the tests and of pytest's settings."""
    source: Path
    """Folder of the packages."""
    tests: tuple[str, ...]
    slow: bool
    mutation: tuple[str, str, str] | None = None
    """Module, path and text; None: nothing is mutated."""


@attrs.frozen(kw_only=True)
class Ended:
    """How a child ended by itself."""

    code: int
    """Pytest's exit code."""
    by: str
    """The first test that failed, or what could not be collected."""
    served: bool
    """Whether the mutated text was what ran."""
    output: str


@attrs.define(eq=False)
class _Notice:
    """Plugin of pytest: remembers the first failure, and lets hypothesis look for one only."""

    by: str = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """After the profile of the tests' own conftest, before any test is made."""
        one_is_enough = (hypothesis.Phase.explicit, hypothesis.Phase.generate)  # neither made smaller nor explained
        hypothesis.settings.register_profile(
            "mutation", derandomize=True, database=None, phases=one_is_enough, report_multiple_bugs=False
        )
        hypothesis.settings.load_profile("mutation")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.by:
            self.by = report.nodeid if report.when == "call" else f"{report.nodeid} ({report.when})"

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.by:
            self.by = f"{report.nodeid} (collection)"


def work(job: Job, tell: Callable[[Ended], Any]) -> None:
    """Run the job in this process, which has been forked for it, `tell` how it ended, and end the process."""
    os.setpgid(0, 0)  # what it starts is ended with it
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (folder / "output").open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # none has a say here, and they take seconds to import
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(folder / "hypothesis")
        os.chdir(job.root)
        sys.path[:0] = [str(job.root), str(job.source)]
        server = serve(*job.mutation) if job.mutation else None
        notice = _Notice()
        marks = () if job.slow else ("-m", "not slow")
        # pyproject.toml has options of pytest-timeout, which pytest refuses to read without it.
        plugins = ["-p", "pytest_timeout", "-p", "no:cacheprovider"]
        options = ["-x", "-q", *plugins, "--tb=short", "--rootdir", str(job.root), *marks]
        code = 0
        for number, tests in enumerate(job.tests):  # one after the other: the later are seldom needed
            code = int(pytest.main([*options, "--basetemp", str(folder / f"tmp{number}"), tests], plugins=[notice]))
            if code:
                break
        sys.stdout.flush()
        output = (folder / "output").read_text(errors="replace")[-4000:]
        ended = Ended(code=code, by=notice.by, served=server is None or server.serves(), output=output)
    tell(ended)
    os._exit(0)  # whatever threads a test has left
