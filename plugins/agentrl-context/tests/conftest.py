"""Histories for the tests of context policies."""

import asyncio

import attrs
import pytest

from agentrl_core.api.compaction import ContextUsage


@attrs.define
class Asked:
    """Answers the policy's questions and notes them; raises the errors first."""

    answers: list = attrs.field(factory=lambda: ["the summary"])
    errors: list = attrs.field(factory=list)
    questions: list = attrs.field(factory=list)

    async def __call__(self, messages, *, max_tokens=None, upstream=""):
        self.questions.append((list(messages), max_tokens, upstream))
        if self.errors:
            raise self.errors.pop(0)
        return {"role": "assistant", "content": self.answers.pop(0)}


@pytest.fixture
def asked():
    return Asked()


@pytest.fixture
def compact(asked):
    def run(policy, messages, *, prompt_tokens=9000, context_length=10_000):
        usage = ContextUsage(
            prompt_tokens=prompt_tokens, context_length=context_length, max_tokens=100, calls=3, compactions=0
        )
        return asyncio.run(policy.compact(messages, usage, asked))

    return run


@pytest.fixture
def history():
    """A task, and turns with one tool call each."""

    def make(turns, *, result="a long result of a tool, number {}, that goes on for quite a while"):
        messages = [{"role": "system", "content": "system"}, {"role": "user", "content": "task"}]
        for turn in range(turns):
            call = {"id": f"c{turn}", "type": "function", "function": {"name": "search", "arguments": "{}"}}
            messages += [
                {"role": "assistant", "content": f"reply {turn}", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": f"c{turn}", "content": result.format(turn)},
            ]
        return messages

    return make
