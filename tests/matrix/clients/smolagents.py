"""Matrix client for smolagents: its OpenAI model, and its ToolCallingAgent in cases with tools."""

from __future__ import annotations

import asyncio
import json

import httpx2
from smolagents import ChatMessage, LogLevel, OpenAIModel, ToolCallingAgent, tool
from smolagents.models import MessageRole, agglomerate_stream_deltas

from .base import SYSTEM, Client, Conversation, Shown
from .base import add as add_numbers


@tool
def add(a: int, b: int) -> str:
    """Add two numbers.

    Args:
        a: One.
        b: The other.
    """
    return add_numbers(a, b)


def shown(message, pieces=1) -> Shown:
    def arguments(call):
        given = call.function.arguments
        return json.loads(given) if isinstance(given, str) else given

    return Shown(
        text=message.content or "",
        calls=tuple((call.function.name, arguments(call), call.id) for call in message.tool_calls or ()),
        usage=(message.token_usage.input_tokens, message.token_usage.output_tokens),
        pieces=pieces,
    )


class _Model(Conversation):
    def __init__(self, door):
        self.door = door
        self.model = self._connect()
        self.messages = [self._message(MessageRole.SYSTEM, SYSTEM)]

    def _connect(self):
        self.http_client = httpx2.Client(timeout=60)
        return OpenAIModel(
            "default",
            api_base=self.door.base_url,
            api_key=self.door.api_key,
            client_kwargs={"http_client": self.http_client, "max_retries": self.door.retries},
            retry=False,
        )

    @staticmethod
    def _message(role, text):
        return ChatMessage(role=role, content=[{"type": "text", "text": text}])

    async def say(self, text, *, stream=False):
        self.messages.append(self._message(MessageRole.USER, text))
        if stream:
            deltas = await asyncio.to_thread(lambda: list(self.model.generate_stream(self.messages)))
            reply = shown(agglomerate_stream_deltas(deltas), sum(bool(delta.content) for delta in deltas))
        else:
            reply = shown(await asyncio.to_thread(self.model.generate, self.messages))
        self.messages.append(self._message(MessageRole.ASSISTANT, reply.text))
        return [reply]

    async def leave(self, text):
        def run():
            deltas = self.model.generate_stream([*self.messages, self._message(MessageRole.USER, text)])
            next(delta for delta in deltas if delta.content)
            self.http_client.close()  # what it streams from is closed by nothing else

        await asyncio.to_thread(run)
        self.model = self._connect()


class _Agent(_Model):
    """Ends a task with a call of `final_answer`."""

    def __init__(self, door):
        super().__init__(door)
        self.options = {"tools": [add], "model": self.model, "verbosity_level": LogLevel.OFF}
        self.agent = None

    async def say(self, text, *, stream=False):
        if self.agent is None:
            self.agent = ToolCallingAgent(**self.options, stream_outputs=stream)
        known = len(self.agent.memory.steps)
        await asyncio.to_thread(self.agent.run, text, reset=False)
        steps = self.agent.memory.steps[known:]
        replies = [step.model_output_message for step in steps if hasattr(step, "model_output_message")]
        return [shown(reply, 2 if stream else 1) for reply in replies]


class Smolagents(Client):
    """Its objects keep ids and finish reasons to themselves (they are in `raw`)."""

    name = "smolagents"
    is_sync = True
    hides = frozenset({"finish", "id"})
    final_call = "final_answer"
    forks = "ToolCallingAgent writes calls back as text of its own, so each step begins a sequence"

    def talk(self, door):
        return _Agent(door) if door.tools else _Model(door)
