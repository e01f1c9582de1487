"""A tool server that does what a test says, and a toolbox with it."""

import asyncio
from types import SimpleNamespace

import attrs
import pytest

from agentrl_core.api.tools import ToolEpisode, ToolResult, ToolSpec
from agentrl_core.config.component import Component
from agentrl_core.config.sampling_sections import ToolsConfig
from agentrl_core.tools.toolbox import Toolbox

ECHO = ToolSpec(
    name="echo",
    description="Return the text.",
    parameters={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
)


@attrs.define(eq=False)
class FakeServer:
    """Answers each call with `answer(name, arguments)`, which may raise or wait; notes what happens."""

    specs: list = attrs.field(factory=lambda: [ECHO])
    answer: object = None
    isolation: str = "session"
    opened: list = attrs.field(factory=list)
    calls: list = attrs.field(factory=list)
    closed: list = attrs.field(factory=list)
    on_open: object = None
    started: bool = False
    ended: bool = False

    async def start(self):
        self.started = True

    async def open(self, episode):
        if self.on_open is not None:
            await self.on_open(episode)
        self.opened.append(episode.record_id)
        return FakeSession(self, episode)

    async def close(self):
        self.ended = True


@attrs.define(eq=False)
class FakeSession:
    server: FakeServer
    episode: object
    changes: int = 0

    async def list_tools(self):
        return self.server.specs

    async def call(self, name, arguments, *, timeout_s):
        self.server.calls.append((name, dict(arguments)))
        if self.server.answer is None:
            return ToolResult.of_text(str(arguments.get("text", "")))
        return await self.server.answer(name, arguments)

    async def close(self):
        self.server.closed.append(self.episode.record_id)


def raising(*errors):
    """An answer that raises each of `errors` once, and then is "ok"."""
    left = list(errors)

    async def answer(name, arguments):
        if left:
            raise left.pop(0)
        return ToolResult.of_text("ok")

    return answer


@pytest.fixture
def make_toolbox():
    def make(*servers, middleware=(), entries=None, **config):
        entries = entries or [{} for _ in servers]
        config = ToolsConfig(
            servers=tuple(Component("fake", entry) for entry in entries),
            middleware=tuple(Component(type(item).__name__) for item in middleware),
            **config,
        )
        return Toolbox(config, servers, middleware, sleep=lambda _: asyncio.sleep(0))

    return make


@pytest.fixture
def in_episode(make_toolbox):
    """Run `work(tools)` in an episode; return its result or error, the rows, the marks and the toolbox."""

    def run(work, *servers, record_id="r0", takes_images=lambda: True, **options):
        async def episode():
            toolbox = make_toolbox(*servers, **options)
            rows, marks = [], {}

            async def keep(call):
                await asyncio.sleep(0)
                rows.append(call)

            await toolbox.start()
            tools = toolbox.open(
                ToolEpisode(record_id=record_id, task_id="t0", data={}),
                keep=keep,
                mark=marks.setdefault,
                takes_images=takes_images,
            )
            result = error = None
            try:
                result = await work(tools)
            except Exception as raised:  # noqa: BLE001
                error = raised
            finally:
                await tools.close()
                await toolbox.close()
            return SimpleNamespace(
                result=result, error=error, rows=rows, marks=list(marks), toolbox=toolbox, tools=tools
            )

        return asyncio.run(episode())

    return run
