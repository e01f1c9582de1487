"""Ready-made agents that need no Python: `single_turn` and `multi_turn` send the task's messages to the policy."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import attrs
from attrs import field, validators

from agentrl_core.api import context as workflow_context
from agentrl_core.api.completions import ask
from agentrl_core.api.extract import find_answer
from agentrl_core.api.inputs import agent_input, as_messages
from agentrl_core.concurrency.threads import call_on_thread
from agentrl_core.plugins.references import resolve, user_folders
from agentrl_core.scorers.call import finite_number

FEEDBACK = (
    "This answer is wrong, or is not in the form that was asked for. Read the question again, look for the mistake, "
    "and answer once more."
)


@attrs.frozen(kw_only=True)
class SingleTurn:
    """One question, one answer; the task's scorer gives the reward."""

    leaves_scoring: ClassVar[bool] = True
    """True: the reward comes from the task's scorer, so a run checks before it starts that there is one."""
    system: str | None = None
    """A system message before the task's messages."""

    async def run(self, data: dict[str, Any], *, base_url: str, api_key: str, http_client: Any) -> None:
        """Ask once; leave the reward to the scorer."""
        await ask(http_client, base_url, api_key, opening(data, self.system), {})


@attrs.frozen(kw_only=True)
class MultiTurn:
    """Asks again until the answer is right; the reward is that of the last answer.

    `rollout.agent.turn_discount` decides which share of it the earlier, wrong turns get.
    """

    leaves_scoring: ClassVar[bool] = True
    """True: the reward comes from the task's scorer, unless `reward_fn` is set."""
    system: str | None = None
    """A system message before the task's messages."""
    max_turns: int = field(default=3, validator=validators.ge(1))
    feedback: str = FEEDBACK
    """User message after a wrong answer."""
    right_at: float = 1.0
    """Score from which an answer counts as right."""
    reward_fn: Any = None
    """`(answer, reference) -> number`, sync or async, or its path (`module:attr`, `file.py:attr`), which starts from
    the working directory, not from the config's folder. It replaces the task's scorer, which is not available in the
    mode `subproc`."""
    _judge: Callable[..., Any] | None = field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        """Import the reward function."""
        found = self.reward_fn
        if isinstance(found, str):
            found = resolve(found, user_folders(Path.cwd())).value
        if found is not None and not callable(found):
            raise TypeError(f"'reward_fn' must be a function of (answer, reference), found {type(found).__name__}")
        # The class is frozen: only this way can a field be set.
        object.__setattr__(self, "_judge", found)

    async def run(self, data: dict[str, Any], *, base_url: str, api_key: str, http_client: Any) -> float | None:
        """Ask up to `max_turns` times."""
        messages = opening(data, self.system)
        for left in reversed(range(self.max_turns)):
            body = await ask(http_client, base_url, api_key, messages, {})
            messages.append(body["choices"][0]["message"])
            # The run asks the scorer about the last answer anyway: asking here too would score it twice.
            if not left and self._judge is None:
                break
            score = await self._score(data, messages)
            if score >= self.right_at or not left:
                return None if self._judge is None else score
            messages.append({"role": "user", "content": self.feedback})
        return None

    async def _score(self, data: dict[str, Any], messages: list[dict[str, Any]]) -> float:
        text = messages[-1].get("content") or ""
        if self._judge is None:
            return await workflow_context.score(text, messages)
        answer = find_answer(text, data.get("answer_schema") or "").text
        call = functools.partial(self._judge, answer, data.get("answer"))
        is_async = inspect.iscoroutinefunction(self._judge)
        given = await call() if is_async else await call_on_thread(call, name="agentrl-reward")
        return finite_number(given)


def opening(data: dict[str, Any], system: str | None) -> list[dict[str, Any]]:
    """Return the messages that an episode begins with."""
    messages = as_messages(agent_input(data))
    return messages if system is None else [{"role": "system", "content": system}, *messages]
