"""Run one episode from its task to its stored record: open a session, run the agent, score it, store the outcome."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import math
import re
import time
import uuid
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.api.audit import digested
from agentrl_core.api.scoring import Answer
from agentrl_core.api.tools import ToolEpisode
from agentrl_core.concurrency.secrecy import without_secrets
from agentrl_core.config.live import with_limits
from agentrl_core.errors import EpisodeError, RunError, ServerLostError
from agentrl_core.rollout.episode_source import OpenEpisode
from agentrl_core.rollout.failures import describe, format_traceback, may_be_elsewhere, reason_of
from agentrl_core.rollout.marks import Marks
from agentrl_core.rollout.outcome_counts import Counts, tool_names
from agentrl_core.rollout.rewards import ask_scorer, early_request, read_reward, score_episode, storable
from agentrl_core.rollout.run_agent import GRACE_S, AgentResult, cancelled_for, unbroken
from agentrl_core.rollout.subproc.inside.telling import tell
from agentrl_core.rollout.token_level.tensor_rows import is_tensor_rows, reward_of_rows
from agentrl_core.rollout.unawaited import UnawaitedCalls
from agentrl_core.types import BY_USER, Episode, Message, Outcome, Record, Task, ToolCall

if TYPE_CHECKING:
    from agentrl_core.api.stores import RunControl, Store
    from agentrl_core.config.sampling_sections import RolloutConfig, SamplingConfig
    from agentrl_core.rollout.episode_gateway import EpisodeGateway, EpisodeSession
    from agentrl_core.rollout.episode_source import EpisodeSource, Seat
    from agentrl_core.scorers.call import NormalizedScorer
    from agentrl_core.tools.episode import OpenTools
    from agentrl_core.tools.toolbox import Toolbox

logger = logging.getLogger(__name__)

_MOST_LOSSES = 10
"""Losses of a slot's server in a row after which the run ends: perhaps the slot's own calls crash it."""
_LONGEST_DETAIL = 2_000
"""Characters kept of the message about a bad reward or score, which may quote what a workflow returned."""
_BASE_URL = (
    "its client must use the injected `base_url` (a parameter of `run`, or workflow_context.get().base_url). Create "
    "the client inside `run`: a client that episodes share would make its calls for another episode"
)


class Runner:
    """Runs episodes, many at a time, on the agents' event loop.

    `source` runs the agent. `scorer_for(task)` returns the task's scorer, or the default one for a task that names
    none; a `UsageError` or `RunError` that it raises stops the run. `tools` has started its servers.
    """

    def __init__(
        self,
        *,
        source: EpisodeSource,
        gateway: EpisodeGateway[Any],
        store: Store,
        scorer_for: Callable[[Task], NormalizedScorer],
        config: RolloutConfig,
        run_id: str,
        clock: Callable[[], float] = time.time,
        grace_s: float = GRACE_S,
        tools: Toolbox | None = None,
    ) -> None:
        self.source = source
        self._toolbox = tools
        self._gateway = gateway
        self._store = store
        self._scorer_for = scorer_for
        self._given = self._config = config
        self._running: dict[str, asyncio.Task[Any]] = {}
        """Record id -> the task that runs its episode, while that may be cancelled."""
        self._run_id = run_id
        self._clock = clock
        self._grace_s = grace_s
        self.unawaited = UnawaitedCalls()
        """Calls that agents forgot to await; whoever runs episodes has it watch."""
        self.tool_calls = Counts()
        """Tool calls of all episodes so far (`outcome_counts.tool_names`)."""

    async def run_episode(
        self,
        task: Task,
        *,
        group_id: str,
        sample_index: int,
        seed_key: tuple[int, ...],
        attempt: int = 0,
        is_eval: bool = False,
        task_set: str = "train",
        sampling: SamplingConfig | None = None,
        record_id: str = "",
        member_id: str = "",
    ) -> Episode:
        """Run the workflow once on `task` and store its outcome; an empty `record_id` makes a new one.

        Faults of the agent or the scorer end up in the record's outcome. Cancelling this call cancels the agent and
        aborts its generations; the record ends `cancelled`. If the episode's server is lost, that record ends
        `cancelled`, too, and the episode runs again under a new id with the same random numbers. Raises `RunError` if
        the engine, the gateway, the store or a tool server has failed: then no record's outcome could be trusted;
        `ClaimLostError` if `member_id` is given and does not have the group any more. If someone else has ended the
        record meanwhile, the returned record is theirs.
        """
        record = Record(
            id=record_id or uuid.uuid4().hex[:16],
            run_id=self._run_id,
            task_id=task.id,
            group_id=group_id,
            sample_index=sample_index,
            attempt=attempt,
            is_eval=is_eval,
            task_set=task_set,
            started_at=self._clock(),
        )
        try:
            for _ in range(_MOST_LOSSES):
                try:
                    # The clock starts at the seat: the wait for a worker or an online agent is not the episode's time.
                    async with self.source.seat(task, record) as seat:
                        record = attrs.evolve(record, started_at=self._clock())
                        return await self._run_record(task, record, seat, seed_key, sampling, member_id)
                except ServerLostError as loss:
                    logger.warning("record %s of task %s runs again: %s", record.id, task.id, loss)
                    record, lost = attrs.evolve(record, id=uuid.uuid4().hex[:16]), loss
        except asyncio.CancelledError as cancellation:
            episode = await self._cancelled_by_user(record, cancellation)
            if episode is None:
                raise
            return episode
        raise RunError(
            f"task {task.id}: sample {sample_index} of group {group_id} lost its server {_MOST_LOSSES} times in a row, "
            f"the last time because {lost}; read the log of `agentrl serve`: a call of this task may crash it"
        )

    def obey(self, control: RunControl) -> None:
        """Take over the limits of a live run, and cancel the records that people have named; on the agents' loop."""
        self._config = with_limits("rollout", self._given, control.limits)
        for record_id in control.cancel:
            # Once only: the record may need some time to end, and the control stays as it is meanwhile.
            if (running := self._running.pop(record_id, None)) is not None:
                running.cancel(BY_USER)

    async def _cancelled_by_user(self, record: Record, cancellation: asyncio.CancelledError) -> Episode | None:
        """Return the episode of a record that a person cancelled, as stored; None for any other cancellation.

        Such a record is like one that failed: its group goes on. It may have ended otherwise just before.
        """
        task = asyncio.current_task()
        if cancellation.args != (BY_USER,) or task is None or task.uncancel():
            return None
        return await self._store.episode(record.id)

    async def _run_record(
        self,
        task: Task,
        record: Record,
        seat: Seat,
        seed_key: tuple[int, ...],
        sampling: SamplingConfig | None,
        member_id: str,
    ) -> Episode:
        self._check_parts()
        await self._store.add_record(record, member_id=member_id)
        marks = Marks()
        tools = self._open_tools(task, record, marks)
        ended = attrs.evolve(record, outcome=Outcome.CANCELLED)
        if (task_of_episode := asyncio.current_task()) is not None:
            self._running[record.id] = task_of_episode
        try:
            session = await seat.open_session(self._gateway, record, seed_key=seed_key, sampling=sampling)
            try:
                here = self._open_episode(task, record, session, tools, marks)
                done = await self._attended(session, seat.run(here), tools)
            except BaseException:
                # Even in a cancelled episode: its calls stay stored, and generations that still run are aborted.
                with contextlib.suppress(ServerLostError):
                    await unbroken(self._gateway.close_session(session))
                raise
            interactions = await unbroken(self._gateway.close_session(session))
            self._check_parts()
            if tools is not None and tools.lost is not None:
                # Whatever the workflow returned: its framework may have swallowed the error.
                done = AgentResult(error=tools.lost)
            ended = await self._outcome(task, Episode(record=record, interactions=interactions), done)
            ended = self._with_refusal(ended, session)
            details = storable(ended.score_details, lambda text: _without_secrets(text, session))
            ended = attrs.evolve(ended, detail=_without_secrets(ended.detail, session), score_details=details)
        except asyncio.CancelledError as cancellation:
            ended = attrs.evolve(ended, reason=cancelled_for(cancellation))
            raise
        except ServerLostError as loss:
            detail = tell(str(loss), _LONGEST_DETAIL)
            ended = attrs.evolve(record, outcome=Outcome.CANCELLED, reason=loss.reason, detail=detail)
            raise
        except EpisodeError as error:
            # Only `open_session` raises it here: there was no session.
            ended = _rejected(record, error)
            return Episode(record=ended, interactions=())
        finally:
            self._running.pop(record.id, None)
            ended = attrs.evolve(ended, finished_at=self._clock(), marks=marks.words)
            ours = await unbroken(self._store.finish_record(ended))
        if not ours and (stored := await self._store.episode(record.id)) is not None:
            # The member was declared lost, or a person has cancelled the record: what is stored counts.
            return stored
        if done.error is not None:
            trace = _without_secrets(format_traceback(done.error), session)
            logger.info("record %s of task %s failed: %s\n%s", record.id, task.id, ended.detail, trace)
        return Episode(record=ended, interactions=interactions)

    def _open_tools(self, task: Task, record: Record, marks: Marks) -> OpenTools | None:
        """Return the tools of an episode, whose servers are opened when they are needed; None without tools."""
        if self._toolbox is None:
            return None
        episode = ToolEpisode(record_id=record.id, task_id=task.id, data=task.data, is_eval=record.is_eval)
        return self._toolbox.open(
            episode, keep=self._keep_call, mark=marks.add, takes_images=lambda: self._gateway.takes_images
        )

    async def _attended(
        self, session: EpisodeSession, work: Coroutine[Any, Any, AgentResult], tools: OpenTools | None
    ) -> AgentResult:
        """Await the agent, and close its tools, even in a cancelled episode."""
        try:
            return await self._gateway.attend(session, work)
        finally:
            if tools is not None:
                await unbroken(tools.close())

    def _with_refusal(self, ended: Record, session: EpisodeSession) -> Record:
        """Return a record that has no reward with the gateway's last refusal; raise `ServerLostError` if it failed."""
        if ended.outcome is Outcome.SCORED:
            return ended
        if (fault := self._gateway.fault_of(session)) is not None:
            raise fault
        # An agent on plain HTTP often raises with the status alone: add the reason that the gateway gave.
        refusal = f"; the gateway's last refusal: {session.refusal}" if session.refusal else ""
        return attrs.evolve(ended, detail=ended.detail + refusal)

    async def _keep_call(self, call: ToolCall) -> None:
        for name in tool_names(call):
            self.tool_calls.add(name)
        await self._store.add_tool_call(self._run_id, digested(call))

    def _open_episode(
        self, task: Task, record: Record, session: EpisodeSession, tools: OpenTools | None, marks: Marks
    ) -> OpenEpisode:
        return OpenEpisode(
            task=task,
            record=record,
            session=session,
            gateway=self._gateway,
            ask_scorer=lambda reply, messages: self._early_score(task, record, reply, messages),
            tools=tools,
            add_mark=marks.add,
            timeout_s=self._config.timeout_s,
            grace_s=self._grace_s,
        )

    async def _early_score(self, task: Task, record: Record, reply: str, messages: Sequence[Message]) -> float:
        """Return the task's scorer's value for a reply in the middle of an episode."""
        request = early_request(task, record, reply, messages)
        verdict = await ask_scorer(self._scorer_for(task), request, timeout_s=self._config.timeout_s)
        return verdict.reward.value

    async def _outcome(self, task: Task, episode: Episode, done: AgentResult) -> Record:
        """Return the record with its outcome and rewards."""
        record, calls = episode.record, len(episode.interactions)
        if done.timed_out:
            detail = done.detail or (
                f"no reward within rollout.timeout_s = {self._config.timeout_s:g} s ({calls} LLM calls finished); "
                "bound the agent's turns, or raise the limit"
            )
            return attrs.evolve(record, outcome=Outcome.TIMED_OUT, detail=detail)
        if isinstance(done.error, EpisodeError):
            return _rejected(record, done.error)
        if done.error is not None:
            reason, detail = reason_of(done.error), describe(done.error)
            if not calls and may_be_elsewhere(done.error):
                detail = f"{detail}; no LLM call reached the policy: {_BASE_URL}"
            return attrs.evolve(record, outcome=Outcome.FAILED, reason=reason, detail=detail)
        try:
            return await self._scored(task, episode, done.value)
        except EpisodeError as error:
            return _rejected(record, error)

    async def _scored(self, task: Task, episode: Episode, value: Any) -> Record:
        """Return the record with the workflow's reward, else the scorer's; `EpisodeError` if neither is usable."""
        record = attrs.evolve(episode.record, outcome=Outcome.SCORED)
        _check_called(episode, value, self.unawaited.told)
        if is_tensor_rows(value):
            value = reward_of_rows(value, episode)
        answer = value if isinstance(value, Answer) else None
        reward = None if answer else read_reward(value, episode.interactions)
        if reward is None:
            verdict = await score_episode(
                self._scorer_for(task), task, episode, timeout_s=self._config.timeout_s, answer=answer
            )
            reward = verdict.reward
            record = attrs.evolve(record, score_parts=verdict.parts, score_details=verdict.details)
        elif task.scorer is not None:
            # Only a scorer that the task names is asked beside the workflow's reward; the default scorer is not.
            try:
                verdict = await score_episode(self._scorer_for(task), task, episode, timeout_s=self._config.timeout_s)
            except EpisodeError as error:
                logger.info("record %s has no score beside its reward: %s", record.id, error)
                record = attrs.evolve(record, score_details=error.details)
            else:
                record = attrs.evolve(
                    record, score=verdict.reward.value, score_parts=verdict.parts, score_details=verdict.details
                )
        return attrs.evolve(record, reward=reward.value, rewards=reward.by_interaction)

    def _check_parts(self) -> None:
        """Raise the error that ended gateway, engine or tools: an agent that fails because of it is not at fault."""
        for part in (self._gateway, self._toolbox):
            if part is not None and part.fatal is not None:
                raise part.fatal


def _rejected(record: Record, error: EpisodeError) -> Record:
    detail = tell(str(error), _LONGEST_DETAIL)
    return attrs.evolve(
        record, outcome=Outcome.REJECTED, reason=error.reason, detail=detail, score_details=error.details
    )


def _check_called(episode: Episode, value: Any, unawaited: str) -> None:
    """Raise `EpisodeError` unless an episode has called the policy; in an evaluation, a provider is enough."""
    if any(interaction.trainable for interaction in episode.interactions):
        return
    if upstream := [interaction.upstream for interaction in episode.interactions if interaction.upstream]:
        if episode.record.is_eval:
            return
        raise EpisodeError(
            "only_upstream_calls",
            f"only upstream calls ({upstream[0]}); nothing to train. Ask for another model name than those of "
            "gateway.upstreams to train the policy, or set trainer.steps: 0 to evaluate the upstream model",
        )
    returned = f" {value}" if isinstance(value, float) and not math.isfinite(value) else ""
    if inspect.iscoroutine(value):
        # Python warns only when the coroutine is freed, which is after this.
        returned, unawaited = f" the coroutine {value.__qualname__}", "write `await` before that call"
    raise EpisodeError(
        "no_llm_call", f"the agent returned{returned} without an LLM call to the policy; {unawaited or _BASE_URL}"
    )


def _without_secrets(text: str, session: EpisodeSession) -> str:
    """Replace the run's secrets, a session's key, and its address, which grants the same access, in a text."""
    for secret, name in ((session.api_key, "<api_key>"), (session.token, "<session>")):
        # Where the text was cut in the middle of the secret, its beginning is left.
        cut = re.escape(secret[:8]) + r"[\w-]*(?=…)"
        text = re.sub(cut, name, text.replace(secret, name))
    return without_secrets(text)
