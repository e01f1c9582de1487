"""An environment with two agents and a judge that is not trained; it opens the conversation itself, and never ends."""

import itertools

import verifiers.v1 as vf

__all__ = ["GuessingEnv", "GuessingTaskset"]


class GuessingConfig(vf.EnvConfig):
    one: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"})
    two: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"})
    judge: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"})


class GuessingEnv(vf.Env[GuessingConfig]):
    async def setup(self, agents):
        agents.judge.trainable = False

    async def run(self, task, agents):
        seat = vf.Task(vf.TaskData(prompt=None))
        async with agents.one.interaction(seat) as one, agents.two.interaction(seat) as two:
            first = await one.turn("Say a number, one.")
            second = await two.turn(f"One said {first.last_reply}. Say a number, two.")
            third = await one.turn(f"Two said {second.last_reply}. Again, one.")
        async with agents.judge.interaction(seat) as judge:
            await judge.turn("Was it a good game?")
        one.trace.record_reward("win", float(third.last_reply > second.last_reply))
        two.trace.record_reward("win", float(third.last_reply < second.last_reply))


class GuessingTaskset(vf.Taskset[vf.Task, vf.TasksetConfig]):
    INFINITE = True

    def load(self):
        for number in itertools.count():
            yield vf.Task(vf.TaskData(name=f"game {number}", prompt=None))
