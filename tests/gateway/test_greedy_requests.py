"""A request whose work would keep all others waiting is refused, and says which of its fields is at fault."""

import pytest

USER = [{"role": "user", "content": "hello"}]
BODIES = {
    "/v1/chat/completions": ({"messages": USER}, "stop"),
    "/v1/completions": ({"prompt": "hello"}, "stop"),
    "/v1/responses": ({"input": "hello"}, "stop"),
    "/v1/messages": ({"messages": USER, "max_tokens": 9}, "stop_sequences"),
}


@pytest.fixture(params=BODIES)
def api(request):
    """An API's path, the least of a request to it, and its name of stop strings."""
    return request.param, *BODIES[request.param]


def test_a_stop_string_has_a_bounded_length(session, send, engine, api):
    path, body, name = api
    longest = "é" * 1000
    assert send(session, {**body, name: [longest, "END"]}, path=path).status_code == 200
    refused = send(session, {**body, name: ["END", f"{longest}a"]}, path=path)
    assert refused.status_code == 400
    assert f"{name}: a stop string may have at most 1000 characters" in refused.json()["error"]["message"]
    assert len(engine.log) == 1


def test_prompts_times_n_are_bounded(make_gateway, open_session, send_to, engine):
    gateway = make_gateway(max_replies_per_call=6)
    session = open_session(gateway)
    body = {"prompt": ["a", "b", "c"], "max_tokens": 1}
    assert send_to(gateway, session, {**body, "n": 2}, path="/v1/completions").status_code == 200
    refused = send_to(gateway, session, {**body, "n": 3}, path="/v1/completions")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")
    assert "9 replies; one request may ask for at most 6" in refused.json()["error"]["message"]
    assert len(engine.log) == 6


def test_128_prompts_with_one_reply_each_are_fine_and_with_two_are_not(session, send):
    body = {"prompt": ["a"] * 128, "max_tokens": 1}
    assert send(session, body, path="/v1/completions").status_code == 200
    assert send(session, {**body, "n": 2}, path="/v1/completions").status_code == 400


def long_schema(length):
    return {"type": "object", "properties": {"a": {"description": "x" * length}}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (
            lambda schema: {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}},
            "response_format",
        ),
        (
            lambda schema: {
                "tools": [{"type": "function", "function": {"name": "add", "parameters": schema}}],
                "tool_choice": "required",
            },
            "tools",
        ),
    ],
)
def test_a_schema_that_holds_replies_has_a_bounded_length(session, send, fields, param):
    assert send(session, {"messages": USER, **fields(long_schema(1000))}).status_code == 200
    refused = send(session, {"messages": USER, **fields(long_schema(65_536))})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    assert "at most 65536 characters" in refused.json()["error"]["message"]
