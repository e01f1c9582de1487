"""Serves two environments with OpenEnv's own package: `python real_server.py PORT`; `/guess` and `/counter`."""

import sys

import uvicorn
from fastapi import FastAPI
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State


class GuessAction(Action):
    message: str


class GuessObservation(Observation):
    text: str


class Guess(Environment):
    """The number is the seed; a guess gets 1, and the word `crash` fails."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._number, self._tries = 0, 0

    def reset(self, seed=None, episode_id=None, **_):
        self._number, self._tries = seed or 0, 0
        return GuessObservation(text="Guess a number.")

    def step(self, action, timeout_s=None, **_):
        if action.message == "crash":
            raise RuntimeError("the environment is broken")
        self._tries += 1
        right = action.message == str(self._number)
        text = "Right!" if right else f"No, try {self._tries + 1}."
        return GuessObservation(text=text, reward=1.0 if right else -0.25, done=right)

    @property
    def state(self):
        return State(step_count=self._tries)


class Counter(MCPEnvironment):
    """A counter per session; the third count ends the episode with a reward of 1."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        self._count = 0
        server = FastMCP("counter")

        @server.tool()
        def count(by: int = 1) -> str:
            """Count on."""
            self._count += by
            return f"The count is {self._count}."

        @server.tool()
        def fail() -> str:
            """Fail."""
            raise ValueError("no such thing")

        super().__init__(server)

    def reset(self, seed=None, episode_id=None, **_):
        self._count = 0
        return Observation()

    def step(self, action, timeout_s=None, **more):
        return self._rated(super().step(action, timeout_s=timeout_s, **more))

    async def step_async(self, action, timeout_s=None, **more):
        return self._rated(await super().step_async(action, timeout_s=timeout_s, **more))

    def _rated(self, found):
        if isinstance(found, CallToolObservation) and found.error is None:
            found.done, found.reward = self._count >= 3, float(self._count == 3)
        return found

    def _step_impl(self, action, timeout_s=None, **_):
        raise ValueError("only tools")

    @property
    def state(self):
        return State(step_count=self._count)


app = FastAPI()
app.mount("/guess", create_fastapi_app(Guess, GuessAction, GuessObservation, max_concurrent_envs=8))
app.mount("/counter", create_fastapi_app(Counter, CallToolAction, CallToolObservation, max_concurrent_envs=8))

if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
