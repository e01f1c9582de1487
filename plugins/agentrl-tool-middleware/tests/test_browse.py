"""The browse agent: which results are summarised, for which purpose, and what happens if no model answers."""

import asyncio

import pytest

from agentrl_core.api.tools import ToolResult, ToolSpec
from agentrl_core.errors import EnvironmentLostError
from agentrl_judge.testing import JudgeServer, failing
from agentrl_testing.policy import write_tokenizer
from agentrl_tool_middleware.browse import PURPOSE, Browse
from agentrl_tool_middleware.pages import BORDER

LONG = "word " * 100


@pytest.fixture
def browse(pass_through):
    """Call a tool through the middleware with a scripted model: what `pass_through` returns, and the `prompts`."""

    def run(*replies, arguments=None, answer=LONG, name="visit", spec=None, **options):
        async def body():
            async with JudgeServer(*(replies or ("the summary",))).up() as server:
                given = {"models": [server.model], "min_prompt_length": 10, "max_retries": 0, **options}
                done = await asyncio.to_thread(
                    pass_through, Browse(**given), arguments, answer=answer, name=name, spec=spec
                )
                done.prompts = [body["messages"][0]["content"] for body in server.bodies]
                return done

        return asyncio.run(body())

    return run


def test_a_long_result_is_summarised_for_the_purpose(browse):
    done = browse(arguments={"url": "u", "purpose": "find the price"})
    assert done.text == "URL: page 1\n\nSummary:\nthe summary"
    assert done.sent[0].arguments == {"url": "u"}
    (prompt,) = done.prompts
    assert "Its purpose: find the price" in prompt
    assert LONG.strip() in prompt


@pytest.mark.parametrize(
    ("arguments", "purpose"),
    [({"goal": "the goal"}, "the goal"), ({}, "read it"), ({"purpose": " "}, "read it"), ({"purpose": 3}, "read it")],
)
def test_without_a_purpose_the_goal_or_the_tools_default_counts(browse, arguments, purpose):
    assert f"Its purpose: {purpose}" in browse(arguments=arguments, default_purpose={"visit": "read it"}).prompts[0]


def test_without_any_purpose_the_main_content_counts(browse):
    assert PURPOSE in browse().prompts[0]


def test_a_tool_that_knows_a_purpose_gets_it(browse):
    spec = ToolSpec(name="visit", parameters={"type": "object", "properties": {"purpose": {}, "goal": {}}})
    done = browse(arguments={"goal": "g"}, spec=spec)
    assert done.sent[0].arguments == {"goal": "g", "purpose": "g"}


@pytest.mark.parametrize(
    "options",
    [
        {"answer": "short"},
        {"name": "search"},
        {"status": False},
        {"arguments": {"purpose": "I need the Full Content of it"}},
        {"answer": ToolResult.of_text(LONG, is_error=True)},
    ],
)
def test_other_results_stay_as_they_are(browse, options):
    done = browse(**options)
    assert done.prompts == []
    answer = options.get("answer", LONG)
    assert done.text == (answer.text if isinstance(answer, ToolResult) else answer)


def test_pages_are_summarised_at_the_same_time_and_keep_their_order(browse):
    async def reply(body):
        both.append(1)
        while len(both) < 2:
            await asyncio.sleep(0)
        return "first" if "a.org" in body["messages"][0]["content"] else "second"

    both = []
    pages = [f"The content from https://{name}.org: {LONG}" for name in "ab"]
    done = browse(reply, answer=BORDER.join(pages))
    assert done.text == "URL: https://a.org\n\nSummary:\nfirst\n\n---\n\nURL: https://b.org\n\nSummary:\nsecond"


def test_lengths_are_those_of_the_tokenizer(browse, tmp_path):
    write_tokenizer(tmp_path / "tokenizer")  # one token per byte
    done = browse(tokenizer_path=str(tmp_path / "tokenizer"), max_prompt_length=200, max_parts=2, answer="x" * 500)
    assert len(done.prompts) == 2
    assert "part 2 of 3" in done.text
    assert browse(tokenizer_path=str(tmp_path / "tokenizer"), answer="x" * 10).prompts == []


def test_if_no_model_answers_the_environment_is_lost_or_the_text_is_cut(browse):
    with pytest.raises(EnvironmentLostError, match=r"no model summarised the page: judge-1 at .* status 400"):
        browse(failing(400))
    done = browse(failing(400), on_failure="raw", max_prompt_length=20)
    assert done.text == LONG[:80]


def test_the_model_is_offered_a_purpose():
    browse = Browse(models=[{"base_url": "http://localhost:1", "model": "m"}])
    own = ToolSpec(name="fetch_url", parameters={"type": "object", "properties": {"purpose": {"type": "string"}}})
    visit, search, fetch = browse.tools([ToolSpec(name="visit"), ToolSpec(name="search"), own])
    assert visit.parameters["properties"]["purpose"]["type"] == "string"
    assert "required" not in visit.parameters
    assert search == ToolSpec(name="search")
    assert fetch is own
    assert Browse(models=[{"base_url": "http://localhost:1", "model": "m"}], status=False).tools([own]) == [own]
