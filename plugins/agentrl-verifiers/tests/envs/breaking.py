"""An environment that fails in the place that a task names."""

import verifiers.v1 as vf

__all__ = ["BreakingTaskset"]


class BreakingData(vf.TaskData):
    place: str


class BreakingTask(vf.Task[BreakingData]):
    async def setup(self, trace):
        self._fail("setup")

    @vf.reward
    async def reward(self, trace: vf.Trace) -> float:
        self._fail("reward")
        return 1.0

    def _fail(self, place):
        if place == self.data.place:
            raise ConnectionError(f"the sandbox is gone\nin {place}")


class BreakingTaskset(vf.Taskset[BreakingTask, vf.TasksetConfig]):
    def load(self):
        return [BreakingTask(BreakingData(prompt="?", place=place)) for place in ("setup", "reward", "nowhere")]
