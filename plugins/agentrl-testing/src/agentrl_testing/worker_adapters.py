"""Conformance suite of worker adapters, which run in another interpreter where agentrl is not installed."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agentrl_core.config.sampling_sections import AgentConfig, RolloutConfig
from agentrl_core.plugins.manager import load_registry
from agentrl_core.rollout.subproc.resolving import resolve_in_workers
from agentrl_testing.adapters import check_answered, questions
from agentrl_testing.base import ConformanceSuite
from agentrl_testing.workflows import Rehearsal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentrl_core.rollout.subproc.pool import WorkerPool
    from agentrl_core.types import Task

_LOAD = """
import importlib.util, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "agentrl_core":
            raise ImportError("agentrl_core is not installed here")
sys.meta_path.insert(0, Absent())
package, folder, module = sys.argv[1:]
spec = importlib.util.spec_from_file_location(package, folder + "/__init__.py", submodule_search_locations=[folder])
sys.modules[package] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[package])
importlib.import_module(module)
"""


class WorkerAdapterSuite(ConformanceSuite):
    """Conformance tests of worker adapters; define the fixtures `adapter` and `agent`, and `python` if needed.

    `adapter` is the registered string, such as "agentrl_crew.worker:adapt". `agent` names an agent or a factory as in
    a config, such as "/path/to/agents.py:build_crew". `python` is the interpreter that has the framework, by default
    this one. The agent answers in a single LLM call. The package under test must be installed.
    """

    @pytest.fixture
    def adapter(self) -> str:
        """Return the "module:attr" string that is registered."""
        raise pytest.UsageError(f"{type(self).__name__} needs a fixture `adapter`")

    @pytest.fixture
    def agent(self) -> str:
        """Return the name of an agent or factory, as in a config."""
        raise pytest.UsageError(f"{type(self).__name__} needs a fixture `agent`")

    @pytest.fixture
    def python(self) -> str:
        """Return the interpreter that has the framework."""
        return sys.executable

    @pytest.fixture
    def rehearsal(self, tmp_path: Path) -> Any:
        """Yield a rehearsal whose policy gives the same reply to every prompt."""
        rehearsal = Rehearsal(tmp_path / "rehearsal", lambda prompt: "The answer is 4.")  # noqa: ARG005 - any
        yield rehearsal
        rehearsal.close()

    @pytest.fixture
    def resolved(self, agent: str, python: str, tmp_path: Path) -> WorkerPool:
        """Return a workflow that runs the agent in worker processes of the other interpreter."""
        config = AgentConfig(mode="subproc", python=python, subproc_max_workers=2)
        return resolve_in_workers(
            agent, registry=load_registry(), base_dir=tmp_path, rollout=RolloutConfig(agent=config)
        )

    @pytest.fixture
    def tasks(self) -> list[Task]:
        """Return tasks with distinct questions."""
        return questions()

    def test_its_module_needs_nothing_of_agentrl(self, adapter: str) -> None:
        """The module can be loaded from its package's folder in an interpreter without agentrl_core."""
        # A new process, because here agentrl_core is imported already.
        module = adapter.partition(":")[0]
        package = module.partition(".")[0]
        spec = importlib.util.find_spec(package)
        assert spec is not None, f"{package} is not installed"
        assert spec.origin is not None
        command = [sys.executable, "-c", _LOAD, package, str(Path(spec.origin).parent), module]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # this interpreter
        assert done.returncode == 0, done.stderr

    def test_other_objects_are_left_to_others(self, adapter: str) -> None:
        """The adapter returns None for an object that is not of its framework."""
        module, _, attribute = adapter.partition(":")
        assert getattr(importlib.import_module(module), attribute)(object(), {}) is None

    def test_an_agent_answers_with_the_policy(
        self, rehearsal: Rehearsal, resolved: WorkerPool, tasks: Sequence[Task]
    ) -> None:
        """The task's messages are the agent's input, and the policy's text is the agent's reply."""
        for number, episode in enumerate(rehearsal.play(resolved, tasks)):
            check_answered(episode, number)
