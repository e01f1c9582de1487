"""The workflow `harbor`: its loop of replies and tool calls, and how it ends."""

import asyncio

import pytest

from agentrl_core.api import context as workflow_context
from agentrl_core.errors import ConfigError, RequestError
from agentrl_harbor.workflow import HarborAgent


class Reply:
    def __init__(self, status, body):
        self.status_code, self.is_error, self._body = status, status >= 400, body

    def json(self):
        return self._body


class Client:
    """Answers with given replies: commands, a final text, or an error code."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    async def post(self, url, *, json, headers):
        self.asked.append((url, list(json["messages"]), json["tools"], headers))
        answer = self.answers.pop(0)
        if isinstance(answer, tuple):
            return Reply(answer[0], {"error": {"code": answer[1], "message": f"status {answer[0]}"}})
        if answer is None:
            await asyncio.Event().wait()
        message = {"role": "assistant", "content": answer}
        if answer.startswith("$"):
            call = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": answer[1:]}}
            message = {"role": "assistant", "content": "", "tool_calls": [call]}
        return Reply(200, {"choices": [{"message": message}]})


class Tools:
    def __init__(self):
        self.called = []

    async def as_openai(self):
        return ["tools"]

    async def call_all(self, message, *, messages=()):
        self.called.append(message["tool_calls"][0]["function"]["arguments"])
        return [{"role": "tool", "tool_call_id": "c", "content": "result"}]


def run(agent, client, tools, **data):
    """Run an episode in a context with tools; return the marks of its record."""
    marks = []
    given = {"messages": [{"role": "user", "content": "do it"}], **data}

    async def scenario():
        here = {"base_url": "http://x", "api_key": "k", "http_client": None}
        workflow_context.enter(
            workflow_context.WorkflowContext(
                **here,
                is_eval=False,
                record_id="r",
                task_id="t",
                sample_index=0,
                tools=tools,
                add_mark=marks.append,
            )
        )
        await agent.run(given, base_url="http://x", api_key="k", http_client=client)

    asyncio.run(scenario())
    return marks


def test_the_agent_works_until_it_answers_without_a_call():
    client, tools = Client("$one", "$two", "Done."), Tools()
    assert run(HarborAgent(system_prompt="be brief"), client, tools) == []
    assert tools.called == ["one", "two"]
    url, messages, offered, headers = client.asked[-1]
    assert (url, offered) == ("http://x/v1/chat/completions", ["tools"])
    assert headers == {"authorization": "Bearer k"}
    assert [message["role"] for message in messages] == ["system", "user", *["assistant", "tool"] * 2]


@pytest.mark.parametrize(
    ("answers", "data", "mark"),
    [
        (["$a", "$b"], {}, "max_turns"),
        (["$a", (400, "context_length_exceeded")], {}, "context_full"),
        (["$a", None], {"agent_timeout_s": 0.05}, "agent_timeout"),
    ],
)
def test_other_ends_are_marked(answers, data, mark):
    assert run(HarborAgent(max_turns=2), Client(*answers), Tools(), **data) == [mark]


def test_errors_of_the_gateway_are_errors_of_the_agent():
    with pytest.raises(RequestError, match="status 503"):
        run(HarborAgent(), Client((503, "unavailable")), Tools())


def test_a_run_without_tools_is_told_what_to_set():
    with pytest.raises(ConfigError, match="needs tools"):
        run(HarborAgent(), Client(), None)
