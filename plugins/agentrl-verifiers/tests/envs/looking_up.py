"""An environment with a tool server per episode, whose tool the answer needs."""

import verifiers.v1 as vf

__all__ = ["LookingUpTaskset"]


class Facts(vf.Toolset[vf.ToolsetConfig]):
    TOOL_PREFIX = "facts"

    @vf.tool
    def lookup(self, word: str) -> str:
        """Return the number of a word."""
        return str({"one": 1, "two": 2}[word])


class LookingUpConfig(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class LookingUpTask(vf.Task[vf.TaskData, vf.State, LookingUpConfig]):
    @classmethod
    def toolsets(cls, config):
        return [Facts(config.tools)]

    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == "2")


class LookingUpTasksetConfig(vf.TasksetConfig):
    task: LookingUpConfig = LookingUpConfig()


class LookingUpTaskset(vf.Taskset[LookingUpTask, LookingUpTasksetConfig]):
    def load(self):
        return [LookingUpTask(vf.TaskData(prompt="Which number is two?"), self.config.task)]


if __name__ == "__main__":
    Facts.run()
