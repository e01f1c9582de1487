"""Verifiers' interception server as its rollouts use it; runs in verifiers' environment, without agentrl."""

import asyncio
import json
import sys

import verifiers.v1 as vf
from verifiers.v1.clients.client import ModelContext
from verifiers.v1.configs.client import EvalClientConfig
from verifiers.v1.interception.server import InterceptionServer
from verifiers.v1.session import RolloutSession
from verifiers.v1.task import TaskData
from verifiers.v1.trace import Trace, TraceTask


async def main(upstream: str) -> None:
    """Answer lines of JSON: `open` registers rollouts, `traces` shows what was recorded of them."""
    context = ModelContext(model="mock", client=EvalClientConfig(base_url=f"{upstream}/v1", api_key_var="MOCK_KEY"))
    sessions = []
    async with InterceptionServer() as server:
        _tell({"url": server.base_url})
        while line := await asyncio.to_thread(sys.stdin.readline):
            question = json.loads(line)
            if question["do"] == "open":
                opened = []
                for _ in range(question["count"]):
                    trace = Trace(
                        task=TraceTask(type="Task", data=TaskData(prompt="")),
                        agent=vf.AgentInfo(config=vf.AgentConfig()),
                    )
                    sessions.append(RolloutSession(ctx=context, trace=trace))
                    opened.append(server.register(sessions[-1])[0])
                _tell(opened)
            else:
                _tell([session.trace.model_dump_json() for session in sessions[-3:]])


def _tell(answer: object) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


asyncio.run(main(sys.argv[1]))
