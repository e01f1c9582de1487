"""Run the workflow of a stored episode again, with its recorded outputs instead of a model, and compare.

The tools of the config give their recorded results, and no tool server is started. Everything else is real: the agent
with tools of its own, the gateway with its parsers, and the scorer. So a replay shows whether an episode follows from
its task, its sampled tokens and its tool calls alone.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core import config as configs
from agentrl_core.api.compaction import compaction_of
from agentrl_core.api.scoring import training_step
from agentrl_core.concurrency.processes import close_workers
from agentrl_core.config import LoadedConfig
from agentrl_core.data.comparison import without_call_ids
from agentrl_core.engines.replay import Divergence, ReplayEngine
from agentrl_core.errors import RunError, UsageError
from agentrl_core.gateway import Gateway
from agentrl_core.http.borrowed_clients import close_borrowed
from agentrl_core.rollout.order import stable_hash
from agentrl_core.rollout.runner import Runner
from agentrl_core.rollout.subproc.inside.share_tls_context import shared_tls
from agentrl_core.run.components import resolve
from agentrl_core.run.directory import RunDirectory
from agentrl_core.run.in_process import context_policy, policy_chat
from agentrl_core.run.shared_start import announce
from agentrl_core.run.stores import scratch_store
from agentrl_core.run.threads import LoopThread
from agentrl_core.run.upstream_replay import UpstreamReplay
from agentrl_core.run.versions import step_of_version
from agentrl_core.tools.recorded import RecordedToolbox, described_call

if TYPE_CHECKING:
    from agentrl_core.api.stores import GroupRow, StepRow, Store
    from agentrl_core.chat.facade import Chat
    from agentrl_core.config.schema import RunConfig
    from agentrl_core.rollout.episode_source import EpisodeSource
    from agentrl_core.run.components import RunComponents
    from agentrl_core.tools.toolbox import Toolbox
    from agentrl_core.types import Episode, Interaction, Record, Task

_ANY_LENGTH = 2**31
"""Context length of a model whose config states none."""
_STEP_UNKNOWN = "the store does not tell at which training step this was scored, so rewards are not compared"
_END_S = 15.0
"""Longest wait for the agent's clean-up, in seconds."""


@attrs.frozen(kw_only=True)
class ReplayReport:
    """Comparison of a replay with its recorded episode."""

    record: Record
    calls: int
    """LLM calls that the replay repeated, with those to upstreams."""
    tool_calls: int
    """Tool calls that the replay repeated."""
    divergence: Divergence | None
    """The first prompt that differs; the replay ends there."""
    differences: Sequence[str]
    """Other differences, one line each: another tool call, at which the replay ends; calls that were not made, replies,
    outcome, rewards."""
    notes: Sequence[str] = ()
    """Remarks that are no differences of the episode."""

    @property
    def identical(self) -> bool:
        """Whether the replay is the recorded episode."""
        return self.divergence is None and not self.differences


def replay(
    episode: Episode,
    task: Task,
    directory: RunDirectory,
    model_dir: Path,
    *,
    groups: Sequence[GroupRow],
    steps: Sequence[StepRow],
) -> ReplayReport:
    """Replay an episode of the run in `directory`; `model_dir` has the policy's tokenizer and chat template.

    Nothing is written into the run's folder. `groups` and `steps` are the run's rows: the random key follows from the
    position of the episode's group, and the training step at which it was scored from the steps. Raises `UsageError` if
    the run has no workflow that can be called, or its config does not resolve.
    """
    config, base_dir = read_config(directory)
    with ExitStack() as closing:
        upstreams = closing.enter_context(UpstreamReplay(episode))
        components = resolve(LoadedConfig(_local(config, upstreams), base_dir))
        closing.callback(components.close)
        scratch = closing.enter_context(scratch_directory())
        chat = policy_chat(components, model_dir)
        length = _recorded_length(episode) or _context_length(config, model_dir)
        engine = ReplayEngine(episode, context_length=length, decode=chat.reply_text)
        step = training_step_of(episode, steps)
        tools = RecordedToolbox(config.tools, episode)
        stops = (engine.diverged, upstreams.diverged, tools.diverged)
        offered = tools if config.tools.servers else None
        rerun = Rerun(components, episode, task, chat, engine, tools=offered, stops=stops, scratch=scratch, step=step)
        done = rerun.run(seed_key(episode, config, groups))
    step_known = step is not None or episode.record.is_eval
    return _compare(episode, done, engine, upstreams, tools, step_known=step_known)


def read_config(directory: RunDirectory) -> tuple[RunConfig, Path]:
    """Return a run's config and the folder of its relative paths; `UsageError` if it has no workflow to call again."""
    kept, base_dir = directory.read_snapshot()
    config = configs.parse(kept)
    if config.rollout.agent.mode == "online":
        raise UsageError(
            f"run '{directory.name}' has rollout.agent.mode online: its agents connect by themselves, so there is no "
            "workflow to call again"
        )
    return config, base_dir


@contextmanager
def scratch_directory() -> Iterator[RunDirectory]:
    """Yield a temporary folder, with a log, for an episode that is no part of a run."""
    with tempfile.TemporaryDirectory(prefix="agentrl-replay-") as folder:
        scratch = RunDirectory.create(Path(folder), "replay")
        with scratch.logging_to("replay"):
            yield scratch


def on_free_port(config: RunConfig) -> RunConfig:
    """Return the config with a gateway on a free port of this machine."""
    return attrs.evolve(config, gateway=attrs.evolve(config.gateway, host="127.0.0.1", port=0, public_url=None))


def _local(config: RunConfig, upstreams: UpstreamReplay) -> RunConfig:
    """Return the config with a free port of this machine, and with upstreams that repeat what they replied."""
    replaced = {
        name: attrs.evolve(item, url=upstreams.url(name), model=name, api_key_env=None, proxy="direct", max_retries=0)
        for name, item in config.gateway.upstreams.items()
    }
    local = on_free_port(config)
    return attrs.evolve(local, gateway=attrs.evolve(local.gateway, upstreams=replaced))


class Rerun:
    """One run of the workflow against recorded outputs, in a temporary folder; it ends when one of `stops` is done."""

    def __init__(
        self,
        components: RunComponents,
        episode: Episode,
        task: Task,
        chat: Chat,
        engine: ReplayEngine,
        *,
        tools: Toolbox | None,
        stops: Sequence[concurrent.futures.Future[Any]],
        scratch: RunDirectory,
        step: int | None,
    ) -> None:
        self._components, self._episode, self._task = components, episode, task
        self._chat, self._engine, self._tools, self._stops, self._scratch = chat, engine, tools, stops, scratch
        self._step = step

    def run(self, seed_key: tuple[int, ...]) -> Episode | None:
        """Return the new episode; None if it diverged."""
        components, record = self._components, self._episode.record
        config, source = components.config, components.workflow
        if source is None:
            raise UsageError("the config names no workflow")
        with ExitStack() as undo:
            undo.enter_context(shared_tls())
            agents = LoopThread("agents", workers=4, patience_s=config.rollout.timeout_s)
            undo.callback(agents.close)
            undo.callback(close_workers)
            store = scratch_store(self._scratch)
            undo.callback(lambda: asyncio.run(store.close()))
            gateway = Gateway(
                engine=self._engine,
                chat=self._chat,
                store=store,
                run_id=record.run_id,
                sampling=config.sampling,
                config=config.gateway,
                seed=config.seed,
                context=context_policy(components),
            )
            undo.callback(gateway.close)
            gateway.start()
            undo.callback(lambda: _close_clients(agents, gateway))
            undo.callback(lambda: agents.try_run(source.close(), "ending the agents", limit_s=_END_S))
            if (tools := self._tools) is not None:
                undo.callback(lambda: agents.try_run(tools.close(), "closing the tool servers", limit_s=_END_S))
                agents.run(tools.start())
            group_id = asyncio.run(self._announce(store))
            return agents.run(self._run(source, gateway, store, seed_key, group_id))

    async def _announce(self, store: Store) -> str:
        """Write the rows that a record refers to; return the id of its group."""
        record = self._episode.record
        await announce(store, self._components, record.run_id)
        await store.add_tasks(record.run_id, [self._task], task_set=record.task_set)
        (group_id,) = await store.add_evaluation(
            record.run_id, record.task_set, [record.task_id], version=0, claimable=False
        )
        return group_id

    async def _run(
        self, source: EpisodeSource, gateway: Gateway, store: Store, seed_key: tuple[int, ...], group_id: str
    ) -> Episode | None:
        components, record = self._components, self._episode.record
        config = components.config
        runner = Runner(
            source=source,
            gateway=gateway,
            store=store,
            scorer_for=components.scorers.for_task,
            config=config.rollout,
            run_id=record.run_id,
            tools=self._tools,
        )
        sampling = config.eval_sampling if record.is_eval else None
        async with source.group(group_id, self._task):
            training_step.set(self._step)
            episode = asyncio.ensure_future(
                runner.run_episode(
                    self._task,
                    group_id=group_id,
                    sample_index=record.sample_index,
                    seed_key=seed_key,
                    attempt=record.attempt,
                    is_eval=record.is_eval,
                    task_set=record.task_set,
                    sampling=sampling,
                    record_id=record.id,
                )
            )
            stops: list[asyncio.Future[Any]] = [asyncio.wrap_future(stop) for stop in self._stops]
            waited: list[asyncio.Future[Any]] = [episode, *stops]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if not any(stop.done() for stop in stops):
                return episode.result()
            # What the agent does after the first difference says nothing about the record.
            episode.cancel()
            await asyncio.wait({episode})
            return None


def _close_clients(agents: LoopThread, gateway: Gateway) -> None:
    for closing in (gateway.http_client.close_for_good(), close_borrowed()):
        agents.try_run(closing, "closing the agents' HTTP clients", limit_s=_END_S)


def _recorded_length(episode: Episode) -> int | None:
    """Return the context length that the run's engine had; None if no call of the episode was compacted by it."""
    notes = (compaction_of(item) for item in episode.interactions)
    return next((note.context_length for note in notes if note is not None), None)


def _context_length(config: RunConfig, model_dir: Path) -> int:
    named = config.engine.options.get("context_length")
    if isinstance(named, int):
        return named
    path = model_dir / "config.json"
    stated: Any = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    length = stated.get("max_position_embeddings")
    return length if isinstance(length, int) else _ANY_LENGTH


def seed_key(episode: Episode, config: RunConfig, groups: Sequence[GroupRow]) -> tuple[int, ...]:
    """Return the random key that the scheduler gave the episode.

    The ids of replies and of tool calls follow from it, and templates may write those into prompts.
    """
    record, task = episode.record, stable_hash(episode.record.task_id)
    if record.is_eval:
        return (1, task, config.seed, 0, 0)
    # 0 for a record that was put into a store by hand.
    position = next((group.index for group in groups if group.id == record.group_id), 0)
    return (0, task, position, record.sample_index, record.attempt)


def training_step_of(episode: Episode, steps: Sequence[StepRow]) -> int | None:
    """Return the number of steps made when the episode's group began; None for an evaluation, or if it is unknown.

    Stores do not tell the version with which a group began; the first token was sampled by that version, or by one
    published while the episode waited.
    """
    versions = [version for item in episode.interactions for version, _ in item.versions]
    return None if episode.record.is_eval or not versions else step_of_version(min(versions), steps)


def _compare(
    episode: Episode,
    done: Episode | None,
    engine: ReplayEngine,
    upstreams: UpstreamReplay,
    tools: RecordedToolbox,
    *,
    step_known: bool,
) -> ReplayReport:
    calls = len(engine.answered) + upstreams.answered
    divergence = engine.diverged.result() if engine.diverged.done() else None
    differences = [part.diverged.result() for part in (tools, upstreams) if part.diverged.done()]
    if done is not None:
        differences += _unmade(engine.left + upstreams.left)
        differences += [f"{described_call(call)} was not made again" for call in tools.left]
        differences += _replies(done, engine)
        differences += _results(episode, done, rewards=step_known)
    elif divergence is None and not differences:
        raise RunError("the replay ended without an episode")
    return ReplayReport(
        record=episode.record,
        calls=calls,
        tool_calls=tools.answered,
        divergence=divergence,
        differences=differences,
        notes=_sampling_notes(engine) + ([] if step_known else [_STEP_UNKNOWN]),
    )


def _unmade(left: Sequence[Interaction]) -> list[str]:
    return [f"call [{item.seq}] {item.id} was not made again" for item in sorted(left, key=lambda item: item.seq)]


def _replies(done: Episode, engine: ReplayEngine) -> list[str]:
    """Return the replies that the gateway parsed differently from the same tokens."""
    now = {item.id: item for item in done.interactions}
    found = []
    for item, request in engine.answered:
        repeated = now.get(request.request_id)
        if repeated is not None and without_call_ids(repeated.output) != without_call_ids(item.output):
            found.append(
                f"call [{item.seq}] {item.id}: the same tokens are parsed differently: {_shown(item, repeated)}"
            )
    return found


def _shown(item: Interaction, repeated: Interaction) -> str:
    return (
        f"recorded {json.dumps(item.output, ensure_ascii=False)}, now {json.dumps(repeated.output, ensure_ascii=False)}"
    )


def _results(episode: Episode, done: Episode, *, rewards: bool) -> list[str]:
    """Return the differences in outcome and, if `rewards`, in reward and score."""
    before, after = episode.record, done.record
    found = []
    if (before.outcome, before.reason) != (after.outcome, after.reason):
        detail = f" ({after.detail})" if after.detail else ""
        found.append(f"outcome: recorded {_outcome(before)}, now {_outcome(after)}{detail}")
    if not rewards:
        return found
    values = [(name, getattr(before, name), getattr(after, name)) for name in ("reward", "score")]
    found += [f"{name}: recorded {old}, now {new}" for name, old, new in values if old != new]
    numbers = [{item.id: item.seq for item in one.interactions} for one in (episode, done)]
    by_call = [
        {seqs.get(name, name): value for name, value in one.rewards.items()}
        for one, seqs in zip((before, after), numbers, strict=True)
    ]
    if by_call[0] != by_call[1]:
        found.append(f"rewards by call: recorded {by_call[0]}, now {by_call[1]}")
    return found


def _outcome(record: Record) -> str:
    return record.outcome.value + (f" ({record.reason})" if record.reason else "")


def _sampling_notes(engine: ReplayEngine) -> list[str]:
    """Return where the agent asks for other sampling than it did; a replay does not sample."""
    found = []
    for item, request in engine.answered:
        before, now = (attrs.asdict(one, recurse=False) for one in (item.sampling, request.sampling))
        changed = [f"{key} {before[key]} -> {now[key]}" for key in before if key != "seed" and before[key] != now[key]]
        if changed:
            found.append(f"call [{item.seq}] asks for other sampling: {', '.join(changed)}")
    return found
