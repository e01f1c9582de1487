import asyncio
import re
from pathlib import Path

import pytest

from agentrl_core import workflow_context
from agentrl_core.config.component import Component
from agentrl_core.config.sampling_sections import ToolsConfig
from agentrl_core.tools.functions import FunctionTools
from agentrl_core.tools.toolbox import Toolbox
from agentrl_langchain.tools import tools_of_episode
from agentrl_testing import ToolDriver

CODE = '''
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    if a < 0:
        raise ValueError("too small")
    return a + b
'''


@pytest.fixture
def driver(tmp_path):
    (tmp_path / "langchain_tools.py").write_text(CODE)
    return ToolDriver([FunctionTools(functions=("langchain_tools.py:add",), config_dir=tmp_path)])


def in_episode(driver, work):
    async def run(driver):
        here = workflow_context.WorkflowContext(
            is_eval=False,
            record_id="r",
            task_id="t",
            sample_index=0,
            base_url="",
            api_key="",
            http_client=None,
            tools=driver.open({"id": "t"}),
        )
        workflow_context.enter(here)
        return await work(*await tools_of_episode())

    return driver.run(run)


def request(**arguments):
    return {"name": "add", "args": arguments, "id": "c1", "type": "tool_call"}


def test_tools_of_the_episode_are_tools_of_langchain(driver):
    async def work(tool):
        assert (tool.name, tool.description) == ("add", "Add two numbers.")
        assert tool.args["a"] == {"type": "integer"}
        return [await tool.ainvoke({"a": 3}), await tool.ainvoke(request(a=3, b=4))]

    plain, message = in_episode(driver, work)
    assert (plain, message.content, message.tool_call_id, message.status) == ("4", "7", "c1", "success")
    assert [call.arguments for call in driver.calls] == [{"a": 3}, {"a": 3, "b": 4}]


@pytest.mark.parametrize(("arguments", "said"), [({"a": -1}, "too small"), ({"a": "x"}, 'is not of type "integer"')])
def test_what_the_model_can_react_to_is_an_error_message(driver, arguments, said):
    async def work(tool):
        return await tool.ainvoke(request(**arguments))

    message = in_episode(driver, work)
    assert message.status == "error"
    assert said in message.content


def test_sync_agents_on_threads_call_them_too(driver):
    async def work(tool):
        return await asyncio.to_thread(tool.invoke, {"a": 1})

    assert in_episode(driver, work) == "2"


def test_outside_an_episode_there_are_none():
    with pytest.raises(LookupError):
        asyncio.run(tools_of_episode())


def block(page, containing):
    (text,) = [text for text in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL) if containing in text]
    return text


def test_the_agent_of_the_first_screen_runs_as_it_stands(world, call):
    scope = {}
    exec(block(Path(__file__).parents[3] / "README.md", "build_agent"), scope)
    world.says(call("stock", item="bolts"), "12")
    (episode,) = world.play(scope["build_agent"], {"messages": [{"role": "user", "content": "How many bolts?"}]})
    assert [item.output["content"] for item in episode.interactions] == [None, "12"]
    assert episode.record.reward == 1.0


def test_the_workflow_of_the_readme_runs_as_it_stands(world, call, tmp_path):
    scope = {}
    exec(block(Path(__file__).parents[1] / "README.md", "tools_of_episode"), scope)
    (tmp_path / "langchain_tools.py").write_text(CODE)
    world.says(call("add", a=3, b=4), "The sum is 7.")
    server = FunctionTools(functions=("langchain_tools.py:add",), config_dir=tmp_path)
    toolbox = Toolbox(ToolsConfig(servers=(Component("functions"),)), [server])
    row = {"messages": [{"role": "user", "content": "3 + 4?"}], "answer": "7"}
    (episode,) = world.play(scope["run"], row, tools=toolbox)
    assert (episode.record.reward, len(episode.interactions)) == (1.0, 2)
