"""Sampling side in the trainer's own process: engine, gateway, the agents' event loop and the scheduler."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from agentrl_core.api.engines import Provable, TakesTurns
from agentrl_core.api.reasoning import REASONING_FORMATS
from agentrl_core.api.weights import DirectoryWeights
from agentrl_core.chat import Chat
from agentrl_core.concurrency.processes import close_workers
from agentrl_core.config.component import Component
from agentrl_core.errors import RunError
from agentrl_core.gateway import Gateway
from agentrl_core.gateway.compaction import NamedPolicy
from agentrl_core.gateway.online.admin import key_from_environment, make_key
from agentrl_core.http.borrowed_clients import close_borrowed
from agentrl_core.rollout.online import OnlineAgents
from agentrl_core.rollout.subproc.inside.share_tls_context import shared_tls
from agentrl_core.run.engine_start import start_engine, tell_warnings
from agentrl_core.run.group_supply import GroupSupply
from agentrl_core.run.publication import check_in_process, prepare_weights
from agentrl_core.run.sampling import SampledCounts, SamplingSide, SamplingTotals
from agentrl_core.run.scheduling import END_S, build_scheduler, until_ended
from agentrl_core.run.threads import LoopThread
from agentrl_core.run.tools import start_tools

if TYPE_CHECKING:
    from pathlib import Path

    from agentrl_core.api.engines import Engine
    from agentrl_core.api.group_queue import OvertakeLimits
    from agentrl_core.api.weights import Publication, WeightSource
    from agentrl_core.rollout.episode_source import EpisodeSource
    from agentrl_core.run.components import RunComponents
    from agentrl_core.run.membership import Membership
    from agentrl_core.run.start import Start
    from agentrl_core.types import Evaluation, Group, Record, Task

T = TypeVar("T")


class InProcessSampling(SamplingSide):
    """Owner of the engine, the gateway and the event loop on which agents run.

    `membership` has joined the run as `sample` and as `train`. While a method waits for groups or an evaluation, it
    calls `asked_to_stop` repeatedly; that raises if the run is to stop. `notice(message)` is called once, on another
    thread, if an agent blocks the event loop, and at the end for sampling parameters of LLM calls that were ignored.
    Every wait raises `RunError` if the loop is blocked for longer than `rollout.timeout_s`.
    """

    def __init__(
        self,
        components: RunComponents,
        start: Start,
        run_id: str,
        *,
        membership: Membership,
        admin_key_file: Path,
        log_dir: Path,
        on_scored: Callable[[Record], None],
        on_ended: Callable[[Record], None] | None = None,
        notice: Callable[[str], None] = lambda _: None,
        asked_to_stop: Callable[[], None] = lambda: None,
    ) -> None:
        config = components.config
        self._config, self._components = config, components
        self._supply = GroupSupply(start.store, run_id, start.writer.name)
        self._scheduling: asyncio.Task[None] | None = None
        self._asked_to_stop, self._notice, self._membership = asked_to_stop, notice, membership
        self._step, self._version = start.step, start.version
        self._unseen_so_far, self._idle_so_far_s = 0, 0.0
        # If one part cannot start, the stack closes the parts before it. The order of the callbacks matters: they run
        # in reverse, so the engine and the gateway close while the agents' loop still turns.
        with ExitStack() as undo:
            undo.enter_context(shared_tls())
            self._agents = LoopThread(
                "agents",
                workers=config.rollout.max_concurrent_rollouts,
                notice=notice,
                patience_s=config.rollout.timeout_s,
            )
            undo.callback(self._agents.close)
            undo.callback(close_workers)
            # Before the model is loaded: a server that is down is told at once.
            tools = start_tools(components, self._agents, undo, asked_to_stop)
            self.engine: Engine = start_engine(
                components, start.model_dir, undo, log_dir=log_dir, check=check_in_process
            )
            # What it has to say at its start is in `notices`.
            tell_warnings(notice, undo)
            # An engine that loads its model has version 0; a resumed run goes on with a later version.
            if start.version:
                self._agents.run(self.engine.load_weights(start.version, DirectoryWeights(start.model_dir)))
            if isinstance(self.engine, Provable):
                self._agents.run(self.engine.prove(start.learner.weights()))
            self._admin_key_file = admin_key_file
            self.gateway = _gateway(components, start, self.engine, run_id, admin_key_file)
            undo.callback(self.gateway.close)
            self._agents.run(self.gateway.restore_sessions())
            self.gateway.start()
            undo.callback(self._close_client)
            source = components.workflow or OnlineAgents(self.gateway, config.rollout, config.gateway)
            undo.callback(self._close_source, source)
            self._scheduler = build_scheduler(
                components,
                store=start.store,
                run_id=run_id,
                member_id=membership.id_of("sample"),
                source=source,
                gateway=self.gateway,
                tools=tools,
                version=lambda: self._version,
                # What this process changes it notices at once, and there are no others that sample.
                poll_s=config.rollout.lease_s,
                on_scored=on_scored,
                on_ended=on_ended,
            )
            membership.on_control(self._scheduler.obey)
            membership.on_lost(self._scheduler.stop)
            self._undo = undo.pop_all()

    @property
    def notices(self) -> list[str]:
        """Lines for the user about engine, agents and chat template so far."""
        engine = getattr(self.engine, "notice", "")
        template = self.gateway.notices(offers_tools=bool(self._config.tools.servers))
        source = self._components.workflow
        agents = self._online_notice if source is None else source.notice
        return [line for line in (engine, agents, *template) if line]

    @property
    def max_tokens(self) -> int:
        """Limit of a reply in tokens where the agent sets none."""
        return self.gateway.max_tokens

    @property
    def llm_calls(self) -> int:
        """Replies of the policy so far."""
        return self.gateway.calls

    @property
    def _online_notice(self) -> str:
        """Notice that tells online agents how to open sessions."""
        variable = self._config.gateway.admin_key_env
        key = f"in {variable}" if os.environ.get(variable) else f"in {self._admin_key_file}"
        return f"agents open sessions with POST {self.gateway.url}/rl/start_session; the admin key is {key}"

    def begin(self) -> None:
        """Let training episodes begin."""
        self._wait_for(self._supply.open(self._components.tasks, self._step))

    def take_groups(self, count: int, ahead: OvertakeLimits) -> Sequence[Group]:
        """Block until the next `count` groups are ready; raise the scheduler's error if it has stopped."""
        groups = self._wait_for(self._supply.take(count, ahead))
        if len(groups) < count:
            raise RunError("sampling ended before the step had all of its groups")
        return groups

    def _wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Block until `work` is done; raise the scheduler's error if it has stopped, because `work` then never ends."""
        return self._agents.run(self._while_scheduling(work), asked_to_stop=self._check)

    async def _while_scheduling(self, work: Coroutine[Any, Any, T]) -> T:
        if self._scheduling is None:
            self._scheduling = asyncio.create_task(self._scheduler.run())
        scheduling, working = self._scheduling, asyncio.create_task(work)
        try:
            await asyncio.wait({working, scheduling}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
        finally:
            working.cancel()
        await scheduling  # raises the scheduler's own error, if that is why it ended
        raise RunError("sampling ended before the run did")

    def _check(self) -> None:
        self._asked_to_stop()
        self._membership.check()

    def replace(self, groups: int) -> None:
        """Sample `groups` more groups for this step, in place of groups that were taken and then not used."""
        self._wait_for(self._supply.replace(groups))

    def load_weights(self, version: int, source: WeightSource) -> Publication | None:
        """Pause the gateway, load new weights into the engine, and go on; return how the weights came."""
        self._membership.check()
        # Calls go on meanwhile: an engine for servers writes a whole model here.
        self._agents.run(prepare_weights(self.engine, version, source))
        with self.gateway.paused():
            publication = self._agents.run(self.engine.load_weights(version, source))
        self._version = version
        return publication

    def lend_memory(self, device: str) -> bool:
        """Free the engine's keys and values, if it is on `device` too; return whether it was."""
        if not isinstance(self.engine, TakesTurns) or str(self.engine.device) != device:
            return False
        self._agents.run(self.engine.release())
        return True

    def take_memory_back(self) -> None:
        """Let the engine allocate its keys and values again, and sample."""
        if isinstance(self.engine, TakesTurns):
            self._agents.run(self.engine.reclaim())

    def open_capacity(self, version: int, steps_done: int) -> None:  # noqa: ARG002  (a trainer apart waits for it)
        """Admit further groups, which sample from the weights that were loaded last."""
        self._wait_for(self._supply.admit(steps_done))

    def evaluate(self, sets: Mapping[str, Sequence[Task]], tasks: int) -> dict[str, Evaluation]:
        """Run the first `tasks` tasks of each set once, and return the results by name; blocks until all are done."""
        return {
            name: self._wait_for(self._supply.evaluate(name, members[:tasks], version=self._version))
            for name, members in sets.items()
        }

    def drain_counts(self) -> SampledCounts:
        """Return the counts since the last call."""
        counts, unseen_tools = self._scheduler.counts, None
        if not self.gateway.chat.takes_tools:
            before, self._unseen_so_far = self._unseen_so_far, self.gateway.calls_with_unseen_tools
            unseen_tools = self._unseen_so_far - before
        idle_s = self._scheduler.idle_s
        idle_s, self._idle_so_far_s = idle_s - self._idle_so_far_s, idle_s
        return SampledCounts(
            outcomes=counts.records.drain(),
            groups=counts.groups.drain(),
            answers=counts.answers.drain(),
            tools=self._scheduler.tool_calls.drain(),
            unseen_tools=unseen_tools,
            idle_s=idle_s,
        )

    def close(self) -> SamplingTotals:
        """Cancel running episodes, close everything, and return what was sampled; allowed at any time."""
        with self._undo:  # everything closes even if a tracker fails at a notice
            self._undo.callback(self._stop_episodes)
            # Notices and CPU times come first: they read from the gateway and from the agents' thread.
            self._tell_forced_temperatures()
            self._tell_without_effect()
            cpu_seconds = self._cpu_seconds()
        return SamplingTotals(
            outcomes=self._scheduler.counts.records.totals,
            groups=self._scheduler.counts.groups.totals,
            llm_calls=self.gateway.calls,
            cpu_seconds=cpu_seconds,
        )

    def _stop_episodes(self) -> None:
        self._scheduler.stop()
        if self._scheduling is not None:
            self._agents.try_run(until_ended(self._scheduling), "ending the episodes", limit_s=END_S)
            self._agents.try_run(self._supply.close(), "closing the sampling", limit_s=END_S)

    def _cpu_seconds(self) -> dict[str, float]:
        # Gateway and inline agents share a thread, so the gateway's own measure is subtracted from the thread's.
        gateway, agents = self.gateway.cpu_seconds, self._agents.cpu_seconds()
        return {"agent": max(0.0, agents - gateway), "gateway": gateway, "engine": self.engine.cpu_seconds}

    def _tell_forced_temperatures(self) -> None:
        forced = self.gateway.forced_temperatures
        if forced:
            self._notice(
                f"{forced} LLM calls asked for another temperature and were sampled at the policy's, "
                f"{self._config.sampling.temperature:g}, because training needs samples of the policy itself "
                "(gateway.temperature: force). To find these calls, set gateway.temperature: refuse; to change the "
                "temperature, set sampling.temperature"
            )

    def _tell_without_effect(self) -> None:
        asked = self.gateway.without_effect
        if asked:
            names = ", ".join(f"{name} ({count})" for name, count in sorted(asked.items()))
            self._notice(
                f"LLM calls asked for sampling parameters that are ignored while training: {names}; training needs "
                "samples of the policy's own distribution. The trace lists what each call asked for"
            )

    def _close_source(self, source: EpisodeSource) -> None:
        self._agents.try_run(source.close(), "ending the agents", limit_s=END_S)

    def _close_client(self) -> None:
        for closing in (self.gateway.http_client.close_for_good(), close_borrowed()):
            self._agents.try_run(closing, "closing the agents' HTTP clients", limit_s=END_S)


def policy_chat(components: RunComponents, model_dir: Path) -> Chat:
    """Read a policy's chat template and tokenizer, with the parsers that the config names."""
    gateway, parser = components.config.gateway, None
    if gateway.tool_parser != "auto":
        parser = components.build("tool_parsers", "gateway.tool_parser", Component(gateway.tool_parser))
    # `auto` is not in the table, and None lets `Chat` recognise the format from the chat template.
    reasoning = REASONING_FORMATS.get(gateway.reasoning_parser)
    return Chat.from_directory(model_dir, parser=parser, reasoning=reasoning, registry=components.registry)


def context_policy(components: RunComponents) -> NamedPolicy | None:
    """Return the context policy, which the checks have built, with its name in the config; None if it changes nothing.

    The checks of a sampler build none: histories are shortened where its calls are served.
    """
    built = components.of("contexts")
    return NamedPolicy(name=components.config.context.use, policy=built[0]) if built else None


def _gateway(components: RunComponents, start: Start, engine: Engine, run_id: str, admin_key_file: Path) -> Gateway:
    config = components.config
    return Gateway(
        engine=engine,
        chat=policy_chat(components, start.model_dir),
        store=start.store,
        run_id=run_id,
        sampling=config.sampling,
        config=config.gateway,
        seed=config.seed,
        admin_key=key_from_environment(config.gateway.admin_key_env) or make_key(admin_key_file),
        context=context_policy(components),
    )
