"""Proof that agents of a framework are trained as they are: the suite that every adapter passes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from agentrl_core.plugins.manager import load_registry
from agentrl_core.rollout.judging import text_of
from agentrl_core.rollout.workflows import resolve_workflow
from agentrl_core.types import Outcome, Task
from agentrl_testing.base import ConformanceSuite
from agentrl_testing.workflows import Rehearsal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from agentrl_core.plugins.registry import Registry
    from agentrl_core.rollout.workflows import ResolvedWorkflow
    from agentrl_core.types import Episode

_NUM_CONCURRENT = 8
_SAID = "The answer is 4."


class AdapterSuite(ConformanceSuite):
    """What an adapter must make of an agent. Give the fixture `agent_factory`.

    It returns a function without arguments that builds an agent just as a user of the framework would, with
    nothing of agentrl in it: one that answers a conversation in a single LLM call when the policy calls no tool.
    The package under test must be installed, so that its `adapt_agent` is found.

    class TestCrew(AdapterSuite):
        @pytest.fixture
        def agent_factory(self):
            return lambda: Crew(model="gpt-5", tools=[add])

    An agent that ends by a tool call has another `said`; one that puts a question in words of its own, `asked`.
    """

    said = _SAID
    """What the policy says to everything: the agent's answer."""

    def asked(self, question: str) -> str:
        """Return the user message that the policy sees of a task whose message is `question`."""
        return question

    @pytest.fixture
    def agent_factory(self) -> Callable[[], object]:
        """Return a function that builds an agent of the framework."""
        raise pytest.UsageError(f"{type(self).__name__} needs a fixture `agent_factory`")

    @pytest.fixture
    def registry(self) -> Registry:
        """Return what the installed packages plug in."""
        return load_registry()

    @pytest.fixture
    def rehearsal(self, tmp_path: Path) -> Any:
        """Play episodes with a policy that always says the same."""
        rehearsal = Rehearsal(tmp_path / "rehearsal", lambda prompt: self.said)  # noqa: ARG005 - any
        yield rehearsal
        rehearsal.close()

    @pytest.fixture
    def adapted(self, agent_factory: Callable[[], object], registry: Registry, tmp_path: Path) -> ResolvedWorkflow:
        """Return a built agent, adapted."""
        return resolve_workflow(agent_factory(), registry=registry, base_dir=tmp_path)

    @pytest.fixture
    def tasks(self) -> list[Task]:
        """Return tasks whose question nobody else asks."""
        return questions()

    def test_an_agent_object_answers_with_the_policy(
        self, rehearsal: Rehearsal, adapted: ResolvedWorkflow, tasks: Sequence[Task]
    ) -> None:
        """The task's messages are the agent's input, and the policy's words its reply."""
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
        """A function that builds the agent may be named in its place."""
        made = resolve_workflow(lambda: agent_factory(), registry=registry, base_dir=tmp_path)  # noqa: PLW0108
        (episode,) = rehearsal.play(made, tasks[:1])
        self._check_answered(episode, 0)

    def test_concurrent_records_reach_each_their_own_session(
        self, rehearsal: Rehearsal, adapted: ResolvedWorkflow, tasks: Sequence[Task]
    ) -> None:
        """One agent object serves many records at once; none sees another's conversation."""
        for number, episode in enumerate(rehearsal.play(adapted, tasks)):
            self._check_answered(episode, number)

    def test_records_leave_nothing_behind_for_later_ones(
        self, rehearsal: Rehearsal, adapted: ResolvedWorkflow, tasks: Sequence[Task]
    ) -> None:
        """No conversation, closed client or ended session is carried over, and a new event loop is no obstacle."""
        for number, task in enumerate(tasks[:3]):
            (episode,) = rehearsal.play(adapted, [task])
            self._check_answered(episode, number)

    def test_a_call_that_fails_is_not_tried_again(
        self, rehearsal: Rehearsal, adapted: ResolvedWorkflow, tasks: Sequence[Task]
    ) -> None:
        """The framework's own retries are off: a failed call ends the episode, and its error is the record's."""
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
        """Nothing of it goes on after its time limit."""
        rehearsal.engine.silent = True
        (episode,) = rehearsal.play(adapted, tasks[:1], timeout_s=0.5)
        assert episode.record.outcome is Outcome.TIMED_OUT, episode.record.detail
        assert "left behind" not in caplog.text

    def _check_answered(self, episode: Episode, number: int) -> None:
        check_answered(episode, number, self.said, self.asked)


def questions() -> list[Task]:
    """Make tasks that each ask something else."""
    asked = ({"role": "user", "content": _question(number)} for number in range(_NUM_CONCURRENT))
    return [Task(id=f"t{n}", data={"id": f"t{n}", "messages": [message]}) for n, message in enumerate(asked)]


def _question(number: int) -> str:
    return f"Question number {number}: what is 2 + 2?"


def check_answered(episode: Episode, number: int, said: str = _SAID, asked: Callable[[str], str] = str) -> None:
    """Raise AssertionError unless the record was scored, and its one call shows its own question only.

    `said` is the policy's reply, which may be a tool call; `asked` what an agent makes of a question.
    """
    assert episode.record.outcome is Outcome.SCORED, episode.record.detail
    assert len(episode.interactions) == 1, f"{len(episode.interactions)} LLM calls in one record, expected 1"
    (interaction,) = episode.interactions
    assert interaction.output["content"] == said or interaction.output.get("tool_calls")
    heard = [text_of(message) for message in interaction.messages if message["role"] == "user"]
    assert heard == [asked(_question(number))]
