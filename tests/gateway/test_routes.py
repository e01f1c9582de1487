"""URLs and methods: which there are, and what a client is told about those that there are not."""

import asyncio
import inspect

import httpx2
import pytest
from anthropic import AsyncAnthropic

from agentrl_core.http.tls_context import ssl_context

CALL = {"model": "default", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    "path",
    [
        "/v1/responses/compact",
        "/v1/responses/input_tokens",
        "/v1/responses/resp_1/cancel",
        "/v1/models/x:generateContent",
        "/v1/embeddings",
    ],
)
def test_what_other_servers_have_is_an_unknown_url(send, session, path):
    reply = send(session, {}, path=path)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (404, "unknown_url")
    assert "POST /v1/chat/completions, /v1/completions, /v1/responses and /v1/messages" in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/chat/completions", "POST"),
        ("PUT", "/v1/messages", "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("POST", "/v1/models/default", "GET, HEAD"),
        ("POST", "/v1/responses/resp_1", "GET, HEAD"),
        ("DELETE", "/v1/responses/resp_1", "GET, HEAD"),
    ],
)
def test_a_wrong_method_is_told_the_right_ones(send, session, method, path, allowed):
    reply = send(session, {}, path=path, method=method)
    assert (reply.status_code, reply.headers["allow"]) == (405, allowed)


@pytest.mark.parametrize("door", ["in process", "socket"])
def test_what_can_be_read_has_head(gateway, session, door):
    async def asking():
        over_socket = httpx2.AsyncClient(verify=ssl_context(), timeout=60)
        client = over_socket if door == "socket" else gateway.http_client
        try:
            return [await client.request(method, f"{session.base_url}/v1/models") for method in ("HEAD", "GET")]
        finally:
            await over_socket.aclose()

    head, whole = asyncio.run(asking())
    assert (head.status_code, head.headers["content-type"]) == (200, "application/json")
    assert (head.content, whole.status_code) == (b"", 200)
    if door == "socket":
        assert head.headers["content-length"] == str(len(whole.content))


@pytest.mark.parametrize("stream", [False, True])
def test_replies_have_the_id_of_their_call_as_request_id(talk, session, gateway, stream):
    async def scenario(client):
        raw = client.chat.completions.with_raw_response
        reply = await raw.create(**CALL, stream=stream)
        messages = AsyncAnthropic(base_url=session.base_url, api_key="k", http_client=gateway.http_client).messages
        other = await messages.with_raw_response.create(**CALL, max_tokens=5, stream=stream)
        for answer in (reply, other) if stream else ():
            parsed = answer.parse()
            async for _ in await parsed if inspect.isawaitable(parsed) else parsed:
                pass
        return reply.request_id, other.request_id

    ids = talk(session, scenario)
    assert sorted(ids) == sorted(item.id for item in session.interactions)
