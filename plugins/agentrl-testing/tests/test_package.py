"""New packages of every kind: written, installed, proved by their own tests and by `plugins check`."""

import ast
import os
import subprocess
import sys
import tomllib

import pytest

from agentrl_core.errors import PluginError
from agentrl_core.plugins.kinds import KINDS
from agentrl_testing.scaffold.kinds import SCAFFOLDS
from agentrl_testing.scaffold.package import write_package


def test_every_kind_that_can_be_registered_can_be_begun():
    assert {scaffold.kind for scaffold in SCAFFOLDS.values()} == set(KINDS)


def test_names_follow_the_package(tmp_path):
    files = write_package("agentrl-my-lab", ["scorers"], tmp_path)
    root = tmp_path / "agentrl-my-lab"
    assert [str(path.relative_to(root)) for path in files] == [
        "pyproject.toml",
        "README.md",
        "src/agentrl_my_lab/__init__.py",
        "src/agentrl_my_lab/py.typed",
        "src/agentrl_my_lab/scorer.py",
        "tests/test_scorer.py",
    ]
    metadata = (root / "pyproject.toml").read_text()
    assert '[project.entry-points."agentrl.scorers"]\nmy-lab = "agentrl_my_lab.scorer:score"' in metadata
    assert '"agentrl-core>=0.1,<0.2"' in metadata


@pytest.mark.parametrize("name", ["agentrl-notebook", "agentrl-crew", "agentrl-tasks"])
def test_a_name_of_the_package_never_hides_another_of_its_template(name, tmp_path):
    for kind in SCAFFOLDS:
        for path in write_package(name, [kind], tmp_path / kind):
            tree = ast.parse(path.read_text()) if path.suffix == ".py" else ast.Module([], [])
            names = [node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
            assert len(names) == len(set(names)), path


@pytest.mark.parametrize(
    ("name", "kind", "told"),
    [
        ("Agentrl_Lab", "scorer", "NAME: expected lower-case words joined by '-', such as agentrl-lab, found"),
        ("../lab", "scorer", "NAME: expected"),
        ("agentrl-lab", "scorrer", r"no kind 'scorrer' \(did you mean scorer\?\); kinds are workflow, scorer"),
    ],
)
def test_what_cannot_be_is_refused(name, kind, told, tmp_path):
    with pytest.raises(PluginError, match=told):
        write_package(name, [kind], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path):
    write_package("agentrl-lab", ["tool_parser"], tmp_path)
    with pytest.raises(PluginError, match="agentrl-lab exists already"):
        write_package("agentrl-lab", ["tool-parser"], tmp_path)


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """A package of each kind, and the folder into which they are installed."""
    folder, site = tmp_path_factory.mktemp("packages"), tmp_path_factory.mktemp("site")
    for kind in SCAFFOLDS:
        write_package(f"agentrl-new-{kind}", [kind], folder)
    offline = ["--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--no-compile"]
    command = [sys.executable, "-m", "pip", "install", "-q", *offline, "--target", str(site), *folder.iterdir()]
    subprocess.run(command, check=True)
    return folder, site


@pytest.fixture
def run(packages, tmp_path):
    """Run Python where the packages are installed."""

    def running(*arguments):
        path = os.pathsep.join([str(packages[1]), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )
        return done.returncode, done.stdout + done.stderr

    return running


def test_the_command_tells_what_it_wrote(run, tmp_path):
    code, told = run("-m", "agentrl_core", "plugins", "new", "agentrl-lab", "--kind", "loss")
    assert code == 0, told
    *written, last = told.splitlines()
    assert last.startswith("next: ")
    assert [
        word
        for word in ("install -e agentrl-lab", "pytest agentrl-lab", "plugins check agentrl-lab")
        if word not in last
    ] == []
    assert all((tmp_path / line).is_file() for line in written)


def test_a_package_may_have_components_of_several_kinds(tmp_path):
    kinds = ["loss", "scorer", "advantage", "losses"]
    names = {str(path.relative_to(tmp_path / "agentrl-lab")) for path in write_package("agentrl-lab", kinds, tmp_path)}
    assert names >= {f"src/agentrl_lab/{kind}.py" for kind in kinds[:3]} | {
        f"tests/test_{kind}.py" for kind in kinds[:3]
    }
    project = tomllib.loads((tmp_path / "agentrl-lab" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"] == {
        "agentrl.losses": {"lab": "agentrl_lab.loss:Lab"},
        "agentrl.scorers": {"lab": "agentrl_lab.scorer:score"},
        "agentrl.advantages": {"lab": "agentrl_lab.advantage:Lab"},
    }
    readme = (tmp_path / "agentrl-lab" / "README.md").read_text(encoding="utf-8")
    assert [words in readme for words in ("loss: {use: lab", "default_scorer: lab", "advantage: {use: lab")] == [
        True
    ] * 3


def test_the_help_lists_the_kinds(run):
    code, told = run("-m", "agentrl_core", "plugins", "new", "--help")
    assert code == 0, told
    assert [kind for kind in SCAFFOLDS if kind not in "".join(told.split())] == []


@pytest.mark.slow
def test_a_new_package_of_each_kind_passes_its_suite(packages, run):
    code, told = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", *packages[0].iterdir())
    assert code == 0, told
    assert "passed" in told


@pytest.mark.slow
def test_a_new_package_of_each_kind_is_checked_as_sound(run):
    names = [f"agentrl-new-{kind}" for kind in SCAFFOLDS]
    code, told = run("-c", f"from agentrl_testing import check_plugin\nfor name in {names}: check_plugin(name)")
    assert code == 0, told
