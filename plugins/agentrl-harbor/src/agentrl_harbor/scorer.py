"""The scorer `harbor`: the reward that a task's verifier writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import attrs

from agentrl_core import Score
from agentrl_core.errors import EnvironmentLostError, EpisodeError
from agentrl_harbor.server import STARTED
from agentrl_harbor.task_dir import TaskDir
from agentrl_harbor.verifier import NoVerdictError, verify

if TYPE_CHECKING:
    from agentrl_core import ScoreRequest, Task
    from agentrl_harbor.server import HarborTools, OpenTask


@attrs.frozen(kw_only=True)
class Harbor:
    """Run the verifier of the episode's task, in the sandbox in which the agent has worked.

    `reward`: name of the reward to take if `reward.json` has several. `without_reward`: what a verifier that gives no
    usable reward, or does not end in time, means: `zero`, or `no_score`, so that the record does not count. That is 0
    as well if the same verifier gives a reward when nothing was done: then the agent has caused it.
    """

    reward: str = "reward"
    without_reward: Literal["no_score", "zero"] = "no_score"
    needs_reference: ClassVar[bool] = False

    def check_task(self, task: Task) -> None:
        """Raise ValueError if the row has no task directory."""
        folder = task.data.get("task_dir")
        if not isinstance(folder, str):
            raise ValueError("task_dir: expected the path of a task directory; use the data set `harbor`")  # noqa: TRY004 - of the protocol
        TaskDir.read(Path(folder))

    async def __call__(self, request: ScoreRequest) -> Score:
        """Return the reward; its details have the end of the verifier's output."""
        found = next(
            ((server, opened) for server in STARTED if (opened := server.take(request.record.id)) is not None), None
        )
        if found is None:
            if not STARTED:
                raise EpisodeError("no_score", "the run has no tool server `harbor`: add it to tools.servers")
            if any(server.has_had(request.record.id) for server in STARTED):
                raise EnvironmentLostError("the agent's sandbox was removed before the scorer asked for it")
            # The agent has called no tool, so there is no sandbox: the verifier sees the task as it was.
            found = STARTED[0], await STARTED[0].open_task(request.task.data)
        server, opened = found
        try:
            return await self._score(server, opened)
        except NoVerdictError as error:
            problem = error
        if self.without_reward == "zero" or await self._works(server, request.task):
            return Score(0.0, details={**problem.details, "why": str(problem)})
        raise problem

    async def _works(self, server: HarborTools, task: Task) -> bool:
        """Return whether the verifier gives a reward where no agent has been."""
        try:
            await self._score(server, await server.open_task(task.data))
        except NoVerdictError:
            return False
        return True

    async def _score(self, server: HarborTools, opened: OpenTask) -> Score:
        """Run the verifier, and remove the sandbox."""
        try:
            verdict = await verify(opened.task, opened.sandbox, server.open_sandbox)
        finally:
            await server.discard(opened)
        rewards = verdict.rewards
        value = rewards.get(self.reward, next(iter(rewards.values())) if len(rewards) == 1 else None)
        if value is None:
            names = ", ".join(rewards)
            raise NoVerdictError(
                f"the verifier wrote the rewards {names}, but no '{self.reward}'", output=verdict.output
            )
        return Score(value, parts=rewards if len(rewards) > 1 else {}, details={"verifier": verdict.output})
