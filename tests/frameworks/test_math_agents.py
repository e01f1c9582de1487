"""The MathAgent and MathToolAgent of every framework, in every mode, with every form of reward."""

import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import attrs
import pytest

from agentrl_core.config.component import Component
from agentrl_core.config.sampling_sections import AgentConfig, RolloutConfig
from agentrl_core.plugins.manager import load_registry
from agentrl_core.rollout.subproc.resolving import resolve_in_workers
from agentrl_core.rollout.workflows import resolve_workflow
from agentrl_core.scorers.text import numeric
from agentrl_core.types import Outcome, Task
from agentrl_testing.workflows import Rehearsal

TITLE = "frameworks: mode, agent, form of the reward"
AGENTS = ("MathAgent", "MathToolAgent")
MODES = ("inline", "subproc", "other interpreter")
FORMS = ("float", "dict", "none")
PLUGINS = Path(__file__).parent.parent.parent / "plugins"


@attrs.frozen
class Framework:
    """A framework's agents, and the interpreter that they need where it is not ours."""

    name: str
    package: str
    call: tuple[str, dict]
    """What the policy calls when it may: `12 * 3`."""
    end: tuple[str, str] | None = None
    """Name and parameter of the tool by which an answer is given, where the framework has one."""
    variable: str = ""
    """Environment variable with the path of the framework's own interpreter."""


TIMES = {"operation": "multiply", "a": 12, "b": 3}
EXPRESSION = {"expression": "12 * 3"}
FRAMEWORKS = [
    Framework("openai", "agentrl_openai", ("calculator", TIMES)),
    Framework("anthropic", "agentrl_anthropic", ("calculator", TIMES)),
    Framework("langchain", "agentrl_langchain", ("calculator", EXPRESSION)),
    Framework("pydantic-ai", "agentrl_pydantic_ai", ("calculator", EXPRESSION)),
    Framework("smolagents", "agentrl_smolagents", ("calculator", EXPRESSION), end=("final_answer", "answer")),
    Framework("camel", "agentrl_camel", ("calculator", EXPRESSION), variable="AGENTRL_CAMEL_PYTHON"),
    Framework("openhands", "agentrl_openhands", ("calculator", EXPRESSION), variable="AGENTRL_OPENHANDS_PYTHON"),
]


def test_every_package_that_ships_a_math_agent_is_in_the_table():
    shipped = {path.parent.name for path in PLUGINS.glob("*/src/*/math_agent.py")}
    assert shipped == {framework.package for framework in FRAMEWORKS}


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory):
    """Another interpreter that has the frameworks which share our environment."""
    folder = tmp_path_factory.mktemp("interpreter")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    shared = [sysconfig.get_path("purelib"), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    lines = [f"import site; site.addsitedir({path!r})" for path in shared]
    (site / "shared.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(folder / "bin" / "python")


@pytest.fixture
def rehearse(tmp_path):
    """Play with a policy that calls the calculator where it is offered one, and else says 36."""
    opened = []

    def make(framework):
        def say(prompt):
            name, arguments = framework.call
            if "calculator" in prompt and "36" not in prompt:
                return f'<tool_call>{{"name": "{name}", "arguments": {json.dumps(arguments)}}}</tool_call>'
            if framework.end is not None:
                name, parameter = framework.end
                call = f'<tool_call>{{"name": "{name}", "arguments": {{"{parameter}": "36"}}}}</tool_call>'
                return f"It is <answer>36</answer>. {call}"
            return "It is <answer>36</answer>."

        opened.append(Rehearsal(tmp_path / "rehearsal", say))
        return opened[-1]

    yield make
    for rehearsal in opened:
        rehearsal.close()


def resolve(framework, mode, interpreter):
    options = {"module": f"{framework.package}.math_agent"}
    if framework.variable:
        options["folder"] = str(Path(importlib.util.find_spec(framework.package).origin).parent)
    use = Component(f"{Path(__file__).parent / 'rewarded.py'}:Rewarded", options)
    registry, here = load_registry(), Path.cwd()
    if mode == "inline":
        return resolve_workflow(use, registry=registry, base_dir=here)
    python = None
    if mode == "other interpreter":
        python = os.environ[framework.variable] if framework.variable else interpreter
    config = RolloutConfig(agent=AgentConfig(mode="subproc", python=python, subproc_max_workers=1))
    return resolve_in_workers(use, registry=registry, base_dir=here, rollout=config)


CELLS = [
    pytest.param(
        framework,
        mode,
        id=f"{framework.name}-{mode}",
        marks=[] if (framework.name, mode) == ("openai", "inline") else [pytest.mark.slow],
    )
    for framework in FRAMEWORKS
    for mode in MODES
]


@pytest.mark.parametrize(("framework", "mode"), CELLS)
def test_both_agents_are_rewarded_in_every_form(framework, mode, rehearse, interpreter, tell_row):
    if framework.variable and mode != "other interpreter":
        tell_row(TITLE, framework.name, mode, "", *"---", "its packages cannot share our environment")
        pytest.skip(f"{framework.name} cannot share our environment")
    if framework.variable and not os.environ.get(framework.variable):
        tell_row(TITLE, framework.name, mode, "", *"???", f"no interpreter in {framework.variable}")
        pytest.skip(f"{framework.variable} names no interpreter with {framework.name}")
    workflow = resolve(framework, mode, interpreter)
    row = {"messages": [{"role": "user", "content": "What is 12 times 3?"}], "answer": "36"}
    cells = [{"agent": agent, "form": form} for agent in AGENTS for form in FORMS]
    tasks = [
        Task(id=str(number), data=row | cell | {"id": str(number)}, answer="36") for number, cell in enumerate(cells)
    ]
    episodes = rehearse(framework).play(workflow, tasks, scorer=numeric)
    for place, agent in enumerate(AGENTS):
        of_agent = episodes[place * len(FORMS) : (place + 1) * len(FORMS)]
        sound = [episode.record.reward == 1.0 for episode in of_agent]
        told = [f"{form} {'ok' if ok else 'FAIL'}" for form, ok in zip(FORMS, sound, strict=True)]
        tell_row(TITLE, framework.name, mode, agent, *told, f"{len(of_agent[0].interactions)} calls")
    for cell, episode in zip(cells, episodes, strict=True):
        record, calls = episode.record, episode.interactions
        assert record.outcome is Outcome.SCORED, record.detail
        assert record.reward == 1.0
        assert record.rewards == ({calls[0].id: 1.0} if cell["form"] == "dict" else {})
        assert len(calls) == 1 + (cell["agent"] == "MathToolAgent")
