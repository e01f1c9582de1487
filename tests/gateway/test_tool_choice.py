"""What `tool_choice` and `parallel_tool_calls` mean for the grammar that the engine gets and for the reply."""

import json

import openai
import pytest

USER = [{"role": "user", "content": "what is 1 + 2?"}]


@pytest.fixture
def two_tools(tools):
    return [*tools, {"type": "function", "function": {"name": "take"}}]


def ask(client, **options):
    return client.chat.completions.create(**{"model": "default", "messages": USER, **options})


def named(*names):
    return [{"type": "function", "function": {"name": name}} for name in names]


@pytest.mark.parametrize(
    ("choice", "present", "absent"),
    [
        ("required", ["add", "take"], []),
        (named("take")[0], ["take"], ["add"]),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": named("add")}}, ["add"], ["take"]),
    ],
)
def test_a_tool_that_must_be_called_becomes_a_grammar(
    talk, session, engine, two_tools, call_text, choice, present, absent
):
    engine.replies = [call_text(present[0], "{}")]
    reply = talk(session, lambda client: ask(client, tools=two_tools, tool_choice=choice))
    grammar = engine.log[0].request.sampling.grammar
    assert grammar.kind == "lark"
    assert all(f'\\"{name}\\"' in grammar.value for name in present)
    assert not any(f'\\"{name}\\"' in grammar.value for name in absent)
    assert reply.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize(
    "choice",
    ["auto", "none", None, {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": named("add")}}],
)
def test_a_free_choice_has_no_grammar(talk, session, engine, two_tools, choice):
    talk(session, lambda client: ask(client, tools=two_tools, tool_choice=choice))
    assert engine.log[0].request.sampling.grammar is None


@pytest.mark.parametrize("stream", [False, True])
def test_a_second_call_is_told_as_an_error_where_one_is_allowed(talk, session, engine, store, tools, call_text, stream):
    engine.replies = [call_text("add", '{"a":1}') + "\n" + call_text("add", '{"a":2}')]

    async def scenario(client):
        options = {"model": "default", "messages": USER, "tools": tools, "parallel_tool_calls": False}
        if not stream:
            return (await client.chat.completions.create(**options)).choices[0]
        async with client.chat.completions.stream(**options) as events:
            return (await events.get_final_completion()).choices[0]

    choice = talk(session, scenario)
    assert [call.function.arguments for call in choice.message.tool_calls] == ['{"a":1}']
    assert choice.message.content == '\nadd({"a":2})'
    assert "one too many" in choice.message.model_extra["tool_call_errors"][0]
    assert store.interactions[0].tool_errors == 1


@pytest.mark.parametrize(("text", "content"), [(None, []), ("", [""]), ("hi", ["h", "i"])])
def test_a_stream_has_content_unless_it_is_calls_only(send, session, engine, tools, call_text, text, content):
    engine.replies = [call_text("add", "{}") if text is None else text]
    told = send(session, {"messages": USER, "tools": tools, "stream": True}).text
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in told.splitlines() if line.startswith("data: {")]
    assert deltas[0] == {"role": "assistant"}
    assert [delta["content"] for delta in deltas if "content" in delta] == content


@pytest.mark.parametrize(
    ("options", "param", "word"),
    [
        ({"functions": [{"name": "f"}]}, "functions", "tools"),
        ({"function_call": "auto"}, "function_call", "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
        ({"tool_choice": "any"}, "tool_choice", "required"),
        ({"tool_choice": {"type": "custom", "custom": {"name": "x"}}, "tools": True}, "tool_choice", "'x'"),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}, "tools": True}, "tool_choice", "'x'"),
        (
            {
                "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": named("x")}},
                "tools": True,
            },
            "tool_choice",
            "'x'",
        ),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": []}, "tools": True},
            "tool_choice",
            "allowed_tools",
        ),
        ({"tools": [{"type": "custom", "name": "x"}]}, "tools[0].custom", "name"),
        ({"tools": [{"type": "custom", "custom": {"name": "x", "format": 1}}]}, "tools[0].custom.format", "grammar"),
        ({"parallel_tool_calls": "no", "tools": True}, "parallel_tool_calls", "boolean"),
        (
            {"messages": [{"role": "assistant", "function_call": {"name": "f", "arguments": ""}}]},
            "messages[0].function_call",
            "tool_calls",
        ),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "messages"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs", "object"),
        ({"top_logprobs": 2}, "top_logprobs", "logprobs"),
    ],
)
def test_what_cannot_be_meant_is_refused(talk, session, engine, tools, options, param, word):
    body = {
        "messages": USER,
        **options,
        **({"tools": tools} if "tools" in options and options["tools"] is True else {}),
    }

    async def scenario(client):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="default", messages=[], extra_body=body)
        return caught.value

    error = talk(session, scenario)
    assert error.param == param
    assert word in error.message
    assert engine.log == []


def test_template_options_reach_the_template(make_gateway, open_session, send_to, engine, chat):
    gateway = make_gateway()
    session = open_session(gateway)
    reply = send_to(gateway, session, {"messages": USER, "chat_template_kwargs": {"enable_thinking": False}})
    assert reply.status_code == 200
    assert engine.log[0].request.prompt_ids == chat.prompt_ids(USER)
