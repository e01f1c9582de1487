"""Answers to requests of a server."""

import asyncio
import json

from agentrl_mcp.rpc import INTERNAL_ERROR, METHOD_NOT_FOUND, answer_inquiry


def answered(method, inquire=None):
    message = {"jsonrpc": "2.0", "id": 7, "method": method}
    return json.loads(asyncio.run(answer_inquiry(message, inquire)))


async def broken(method, params):
    raise KeyError("city")


def test_a_ping_is_answered_and_what_nobody_answers_is_refused():
    assert answered("ping") == {"jsonrpc": "2.0", "id": 7, "result": {}}
    assert answered("roots/list")["error"]["code"] == METHOD_NOT_FOUND


def test_a_fault_of_the_users_function_is_a_response(caplog):
    assert answered("elicitation/create", broken)["error"]["code"] == INTERNAL_ERROR
    assert "KeyError: 'city'" in caplog.text
