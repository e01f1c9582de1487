"""Conformance tests of context policies: `ContextPolicySuite` for pytest, `check_context` for scripts."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from agentrl_core.api.compaction import ContextUsage
from agentrl_core.gateway.conversations import problem_of
from agentrl_testing.base import ConformanceSuite

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentrl_core.api.compaction import ContextPolicy
    from agentrl_core.types import Message

_LENGTH = 100_000
"""Context length that the policies are told."""
_SETTINGS = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """Draw histories of agents: a task, then turns with and without tool calls; the next message is the policy's."""
    texts = st.text(max_size=200)
    messages: list[Message] = [{"role": "system", "content": draw(texts)}] if draw(st.booleans()) else []
    messages.append({"role": "user", "content": draw(texts)})
    for turn in range(draw(st.integers(0, 8))):
        calls = draw(st.integers(0, 3))
        ids = [f"call-{turn}-{number}" for number in range(calls)]
        reply: Message = {"role": "assistant", "content": draw(texts)}
        if calls:
            function = {"name": "search", "arguments": '{"q": "a"}'}
            reply["tool_calls"] = [{"id": name, "type": "function", "function": function} for name in ids]
        messages.append(reply)
        messages += [{"role": "tool", "tool_call_id": name, "content": draw(texts) * 3} for name in ids]
        if not calls or draw(st.booleans()):
            messages.append({"role": "user", "content": draw(texts)})
    return messages


class ContextPolicySuite(ConformanceSuite):
    """Conformance tests of context policies; define the fixture `policy`."""

    @pytest.fixture
    def policy(self) -> ContextPolicy:
        """Return the policy under test."""
        raise pytest.UsageError(f"{type(self).__name__} needs a fixture `policy`")

    @_SETTINGS
    @given(messages=conversations())
    def test_a_short_history_stays_as_it_is(self, policy: ContextPolicy, messages: list[Message]) -> None:
        """Far below every limit there is nothing to shorten."""
        _check_short(policy, messages)

    @_SETTINGS
    @given(messages=conversations())
    def test_the_result_is_a_conversation(self, policy: ContextPolicy, messages: list[Message]) -> None:
        """A chat template can render the result: no tool result without its call, and no call that lost its result."""
        _check_valid(policy, messages)

    @_SETTINGS
    @given(messages=conversations())
    def test_system_prompt_and_task_are_kept(self, policy: ContextPolicy, messages: list[Message]) -> None:
        """The result begins with the system prompt and with the task, to which a policy may add text."""
        _check_head(policy, messages)

    @_SETTINGS
    @given(messages=conversations())
    def test_the_history_is_not_changed_in_place(self, policy: ContextPolicy, messages: list[Message]) -> None:
        """The messages belong to the record."""
        _check_untouched(policy, messages)

    @_SETTINGS
    @given(messages=conversations())
    def test_the_same_history_gives_the_same_result(self, policy: ContextPolicy, messages: list[Message]) -> None:
        """One object serves all episodes: it keeps nothing of an earlier one, and draws nothing at random."""
        _check_repeatable(policy, messages)

    @_SETTINGS
    @given(messages=conversations())
    def test_a_result_can_be_shortened_again(self, policy: ContextPolicy, messages: list[Message]) -> None:
        """Compacting again and again neither fails nor lets the conversation grow."""
        _check_again(policy, messages)


def check_context(policy: ContextPolicy) -> None:
    """Raise AssertionError if `policy` breaks its contract; print nothing."""
    checks: Sequence[Callable[[ContextPolicy, list[Message]], None]]
    checks = (_check_short, _check_valid, _check_head, _check_untouched, _check_repeatable, _check_again)
    for check in checks:
        _check_all(check, policy)


def _check_all(check: Callable[[ContextPolicy, list[Message]], None], policy: ContextPolicy) -> None:
    # Without shrinking: a script is told of the first history that breaks a rule, at once.
    @settings(_SETTINGS, phases=[Phase.generate])
    @given(messages=conversations())
    def holds(messages: list[Message]) -> None:
        check(policy, messages)

    holds()


def compacted(policy: ContextPolicy, messages: Sequence[Message], *, prompt_tokens: int = _LENGTH) -> list[Message]:
    """Return what a policy makes of a history of so many tokens; a summary is always "what was found"."""

    async def ask(
        messages: Sequence[Message],
        *,
        max_tokens: int | None = None,  # noqa: ARG001 - the protocol's
        upstream: str = "",  # noqa: ARG001
    ) -> Message:
        problem = problem_of(messages, asked_about)
        assert not problem, f"the policy asks with {problem}"
        return {"role": "assistant", "content": "what was found"}

    asked_about = messages
    usage = ContextUsage(
        prompt_tokens=prompt_tokens, context_length=_LENGTH, max_tokens=1000, calls=len(messages), compactions=0
    )

    async def compact() -> Sequence[Message] | None:
        return await policy.compact(messages, usage, ask)

    found = asyncio.run(compact())
    return list(messages if found is None else found)


def _check_short(policy: ContextPolicy, messages: list[Message]) -> None:
    found = compacted(policy, messages, prompt_tokens=1)
    assert found == messages, f"1 of {_LENGTH} tokens, but the policy made {found} of {messages}"


def _check_valid(policy: ContextPolicy, messages: list[Message]) -> None:
    found = compacted(policy, messages)
    problem = problem_of(found, messages)
    assert not problem, f"the policy returned {problem}, given {messages}"
    assert not _unanswered(found), f"calls without their results: {_unanswered(found)}, given {messages}"


def _unanswered(messages: Sequence[Message]) -> set[str]:
    """Return the ids of calls without a result."""
    called = {call["id"] for message in messages for call in message.get("tool_calls") or ()}
    return called - {message["tool_call_id"] for message in messages if message["role"] == "tool"}


def _check_head(policy: ContextPolicy, messages: list[Message]) -> None:
    found = compacted(policy, messages)
    for index, message in enumerate(messages):
        if message["role"] == "assistant":
            break
        assert len(found) > index, f"message {index} is missing in {found}"
        kept = found[index]
        assert kept["role"] == message["role"], f"message {index} became {kept}"
        assert kept["content"].startswith(message["content"]), f"message {index} became {kept}, from {message}"


def _check_untouched(policy: ContextPolicy, messages: list[Message]) -> None:
    before = copy.deepcopy(messages)
    compacted(policy, messages)
    assert messages == before, f"the policy changed {before} to {messages}"


def _check_repeatable(policy: ContextPolicy, messages: list[Message]) -> None:
    first = compacted(policy, messages)
    compacted(policy, [{"role": "user", "content": "another episode"}, *messages])
    assert compacted(policy, messages) == first, "the same history was shortened differently the second time"


def _check_again(policy: ContextPolicy, messages: list[Message]) -> None:
    once = compacted(policy, messages)
    twice = compacted(policy, once)
    thrice = compacted(policy, twice)
    assert not problem_of(twice, once)
    assert _size(thrice) <= max(_size(once), _size(twice)), f"{once} grew to {thrice}"


def _size(messages: Sequence[Message]) -> int:
    return sum(len(message.get("content") or "") for message in messages)
