"""Every hook is documented by an example, and the examples run."""

import inspect
import re
import textwrap
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from agentrl_core.api.trackers import RunInfo, RunSummary, StepReport
from agentrl_core.config.component import Component
from agentrl_core.config.sampling_sections import RolloutConfig
from agentrl_core.config.schema import DataConfig, RunConfig
from agentrl_core.errors import ConfigError
from agentrl_core.plugins import hookspecs, kinds
from agentrl_core.plugins.kinds import KINDS
from agentrl_core.plugins.manager import PluginManager
from agentrl_core.types import Record

SNAPSHOT = Path(__file__).parent / "hookspecs.txt"
HOOKS = {name: hook for name, hook in {**vars(hookspecs), **vars(kinds)}.items() if hasattr(hook, "agentrl_spec")}
RUN = RunInfo(name="calm-otter", directory="runs/calm-otter", config={}, components={})
ARGUMENTS = {
    "configure": {"config": RunConfig(data=DataConfig(train="t.jsonl"), workflow=Component("x"))},
    "run_started": {"run": RUN},
    "record_scored": {
        "run": RUN,
        "record": Record(id="r", run_id="x", task_id="t1", group_id="g", sample_index=0, reward=0.5),
    },
    "step_finished": {
        "run": RUN,
        "step": StepReport(step=3, version=3, metrics={"reward/mean": 0.25}, outcomes={"scored": 8}),
    },
    "weights_published": {"run": RUN, "version": 4},
    "run_finished": {
        "run": RUN,
        "summary": RunSummary(
            name="calm-otter",
            directory="runs/calm-otter",
            status="finished",
            steps=9,
            version=9,
            evals=(),
            outcomes={},
            llm_calls=10,
            cpu_seconds={},
            wall_s=1.0,
        ),
    },
}
PRINTED = {
    "run_started": "calm-otter writes to runs/calm-otter",
    "record_scored": "t1: 0.5",
    "step_finished": "calm-otter step 3: 0.25",
    "weights_published": "calm-otter samples from version 4",
    "run_finished": "calm-otter finished after 9 steps",
}


def example_of(hook):
    """The code of a hook's docstring; fails where the hook is not documented as all are."""
    text = inspect.getdoc(hook) or ""
    assert re.match(r"[A-Z][^\n]+[.;:,a-z]", text), f"{hook.__name__} has no first sentence"
    assert re.search(r"Added in \d+\.\d+\.", text), f"{hook.__name__} does not say since when it is there"
    code = [line for line in text.splitlines() if line.startswith("    ") or not line.strip()]
    example = textwrap.dedent("\n".join(code)).strip()
    assert f"@hookimpl\ndef {hook.__name__}(" in example, f"{hook.__name__} shows no implementation"
    return example


def plugin_of(example):
    module = ModuleType("example")
    exec(example, vars(module))
    return module


def loaded(example):
    manager = PluginManager()
    package = manager.add_package("agentrl-example", "1")
    manager.add_module(package, plugin_of(example), "example")
    return manager, package


@pytest.mark.parametrize("kind", KINDS)
def test_the_example_of_a_register_hook_registers_a_component(kind):
    _, package = loaded(example_of(HOOKS[f"register_{kind}"]))
    assert [entry.kind for entry in package.entries] == [kind]
    assert ":" in package.entries[0].path
    assert package.entries[0].summary
    assert package.notes == []


@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_example_of_a_lifecycle_hook_runs(name, capsys):
    manager, package = loaded(example_of(HOOKS[name]))
    manager.notify(name, **ARGUMENTS[name])
    assert (package.hooks, capsys.readouterr().out.strip()) == ([name], PRINTED.get(name, ""))


def test_the_example_of_configure_stops_a_run():
    manager, _ = loaded(example_of(hookspecs.configure))
    config = RunConfig(
        data=DataConfig(train="t"), workflow=Component("x"), rollout=RolloutConfig(group_size=65, min_group_size=2)
    )
    with pytest.raises(ConfigError, match="at most 64 on this cluster, found 65"):
        manager.notify("configure", config=config)


def test_the_example_of_adapt_agent_wraps_its_framework_and_leaves_others(monkeypatch):
    manager, _ = loaded(example_of(hookspecs.adapt_agent))
    adapter = ModuleType("agentrl_crew.adapter")

    class CrewWorkflow:
        def __init__(self, agent, *, depth=1):
            self.wrapped = agent, depth

    adapter.CrewWorkflow = CrewWorkflow
    monkeypatch.setitem(__import__("sys").modules, "agentrl_crew", ModuleType("agentrl_crew"))
    monkeypatch.setitem(__import__("sys").modules, "agentrl_crew.adapter", adapter)
    agent = type("Crew", (), {"__module__": "crew.agents"})()
    assert manager.adapt_agent(agent, {"depth": 2}).wrapped == (agent, 2)
    with pytest.raises(ConfigError, match=r"workflow.deep: unknown option of crew \(did you mean depth\?\)"):
        manager.adapt_agent(agent, {"deep": 2})
    assert manager.adapt_agent(SimpleNamespace(), {}) is None


def test_the_example_of_serve_tools_serves_over_http_alone(monkeypatch):
    manager, _ = loaded(example_of(hookspecs.serve_tools))
    server = ModuleType("agentrl_rest.server")
    server.serve = lambda *arguments: arguments
    monkeypatch.setitem(__import__("sys").modules, "agentrl_rest", ModuleType("agentrl_rest"))
    monkeypatch.setitem(__import__("sys").modules, "agentrl_rest.server", server)
    assert manager.serve_tools("tools", host="127.0.0.1", port=None) is None
    assert manager.serve_tools("tools", host="127.0.0.1", port=0) == ("tools", "127.0.0.1", 0)


def test_every_hook_is_covered_by_a_test_above():
    assert set(HOOKS) == {f"register_{kind}" for kind in KINDS} | set(ARGUMENTS) | {"adapt_agent", "serve_tools"}


def test_a_hook_without_an_example_is_found():
    def register_things(register):
        """Register things. Added in 0.1."""

    with pytest.raises(AssertionError, match="register_things shows no implementation"):
        example_of(register_things)


def test_the_signatures_are_those_of_the_snapshot():
    """A changed line breaks plugins: a new argument is a minor version, anything else a major one."""
    now = [f"{name}{inspect.signature(hook)}" for name, hook in sorted(HOOKS.items())]
    assert now == SNAPSHOT.read_text(encoding="utf-8").splitlines()


def test_the_package_that_was_registered_last_is_asked_first_and_its_workflow_wins():
    manager, asked = PluginManager(), []

    def plugin(name, workflow):
        class Plugin:
            @staticmethod
            @hookspecs.hookimpl
            def adapt_agent(agent):
                asked.append(name)
                return workflow

        manager.add_module(manager.add_package(name, "1"), Plugin, "hooks")

    plugin("a", "of a")
    plugin("b", "of b")
    plugin("c", None)
    assert manager.adapt_agent(object(), {}) == "of b"
    assert asked == ["c", "b"]
