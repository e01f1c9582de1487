"""The shared HTTP client outlives its borrowers and still reaches the rest of the world."""

import asyncio
import http.server
import threading

import httpx2
import openai
import pytest
from openai import AsyncOpenAI

from agentrl_core.types import FinishReason

USER = [{"role": "user", "content": "hello"}]


def sdk(gateway, session, **options):
    return AsyncOpenAI(
        base_url=session.base_url, api_key=session.api_key, http_client=gateway.http_client, max_retries=0, **options
    )


def ask(client, **options):
    return client.chat.completions.create(model="default", messages=USER, **options)


def test_closing_it_closes_it_for_nobody(gateway, session):
    async def scenario():
        async with sdk(gateway, session) as client:
            await ask(client)
        await sdk(gateway, session).close()
        async with gateway.http_client:
            pass
        async with gateway.http_client as again:
            await again.aclose()
        assert not gateway.http_client.is_closed
        return await ask(sdk(gateway, session))

    assert asyncio.run(scenario()).choices[0].message.content == "ok"


def test_it_works_on_several_event_loops(gateway, session):
    for _ in range(2):
        assert asyncio.run(ask(sdk(gateway, session))).id


def test_the_clients_timeout_aborts_the_generation(gateway, session, engine, store):
    asyncio.run(engine.pause())

    async def read(**options):
        reply = await ask(sdk(gateway, session, timeout=0.05), **options)
        return [chunk async for chunk in reply]

    async def scenario(**options):
        with pytest.raises((openai.APITimeoutError, httpx2.ReadTimeout)):
            await read(**options)

    for options in ({}, {"stream": True}):
        asyncio.run(scenario(**options))
        assert engine.ended[len(engine.log) - 1].wait(5)
        assert engine.log[-1].finish_reason is FinishReason.ABORT
    assert store.interactions == []


@pytest.fixture
def web_site():
    class Site(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("set-cookie", "who=episode-1")
            self.send_header("connection", "close")
            self.end_headers()
            self.wfile.write(self.headers.get("cookie", "no cookie").encode())

        def log_message(self, *args):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Site) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_other_hosts_are_reached_and_their_cookies_forgotten(gateway, web_site):
    async def scenario():
        try:
            return [(await gateway.http_client.get(web_site)).text for _ in range(2)]
        finally:
            await gateway.http_client.close_for_good()

    assert asyncio.run(scenario()) == ["no cookie", "no cookie"]


def test_a_proxy_in_the_environment_does_not_catch_the_gateway(make_gateway, open_session, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    gateway = make_gateway()
    assert asyncio.run(ask(sdk(gateway, open_session(gateway)))).id


def test_replies_are_plain_http(gateway, session):
    async def scenario():
        url = session.base_url + "/v1/chat/completions"
        plain = await gateway.http_client.post(url, json={"messages": USER})
        async with gateway.http_client.stream("POST", url, json={"messages": USER, "stream": True}) as streamed:
            lines = [line async for line in streamed.aiter_lines() if line]
        return plain, streamed, lines

    plain, streamed, lines = asyncio.run(scenario())
    assert plain.headers["content-type"] == "application/json"
    assert plain.headers["content-length"] == str(len(plain.content))
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    assert isinstance(plain, httpx2.Response)
