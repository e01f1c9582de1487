"""Names of tools as the model sees them."""

import attrs
from tests.tools.conftest import ECHO, FakeServer

from agentrl_core.errors import ToolServerError


class CallEverythingEcho:
    def tools(self, specs):
        return [attrs.evolve(spec, name="echo") for spec in specs]

    async def call(self, request, call_next):
        return await call_next(request)


def test_middleware_that_gives_two_tools_one_name_ends_the_run(in_episode):
    server = FakeServer(specs=[ECHO, attrs.evolve(ECHO, name="shout")])
    done = in_episode(lambda tools: tools.specs(), server, middleware=[CallEverythingEcho()])
    assert isinstance(done.error, ToolServerError)
    assert done.toolbox.fatal is done.error
    assert "tools.middleware offers two tools 'echo'" in str(done.error)
