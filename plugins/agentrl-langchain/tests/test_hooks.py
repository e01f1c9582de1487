import json
import subprocess
import sys

from agentrl_core.plugins.manager import load_registry
from agentrl_langchain.hooks import adapt_agent
from agentrl_testing.plugins import check_plugin

HEAVY = ["langchain", "langchain_core", "langgraph", "langchain_openai", "openai", "torch"]


def test_the_plugin_is_listed_without_importing_langchain():
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
    plugins = json.loads("\n".join(listed))
    assert "agentrl-langchain" in json.dumps(plugins)


def test_the_package_is_a_sound_plugin():
    check_plugin("agentrl-langchain")


def test_the_adapter_is_registered_by_name():
    entry = load_registry().find("adapters", "langchain")
    assert (entry.distribution, entry.value) == ("agentrl-langchain", "agentrl_langchain.workflow:LangChainWorkflow")


def test_what_is_not_of_langchain_is_left_to_others():
    assert adapt_agent(object(), {}) is None
    assert adapt_agent(json, {}) is None
    from langchain_core.messages import HumanMessage

    assert adapt_agent(HumanMessage("of LangChain, but nothing to run"), {}) is None
