"""What is wrong with a workflow or an interpreter is one clear error, before anything else starts."""

import ast
import functools
import importlib.util
import sys
import threading
from pathlib import Path

import pytest

from agentrl_core.config.component import Component
from agentrl_core.errors import ConfigError, PluginError
from agentrl_core.rollout.subproc import inside
from agentrl_core.rollout.subproc.pickling import find_obstacle

MODES = ("subproc", "python")


@pytest.mark.parametrize("path", sorted(Path(inside.__file__).parent.glob("*.py")), ids=lambda path: path.stem)
def test_what_another_interpreter_runs_is_python_38_and_the_standard_library(path):
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [item.name for item in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module] if node.level == 0 else []
            assert node.level == 0 or (path.parent / f"{node.module}.py").is_file()
        for name in names:
            assert (
                name.partition(".")[0] in sys.stdlib_module_names
                or name == "agentrl_core.rollout.subproc.own_interpreter"
            )


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10", "3.12", "3.13"])
def test_other_versions_of_python_run_episodes(agents, play, version):
    found = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python"))
    if not found:
        pytest.skip(f"no Python {version} here")
    code = """
class Agent:
    async def run(self, data, **extra_kwargs):
        ask(data, extra_kwargs["base_url"], extra_kwargs["api_key"])
        return {0: 0.25} if extra_kwargs.get("http_client") is None else 0.0
"""
    (record,) = play(f"{agents(code)}:Agent", "python", python=str(found[0]))
    assert (record.outcome.value, record.reward) == ("scored", 0.25), record.detail


BROKEN = """
import nowhere_to_be_found
"""

UNBUILDABLE = """
class Agent:
    def __init__(self, size=1):
        raise RuntimeError("no license")

    def run(self, data):
        return 1.0


class NoRun:
    pass


class NoData:
    def run(self):
        return 1.0
"""


@pytest.mark.parametrize("mode", MODES)
def test_a_missing_module_is_named_once(agents, resolve, mode, bare_python):
    with pytest.raises(PluginError, match=r"^workflow: .*No module named 'nowhere_to_be_found'") as told:
        resolve(f"{agents(BROKEN)}:Agent", mode)
    assert (bare_python in str(told.value)) == (mode == "python")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Agent", {}, "RuntimeError: no license"),
        ("Agnt", {}, "has no 'Agnt'"),
        ("NoRun", {}, "has no `run.data.`"),
        ("NoData", {}, "has no parameter for the task"),
        ("Agent", {"sise": 2}, "workflow.sise"),
    ],
)
def test_a_workflow_that_cannot_be_built_is_told_with_its_reason(agents, resolve, mode, name, options, message):
    with pytest.raises((PluginError, ConfigError), match=message):
        resolve(Component(f"{agents(UNBUILDABLE)}:{name}", options), mode)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("./elsewhere/python", "rollout.agent.python: there is no interpreter .*/elsewhere/python"),
        (".", "is a folder; expected a Python interpreter"),
        ("./plain", "cannot be executed"),
        ("./liar", "liar ended with exit code 3 before the workflow was ready; it wrote last: not a Python.*3.8"),
        ("./garbage", "garbage cannot be started: .*Exec format error"),
    ],
)
def test_a_wrong_interpreter_is_named(agents, resolve, folder, text, message):
    (folder / "plain").touch()
    for name, content in (("liar", "#!/bin/sh\necho not a Python; exit 3\n"), ("garbage", "\x00")):
        (folder / name).write_text(content)
        (folder / name).chmod(0o755)
    with pytest.raises((PluginError, ConfigError), match=message):
        resolve(f"{agents('')}:Agent", "python", python=text)


def test_a_folder_of_a_venv_leads_to_its_interpreter(agents, resolve, bare_python):
    with pytest.raises(ConfigError, match=f"did you mean {bare_python}"):
        resolve(f"{agents('')}:Agent", "python", python=str(Path(bare_python).parent.parent))


class Session:
    def __init__(self):
        self.lock = threading.Lock()


class Slotted:
    __slots__ = ("session",)

    def __init__(self):
        self.session = Session()


class Stateful:
    """An agent that is passed as an object."""

    def __init__(self, part):
        self.client = part

    def run(self, data):
        return 1.0


@pytest.mark.parametrize(
    ("part", "path"),
    [
        (Session(), ".client.lock"),
        ({"deep": [1, Slotted()]}, ".client['deep'][1].session.lock"),
        (functools.partial(print, threading.Lock()), ".client.args[0]"),
        (Session().lock, ".client"),
    ],
)
def test_what_cannot_be_pickled_is_named_by_its_path(part, path):
    obstacle = find_obstacle(Stateful(part), "Stateful")
    assert str(obstacle) == f"Stateful{path}: cannot pickle '_thread.lock' object"
    assert find_obstacle(Stateful([1]), "Stateful") is None


def test_an_object_that_cannot_be_sent_is_refused_with_advice(resolve):
    with pytest.raises(ConfigError, match=r"^workflow: Stateful\.client\.lock: .*build it in `run`, or name the class"):
        resolve(Stateful(Session()))
    with pytest.raises(ConfigError, match="move it to the top of a module"):
        resolve(lambda data: 1.0)


def test_an_object_has_its_state_in_the_worker_and_none_goes_elsewhere(agents, folder, resolve, rehearsal, task):
    name = agents("""
class Counting:
    def __init__(self, reward):
        self.reward = reward

    def run(self, data, *, base_url, api_key):
        ask(data, base_url, api_key)
        self.reward += 1
        return self.reward
""")
    sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module(Path(name).stem)
        agent = module.Counting(0.5)
        resolved = resolve(agent)
        rewards = [rehearsal.play(resolved, [task(number)])[0].record.reward for number in range(2)]
        assert (rewards, agent.reward) == ([1.5, 2.5], 0.5)
        with pytest.raises(ConfigError, match="Counting cannot be sent to another interpreter"):
            resolve(agent, "python")
    finally:
        sys.path.remove(str(folder))


SCRIPT = """
import sys
from pathlib import Path

from agentrl_core.config.sampling_sections import AgentConfig, RolloutConfig
from agentrl_core.errors import AgentRLError
from agentrl_core.plugins.manager import load_registry
from agentrl_core.rollout.subproc.resolving import resolve_in_workers


class Agent:
    def run(self, data):
        return 1.0


def train():
    resolved = resolve_in_workers(
        Agent(),
        registry=load_registry(),
        base_dir=Path.cwd(),
        rollout=RolloutConfig(agent=AgentConfig(mode="subproc")),
    )
    print("resolved", resolved.name)
    resolved.close_now()

"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("if __name__ == '__main__':\n    train()\n", "resolved __main__.Agent"),
        (
            "try:\n    train()\nexcept AgentRLError as error:\n    print(error)\n    raise\n",
            "put the training under `if __name__ == '__main__':`",
        ),
    ],
    ids=["guarded", "unguarded"],
)
def test_the_class_of_a_script_is_sent_where_the_script_can_be_imported(folder, end, expected):
    import subprocess

    (folder / "script.py").write_text(SCRIPT + end, encoding="utf-8")
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, check=False)
    assert expected in done.stdout, done.stderr


PACKAGE = {
    "__init__.py": "",
    "calculating.py": """
from agentrl_examples.calculator import evaluate

from agentrl_zoo.words import say


def run(data, *, base_url, api_key):
    say(base_url, api_key)
    try:
        import agentrl_core
    except ImportError:
        return evaluate("3 / 4")
    return 0.0
""",
    "hooks.py": """
from agentrl_core import hookimpl


@hookimpl
def register_worker_adapters(register):
    register("zoo", "agentrl_zoo.worker:adapt", summary="animals")
""",
    "worker.py": """
from agentrl_zoo.words import say


def adapt(agent, options, factory=None):
    if type(agent).__name__ != "Animal":
        return None
    assert factory() is not agent
    return Adapted(agent, **options)


class Adapted:
    def __init__(self, agent, bonus=0.0):
        self.agent, self.bonus = agent, bonus

    def run(self, data, *, base_url, api_key):
        say(base_url, api_key)
        return self.agent.weight + self.bonus
""",
    "words.py": """
import json
import urllib.request


def say(base_url, api_key):
    body = json.dumps({"model": "default", "messages": [{"role": "user", "content": "roar"}]}).encode()
    headers = {"authorization": f"Bearer {api_key}", "content-type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(f"{base_url}/v1/chat/completions", body, headers)).close()
""",
    "math_agent.py": """
from agentrl_zoo.words import say


class MathAgent:
    async def run(self, data, **extra_kwargs):
        say(extra_kwargs["base_url"], extra_kwargs["api_key"])
        try:
            import agentrl_core
        except ImportError:
            return 0.75
        return 0.0
""",
}

ANIMAL = """
class Animal:
    def __init__(self, weight):
        self.weight = weight

    def run(self, prompt):
        return prompt


def catch(*, weight):
    return Animal(weight)
"""


@pytest.fixture
def zoo(tmp_path):
    """A package that plugs in, installed in our environment alone."""
    site = tmp_path / "site"
    (site / "agentrl_zoo").mkdir(parents=True)
    for name, text in PACKAGE.items():
        (site / "agentrl_zoo" / name).write_text(text, encoding="utf-8")
    info = site / "agentrl_zoo-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: agentrl-zoo\nVersion: 1.0\n"
        "Requires-Dist: agentrl-core>=0.1,<0.2\nRequires-Dist: agentrl-examples>=0.1,<0.2\nRequires-Dist: attrs\n",
        encoding="utf-8",
    )
    (info / "entry_points.txt").write_text("[agentrl]\nzoo = agentrl_zoo.hooks\n", encoding="utf-8")
    sys.path.insert(0, str(site))
    importlib.invalidate_caches()
    yield
    sys.path.remove(str(site))
    for name in [name for name in sys.modules if name.partition(".")[0] == "agentrl_zoo"]:
        del sys.modules[name]


def test_an_adapter_makes_workflows_of_objects_in_another_interpreter(zoo, agents, rehearsal, resolve, task):
    resolved = resolve(Component(f"{agents(ANIMAL)}:catch", {"weight": 0.5, "bonus": 0.25}), "python")
    (episode,) = rehearsal.play(resolved, [task()])
    assert (episode.record.outcome.value, episode.record.reward) == ("scored", 0.75), episode.record.detail


def test_an_object_that_no_adapter_knows_is_refused(zoo, agents, resolve):
    with pytest.raises(PluginError, match=r"is of type Stone.* has no `run\(data\)`.* \(installed: .*agentrl_zoo\)"):
        resolve(f"{agents('class Stone: pass')}:Stone", "python")


def test_sibling_packages_that_a_package_requires_go_with_it_but_core_does_not(zoo, resolve, rehearsal, task):
    resolved = resolve("agentrl_zoo.calculating:run", "python")
    (episode,) = rehearsal.play(resolved, [task()])
    assert (episode.record.outcome.value, episode.record.reward) == ("scored", 0.75), episode.record.detail


def test_a_package_of_our_environment_is_loaded_there_from_its_folder_alone(zoo, rehearsal, resolve, task):
    resolved = resolve("agentrl_zoo.math_agent.MathAgent", "python")
    (episode,) = rehearsal.play(resolved, [task()])
    assert (episode.record.outcome.value, episode.record.reward) == ("scored", 0.75), episode.record.detail
    assert "agentrl_zoo.math_agent" not in sys.modules
