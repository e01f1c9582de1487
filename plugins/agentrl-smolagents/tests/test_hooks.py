import json
import subprocess
import sys

from agentrl_core.plugins.manager import load_registry
from agentrl_smolagents.hooks import adapt_agent
from agentrl_testing.plugins import check_plugin


def test_the_package_is_a_sound_plugin():
    check_plugin("agentrl-smolagents")


def test_its_hooks_import_no_smolagents():
    code = "import sys; from agentrl_smolagents.hooks import adapt_agent; adapt_agent(object(), {}, None, None)"
    asking = f"{code}; print('smolagents' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", asking], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_adapter_is_registered_by_name():
    entry = load_registry().find("adapters", "smolagents")
    assert (entry.distribution, entry.value) == ("agentrl-smolagents", "agentrl_smolagents.workflow:SmolagentsWorkflow")


def test_what_is_not_an_agent_is_left_to_others(model):
    assert [adapt_agent(other, {}, None, None) for other in (object(), json, model)] == [None] * 3
