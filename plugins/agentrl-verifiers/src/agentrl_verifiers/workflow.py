"""The workflow `verifiers`: an episode of an environment of verifiers, whose agents are the policy."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from agentrl_verifiers.failures import raise_failure

if TYPE_CHECKING:
    from verifiers.v1.episode import Episode

    from agentrl_verifiers.policy import PolicyServer

_START_S = 300.0
"""Longest time until the servers of an environment are up."""


class VerifiersWorkflow:
    """Plays the environment `env` on tasks of the data set `verifiers`; the reward is that of the environment.

    `args`: options of the environment's config, as `vf-eval` has them under `--env`, such as
    `{taskset: {dataset_split: train}, agent: {max_turns: 4}}`.

    The environment is loaded once per process, on an event loop of its own that outlives episodes, so that the servers
    that its episodes share start once.
    """

    def __init__(self, *, env: str, args: Mapping[str, Any] | None = None) -> None:
        from agentrl_verifiers.environment import build  # imports verifiers, which the run's interpreter may lack

        self._env = build(env, args or {})
        self._loop = asyncio.new_event_loop()
        ready: Future[PolicyServer] = Future()
        threading.Thread(target=self._serve, args=(ready,), name="verifiers", daemon=True).start()
        self._server = ready.result(_START_S)

    async def run(self, data: Mapping[str, Any], *, base_url: str, api_key: str) -> float | dict[str, float]:
        """Play one episode.

        Returns the reward of the environment's agent; with several agents that train, the reward of each of them, under
        the id of its last reply.
        """
        done = asyncio.run_coroutine_threadsafe(self._play(data, base_url, api_key), self._loop)
        return await asyncio.wrap_future(done)

    def _serve(self, ready: Future[PolicyServer]) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve_until_the_process_ends(ready))

    async def _serve_until_the_process_ends(self, ready: Future[PolicyServer]) -> None:
        from agentrl_verifiers.policy import PolicyServer

        try:
            async with self._env.serving():
                shared = self._env._shared_tools  # noqa: SLF001  (verifiers has no public name for it)
                server = PolicyServer(
                    requires_tunnel=self._env._requires_tunnel(shared),  # noqa: SLF001
                    state_service_secrets=[item.state_secret for item in shared.values() if item.state_secret],
                )
                async with server:
                    self._env._interception = server  # noqa: SLF001
                    ready.set_result(server)
                    await asyncio.Event().wait()
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    async def _play(self, data: Mapping[str, Any], base_url: str, api_key: str) -> float | dict[str, float]:
        from verifiers.v1 import EvalClientConfig, ModelContext

        from agentrl_verifiers.environment import task_of
        from agentrl_verifiers.policy import KEY_HEADER

        client = EvalClientConfig(base_url=f"{base_url}/v1", headers={KEY_HEADER: api_key})
        task = task_of(self._env, data["verifiers"]["data"])
        episode = await self._env.run_episode(task, ModelContext(model="default", client=client))
        try:
            raise_failure(episode)
            return self._rewards(episode)
        finally:
            for trace in episode.traces:
                self._server.replies.pop(trace.id, None)

    def _rewards(self, episode: Episode) -> float | dict[str, float]:
        trained = [trace for trace in episode.traces if trace.agent is None or trace.agent.trainable]
        if len(trained) == 1:
            return trained[0].reward
        last = {trace.id: self._server.replies.get(trace.id, [])[-1:] for trace in trained}
        return {reply: trace.reward for trace in trained for reply in last[trace.id]}
