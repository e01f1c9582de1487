import subprocess
import sys
import types
from pathlib import Path

import pytest

from agentrl_core.config.sampling_sections import AgentConfig, RolloutConfig
from agentrl_core.errors import PluginError
from agentrl_core.plugins.manager import load_registry
from agentrl_core.rollout.subproc.resolving import resolve_in_workers
from agentrl_openhands.hooks import adapt_agent
from agentrl_testing.plugins import check_plugin


def test_the_package_is_a_sound_plugin():
    check_plugin("agentrl-openhands")


def test_the_adapter_is_registered_for_other_interpreters():
    entry = load_registry().find("worker_adapters", "openhands")
    assert (entry.distribution, entry.value) == ("agentrl-openhands", "agentrl_openhands.worker:adapt")


def test_what_is_of_other_frameworks_is_left_to_others():
    assert adapt_agent(object(), {}, None) is None
    assert adapt_agent(types.SimpleNamespace(), {}, None) is None


def test_its_hooks_import_nothing_of_the_framework():
    code = "import agentrl_openhands.hooks, sys; print({name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not {"openhands", "openai", "torch"} & eval(done.stdout)


def test_an_interpreter_without_the_framework_is_told_before_anything_starts():
    config = RolloutConfig(agent=AgentConfig(mode="subproc", python=sys.executable))
    with pytest.raises(PluginError, match=r"No module named 'openhands'.*install what it needs there") as caught:
        resolve_in_workers("agents.py:agent", registry=load_registry(), base_dir=Path(__file__).parent, rollout=config)
    assert sys.executable in str(caught.value)
