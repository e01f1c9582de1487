"""An environment without tools: the answer, a metric, and a reward that cannot read every reply."""

import verifiers.v1 as vf

__all__ = ["AddingTaskset"]


class AddingData(vf.TaskData):
    left: int
    right: int


class AddingTask(vf.Task[AddingData]):
    @vf.reward
    async def exact(self, trace: vf.Trace) -> float:
        return float(int(trace.last_reply) == self.data.left + self.data.right)

    @vf.reward(weight=0.5)
    async def short(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply) < 3)

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class AddingConfig(vf.TasksetConfig):
    count: int = 4


class AddingTaskset(vf.Taskset[AddingTask, AddingConfig]):
    def load(self):
        for left in range(self.config.count):
            row = AddingData(left=left, right=2, prompt=f"{left} + 2?", system_prompt="You add.")
            yield AddingTask(row, self.config.task)
