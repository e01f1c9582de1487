"""The workflow `mcp`: what ends an episode, what the policy is told, and how the record is marked."""

import asyncio
import json

import attrs
import pytest

from agentrl_core import workflow_context
from agentrl_core.api.tools import ShownCall, ToolResult
from agentrl_core.errors import ConfigError, EnvironmentLostError
from agentrl_core.plugins.manager import load_registry
from agentrl_core.rollout.workflows import resolve_workflow
from agentrl_core.types import Outcome, Task, ToolOutcome
from agentrl_mcp.workflow import CUT_OFF, McpAgent
from agentrl_testing.workflows import Rehearsal

ADD = {
    "type": "function",
    "function": {"name": "add", "description": "", "parameters": {"type": "object", "properties": {"a": {}, "b": {}}}},
}


def call(name="add", **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


class Tools:
    """Tools of an episode: `add`, `fail`, `lost`, and `meet`, which returns when two of its calls run at once."""

    def __init__(self):
        self.called, self.before, self._both = [], [], asyncio.Barrier(2)

    async def as_openai(self):
        return [ADD]

    async def call(self, name, arguments, *, id="", messages=()):  # noqa: A002
        arguments = json.loads(arguments)
        self.called.append((name, arguments))
        self.before.append(list(messages))
        text, outcome = "", ToolOutcome.OK
        match name:
            case "add":
                text = str(arguments["a"] + arguments["b"])
            case "meet":
                async with asyncio.timeout(20):
                    text = str(await self._both.wait())
            case "fail":
                text, outcome = "broken", ToolOutcome.TOOL_ERROR
            case "lost":
                raise EnvironmentLostError("the sandbox is gone", server="box")
            case _:
                text, outcome = "no such tool", ToolOutcome.UNKNOWN_TOOL
        result = ToolResult.of_text(text, is_error=outcome is not ToolOutcome.OK)
        return ShownCall(id=id, name=name, result=result, outcome=outcome)


@pytest.fixture
def play(tmp_path):
    """Play an episode of an agent whose policy says `replies`, one after the other, always the last one at the end."""
    opened = []

    def run(*replies, agent=None, scored=None, data=None, max_tokens=None):
        said = list(replies)
        rehearsal = Rehearsal(tmp_path / f"run-{len(opened)}", lambda _: said.pop(0) if len(said) > 1 else said[0])
        opened.append(rehearsal)
        rehearsal.tools, rehearsal.marks = Tools(), []
        agent = agent or McpAgent()

        async def episode(data, *, base_url, api_key, http_client):
            here = attrs.evolve(workflow_context.get(), tools=rehearsal.tools, add_mark=rehearsal.marks.append)
            workflow_context.enter(here)
            return await agent.run(data, base_url=base_url, api_key=api_key, http_client=http_client)

        row = {"id": "t", "query": "2+3?", "messages": [{"role": "user", "content": "2+3?"}], **(data or {})}
        task = Task(id="t", data=row, answer="5", scorer="s", answer_schema=row.get("answer_schema", ""))
        source = resolve_workflow(episode, registry=load_registry(), base_dir=tmp_path)

        def score(request):
            if scored is not None:
                scored.append(request)
            return float(request.answer == "5")

        (rehearsal.episode,) = rehearsal.play(source, [task], scorer=score)
        return rehearsal

    yield run
    for rehearsal in opened:
        rehearsal.close()


def test_a_tool_is_called_and_the_answer_is_scored(play):
    done = play(call(a=2, b=3), "So <answer> 5 </answer>")
    assert done.tools.called == [("add", {"a": 2, "b": 3})]
    assert done.marks == ["completed"]
    assert (done.episode.record.outcome, done.episode.record.reward) == (Outcome.SCORED, 1.0)
    assert [message["role"] for message in done.tools.before[0]] == ["system", "user", "assistant"]
    first, second = done.prompts
    assert "2+3?" in first
    assert "<answer>…</answer>" in first
    assert second.startswith(first + call(a=2, b=3))
    assert "<tool_response>5</tool_response>" in second


def test_calls_of_one_reply_run_at_the_same_time(play):
    done = play(call("meet") + call("meet"), "<answer>5</answer>")
    assert done.episode.record.reward == 1.0
    assert [name for name, _ in done.tools.called] == ["meet", "meet"]


def test_calls_may_run_one_after_the_other(play):
    done = play(call(a=1, b=1) + call("lost") + call(a=1, b=2), "<answer>5</answer>", agent=McpAgent(parallel=False))
    assert [name for name, _ in done.tools.called] == ["add", "lost"]


def test_an_answer_counts_although_the_reply_calls_a_tool_and_thoughts_are_no_answer(play):
    done = play("<think><answer>4</answer></think>" + call(a=1, b=1), "<answer>5</answer>" + call(a=7, b=7))
    assert done.tools.called == [("add", {"a": 1, "b": 1})]
    assert done.episode.record.reward == 1.0


def test_the_tasks_schema_and_prompts_take_precedence(play):
    agent = McpAgent(system_prompt="system of the options", query_prompt="Question: {query}")
    done = play("<answer>4</answer>", r"\boxed{5}", agent=agent, data={"answer_schema": "boxed"})
    assert done.episode.record.reward == 1.0
    assert "system of the options" in done.prompts[0]
    assert "Question: 2+3?" in done.prompts[0]
    done = play("<answer>5</answer>", agent=agent, data={"system_prompt": "own system", "query_prompt": "own question"})
    assert "own system" in done.prompts[0]
    assert "own question" in done.prompts[0]
    assert "system of" not in done.prompts[0]
    assert "2+3?" not in done.prompts[0]


def test_without_a_schema_a_reply_without_calls_is_the_answer(play):
    done = play(call(a=2, b=3), "5", agent=McpAgent(answer_schema="", system_prompt=""))
    assert done.episode.record.reward == 1.0
    assert "Answer the question" not in done.prompts[0]


def test_a_malformed_call_is_told_and_counted(play):
    done = play("<tool_call>{nonsense</tool_call>", call("unknown"), "<answer>5</answer>")
    assert "could not be read" in done.prompts[1]
    assert done.marks == ["formaterror", "formaterror", "completed"]
    scored = []
    done = play("<tool_call>{nonsense</tool_call>", agent=McpAgent(max_format_errors=2), scored=scored)
    assert len(done.prompts) == 2
    assert (done.marks[-1], scored[0].answer) == ("format_limit_error", "")
    assert (done.episode.record.outcome, done.episode.record.reward) == (Outcome.SCORED, 0.0)


def test_a_failed_tool_is_told_and_the_episode_goes_on(play):
    done = play(call("fail"), "<answer>5</answer>")
    assert done.marks == ["toolfailed", "completed"]
    assert "<tool_response>broken</tool_response>" in done.prompts[1]


def test_a_reply_without_call_and_answer_is_reminded(play):
    done = play("hm", "<answer>5</answer>")
    assert "neither a tool call nor an answer" in done.prompts[1]
    assert done.marks == ["completed"]


def test_a_reply_that_was_cut_off_is_told(play):
    done = play("a" * 5_000, "<answer>5</answer>")
    assert CUT_OFF in done.prompts[1]
    assert done.marks == ["formaterror", "completed"]


@pytest.mark.parametrize(
    ("options", "label", "num_calls"),
    [
        ({"max_turns": 3}, "turns_limit_error", 3),
        ({"max_prompt_tokens": 10}, "length_limit_error", 1),
        ({"repetition_early_stop_times": 2}, "repetition_error", 2),
    ],
)
def test_limits_end_an_episode_with_agentrls_labels(play, options, label, num_calls):
    done = play(call(a=1, b=1), agent=McpAgent(**options))
    assert len(done.prompts) == num_calls
    assert done.marks[-1] == label
    assert ("repeaterror" in done.marks) == (num_calls > 1)
    assert (done.episode.record.outcome, done.episode.record.reward) == (Outcome.SCORED, 0.0)
    rejected = play(call(a=1, b=1), agent=McpAgent(**options, without_answer="reject")).episode.record
    assert (rejected.outcome, rejected.reason) == (Outcome.REJECTED, label)


def test_the_models_context_ends_an_episode(play):
    done = play(call(a=1, b=1), data={"query_prompt": "x" * 65_000})
    assert done.marks[-1] == "length_limit_error"
    assert done.episode.record.reward == 0.0


def test_a_lost_environment_rejects_the_record(play):
    record = play(call(a=1, b=1) + call("lost")).episode.record
    assert (record.outcome, record.reason) == (Outcome.REJECTED, "environment_lost")
    assert "the sandbox is gone" in record.detail


def test_a_config_without_tools_is_named():
    class Here:
        tools = None

    async def run():
        workflow_context.enter(Here())
        await McpAgent().run({}, base_url="", api_key="", http_client=None)

    with pytest.raises(ConfigError, match=r"tools: \{servers: \[\{use: mcp"):
        asyncio.run(run())
