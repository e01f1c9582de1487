"""Keys and tokens stay where they belong: in requests, and in the one reply that hands them out."""

import asyncio
import contextlib
import json
import logging
import socket
import traceback

import pytest

from agentrl_core.errors import EngineError, UnservableError
from agentrl_core.gateway.serving.web import HttpRequest

CHAT = {"messages": [{"role": "user", "content": "hello"}]}
CHAT_ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")


class Log(logging.Handler):
    """Keeps what every log record says, shows and holds."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(self.format(record))
        self.lines.append(repr(record.__dict__))
        if record.exc_info and record.exc_info[1] is not None:
            told = traceback.TracebackException.from_exception(record.exc_info[1], capture_locals=True)
            self.lines.append("".join(told.format()))


@pytest.fixture
def log():
    root, handler = logging.getLogger(), Log()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield handler
    root.removeHandler(handler)
    root.setLevel(level)


async def every_failure(rest, opened, engine):
    """Call in every way that fails, and some that do not; the bodies of all replies."""
    key, url = opened["api_key"], rest.gateway.url
    client = rest.gateway.http_client
    bodies = []

    async def send(method, path, content, **headers):
        reply = await client.request(method, url + path, content=content, headers=headers)
        bodies.append(reply.text + repr(reply.headers))

    chat = json.dumps(CHAT).encode()
    for headers in (
        {"authorization": f"Bearer {key}"},
        {"x-api-key": key},
        {"authorization": f"Basic {key}"},
        {"authorization": f"Bearer {key}x"},
        {"authorization": f"Bearer {rest.key}"},
        {"authorization": key},
        {"authorization": f"Bearer {key}", "x-agentrl-trainable": "perhaps"},
        {},
    ):
        for path in (*CHAT_ROUTES, "/v1/messages/count_tokens"):
            for content in (chat, b"{", b"[]", b'{"prompt": "hi"}', b'{"input": "hi"}'):
                await send("POST", path, content, **headers)
        for path in ("/rl/start_session", "/rl/set_reward", "/export_trajectories", "/nowhere"):
            await send("POST", path, b'{"session_id": "none"}', **headers)
        for path in ("/v1/models", "/v1/responses/resp_1", "/rl/sessions", "/v1/openapi.json"):
            await send("GET", path, b"", **headers)
    for failure in (EngineError("the engine broke"), UnservableError("too odd"), ValueError("a bug"), KeyError("x")):
        for stream in (False, True):
            engine.replies = [failure]
            await send(
                "POST", CHAT_ROUTES[0], json.dumps({**CHAT, "stream": stream}).encode(), authorization=f"Bearer {key}"
            )
    return bodies


def garbage(gateway, *secrets):
    """What breaks before a route is found."""
    host, port = gateway.url.removeprefix("http://").split(":")
    for line in ("POST /s/{0} HTTP/9.9", "{0}", "POST /{0}\0 HTTP/1.1", "POST / HTTP/1.1\r\nauthorization: {0}\0"):
        for secret in secrets:
            with socket.create_connection((host, int(port)), timeout=10) as connection:
                connection.sendall(line.format(secret).encode() + b"\r\n\r\n")
                while connection.recv(1000):
                    pass


def test_no_secret_is_logged_stored_told_or_shown(rest, engine, log, tmp_path, open_session, caplog):
    chosen = "a-key-of-the-agent's-own-choice"
    opened = asyncio.run(rest.start("t", api_key=chosen))
    made = asyncio.run(rest.start("t"))
    inner = open_session(rest.gateway)
    secrets = [rest.key, chosen, made["api_key"], inner.api_key, inner.token]
    bodies = asyncio.run(every_failure(rest, opened, engine))
    bodies += asyncio.run(every_failure(rest, made, engine))
    bodies += asyncio.run(through_tokens(rest, inner, engine))
    garbage(rest.gateway, *secrets)
    live = [*rest.gateway._sessions._by_key.values(), inner, rest.gateway]
    shown = [repr(live), repr([vars(rest.gateway), vars(rest.gateway._sessions), vars(rest.gateway.router)])]
    shown.append(repr(HttpRequest(method="GET", path=f"/s/{inner.token}/x", headers={"x-api-key": made}, body=b"")))
    asyncio.run(rest.gateway.close_session(inner))
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert any(b"hello" in file for file in files)
    assert any("a bug" in line for line in log.lines)
    for secret in secrets:
        assert not [line for line in log.lines if secret in line]
        assert not [file for file in files if secret.encode() in file]
        assert not [text for text in shown if secret in text]
        assert not [text for text in bodies if secret in text]


async def through_tokens(rest, session, engine):
    client, bodies = rest.gateway.http_client, []
    for path in ("/v1/chat/completions", "/nowhere", "", "/v1/rl/sessions", "/v1/messages"):
        for content in (json.dumps(CHAT).encode(), b"{"):
            for prefix in (session.base_url, f"{rest.gateway.url}/v1/s/{session.token}"):
                with contextlib.suppress(IndexError):
                    reply = await client.post(prefix + path, content=content, headers={"x-api-key": session.api_key})
                    bodies.append(reply.text)
    return bodies


def test_a_strangers_errors_do_not_tell_which_sessions_there_are(rest):
    opened = asyncio.run(rest.start())
    unknown = asyncio.run(rest.chat("sk-agentrl-never-issued", "hello"))
    for guess in (opened["session_id"], opened["api_key"][:-1], opened["api_key"].upper(), ""):
        reply = asyncio.run(rest.chat(guess or "x", "hello"))
        assert (reply.status_code, reply.text) == (401, unknown.text)


def test_sessions_do_not_see_each_others_replies(rest):
    mine, theirs = (asyncio.run(rest.start())["api_key"] for _ in range(2))

    async def respond(key, **fields):
        return await rest.post("/v1/responses", {"input": "hello", **fields}, key=key)

    async def look(key, path):
        return await rest.post(path, key=key, method="GET")

    reply = asyncio.run(respond(theirs)).json()
    item = reply["output"][0]["id"]
    for path in (f"/v1/responses/{reply['id']}", f"/v1/responses/{reply['id']}/input_items"):
        assert asyncio.run(look(theirs, path)).status_code == 200
        assert asyncio.run(look(mine, path)).status_code == 404
    assert asyncio.run(respond(mine, previous_response_id=reply["id"])).status_code in {400, 404}
    assert asyncio.run(respond(mine, input=[{"type": "item_reference", "id": item}])).status_code == 400
    reward = {"interaction_id": reply["id"], "reward": 1.0}
    assert asyncio.run(rest.post("/rl/set_reward", reward, key=mine)).status_code == 400
    named = {"session_id": "x", **reward}
    assert asyncio.run(rest.post("/rl/set_reward", named, key=mine)).status_code == 400
    assert asyncio.run(rest.post("/rl/set_reward", reward, key=theirs)).status_code == 200
