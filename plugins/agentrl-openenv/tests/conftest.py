"""Servers of environments, and episodes with them.

The servers here have OpenEnv's and NeMo Gym's messages, for tests without these packages. `real_server.py` has the same
two environments of OpenEnv; tests that are marked slow run against it.
"""

import asyncio
import json
import os
import socket
import subprocess
import threading
import urllib.request
from pathlib import Path

import pytest
from aiohttp import WSMsgType, web

from agentrl_core.plugins.manager import load_registry
from agentrl_core.rollout.workflows import resolve_workflow
from agentrl_testing.workflows import Rehearsal

VARIABLE = "AGENTRL_OPENENV_PYTHON"


@pytest.fixture
def serve():
    """A function that serves an aiohttp application on a thread, and returns its address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    runners = []

    async def start(app):
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        runners.append(runner)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"

    yield lambda app: asyncio.run_coroutine_threadsafe(start(app), loop).result(20)
    for runner in runners:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(20)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture(scope="session")
def real_server():
    """Address of a server of OpenEnv's own package."""
    python = os.environ.get(VARIABLE)
    if not python:
        pytest.skip(f"{VARIABLE} names no interpreter with what framework.txt lists; `nox -s tests` makes one")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    script = Path(__file__).with_name("real_server.py")
    with subprocess.Popen([python, str(script), str(port)], stderr=subprocess.PIPE, text=True) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            while process.poll() is None:
                try:
                    urllib.request.urlopen(f"{url}/guess/health", timeout=5)
                    break
                except OSError:
                    continue
            assert process.poll() is None, process.stderr.read()
            yield url
        finally:
            process.kill()


class Play:
    """Episodes in which the policy says given replies, one after the other."""

    def __init__(self, directory):
        self._replies = ()
        self.rehearsal = Rehearsal(directory, self._say)

    def _say(self, prompt):
        return self._replies[prompt.count("<|im_start|>assistant\n") - 1]

    def __call__(self, component, tasks, *replies, timeout_s=30.0):
        self._replies = replies
        workflow = resolve_workflow(component, registry=load_registry(), base_dir=Path(), where="workflow")
        return self.rehearsal.play(workflow, tasks, timeout_s=timeout_s)


@pytest.fixture
def play(tmp_path):
    made = Play(tmp_path)
    yield made
    made.rehearsal.close()


@pytest.fixture
def server():
    return OpenEnvServer()


@pytest.fixture
def gym():
    return GymServer()


class OpenEnvServer:
    """`/guess` and `/counter`; `misbehave` makes the next steps go wrong."""

    def __init__(self):
        self.misbehave, self.opened, self.closed, self.resets = "", 0, 0, []

    def app(self):
        app = web.Application()
        app.router.add_get("/{name:guess|counter}/ws", self._serve)
        return app

    async def _serve(self, request):
        env = {"guess": Guess, "counter": Counter}[request.match_info["name"]]()
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self.opened += 1
        try:
            async for message in socket:
                if message.type != WSMsgType.TEXT:
                    break
                asked = json.loads(message.data)
                if asked["type"] == "step" and self.misbehave:
                    if self.misbehave == "hang":
                        continue
                    if self.misbehave == "close":
                        break
                    await socket.send_str(self.misbehave)
                    continue
                if asked["type"] == "reset":
                    self.resets.append(asked["data"])
                await socket.send_json(self._answer(env, asked))
        finally:
            self.closed += 1
        return socket

    @staticmethod
    def _answer(env, asked):
        try:
            if asked["type"] == "state":
                return {"type": "state", "data": env.state()}
            data = env.reset(asked["data"]) if asked["type"] == "reset" else env.step(asked["data"])
        except KeyError as error:
            return {"type": "error", "data": {"message": f"Field required: {error}", "code": "VALIDATION_ERROR"}}
        except RuntimeError as error:
            return {"type": "error", "data": {"message": str(error), "code": "EXECUTION_ERROR"}}
        return {"type": "observation", "data": data}


def observed(reward=None, done=False, **fields):
    return {"observation": {**fields, "metadata": {}}, "reward": reward, "done": done}


class Guess:
    def __init__(self):
        self.number, self.tries = 0, 0

    def reset(self, options):
        self.number, self.tries = options.get("seed", 0), 0
        return observed(text="Guess a number.")

    def step(self, action):
        if action["message"] == "crash":
            raise RuntimeError("the environment is broken")
        self.tries += 1
        if action["message"] == str(self.number):
            return observed(1.0, done=True, text="Right!")
        return observed(-0.25, text=f"No, try {self.tries + 1}.")

    def state(self):
        return {"step_count": self.tries}


class Counter:
    TOOLS = (
        {"name": "count", "description": "Count on.", "input_schema": {"properties": {"by": {"type": "integer"}}}},
        {"name": "fail", "description": "Fail.", "input_schema": {}},
    )

    def __init__(self):
        self.count = 0

    def reset(self, _):
        self.count = 0
        return observed()

    def step(self, action):
        if action["type"] == "list_tools":
            return observed(tools=list(self.TOOLS))
        name = action["tool_name"]
        if name == "count":
            self.count += action["arguments"].get("by", 1)
            content = [{"type": "text", "text": f"The count is {self.count}."}]
            result = {"content": content, "structured_content": None, "data": None, "is_error": False}
            return observed(float(self.count == 3), done=self.count >= 3, tool_name=name, result=result, error=None)
        kind = "execution_error" if name == "fail" else "tool_not_found"
        error = {"error_type": kind, "message": f"no such thing: {name}"}
        return observed(tool_name=name, result=None, error=error)

    def state(self):
        return {"step_count": self.count}


class GymServer:
    """A resources server: a counter per session, by cookie; right is the row's `expected`."""

    def __init__(self):
        self.counts, self.verified, self.broken = {}, [], ""

    def app(self):
        app = web.Application()
        app.router.add_post("/seed_session", self._seed)
        app.router.add_post("/count", self._count)
        app.router.add_post("/verify", self._verify)
        return app

    async def _seed(self, request):
        session = f"session-{len(self.counts)}"
        self.counts[session] = 0
        response = web.json_response({})
        response.set_cookie("session", session)
        return response

    async def _count(self, request):
        by = (await request.json()).get("by")
        if not isinstance(by, int):
            return web.json_response({"detail": "by: expected an integer"}, status=422)
        session = request.cookies["session"]
        self.counts[session] += by
        return web.json_response({"count": self.counts[session]})

    async def _verify(self, request):
        body = await request.json()
        self.verified.append(body)
        if self.broken:
            return web.Response(text=self.broken, status=500 if "error" in self.broken else 200)
        right = self.counts[request.cookies["session"]] == body["expected"]
        return web.json_response({**body, "reward": float(right)})
