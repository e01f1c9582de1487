"""Conformance suite of workflows, and `Rehearsal`, which plays episodes of an agent without a model.

Only the policy is fake: it gives scripted replies. The gateway with its sessions, the store and the runner are those
of a training run.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import TYPE_CHECKING, Any

import pytest

from agentrl_core.api.stores import RunRow
from agentrl_core.chat import Chat
from agentrl_core.config.sampling_sections import GatewayConfig, RolloutConfig, SamplingConfig
from agentrl_core.engines.scripted import ScriptedEngine
from agentrl_core.gateway import Gateway
from agentrl_core.http.borrowed_clients import close_borrowed
from agentrl_core.plugins.manager import load_registry
from agentrl_core.rollout.runner import Runner
from agentrl_core.rollout.workflows import resolve_workflow
from agentrl_core.scorers.call import normalize_scorer
from agentrl_core.stores.sqlite import SQLiteStore
from agentrl_core.types import Chunk, Episode, FinishReason, Outcome, Task
from agentrl_testing.base import ConformanceSuite
from agentrl_testing.policy import write_tokenizer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from agentrl_core.api.scoring import ScoreRequest
    from agentrl_core.gateway.compaction import NamedPolicy
    from agentrl_core.rollout.episode_source import EpisodeSource
    from agentrl_core.rollout.workflow_call import ResolvedWorkflow
    from agentrl_core.tools.toolbox import Toolbox
    from agentrl_core.types import GenerateRequest

_RUN = "rehearsal"
_CONTEXT_TOKENS = 65_536
"""Context length of the fake policy. Its tokenizer has one token per byte, and frameworks send long prompts."""
_NUM_CONCURRENT = 8
_GRACE_S = 1.0
"""Time that a cancelled agent has for its cleanup."""
_REWARD = 0.5
"""Score of an episode whose workflow returns no reward."""


class Rehearsal:
    """Player of episodes whose policy replies with `say(prompt)`.

    `say` gets the rendered prompt and returns the policy's text, with tool calls in the form of the chat template
    (`<tool_call>{"name": "add", "arguments": {}}</tool_call>`). The files of the run are written into `directory`.
    `context` is the context policy of a run, if it has one.
    """

    def __init__(self, directory: Path, say: Callable[[str], str], *, context: NamedPolicy | None = None) -> None:
        write_tokenizer(directory, context_length=_CONTEXT_TOKENS)
        self._chat = Chat.from_directory(directory)
        self._say = say
        self.engine = _Policy(replies=self._reply, model_dir=directory, context_length=_CONTEXT_TOKENS)
        """Fake engine; set `refuse` to make every call fail, `silent` to make it hang; `calls` counts the calls."""
        self._store = SQLiteStore(path=directory / "rehearsal.db")
        self._gateway = Gateway(
            engine=self.engine,
            chat=self._chat,
            store=self._store,
            run_id=_RUN,
            sampling=SamplingConfig(),
            config=GatewayConfig(),
            seed=0,
            context=context,
        )
        self._numbers = itertools.count()
        self._loop = asyncio.Runner()
        self._sources: set[EpisodeSource] = set()
        self.engine.start()
        self._gateway.start()
        run = RunRow(id=_RUN, created_at=0.0, status="running", config={}, components={})
        self._loop.run(self._store.create_run(run))

    @property
    def prompts(self) -> list[str]:
        """Prompts of the policy, as rendered by the chat template, in the order in which its replies ended."""
        return [self._chat.decode(list(entry.request.prompt_ids)) for entry in self.engine.log]

    def play(
        self,
        workflow: EpisodeSource,
        tasks: Sequence[Task],
        *,
        timeout_s: float = 60.0,
        scorer: Callable[[ScoreRequest], Any] = lambda request: _REWARD,  # noqa: ARG005 - whatever the answer
        tools: Toolbox | None = None,
    ) -> list[Episode]:
        """Run one episode per task concurrently, on one event loop as in a run; return the episodes.

        `workflow` is what `resolve_workflow` or `resolve_in_workers` returns, or any other source of episodes; `close`
        closes it. `scorer` scores the episodes for which the workflow returns no reward, sync or async. The servers of
        `tools` run from the start of this call to its end.
        """
        runner = Runner(
            source=workflow,
            gateway=self._gateway,
            store=self._store,
            scorer_for=lambda task: normalize_scorer(scorer, task.scorer or "rehearsal"),
            config=RolloutConfig(timeout_s=timeout_s),
            run_id=_RUN,
            grace_s=_GRACE_S,
            tools=tools,
        )

        async def episode(task: Task) -> Episode:
            number = next(self._numbers)
            (group_id,) = await self._store.add_evaluation(_RUN, "train", [task.id], version=0, claimable=False)
            return await runner.run_episode(task, group_id=group_id, sample_index=0, seed_key=(number,))

        async def all_at_once() -> list[Episode]:
            try:
                if tools is not None:
                    await tools.start()
                return list(await asyncio.gather(*(episode(task) for task in tasks)))
            # The next `play` uses the same loop and must not find clients of these agents.
            finally:
                if tools is not None:
                    await tools.close()
                await close_borrowed()

        self._sources.add(workflow)
        return self._loop.run(all_at_once())

    def close(self) -> None:
        """Close the sources, stop the gateway and the engine, and close the store."""
        for source in self._sources:
            self._loop.run(source.close())
        self._gateway.close()
        self.engine.close()
        self._loop.run(self._store.close())
        self._loop.close()

    def _reply(self, prompt_ids: tuple[int, ...], _call: int) -> list[int]:
        text = self._say(self._chat.decode(list(prompt_ids)))
        return [*self._chat.encode(text), self._chat.stop_token_ids[0]]


class _Policy(ScriptedEngine):
    """A scripted engine that can be told to fail or to hang."""

    refuse = False
    silent = False
    calls = 0

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Chunk]:
        """Generate the reply, unless `refuse` or `silent` is set."""
        self.calls += 1
        if self.refuse:
            yield Chunk(ids=(), logprobs=(), version=self.version, finish_reason=FinishReason.ABORT)
            return
        # A paused engine is one that hangs: an abort still ends its requests, as in every engine.
        await (self.pause() if self.silent else self.resume())
        async for chunk in super().generate(request):
            yield chunk


class WorkflowSuite(ConformanceSuite):
    """Conformance tests of workflows; define the fixtures `workflow` and `data`, and `say` for meaningful replies.

    class TestMathAgent(WorkflowSuite):
        @pytest.fixture
        def workflow(self):
            return "my_module.MathAgent"

        @pytest.fixture
        def data(self):
            return {"id": "t", "messages": [{"role": "user", "content": "2 + 2?"}], "answer": "4"}
    """

    @pytest.fixture
    def workflow(self) -> object:
        """Return the workflow's name as in a config, or the workflow itself."""
        raise pytest.UsageError(f"{type(self).__name__} needs a fixture `workflow`")

    @pytest.fixture
    def data(self) -> dict[str, Any]:
        """Return the row of one task."""
        raise pytest.UsageError(f"{type(self).__name__} needs a fixture `data`")

    @pytest.fixture
    def say(self) -> Callable[[str], str]:
        """Return the policy, a function from the rendered prompt to the reply."""
        return lambda prompt: "<answer>4</answer>"  # noqa: ARG005 - the same to any prompt

    @pytest.fixture
    def rehearsal(self, tmp_path: Path, say: Callable[[str], str]) -> Any:
        """Yield a rehearsal with the policy `say`."""
        rehearsal = Rehearsal(tmp_path / "rehearsal", say)
        yield rehearsal
        rehearsal.close()

    @pytest.fixture
    def resolved(self, workflow: object, tmp_path: Path) -> ResolvedWorkflow:
        """Return the workflow as a run resolves it, with the installed packages."""
        return resolve_workflow(workflow, registry=load_registry(), base_dir=tmp_path)

    @pytest.fixture
    def tasks(self, data: dict[str, Any]) -> list[Task]:
        """Return several tasks with the same row and distinct ids."""
        return [
            Task(id=f"{data['id']}-{number}", data=data, answer=data.get("answer")) for number in range(_NUM_CONCURRENT)
        ]

    def test_an_episode_ends_with_a_reward(
        self, rehearsal: Rehearsal, resolved: ResolvedWorkflow, tasks: Sequence[Task]
    ) -> None:
        """The workflow calls the policy and returns a reward, or None so that the scorer decides."""
        (episode,) = rehearsal.play(resolved, tasks[:1])
        assert episode.record.outcome is Outcome.SCORED, episode.record.detail
        assert episode.interactions

    def test_concurrent_episodes_do_not_disturb_each_other(
        self, rehearsal: Rehearsal, resolved: ResolvedWorkflow, tasks: Sequence[Task]
    ) -> None:
        """Each episode has the calls and the reward of an episode that runs alone.

        An agent that closes its client does not close the client of another.
        """
        (alone,) = rehearsal.play(resolved, tasks[:1])
        for episode in rehearsal.play(resolved, tasks):
            assert episode.record.outcome is Outcome.SCORED, episode.record.detail
            assert episode.record.reward == alone.record.reward
            assert len(episode.interactions) == len(alone.interactions)

    def test_it_ends_when_it_is_cancelled(
        self,
        rehearsal: Rehearsal,
        resolved: ResolvedWorkflow,
        tasks: Sequence[Task],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """An episode that hangs in a call ends at its time limit, and nothing of it is still running."""
        rehearsal.engine.silent = True
        with caplog.at_level(logging.WARNING):
            (episode,) = rehearsal.play(resolved, tasks[:1], timeout_s=0.5)
        assert episode.record.outcome is Outcome.TIMED_OUT, episode.record.detail
        assert "left behind" not in caplog.text
