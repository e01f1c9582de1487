"""Fixtures for all tests: installed sample packages, packages made by a test, and the command line as a process."""

import os
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.warm import Server

pytest_plugins = ["tests.seconds", "tests.tables"]

# Machines are shared: no example is timed. The same examples every time where a failure would stop a landing.
settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ
)
settings.load_profile("untimed")


SLOW_S = 1800
"""The time limit of a slow test; pyproject.toml has that of the others."""


@pytest.hookimpl(trylast=True)  # when those that nobody asked for are gone
def pytest_collection_modifyitems(items):
    """Begin with the files that take longest: those that come last are short, and no process waits long for another."""
    seconds = Counter()
    for item in items:
        if item.get_closest_marker("slow"):
            seconds[item.path] += 60 if "run_recipe" in item.fixturenames else 5
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(SLOW_S))
    items.sort(key=lambda item: -seconds[item.path])


FAULTY = '''
import asyncio
import zlib


class Faulty({base}):
    """One attempt in ten raises, one in twenty hangs, one in twenty returns NaN: by the record, not by chance."""

    async def run(self, data, *, base_url, api_key, http_client, record_id):
        reward = await super().run(data, base_url=base_url, api_key=api_key, http_client=http_client)
        fate = zlib.crc32(record_id.encode()) % 20
        if fate in (0, 1):
            raise RuntimeError("the environment broke")
        if fate == 2:
            await asyncio.Event().wait()
        return float("nan") if fate == 3 else reward
'''
SAMPLES = Path(__file__).parent / "plugins_sample"


@pytest.fixture(scope="session", autouse=True)
def activated():
    """Put this environment's programs on PATH, as activating it does: hints then name `agentrl` alone everywhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", sysconfig.get_path("scripts"), prepend=os.pathsep)
        for variable in ("NOX_CURRENT_SESSION", "TOX_ENV_NAME", "UV_RUN_RECURSION_DEPTH"):
            patch.delenv(variable, raising=False)
        yield


@pytest.fixture
def faulty_agent():
    """The source of a workflow class `Faulty` that spoils a fifth of the episodes of the class `base`."""
    return lambda base: FAULTY.format(base=base)


@pytest.fixture(scope="session")
def sample_site(tmp_path_factory):
    """A folder into which pip has installed the sample packages; put it on PYTHONPATH."""
    site = tmp_path_factory.mktemp("site")
    offline = ["--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    folders = [str(folder) for folder in sorted(SAMPLES.iterdir()) if (folder / "pyproject.toml").is_file()]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", *offline, "--target", str(site), *folders], check=True
    )
    return site


@pytest.fixture(scope="session")
def warm():
    """Runs the command line in processes that have torch imported: `with warm.program("run", …) as program`."""
    server = Server()
    yield server
    server.close()


@pytest.fixture
def launch(tmp_path):
    """Run the command line in a process of its own: `launch("plugins", "list", site=…, AGENTRL_X="1")`."""

    def run(*arguments, site=None, program=("-m", "agentrl_core"), **variables):
        environ = {key: value for key, value in os.environ.items() if not key.startswith("AGENTRL_")} | variables
        if site is not None:
            environ["PYTHONPATH"] = os.pathsep.join([str(site), environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        command = [sys.executable, *program, *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env=environ, cwd=tmp_path, timeout=120
        )

    return run


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Make up an installed distribution: `install("agentrl-x", {"agentrl.scorers": {"f1": "x:f"}}, {"x.py": "…"})`."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    before = set(sys.modules)

    def add(name, entry_points=(), files=(), *, version="1.0", requires=("agentrl-core>=0.1,<0.2",)):
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        fields = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {item}" for item in requires)]
        (info / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *fields, ""]), encoding="utf-8")
        groups = [
            "\n".join([f"[{group}]", *(f"{key} = {value}" for key, value in points.items())])
            for group, points in dict(entry_points).items()
        ]
        (info / "entry_points.txt").write_text("\n".join(groups) + "\n", encoding="utf-8")
        for file, text in dict(files).items():
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            (site / file).write_text(text, encoding="utf-8")
        return site

    yield add
    for module in set(sys.modules) - before:
        if str(getattr(sys.modules[module], "__file__", "")).startswith(str(site)):
            del sys.modules[module]
