import json
import subprocess
import sys

import openai

from agentrl_core.plugins.manager import load_registry
from agentrl_openai.hooks import adapt_agent
from agentrl_testing.plugins import check_plugin

HEAVY = ["agents", "openai", "torch"]


def test_the_plugin_is_listed_without_importing_an_sdk():
    program = f"""
import json, sys
from agentrl_core.cli import main
sys.argv = ["agentrl", "plugins", "list", "--json"]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print(json.dumps(sorted(set({HEAVY}) & set(sys.modules))))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    *listed, loaded = done.stdout.strip().splitlines()
    assert json.loads(loaded) == []
    assert "agentrl-openai" in "\n".join(listed)


def test_the_package_is_a_sound_plugin():
    check_plugin("agentrl-openai")


def test_the_adapters_are_registered_by_name():
    entry = load_registry().find("adapters", "openai-agents")
    assert (entry.distribution, entry.value) == ("agentrl-openai", "agentrl_openai.agents_workflow:AgentsWorkflow")
    assert load_registry().find("adapters", "openai").distribution == "agentrl-openai"


class HoldsClient:
    def __init__(self):
        self.client = openai.AsyncOpenAI()


def test_what_is_not_of_openai_is_left_to_others():
    assert adapt_agent(object(), {}) is None
    assert adapt_agent(json, {}) is None
    assert adapt_agent(openai.AsyncOpenAI(), {}) is None
    assert adapt_agent(HoldsClient(), {}) is None  # nothing says what to call
    assert adapt_agent(HoldsClient(), {"method": "__str__"}) is not None
