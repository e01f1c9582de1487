import json
import subprocess
import sys

from agentrl_core.plugins.manager import load_registry
from agentrl_pydantic_ai.hooks import adapt_agent
from agentrl_testing.plugins import check_plugin


def test_the_package_is_a_sound_plugin():
    check_plugin("agentrl-pydantic-ai")


def test_its_hooks_import_no_pydantic_ai():
    code = "import sys; from agentrl_pydantic_ai.hooks import adapt_agent; adapt_agent(object(), {}, None)"
    asking = f"{code}; print('pydantic_ai' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", asking], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_adapter_is_registered_by_name():
    entry = load_registry().find("adapters", "pydantic-ai")
    assert (entry.distribution, entry.value) == (
        "agentrl-pydantic-ai",
        "agentrl_pydantic_ai.workflow:PydanticAIWorkflow",
    )


def test_what_is_not_an_agent_is_left_to_others():
    from pydantic_ai.messages import TextPart

    assert [adapt_agent(other, {}, None) for other in (object(), json, TextPart("of Pydantic AI, but no agent"))] == [
        None
    ] * 3
