import json
import sys
import threading

import pytest
from smolagents import Tool

from agentrl_core.errors import ConfigError
from agentrl_core.types import Outcome
from agentrl_smolagents.workflow import SmolagentsWorkflow
from agentrl_testing.adapters import AdapterSuite

ANSWER = '<tool_call>{"name": "final_answer", "arguments": {"answer": "4"}}</tool_call>'


class Remembering(Tool):
    """Has state."""

    name = "remember"
    description = "Remember a word."
    inputs = {"word": {"type": "string", "description": "The word."}}  # noqa: RUF012 - smolagents' own interface
    output_type = "string"

    def __init__(self):
        super().__init__()
        self.words = []

    def forward(self, word: str) -> str:
        self.words.append(word)
        return " ".join(self.words)


class TestToolCallingAgent(AdapterSuite):
    said = ANSWER

    def asked(self, question):
        return f"New task:\n{question}"

    @pytest.fixture
    def agent_factory(self, build):
        return build


class TestCodeAgent(AdapterSuite):
    said = "Thought: easy.\n<code>\nfinal_answer(2 + 2)\n"

    def asked(self, question):
        return f"New task:\n{question}"

    @pytest.fixture
    def agent_factory(self, build):
        return lambda: build("code")


def steps(episode):
    return [interaction.messages for interaction in episode.interactions]


def test_an_agent_uses_its_tools_until_it_gives_the_final_answer(world, build, ask, call, final):
    world.says("Let me see. " + call("add", a=1, b=2), call("add", a=3, b=4), final("<answer>7</answer>"))
    [episode] = world.play(build(), ask("1 + 2, 3 + 4?"), score=0.75)
    assert episode.record.outcome is Outcome.SCORED, episode.record.detail
    assert (episode.record.reward, world.requests[0].answer) == (0.75, "7")
    first, second, third = episode.interactions
    assert [tool["function"]["name"] for tool in first.tools] == ["add", "final_answer"]
    assert first.model == "gpt-4o"
    assert "Observation:\\n3" in str(second.messages)
    assert [item.parent for item in episode.interactions] == [None] * 3  # it rewrites its own turns
    log = world.engine.log
    assert [item.output_ids for item in (first, second, third)] == [entry.ids for entry in log]
    assert [item.logprobs for item in (first, second, third)] == [entry.logprobs for entry in log]


@pytest.mark.parametrize("streams", [False, True])
def test_a_code_agent_runs_its_code(world, build, ask, streams):
    world.says("Thought: add.\n<code>\nx = add(1, 2)\nprint(x)\n</code>", "<code>\nfinal_answer(x * 2)\n</code>")
    [episode] = world.play(build("code", stream_outputs=streams), ask("twice 1 + 2?"))
    assert episode.record.outcome is Outcome.SCORED, episode.record.detail
    assert world.requests[0].answer == "6"
    assert "Execution logs:\\n3" in str(episode.interactions[1].messages)


@pytest.mark.parametrize("kind", ["tool", "code"])
@pytest.mark.parametrize("way", ["object", "factory"])
def test_many_records_keep_their_conversations_state_and_tools_apart(world, build, ask, call, final, kind, way):
    def make():
        return build(kind, tools=[Remembering()])

    def mind(prompt):
        word = prompt.split("New task:\n")[1].split("<|im_end|>")[0]
        seen = "Observation:" in prompt
        if kind == "tool":
            return (
                final(prompt.split("Observation:\n")[1].split("<|im_end|>")[0]) if seen else call("remember", word=word)
            )
        return "<code>\nfinal_answer(said)\n</code>" if seen else f"<code>\nsaid = remember('{word}')\n</code>"

    world.mind = mind
    names = [f"w{number}" for number in range(16)]
    agent = make()
    for name, episode in zip(names, world.play(make if way == "factory" else agent, *map(ask, names)), strict=True):
        assert episode.record.outcome is Outcome.SCORED, episode.record.detail
        assert f"New task:\\n{name}'" in str(steps(episode)[0])
        assert len(steps(episode)) == 2
    assert sorted(request.answer for request in world.requests) == sorted(names)
    assert agent.memory.steps == []
    assert agent.tools["remember"].words == []


def test_agents_that_one_manages_answer_with_the_policy_too(world, build, ask, call, final):
    adder = build(name="adder", description="Adds.")
    world.mind = lambda prompt: (
        final("3") if "Observation:" in prompt
        else call("add", a=1, b=2) if "New task:\ndo add" in prompt
        else call("adder", task="do add")
    )  # fmt: skip
    [episode] = world.play(build(managed_agents=[adder]), ask("1 + 2?"))
    assert episode.record.outcome is Outcome.SCORED, episode.record.detail
    assert len(episode.interactions) == 4
    assert adder.memory.steps == []


def test_a_managed_agent_that_code_calls_answers_with_the_policy(world, build, ask, final):
    adder = build(name="adder", description="Adds.")
    world.mind = lambda prompt: (
        final("3") if "New task:\nadd!" in prompt else "<code>\nfinal_answer(adder('add!'))\n</code>"
    )
    [episode] = world.play(build("code", managed_agents=[adder]), ask("1 + 2?"))
    assert episode.record.outcome is Outcome.SCORED, episode.record.detail
    assert world.requests[0].answer == "3"
    assert len(episode.interactions) == 2


def test_an_agent_that_tools_of_two_records_run_at_once_is_refused(world, build, ask, call):
    inner = build(max_steps=1)
    both, refused = threading.Barrier(2, timeout=20), threading.Event()

    class Consult(Tool):
        name = "consult"
        description = "Ask somebody."
        inputs = {}  # noqa: RUF012 - smolagents' own interface
        output_type = "string"

        def forward(self) -> str:
            both.wait()
            try:
                return str(inner.run("and?"))
            except RuntimeError:
                refused.set()
                raise

        def __deepcopy__(self, memo):
            return self

    class Waiting(type(inner)):
        def write_memory_to_messages(self, *args, **kwargs):
            assert refused.wait(20)
            return super().write_memory_to_messages(*args, **kwargs)

    inner.__class__ = Waiting
    world.mind = lambda prompt: (
        ANSWER if "Observation" in prompt or "Error" in prompt or "and?" in prompt else call("consult")
    )
    episodes = world.play(build(tools=[Consult()]), ask("one"), ask("two"))
    texts = [str(steps(episode)) for episode in episodes]
    assert sum("is run by two records at once" in text for text in texts) == 1


def test_the_last_answer_after_too_many_steps_is_judged(world, build, ask, call):
    world.mind = lambda prompt: "It is three." if "Answer: " in prompt else call("add", a=1, b=2)
    [episode] = world.play(SmolagentsWorkflow(build(), max_steps=1), ask("1 + 2?"))
    assert world.requests[0].answer == "It is three."
    assert len(episode.interactions) == 2


def test_a_last_answer_that_the_policy_could_not_give_is_no_answer(world, build, ask, call):
    def mind(prompt):
        world.engine.refuse = True  # from the next call on
        return call("add", a=1, b=2)

    world.mind = mind
    [episode] = world.play(SmolagentsWorkflow(build(), max_steps=1), ask("1 + 2?"))
    assert (episode.record.outcome, len(episode.interactions)) == (Outcome.FAILED, 1)
    assert "aborted" in episode.record.detail


def test_what_a_policy_says_wrongly_is_told_to_it(world, build, ask, call, final):
    world.mind = lambda prompt: (
        final("4") if "Unknown tool" in prompt
        else call("fly") if "parsing tool call" in prompt
        else "no call at all"
    )  # fmt: skip
    [episode] = world.play(build(), ask("2 + 2?"))
    assert world.requests[0].answer == "4", episode.record.detail
    texts = list(map(str, steps(episode)))
    assert "Error while parsing tool call" in texts[1]
    assert "Unknown tool fly" in texts[2]


def test_the_rows_system_message_goes_to_the_instructions(world, build, final):
    world.says(final("4"))
    row = {"messages": [{"role": "system", "content": "In words."}, {"role": "user", "content": "2 + 2?"}]}
    [episode] = world.play(build(instructions="Politely."), row)
    assert "You add. Politely.\\n\\nIn words." in str(steps(episode)[0])


def test_an_answer_that_is_no_text_is_judged_as_json(world, build, ask):
    world.says("<code>\nfinal_answer({'sum': 4})\n</code>")
    world.play(build("code"), ask("2 + 2?"))
    assert json.loads(world.requests[0].answer) == {"sum": 4}


AGENT_FILE = """
from smolagents import OpenAIModel, ToolCallingAgent

def build_agent():
    return ToolCallingAgent([], OpenAIModel("gpt-4o", api_key="k"))

agent = build_agent()

def settle_in(agent, row):
    agent.prompt_templates["system_prompt"] = f"You are in {row['city']}."
"""


@pytest.fixture
def agent_file(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_agent", raising=False)
    (tmp_path / "my_agent.py").write_text(AGENT_FILE)


@pytest.mark.parametrize("name", ["build_agent", "agent"])
@pytest.mark.usefixtures("agent_file")
def test_a_config_names_an_agent_or_its_factory(world, name):
    world.says(ANSWER)
    rows = [{"query": "Where?", "city": city} for city in ("Oslo", "Rome")]
    options = {"prepare": "my_agent:settle_in", "additional_args": ["city"], "max_steps": 2}
    for row, episode in zip(rows, world.play(f"my_agent.py:{name}", *rows, **options), strict=True):
        assert f"You are in {row['city']}." in str(steps(episode)[0])
        assert f"{{'city': '{row['city']}'}}" in str(steps(episode)[0]).replace("\\'", "'")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"prepare": "my_agent:nobody"}, "workflow.prepare: .* has no 'nobody'"),
        ({"prepare": "my_agent:__doc__"}, "workflow.prepare: .* is of type NoneType"),
        ({"max_step": 2}, "did you mean .*max_steps"),
    ],
)
@pytest.mark.usefixtures("agent_file")
def test_wrong_options_are_refused_before_anything_starts(world, options, expected):
    with pytest.raises(ConfigError, match=expected):
        world.resolve("my_agent.py:agent", **options)


def test_a_row_without_an_additional_argument_is_a_data_error(world, build, ask):
    [episode] = world.play(SmolagentsWorkflow(build(), additional_args=("city",)), ask("?"))
    assert episode.record.reason == "DataError"
    assert "has no 'city', which the workflow's additional_args name" in episode.record.detail


def test_an_agent_that_cannot_be_copied_is_refused_and_its_factory_is_not(world, build, ask, final):
    def make():
        tool = Remembering()
        tool.lock = threading.Lock()
        return build(tools=[tool])

    with pytest.raises(ConfigError, match=r"cannot be copied: its tool 'remember', TypeError: .*lock.*; fix: name"):
        world.resolve(make())
    world.says(final("4"))
    [episode] = world.play(make, ask("?"))
    assert episode.record.outcome is Outcome.SCORED, episode.record.detail


@pytest.mark.parametrize("way", ["object", "factory"])
def test_the_step_log_is_silent(world, build, ask, call, final, capfd, way):
    world.says(call("add", a=1, b="x"), "nonsense", final("4"))
    world.play(build(stream_outputs=True) if way == "object" else build, ask("?"))
    assert capfd.readouterr() == ("", "")
