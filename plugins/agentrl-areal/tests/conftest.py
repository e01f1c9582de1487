"""The files of the released AReaL, with their import lines changed as the README says, and nothing else."""

import ast
import hashlib
import os
import re
import shutil
import subprocess
import sys
import types
import zipfile
from pathlib import Path

import pytest

from agentrl_core.concurrency.processes import close_workers
from agentrl_core.config.component import Component
from agentrl_core.models.tiny import TURN_START
from agentrl_core.plugins.manager import load_registry
from agentrl_core.rollout.workflows import resolve_workflow
from agentrl_core.types import Task
from agentrl_testing.workflows import Rehearsal

WHEEL = "areal-1.0.4-py3-none-any.whl"
SHA256 = "7d7cfab10d9ec0990d9263290a9472366827783b9ad5fce22f56a1add416bdd9"
UNREACHABLE = re.compile(
    r"connection broken|Max retries exceeded|Failed to establish|name resolution|timed out", re.IGNORECASE
)
README = Path(__file__).parents[1] / "README.md"


def import_rule():
    """The README's `sed`, as a function of a file's text."""
    [script] = re.findall(r"^sed -E -i '(.*)' my_workflow\.py$", README.read_text(), re.MULTILINE)
    steps = [
        (re.compile(pattern.replace("[:space:]", r"\s"), re.MULTILINE), new)
        for pattern, new in re.findall(r"s/(.*?)/(.*?)/(?:;|$)", script)
    ]
    assert len(steps) == 2

    def apply(text):
        lines = text.split("\n")  # as sed does, a line at a time
        for pattern, new in steps:
            lines = [pattern.sub(new, line) for line in lines]
        return "\n".join(lines)

    return apply


class Released:
    """The released package: read, never imported as what it is."""

    def __init__(self, path):
        self._wheel = zipfile.ZipFile(path)
        self.rule = import_rule()
        self.readme = README.read_text()

    def read(self, name):
        """A file as it was released."""
        return self._wheel.read(f"areal/{name}").decode()

    def migrated(self, name):
        """A file with its import lines changed."""
        return self.rule(self.read(name))

    def pick(self, name, *wanted, **given):
        """Run some classes and functions of a file, and no import of it; `given` stands for what these brought."""
        tree = ast.parse(self.read(name))
        tree.body = [node for node in tree.body if getattr(node, "name", None) in wanted]
        assert len(tree.body) == len(wanted)
        module = types.ModuleType(f"released_{Path(name).stem}")
        sys.modules[module.__name__] = module  # dataclasses look their module up
        vars(module).update(given)
        exec(compile(tree, name, "exec"), vars(module))
        return module

    def close(self):
        self._wheel.close()


@pytest.fixture(scope="session")
def released(tmp_path_factory, pytestconfig):
    """AReaL 1.0.4 as it was released, downloaded by pip once."""
    cache = getattr(pytestconfig, "cache", None)
    folder = tmp_path_factory.mktemp("released") if cache is None else cache.mkdir("areal")
    wheel = folder / WHEEL
    if not wheel.is_file() or _digest(wheel) != SHA256:
        _download(tmp_path_factory.mktemp("download"), wheel)
    package = Released(wheel)
    yield package
    package.close()


def _download(into, wheel):
    # that AReaL asks for an older Python than this one may be does not matter: nothing of it is installed
    options = ["--no-deps", "--only-binary", ":all:", "--python-version", "3.12", "--disable-pip-version-check"]
    limits = ["--retries", "1", "--timeout", "20"]
    command = [sys.executable, "-m", "pip", "download", *options, *limits, "-d", str(into), "areal==1.0.4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    if done.returncode and ("PIP_NO_INDEX" in os.environ or UNREACHABLE.search(done.stdout + done.stderr)):
        pytest.skip("pip reaches no registry to download areal==1.0.4 from")
    assert done.returncode == 0, done.stderr
    assert _digest(into / WHEEL) == SHA256
    # beside its place first: other processes may look there
    staged = shutil.copy(into / WHEEL, f"{wheel}.{os.getpid()}")
    Path(staged).replace(wheel)


def _digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def migrate(released, tmp_path):
    """`migrate("workflow/rlvr.py")`: a copy with its import lines changed, by its path."""

    def copy(name):
        path = tmp_path / f"users_{name.replace('/', '_')}"
        path.write_text(released.migrated(name))
        return path

    return copy


class World(Rehearsal):
    """Plays one episode per row, all at once; the policy says `mind(prompt, turn)`."""

    def __init__(self, directory):
        super().__init__(directory, lambda prompt: self.mind(prompt, prompt.count(f"{TURN_START}assistant\n") - 1))
        self.mind = None
        self.folder = directory
        self.registry = load_registry()
        self._rows = 0

    def says(self, *replies):
        """Let the policy say these, one after the other, in every conversation."""
        self.mind = lambda prompt, turn: replies[turn]

    def run(self, workflow, *rows, options=None):
        component = Component(str(workflow), options or {}) if isinstance(workflow, str | Path) else workflow
        return self.play_rows(resolve_workflow(component, registry=self.registry, base_dir=self.folder), *rows)

    def play_rows(self, resolved, *rows):
        first, self._rows = self._rows, self._rows + len(rows)
        names = [f"t{first + number}" for number in range(len(rows))]
        return self.play(
            resolved, [Task(id=name, data={"id": name, **row}) for name, row in zip(names, rows, strict=True)]
        )


@pytest.fixture(scope="session")
def one_world(tmp_path_factory):
    made = World(tmp_path_factory.mktemp("world"))
    yield made
    made.close()
    close_workers()


@pytest.fixture
def world(one_world):
    """The world, as if nothing had been said in it."""
    one_world.engine.log.clear()
    return one_world


@pytest.fixture
def row():
    """A task that asks for a sum."""
    return {"messages": [{"role": "user", "content": "What is 2 + 2?"}], "answer": "4"}
