"""An agent that runs outside of the run: it opens sessions at the gateway, plays, and sends rewards.

`AGENTRL_ADMIN_KEY=… python agent.py http://127.0.0.1:8765`
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import httpx2
from openai import APIConnectionError, APIStatusError, AsyncOpenAI

sys.path.append(str(Path(__file__).parents[1] / "quickstart"))  # the task is the quickstart's
from quest import TOOLS, Quest

WORKERS = 32
START_S = 300
"""Longest wait for the gateway: the run builds and warm-starts its policy first."""
GONE = 410
"""HTTP status of a call in a session that has ended: it took too long, or the run is over."""


async def play(client: AsyncOpenAI, data: dict[str, Any]) -> float:
    """Walk until the thing is found or the calls are used up; return 1.0 if it was found, else 0.0."""
    quest = Quest(data["sideways"], data["up"])
    messages = list(data["messages"])
    while not quest.finished:
        reply = await client.chat.completions.create(model="default", messages=messages, tools=TOOLS)
        message = reply.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            result = quest.move(call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return quest.reward


async def episode(http: httpx2.AsyncClient, session: dict[str, Any]) -> None:
    """Play the task of a session, send the reward, and end the session."""
    client = AsyncOpenAI(base_url=session["base_url"], api_key=session["api_key"], http_client=http)
    own = {"authorization": f"Bearer {session['api_key']}"}
    try:
        reward = await play(client, session["task"]["data"])
    except APIStatusError as error:
        if error.status_code != GONE:
            raise
        return
    await http.post(f"{session['base_url']}/rl/set_reward", json={"reward": reward}, headers=own)
    await http.post(f"{session['base_url']}/rl/end_session", headers=own)


async def work(http: httpx2.AsyncClient, gateway: str) -> None:
    """Open one session after another; if the run wants no sample now, wait as long as it says."""
    admin = {"authorization": f"Bearer {os.environ['AGENTRL_ADMIN_KEY']}"}
    while True:
        reply = await http.post(f"{gateway}/rl/start_session", json={"task_id": "quest"}, headers=admin)
        if reply.status_code == httpx2.codes.TOO_MANY_REQUESTS:
            await asyncio.sleep(float(reply.headers["retry-after"]))
            continue
        reply.raise_for_status()
        await episode(http, reply.json())


async def wait_for(http: httpx2.AsyncClient, gateway: str) -> None:
    """Wait until the gateway answers."""
    async with asyncio.timeout(START_S):
        while True:
            try:
                await http.get(f"{gateway}/health")
            except httpx2.ConnectError:
                await asyncio.sleep(0.2)
            else:
                return


async def main(gateway: str) -> None:
    """Play with all workers until the run ends."""
    async with httpx2.AsyncClient(timeout=60) as http:
        await wait_for(http, gateway)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(WORKERS):
                    group.create_task(work(http, gateway))
        except* (httpx2.TransportError, APIConnectionError):
            print("the gateway is gone: the run has ended")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
