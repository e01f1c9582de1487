"""Check of the fields and behaviours of the agents' APIs that pass through a server: yes or no for each.

All servers get the same requests. A value counts if it is in the reply or in the server's own record of the session.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from tests.benchmarks.gateway.mock import CALL, TOKENS
from tests.benchmarks.gateway.peers import Contender, InProcess
from tests.benchmarks.gateway.raw_client import Answer, Connection, Target

_LIMIT_S = 30
_MESSAGES = [{"role": "user", "content": "hello"}]
_TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}},
}
_UPSTREAM_IDS = re.compile(r"(?:\b2\d{4}, ?){32}")
"""What the upstream's token ids look like in JSON and in Python; the prompt's are smaller."""
_LOGPROBS = re.compile(r"(?:-0\.\d+, ?){32}|(?:logprob\W+-?0\.\d+.*?){32}", re.DOTALL)

Check = Callable[[Contender], Awaitable[bool]]


async def fidelity(contender: Contender) -> dict[str, bool]:
    """Return what gets through, by the name of the check."""
    found = {}
    for name, check in _CHECKS.items():
        try:
            async with asyncio.timeout(_LIMIT_S):
                found[name] = await check(contender)
        except (OSError, TimeoutError, ValueError, LookupError, TypeError, EOFError):  # no answer, or another shape
            found[name] = False
    return found


async def _ask(target: Target, contender: Contender, **fields: Any) -> Answer:
    body = {"model": contender.model, "messages": _MESSAGES, "logprobs": True, "return_token_ids": True, **fields}
    return await _post(target, body)


async def _post(target: Target, body: dict[str, Any]) -> Answer:
    connection = await Connection.open(target.host, target.port)
    try:
        return await connection.send(target.request(orjson.dumps(body)))
    finally:
        connection.close()


async def _all_told(contender: Contender) -> str:
    (target,) = contender.open(1)
    answer = await _ask(target, contender)
    return answer.body.decode() + contender.records(target)


async def _token_ids(contender: Contender) -> bool:
    (target,) = contender.open(1)
    answer = await _ask(target, contender)
    told = orjson.loads(answer.body)["choices"][0].get("token_ids") or ()
    return len(told) == TOKENS or bool(_UPSTREAM_IDS.search(contender.records(target)))


async def _logprobs(contender: Contender) -> bool:
    return bool(_LOGPROBS.search(await _all_told(contender)))


async def _tool_calls(contender: Contender) -> bool:
    (target,) = contender.open(1)
    if isinstance(contender, InProcess):  # the others' upstream calls whatever tool it is given
        contender.say_call()
    answer = await _ask(target, contender, tools=[_TOOL])
    (call,) = orjson.loads(answer.body)["choices"][0]["message"]["tool_calls"]
    function: dict[str, str] = CALL["function"]  # type: ignore[assignment]
    return bool(
        call["id"]
        and call["function"]["name"] == function["name"]
        and orjson.loads(call["function"]["arguments"]) == orjson.loads(function["arguments"])
    )


async def _usage(contender: Contender) -> bool:
    (target,) = contender.open(1)
    usage = orjson.loads((await _ask(target, contender)).body)["usage"]
    counted = usage["prompt_tokens"] > 0 and usage["completion_tokens"] > 0
    return counted and "cached_tokens" in (usage.get("prompt_tokens_details") or {})


async def _reply_ids(contender: Contender) -> bool:
    """Whether the id that the agent sees names the call in the record."""
    (target,) = contender.open(1)
    reply_id = orjson.loads((await _ask(target, contender)).body)["id"]
    return reply_id in contender.records(target)


async def _streaming(contender: Contender) -> bool:
    (target,) = contender.open(1)
    answer = await _ask(target, contender, stream=True)
    return answer.status == 200 and answer.body.count(b"data: ") > 4 and b"[DONE]" in answer.body


async def _anthropic(contender: Contender) -> bool:
    (target,) = contender.open(1)
    headers = (*target.headers, ("anthropic-version", "2023-06-01"), *_as_key(target))
    there = Target(
        host=target.host, port=target.port, path=target.path.replace("/chat/completions", "/messages"), headers=headers
    )
    answer = await _post(there, {"model": contender.model, "messages": _MESSAGES, "max_tokens": 64})
    return bool(orjson.loads(answer.body)["content"][0]["text"])


async def _responses(contender: Contender) -> bool:
    (target,) = contender.open(1)
    path = target.path.replace("/chat/completions", "/responses")
    there = Target(host=target.host, port=target.port, path=path, headers=target.headers)
    answer = await _post(there, {"model": contender.model, "input": "hello"})
    return any(item["type"] == "message" for item in orjson.loads(answer.body)["output"])


async def _retries(contender: Contender) -> bool:
    """Whether an SDK's retry gets the reply that was generated, not another one."""
    (target,) = contender.open(1)
    first, again = [
        orjson.loads((await _ask(_retrying(target, number), contender)).body)["choices"][0]["message"]["content"]
        for number in (0, 1)
    ]
    return bool(first == again)


async def _restart(contender: Contender) -> bool:
    """Whether what was answered is on record when the server is killed a second later and started again."""
    (target,) = contender.open(1)
    answer = orjson.loads((await _ask(target, contender)).body)
    await asyncio.sleep(1)
    contender.reopen()
    moved = contender.target(target.path, **dict(target.headers))
    return str(answer["choices"][0]["message"]["content"])[:40] in contender.records(moved)


def _as_key(target: Target) -> tuple[tuple[str, str], ...]:
    """Return the bearer's key as Anthropic's SDK sends it."""
    key = dict(target.headers).get("authorization", "Bearer none").removeprefix("Bearer ")
    return (("x-api-key", key),)


def _retrying(target: Target, count: int) -> Target:
    headers = (*target.headers, ("x-stainless-retry-count", str(count)), ("idempotency-key", "retry-of-one"))
    return Target(host=target.host, port=target.port, path=target.path, headers=headers)


_CHECKS: dict[str, Check] = {
    "token ids": _token_ids,
    "logprobs": _logprobs,
    "tool calls": _tool_calls,
    "usage": _usage,
    "ids": _reply_ids,
    "streaming": _streaming,
    "Anthropic": _anthropic,
    "Responses": _responses,
    "retries": _retries,
    "restart": _restart,
}
