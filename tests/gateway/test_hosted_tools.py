"""Tools that a provider would run: refused for the policy, or dropped with a mark in the trace."""

import pytest

FUNCTION = {"name": "add", "parameters": {"type": "object", "properties": {}}}
TURNS = [{"role": "user", "content": "hi"}]
REQUESTS = [
    ("/v1/responses", {"input": "hi", "tools": [{"type": "function", **FUNCTION}, {"type": "web_search"}]}, "tools[1]"),
    ("/v1/chat/completions", {"messages": TURNS, "web_search_options": {}}, "web_search_options"),
    (
        "/v1/messages",
        {"messages": TURNS, "max_tokens": 5, "tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        "tools[0]",
    ),
    (
        "/v1/messages",
        {"messages": TURNS, "max_tokens": 5, "mcp_servers": [{"url": "https://x", "authorization_token": "secret"}]},
        "mcp_servers",
    ),
]


@pytest.mark.parametrize(("path", "body", "where"), REQUESTS)
def test_they_are_refused(send, session, store, path, body, where):
    reply = send(session, body, path=path)
    message = reply.json()["error"]["message"]
    assert reply.status_code == 400
    assert message.startswith(f"{where}: ")
    assert "gateway.hosted_tools: drop" in message
    assert store.interactions == []


@pytest.mark.parametrize(("path", "body", "where"), REQUESTS)
def test_they_are_dropped_on_request_and_the_trace_says_so(
    make_gateway, open_session, send_to, engine, store, path, body, where
):
    gateway = make_gateway(hosted_tools="drop")
    reply = send_to(gateway, open_session(gateway), body, path=path)
    assert reply.status_code == 200, reply.text
    (call,) = store.interactions
    assert call.requested["hosted_tools"].endswith(": dropped (gateway.hosted_tools: drop)")
    assert [tool["function"]["name"] for tool in call.tools] == (["add"] if path == "/v1/responses" else [])
    assert "secret" not in str(call)


def test_counting_tokens_treats_them_as_a_call_does(make_gateway, open_session, send_to):
    path, body, _ = REQUESTS[2]
    statuses = []
    for option in ("refuse", "drop"):
        gateway = make_gateway(hosted_tools=option)
        statuses.append(send_to(gateway, open_session(gateway), body, path=f"{path}/count_tokens").status_code)
    assert statuses == [400, 200]


def test_no_mcp_servers_are_no_wish(send, session):
    path, body, _ = REQUESTS[3]
    assert send(session, {**body, "mcp_servers": []}, path=path).status_code == 200
