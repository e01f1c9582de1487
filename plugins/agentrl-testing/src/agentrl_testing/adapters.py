"""Conformance suite of adapters: agents of a framework run as workflows without a change to their code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from agentrl_core.plugins.manager import load_registry
from agentrl_core.rollout.rewards import text_of
from agentrl_core.rollout.workflows import resolve_workflow
from agentrl_core.types import Outcome, Task
from agentrl_testing.base import ConformanceSuite
from agentrl_testing.workflows import Rehearsal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from agentrl_core.plugins.registry import Registry
    from agentrl_core.rollout.workflow_call import ResolvedWorkflow
    from agentrl_core.types import Episode

_NUM_CONCURRENT = 8
_SAID = "The answer is 4."


class AdapterSuite(ConformanceSuite):
    """Conformance tests of adapters; define the fixture `agent_factory`.

    The fixture returns a function without arguments that builds an agent as a user of the framework would, without
    any agentrl code. The agent answers a conversation in a single LLM call when the policy calls no tool. The package
    under test must be installed, so that its hook `adapt_agent` is found.

    class TestCrew(AdapterSuite):
        @pytest.fixture
        def agent_factory(self):
            return lambda: Crew(model="gpt-5", tools=[add])

    Override `said` for an agent that ends by a tool call, and `asked` for an agent that rephrases its input.
    """

    said = _SAID
    """Reply of the policy to every prompt, and therefore the agent's answer."""

    def asked(self, question: str) -> str:
        """Return the user message that the policy sees for a task whose message is `question`."""
        return question

    @pytest.fixture
    def agent_factory(self) -> Callable[[], object]:
        """Return a function that builds an agent of the framework."""
        raise pytest.UsageError(f"{type(self).__name__} needs a fixture `agent_factory`")

    @pytest.fixture
    def registry(self) -> Registry:
        """Return the registry of the installed packages."""
        return load_registry()

    @pytest.fixture
    def rehearsal(self, tmp_path: Path) -> Any:
        """Yield a rehearsal whose policy always gives the reply `said`."""
        rehearsal = Rehearsal(tmp_path / "rehearsal", lambda prompt: self.said)  # noqa: ARG005 - any
        yield rehearsal
        rehearsal.close()

    @pytest.fixture
    def adapted(self, agent_factory: Callable[[], object], registry: Registry, tmp_path: Path) -> ResolvedWorkflow:
        """Return the workflow that the adapter makes of an agent object."""
        return resolve_workflow(agent_factory(), registry=registry, base_dir=tmp_path)

    @pytest.fixture
    def tasks(self) -> list[Task]:
        """Return tasks with distinct questions."""
        return questions()

    def test_an_agent_object_answers_with_the_policy(
        self, rehearsal: Rehearsal, adapted: ResolvedWorkflow, tasks: Sequence[Task]
    ) -> None:
        """The task's messages are the agent's input, and the policy's text is the agent's reply."""
        (episode,) = rehearsal.play(adapted, tasks[:1])
        self._check_answered(episode, 0)

    def test_a_factory_is_as_good_as_what_it_makes(
        self,
        rehearsal: Rehearsal,
        agent_factory: Callable[[], object],
        registry: Registry,
        tasks: Sequence[Task],
        tmp_path: Path,
    ) -> None:
        """A function that builds the agent works like the agent object."""
        made = resolve_workflow(lambda: agent_factory(), registry=registry, base_dir=tmp_path)  # noqa: PLW0108
        (episode,) = rehearsal.play(made, tasks[:1])
        self._check_answered(episode, 0)

    def test_concurrent_records_reach_each_their_own_session(
        self, rehearsal: Rehearsal, adapted: ResolvedWorkflow, tasks: Sequence[Task]
    ) -> None:
        """One agent object serves many records at once, and no record sees the conversation of another."""
        for number, episode in enumerate(rehearsal.play(adapted, tasks)):
            self._check_answered(episode, number)

    def test_records_leave_nothing_behind_for_later_ones(
        self, rehearsal: Rehearsal, adapted: ResolvedWorkflow, tasks: Sequence[Task]
    ) -> None:
        """A later record inherits no conversation, closed client or ended session, also on a new event loop."""
        for number, task in enumerate(tasks[:3]):
            (episode,) = rehearsal.play(adapted, [task])
            self._check_answered(episode, number)

    def test_a_call_that_fails_is_not_tried_again(
        self, rehearsal: Rehearsal, adapted: ResolvedWorkflow, tasks: Sequence[Task]
    ) -> None:
        """The framework's retries are off: a failed call ends the episode, and its error is in the record."""
        rehearsal.engine.refuse = True
        (episode,) = rehearsal.play(adapted, tasks[:1])
        assert episode.record.outcome is Outcome.FAILED, episode.record.detail
        assert "aborted" in episode.record.detail
        assert rehearsal.engine.calls == 1
        rehearsal.engine.refuse = False
        (episode,) = rehearsal.play(adapted, tasks[1:2])
        self._check_answered(episode, 1)

    def test_an_agent_that_hangs_is_cancelled(
        self,
        rehearsal: Rehearsal,
        adapted: ResolvedWorkflow,
        tasks: Sequence[Task],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """After the time limit nothing of the agent is still running."""
        rehearsal.engine.silent = True
        (episode,) = rehearsal.play(adapted, tasks[:1], timeout_s=0.5)
        assert episode.record.outcome is Outcome.TIMED_OUT, episode.record.detail
        # The runner logs a warning with these words about tasks that a cancelled agent does not end.
        assert "left behind" not in caplog.text

    def _check_answered(self, episode: Episode, number: int) -> None:
        check_answered(episode, number, self.said, self.asked)


def questions() -> list[Task]:
    """Make tasks with distinct questions, so that a mixed-up conversation is noticed."""
    asked = ({"role": "user", "content": _question(number)} for number in range(_NUM_CONCURRENT))
    return [Task(id=f"t{n}", data={"id": f"t{n}", "messages": [message]}) for n, message in enumerate(asked)]


def _question(number: int) -> str:
    return f"Question number {number}: what is 2 + 2?"


def check_answered(episode: Episode, number: int, said: str = _SAID, asked: Callable[[str], str] = str) -> None:
    """Raise AssertionError unless the record was scored and its only call contains its own question only.

    `said` is the policy's reply, which may be a tool call. `asked` returns the user message that the agent makes of
    a question.
    """
    assert episode.record.outcome is Outcome.SCORED, episode.record.detail
    assert len(episode.interactions) == 1, f"{len(episode.interactions)} LLM calls in one record, expected 1"
    (interaction,) = episode.interactions
    assert interaction.output["content"] == said or interaction.output.get("tool_calls")
    heard = [text_of(message) for message in interaction.messages if message["role"] == "user"]
    assert heard == [asked(_question(number))]
