import asyncio
import json
import threading
from types import SimpleNamespace

import attrs
import pytest
from tests.tools.conftest import ECHO, FakeServer, raising

from agentrl_core.api.tools import ToolResult, ToolSpec
from agentrl_core.errors import (
    DeliveryUnknownError,
    EnvironmentLostError,
    InvalidResultError,
    ToolNotSentError,
    ToolServerError,
)
from agentrl_core.types import ToolOutcome

READ = ToolSpec(name="read", read_only=True)


def call_echo(arguments='{"text": "hi"}', name="echo", **options):
    return lambda tools: tools.call(name, arguments, **options)


def test_a_call_returns_the_result_and_is_recorded(in_episode):
    done = in_episode(call_echo(id="c1"), FakeServer())
    assert done.result.message == {"role": "tool", "tool_call_id": "c1", "content": "hi"}
    [row] = done.rows
    assert (row.record_id, row.seq, row.call_id, row.name, row.arguments) == ("r0", 0, "c1", "echo", {"text": "hi"})
    assert (row.server, row.tool, row.isolation, row.outcome) == ("fake-1", "echo", "session", ToolOutcome.OK)
    assert (row.sent, row.raw, row.attempts, row.error) == (None, None, 1, "")
    assert row.shown == ({"type": "text", "text": "hi"},)
    assert done.marks == []


def test_servers_are_opened_on_first_use_and_closed_at_the_end(in_episode):
    used, unused = FakeServer(), FakeServer()
    in_episode(call_echo(), used)
    in_episode(lambda tools: asyncio.sleep(0), unused)
    assert (used.opened, used.closed, used.ended) == (["r0"], ["r0"], True)
    assert (unused.opened, unused.closed, unused.ended) == ([], [], True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("{", "the arguments are no JSON"),
        ("[1]", "must be a JSON object, not an array"),
        ("null", "must be a JSON object, not null"),
        ('{"text": NaN}', "the arguments are no JSON"),
        ("{}", '"text" is a required property'),
        ('{"text": 3}', 'text: 3 is not of type "string"'),
        ({"text": {1, 2}}, "the arguments are no JSON"),
    ],
)
def test_invalid_arguments_are_told_to_the_model_and_not_sent(in_episode, arguments, said):
    server = FakeServer()
    done = in_episode(call_echo(arguments), server)
    assert done.result.result.is_error
    assert said in done.result.result.text
    assert done.result.outcome is ToolOutcome.INVALID_ARGUMENTS
    assert server.calls == []
    assert (done.rows[0].attempts, done.rows[0].sent) == (0, None)
    assert done.marks == ["invalid_arguments"]


def test_an_unknown_tool_is_answered_with_the_names_that_exist(in_episode):
    done = in_episode(call_echo(name="eco"), FakeServer(specs=[ECHO, READ]))
    assert done.result.result.text == ("Error: there is no tool 'eco' (did you mean echo?); the tools are: echo, read")
    assert done.rows[0].outcome is ToolOutcome.UNKNOWN_TOOL


def test_calls_beyond_the_budget_are_blocked(in_episode):
    server = FakeServer()

    async def three(tools):
        return [(await tools.call("echo", {"text": "x"})).outcome for _ in range(3)]

    done = in_episode(three, server, max_calls=2)
    assert done.result == [ToolOutcome.OK, ToolOutcome.OK, ToolOutcome.BLOCKED]
    assert len(server.calls) == 2
    assert done.marks == ["blocked"]


@pytest.mark.parametrize(
    ("spec", "errors", "outcome", "attempts"),
    [
        (ECHO, [ToolNotSentError("down")] * 2, ToolOutcome.OK, 3),
        (ECHO, [ToolNotSentError("down")] * 3, ToolOutcome.NOT_SENT, 3),
        (ECHO, [DeliveryUnknownError("lost")], ToolOutcome.DELIVERY_UNKNOWN, 1),
        (ECHO, [ToolNotSentError("down"), DeliveryUnknownError("lost")], ToolOutcome.DELIVERY_UNKNOWN, 2),
        (READ, [DeliveryUnknownError("lost"), ToolNotSentError("down")], ToolOutcome.OK, 3),
        (READ, [DeliveryUnknownError("lost"), *[ToolNotSentError("down")] * 2], ToolOutcome.DELIVERY_UNKNOWN, 3),
        (ECHO, [ValueError("bug")], ToolOutcome.TOOL_ERROR, 1),
        (ECHO, [InvalidResultError("not JSON")], ToolOutcome.INVALID_RESULT, 1),
    ],
)
def test_only_calls_that_do_no_harm_are_repeated(in_episode, spec, errors, outcome, attempts):
    done = in_episode(call_echo({"text": "x"}, spec.name), FakeServer(specs=[spec], answer=raising(*errors)))
    assert (done.result.outcome, done.rows[0].attempts) == (outcome, attempts)
    assert done.result.result.is_error == (outcome is not ToolOutcome.OK)


def test_a_call_that_hangs_ends_at_its_deadline_even_if_it_ignores_its_cancellation(in_episode):
    released = asyncio.Event()

    async def stubborn(name, arguments):
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue
        return ToolResult.of_text("late")

    async def work(tools):
        shown = await tools.call("echo", {"text": "x"})
        released.set()
        return shown

    done = in_episode(work, FakeServer(answer=stubborn), entries=[{"timeout_s": 0.01}])
    assert done.result.outcome is ToolOutcome.DELIVERY_UNKNOWN
    assert "the call may have taken effect or not" in done.result.result.text
    assert "no answer within 0.01 s" in done.rows[0].error


def test_a_lost_environment_is_raised_by_every_call_and_remembered(in_episode):
    async def swallowing(tools):
        for _ in range(2):
            with pytest.raises(EnvironmentLostError):
                await tools.call("echo", {"text": "x"})
        return 1.0

    done = in_episode(swallowing, FakeServer(answer=raising(EnvironmentLostError("gone", server="fake-1"))))
    assert str(done.tools.lost) == "gone"
    assert [row.outcome for row in done.rows] == [ToolOutcome.ENVIRONMENT_LOST]
    assert done.marks == ["environment_lost"]


def test_a_server_that_cannot_be_opened_loses_the_environment(in_episode):
    async def refuse(episode):
        raise ToolNotSentError("connection refused")

    done = in_episode(call_echo(), FakeServer(on_open=refuse))
    assert isinstance(done.error, EnvironmentLostError)
    assert str(done.error) == "tool server 'fake-1' could not be opened: connection refused"
    assert done.tools.lost is done.error


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (ToolResult.of_text("x" * 100), "more than the 50 allowed"),
        ("text", "expected a ToolResult, found str"),
        (None, "expected a ToolResult, found NoneType"),
        (ToolResult(content=({"type": "audio"},)), "is no content part"),
        (ToolResult.of_text("\ud800"), "is not valid"),
    ],
)
def test_an_invalid_result_is_not_shown(in_episode, result, said):
    async def answer(name, arguments):
        return result

    done = in_episode(call_echo(), FakeServer(answer=answer), max_result_bytes=50)
    assert done.result.outcome is ToolOutcome.INVALID_RESULT
    assert said in done.result.result.text


def test_a_server_whose_calls_keep_failing_ends_the_run(in_episode):
    async def failing(tools):
        for _ in range(4):
            await tools.call("echo", {"text": "x"})

    down = FakeServer(answer=raising(*[DeliveryUnknownError("connection lost")] * 9))
    done = in_episode(failing, down, failure_window=4)
    assert isinstance(done.toolbox.fatal, ToolServerError)
    assert str(done.toolbox.fatal).startswith(
        "tool server 'fake-1': 4 of its last 4 calls failed (delivery_unknown 4), more than tools.max_failure_rate = "
        "0.5 allows; the last error: connection lost."
    )


def test_faults_of_the_model_do_not_count_against_a_server(in_episode):
    async def clumsy(tools):
        for _ in range(4):
            await tools.call("echo", {})

    assert in_episode(clumsy, FakeServer(), failure_window=4).toolbox.fatal is None


def test_all_calls_of_a_message_run_at_the_same_time(in_episode):
    together = asyncio.Barrier(3)

    async def meet(name, arguments):
        await together.wait()
        return ToolResult.of_text(arguments["text"])

    def asked(number):
        function = SimpleNamespace(name="echo", arguments=json.dumps({"text": f"n{number}"}))
        return SimpleNamespace(id=f"c{number}", type="function", function=function)

    message = SimpleNamespace(content=None, tool_calls=[asked(number) for number in range(3)])
    done = in_episode(lambda tools: tools.call_all(message), FakeServer(answer=meet))
    assert done.result == [
        {"role": "tool", "tool_call_id": f"c{number}", "content": f"n{number}"} for number in range(3)
    ]
    assert sorted(row.seq for row in done.rows) == [0, 1, 2]


def test_a_message_without_tool_calls_needs_no_server(in_episode):
    server = FakeServer()
    assert in_episode(lambda tools: tools.call_all({"role": "assistant", "content": "done"}), server).result == []
    assert server.opened == []


def test_a_cancelled_call_is_recorded_as_such(in_episode):
    began = asyncio.Event()

    async def never(name, arguments):
        began.set()
        await asyncio.Event().wait()

    async def impatient(tools):
        calling = asyncio.create_task(tools.call("echo", {"text": "x"}))
        await began.wait()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling

    assert [row.outcome for row in in_episode(impatient, FakeServer(answer=never)).rows] == [ToolOutcome.CANCELLED]


def test_tools_work_on_the_event_loop_of_another_thread(in_episode):
    async def elsewhere(tools):
        results = []

        def work():
            results.append(asyncio.run(tools.call("echo", {"text": "far"})).result.text)

        thread = threading.Thread(target=work)
        thread.start()
        await asyncio.to_thread(thread.join)
        return results

    assert in_episode(elsewhere, FakeServer()).result == ["far"]


def test_a_prefix_keeps_the_tools_of_servers_apart(in_episode):
    async def both(tools):
        names = [spec.name for spec in await tools.specs()]
        await tools.call("b_echo", {"text": "x"})
        return names

    first, second = FakeServer(), FakeServer()
    done = in_episode(both, first, second, entries=[{}, {"prefix": "b_", "name": "second"}])
    assert done.result == ["echo", "b_echo"]
    assert (first.calls, second.calls) == ([], [("echo", {"text": "x"})])
    assert (done.rows[0].name, done.rows[0].server, done.rows[0].tool) == ("b_echo", "second", "echo")


def test_two_servers_with_one_tool_name_end_the_run(in_episode):
    done = in_episode(lambda tools: tools.specs(), FakeServer(), FakeServer())
    assert done.toolbox.fatal is done.error
    assert "'fake-1' and 'fake-2' both have a tool 'echo'" in str(done.error)
    assert "`prefix`" in str(done.error)


def test_an_invalid_schema_names_server_and_tool(in_episode):
    bad = ToolSpec(name="bad", parameters={"type": "object", "properties": {"x": {"type": "strin"}}})
    done = in_episode(lambda tools: tools.specs(), FakeServer(specs=[bad]))
    told = "tool server 'fake-1' has an invalid schema of the arguments of 'bad': properties.x.type: "
    assert str(done.error).startswith(told)


def test_a_list_that_changes_is_read_again_and_marked(in_episode):
    server = FakeServer()
    sessions = []

    class Changing(FakeServer):
        async def open(self, episode):
            sessions.append(await FakeServer.open(self, episode))
            return sessions[-1]

    server = Changing()

    async def work(tools):
        before = [spec.name for spec in await tools.specs()]
        server.specs = [READ]
        same = [spec.name for spec in await tools.specs()]
        sessions[0].changes += 1
        return before, same, [spec.name for spec in await tools.specs()]

    done = in_episode(work, server)
    assert done.result == (["echo"], ["echo"], ["read"])
    assert done.marks == ["tools_changed"]


class Upper:
    """Renames, and changes arguments and result."""

    async def call(self, request, call_next):
        import attrs

        name = request.name.removeprefix("my_")
        arguments = {key: value.upper() for key, value in request.arguments.items()}
        result = await call_next(attrs.evolve(request, name=name, arguments=arguments))
        return ToolResult.of_text(result.text + "!")

    def tools(self, specs):
        import attrs

        return [attrs.evolve(spec, name=f"my_{spec.name}") for spec in specs]


class Same:
    async def call(self, request, call_next):
        assert request.tool is not None
        return await call_next(request)


class Refuse:
    async def call(self, request, call_next):
        return ToolResult.of_text("not allowed", is_error=True)


def test_middleware_changes_are_recorded_beside_what_the_model_wrote(in_episode):
    async def work(tools):
        assert [spec.name for spec in await tools.specs()] == ["my_echo"]
        return await tools.call("my_echo", {"text": "hi"})

    done = in_episode(work, FakeServer(), middleware=[Upper(), Same()])
    [row] = done.rows
    assert done.result.result.text == "HI!"
    assert (row.name, row.arguments, row.tool, row.sent) == ("my_echo", {"text": "hi"}, "echo", {"text": "HI"})
    assert (row.raw, row.middleware) == (({"type": "text", "text": "HI"},), ("Upper",))


PNG = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aaaa"}, "uri": "file:///a.png"}
FAR = {"type": "image_url", "image_url": {"url": "https://example.org/b.jpg"}}


@pytest.mark.parametrize("middleware", [[], [Same()]])
def test_images_are_texts_for_a_model_that_sees_none_and_the_record_keeps_them(in_episode, middleware):
    async def answer(name, arguments):
        return ToolResult(content=({"type": "text", "text": "a plot:"}, PNG, FAR))

    done = in_episode(call_echo(), FakeServer(answer=answer), middleware=middleware, takes_images=lambda: False)
    assert done.result.message["content"] == (
        "a plot:\n[image of type image/png, which cannot be shown]\n"
        "[image at https://example.org/b.jpg, which cannot be shown]"
    )
    [row] = done.rows
    assert row.outcome is ToolOutcome.OK
    assert [part["type"] for part in row.shown] == ["text"] * 3
    assert row.shown[1]["uri"] == "file:///a.png"
    assert row.raw[1:] == (PNG, FAR)


def test_a_model_that_sees_images_gets_them(in_episode):
    async def answer(name, arguments):
        return ToolResult(content=(PNG,))

    done = in_episode(call_echo(), FakeServer(answer=answer))
    assert done.result.message["content"] == [PNG]
    assert done.rows[0].raw is None


def test_changed_arguments_that_are_refused_were_not_sent(in_episode):
    class Number:
        async def call(self, request, call_next):
            return await call_next(attrs.evolve(request, arguments={"text": 3}))

    [row] = in_episode(call_echo(), FakeServer(), middleware=[Number()]).rows
    assert (row.outcome, row.attempts, row.sent) == (ToolOutcome.INVALID_ARGUMENTS, 0, None)


def test_a_refusal_of_middleware_is_blocked_and_calls_nothing(in_episode):
    server = FakeServer()
    done = in_episode(call_echo(), server, middleware=[Same(), Refuse()])
    assert (done.result.outcome, done.rows[0].attempts, done.rows[0].middleware) == (
        ToolOutcome.BLOCKED,
        0,
        ("Refuse",),
    )
    assert server.calls == []


def test_an_exception_of_middleware_is_a_tool_error(in_episode):
    class Broken:
        async def call(self, request, call_next):
            raise KeyError("url")

    done = in_episode(call_echo(), FakeServer(), middleware=[Broken()])
    assert (done.result.outcome, done.result.result.text) == (
        ToolOutcome.TOOL_ERROR,
        "Error: the tool failed: KeyError: 'url'",
    )


def test_no_more_calls_run_at_once_than_allowed(in_episode):
    running = [0, 0]

    async def count(name, arguments):
        running[0] += 1
        running[1] = max(running)
        for _ in range(3):
            await asyncio.sleep(0)
        running[0] -= 1
        return ToolResult.of_text("")

    async def many(tools):
        await asyncio.gather(*(tools.call("echo", {"text": "x"}) for _ in range(8)))

    in_episode(many, FakeServer(answer=count), max_concurrent_calls=2)
    assert running == [0, 2]


def test_tools_have_the_shapes_of_the_llm_apis(in_episode):
    async def shapes(tools):
        return [await tools.as_openai(), await tools.as_openai_responses(), await tools.as_anthropic()]

    chat, responses, anthropic = in_episode(shapes, FakeServer()).result
    schema = dict(ECHO.parameters)
    assert chat == [
        {"type": "function", "function": {"name": "echo", "description": "Return the text.", "parameters": schema}}
    ]
    assert responses == [
        {"type": "function", "name": "echo", "description": "Return the text.", "parameters": schema, "strict": False}
    ]
    assert anthropic == [{"name": "echo", "description": "Return the text.", "input_schema": schema}]


def test_calls_after_the_end_are_refused(in_episode):
    done = in_episode(call_echo(), FakeServer())

    async def late():
        with pytest.raises(LookupError, match="the episode has ended"):
            done.tools._check_usable()

    asyncio.run(late())
