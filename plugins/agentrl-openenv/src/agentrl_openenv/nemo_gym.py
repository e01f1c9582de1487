"""The workflow `nemo_gym`: the policy answers over the Responses API, and a server of NeMo Gym verifies it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import aiohttp

from agentrl_core.errors import EnvironmentLostError
from agentrl_openenv.asking import ContextFullError, Policy
from agentrl_openenv.session import shown_url

if TYPE_CHECKING:
    import httpx2

_SHOWN = 300
_ECHOED = ("role", "content", "type", "id", "call_id", "name", "arguments", "output", "summary", "status")
"""Fields of an output item that go back into the next input."""


class NeMoGymWorkflow:
    """Plays rows of the data set `nemo_gym` with the resources server at `url`.

    An episode seeds a session, which the server knows by a cookie; asks the policy until it calls no tool, each tool
    being a route of the server; and has the server verify the whole response, whose `reward` is the reward.
    `max_turns`: largest number of replies. `timeout_s`: longest time in seconds of one request to the server.
    """

    def __init__(self, *, url: str, max_turns: int = 16, timeout_s: float = 60.0) -> None:
        if max_turns < 1:
            raise ValueError("max_turns: expected a number of at least 1")
        self._url, self._max_turns, self._timeout_s = url.rstrip("/"), max_turns, timeout_s

    async def run(
        self, data: Mapping[str, Any], *, base_url: str, api_key: str, http_client: httpx2.AsyncClient
    ) -> float:
        """Play one episode; raises `EnvironmentLostError` if the server fails."""
        row: Mapping[str, Any] = data["nemo_gym"]
        policy = Policy(base_url=base_url, api_key=api_key, http_client=http_client)
        # The session's cookie is the episode's identity, so each episode has cookies of its own. Servers are often
        # addressed by an IP, whose cookies aiohttp drops by default.
        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True), timeout=timeout) as server:
            await self._post(server, "seed_session", row)
            response = await self._respond(row["responses_create_params"], policy, server)
            verdict = await self._post(server, "verify", {**row, "response": response})
        reward = verdict.get("reward") if isinstance(verdict, dict) else None
        if not isinstance(reward, int | float) or not math.isfinite(reward):
            raise self._lost(f"verified without a reward: {json.dumps(verdict)[:_SHOWN]}")
        return float(reward)

    async def _respond(
        self, params: Mapping[str, Any], policy: Policy, server: aiohttp.ClientSession
    ) -> dict[str, Any]:
        """Return the whole response: the policy's items and the results of its calls."""
        asked = params["input"]
        items = [{"role": "user", "content": asked}] if isinstance(asked, str) else list(asked)
        names = {tool["name"] for tool in params.get("tools") or () if tool.get("type") == "function"}
        output: list[dict[str, Any]] = []
        response: dict[str, Any] = {"id": "resp_none", "object": "response", "created_at": 0.0, "model": "default"}
        for _ in range(self._max_turns):
            try:
                response = await policy.post("responses", {**params, "model": "default", "input": [*items, *output]})
            except ContextFullError:
                break  # what the policy has said so far is verified
            said = [_plain(item) for item in response["output"]]
            calls = [item for item in said if item.get("type") == "function_call"]
            output.extend(said)
            for call in calls:
                result = await self._called(server, call, names)
                output.append({"type": "function_call_output", "call_id": call["call_id"], "output": result})
            if not calls:
                break
        defaults = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": params.get("tools") or []}
        return {**defaults, **response, "output": output}

    async def _called(self, server: aiohttp.ClientSession, call: Mapping[str, Any], names: set[str]) -> str:
        """Return the result of a tool; what the policy did wrong is an answer to the policy."""
        if call["name"] not in names:
            return json.dumps({"error": f"unknown tool {call['name']}"})
        try:
            arguments = json.loads(call["arguments"] or "{}")
        except json.JSONDecodeError as error:
            return json.dumps({"error": f"the arguments are no JSON: {error}"})
        result = await self._post(server, call["name"], arguments, accepts=(400, 422))
        return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)

    async def _post(
        self, server: aiohttp.ClientSession, route: str, body: Any, *, accepts: tuple[int, ...] = ()
    ) -> Any:
        try:
            async with server.post(f"{self._url}/{route}", json=body) as response:
                text = await response.text()
                if not response.ok and response.status not in accepts:
                    raise self._lost(f"answered {response.status} to /{route}: {' '.join(text.split())[:_SHOWN]}")
        except TimeoutError as error:
            raise self._lost(f"gave no answer to /{route} within {self._timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._lost(f"failed at /{route}: {error or type(error).__name__}") from error
        try:
            return json.loads(text)
        except ValueError:
            return text

    def _lost(self, text: str) -> EnvironmentLostError:
        return EnvironmentLostError(f"NeMo Gym server {shown_url(self._url)} {text}", server="nemo_gym")


def _plain(item: Mapping[str, Any]) -> dict[str, Any]:
    return {name: item[name] for name in _ECHOED if item.get(name) is not None}
