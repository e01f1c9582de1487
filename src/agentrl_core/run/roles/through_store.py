"""Sampling side of a trainer whose servers and samplers are other processes: works through the store and weights alone.

What the samplers and servers count comes with their heartbeats, so the counts of a step may lag behind it by one
heartbeat.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

from agentrl_core.api.weights import ModuleWeights, Publication
from agentrl_core.errors import RunError
from agentrl_core.rollout.outcome_counts import label
from agentrl_core.run.group_supply import GroupSupply
from agentrl_core.run.roles.waiting import LOOK_S, Wait
from agentrl_core.run.sampling import SampledCounts, SamplingSide, SamplingTotals
from agentrl_core.run.threads import LoopThread
from agentrl_core.types import Outcome
from agentrl_core.weights.saving import folder_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from agentrl_core.api.group_queue import OvertakeLimits
    from agentrl_core.api.members import Member, Role
    from agentrl_core.api.weights import WeightSource
    from agentrl_core.run.components import RunComponents
    from agentrl_core.run.start import Start
    from agentrl_core.types import Evaluation, Group, Task
    from agentrl_core.weights.place import WeightsPlace

T = TypeVar("T")

_COUNTED = ("outcomes", "groups", "answers", "tools", "calls", "cpu_ms", "idle_ms")
"""Keys of members' reports with counts, which only grow: ended records, groups, answers and tool calls of a sampler;
LLM calls of a server; milliseconds of CPU time of both, by part, and milliseconds in which a sampler ran no episode."""

_WATCH_S = 1.0
"""Seconds between two looks at the members while groups are awaited, which wake the trainer by themselves."""
_LOADING_S = 10.0
"""Seconds of loading a version after which the user is told."""
_QUIET_S = 60.0
"""Seconds without an ended episode or a served call after which the user is told."""
_END_S = 15.0
"""Longest wait for the store at the end."""
_KINDS: Mapping[Role, str] = {"serve": "a server", "sample": "a sampler", "train": "the trainer"}


class SamplingThroughStore(SamplingSide):
    """Sampling by the serving and sampling members of a run, as the training loop sees it.

    The constructor publishes the weights of `start` and blocks until a server has loaded them. Every wait for other
    members is told by `notice` and ends after `roles.wait_s` with `RunError`; `asked_to_stop` is called meanwhile, and
    its exception ends the wait. `command(role)` is the command line that starts a member. `report_also` gets a function
    that returns what other members may read of the trainer.
    """

    def __init__(
        self,
        components: RunComponents,
        start: Start,
        run_id: str,
        *,
        place: WeightsPlace,
        notice: Callable[[str], None],
        asked_to_stop: Callable[[], None],
        command: Callable[[Role], str],
        report_also: Callable[[Callable[[], Mapping[str, Any]]], None] = lambda _: None,
    ) -> None:
        from agentrl_core.training.checkpoint import Companions  # imports torch, so after the cheap checks

        self._config, self._components = components.config, components
        self._store, self._run_id, self._place = start.store, run_id, place
        self._companions = Companions.read(start.model_dir)
        self._asked_to_stop, self._command = asked_to_stop, command
        self._supply = GroupSupply(start.store, run_id, start.writer.name)
        limit_s = components.config.roles.wait_s
        self._wait, self._loading = Wait(notice, limit_s), Wait(notice, limit_s, quiet_s=_LOADING_S)
        self._stall = Wait(
            notice, None if limit_s is None else limit_s + components.config.rollout.timeout_s, quiet_s=_QUIET_S
        )
        self._version, self._steps_done = start.version, start.step
        self._ended_before: Counter[str] = Counter()
        self._drained: dict[str, Counter[str]] = {}
        self._servers: Sequence[Member] = ()
        report_also(self._report)
        self._loop = LoopThread("store", workers=1)
        try:
            self._before = _counts(self._run(self._store.members(run_id)))
            self._ended_before = self._run(self._ended())
            self._drained = {name: Counter(counts) for name, counts in self._before.items()}
            self.load_weights(start.version, start.learner.weights())
            self._run(self._until_loaded())
        except BaseException:
            self._loop.close()
            self._place.close()
            raise

    @property
    def notices(self) -> list[str]:
        """Lines of the servers about engine and chat template, each once."""
        return list(dict.fromkeys(line for server in self._servers for line in server.report.get("notices", ())))

    @property
    def max_tokens(self) -> int:
        """Limit of a reply in tokens where the agent sets none."""
        return min(int(server.report["max_tokens"]) for server in self._servers)

    @property
    def llm_calls(self) -> int:
        """Replies of the policy since this process began, as of the servers' last heartbeats."""
        return self._drained["calls"]["llm"] - self._before["calls"]["llm"]

    @property
    def waits_for(self) -> str:
        """Text about what this process waits for; empty if it does not wait for others."""
        return self._wait.what or self._loading.what or self._stall.what

    def begin(self) -> None:
        """Add the tasks, and let training episodes begin."""
        self._run(self._supply.open(self._components.tasks, self._steps_done))

    def take_groups(self, count: int, ahead: OvertakeLimits) -> Sequence[Group]:
        """Block until the next `count` groups are ready; `RunError` if no server, sampler or episode comes in time."""
        return self._run(self._take_groups(count, ahead))

    async def _take_groups(self, count: int, ahead: OvertakeLimits) -> Sequence[Group]:
        groups = await self._watched(self._supply.take(count, ahead))
        if len(groups) < count:
            raise RunError("sampling was closed before the step had all of its groups")
        return groups

    def replace(self, groups: int) -> None:
        """Sample `groups` more groups for this step, in place of groups that were taken and then filtered out."""
        self._run(self._supply.replace(groups))

    def load_weights(self, version: int, source: WeightSource) -> Publication:
        """Publish weights for the servers; the next operation that needs them waits until the servers have them.

        Not this one: a Ctrl-C is held back from the change of the weights to the end of the step. So what it returns of
        the servers is about the version before: the time of the slowest to load it, and its stall.
        """
        if not isinstance(source, ModuleWeights):
            raise TypeError(f"expected the learner's module, got {type(source).__name__}")
        begun = time.monotonic()
        written = self._place.write(version, source.module, companions=self._companions)
        self._version = version
        loaded = [found for server in self._servers if (found := server.report.get("publication"))]
        gaps, changes = ([found[name] for found in loaded if name in found] for name in ("canary_gap", "canary_change"))
        return Publication(
            version=version,
            path=self._config.weights.publish.use,
            bytes=folder_bytes(written),
            seconds=time.monotonic() - begun + max((float(found["seconds"]) for found in loaded), default=0.0),
            stall_s=max((float(found["stall_s"]) for found in loaded), default=0.0),
            canary_gap=max(gaps, default=None),
            # The server whose weights have changed least is the one to look at.
            canary_change=min(changes, default=None),
        )

    def lend_memory(self, device: str) -> bool:  # noqa: ARG002  # the engines are those of other processes
        """Free nothing."""
        return False

    def take_memory_back(self) -> None:
        """Do nothing, because nothing was freed."""

    def open_capacity(self, version: int, steps_done: int) -> None:  # noqa: ARG002  # `load_weights` had the version
        """Wait until all live servers have the version, then admit the groups that may follow `steps_done` steps."""
        self._steps_done = steps_done
        self._run(self._until_loaded())
        self._run(self._supply.admit(steps_done))

    def evaluate(self, sets: Mapping[str, Sequence[Task]], tasks: int) -> dict[str, Evaluation]:
        """Have the first `tasks` tasks of each set run once, and return the results by name; blocks until all are."""
        self._run(self._until_loaded())
        return {
            name: self._run(self._watched(self._supply.evaluate(name, members[:tasks], version=self._version)))
            for name, members in sets.items()
        }

    def drain_counts(self) -> SampledCounts:
        """Return what ended since the last call, as far as the samplers have told."""
        members = self._run(self._store.members(self._run_id))
        samplers = sum(member.role == "sample" and member.state == "live" for member in members)
        now = _counts(members)
        new = {name: counts - self._drained[name] for name, counts in now.items()}
        self._drained = now
        takes_tools = all(server.report.get("takes_tools", True) for server in self._servers)
        return SampledCounts(
            outcomes=new["outcomes"],
            groups=new["groups"],
            answers=new["answers"],
            tools=new["tools"],
            unseen_tools=None if takes_tools else new["calls"]["unseen_tools"],
            idle_s=new["idle_ms"]["sampler"] / 1000 / max(1, samplers),
        )

    def close(self) -> SamplingTotals:
        """Return what was sampled since this process began; the other members go on until the run has ended.

        The outcomes are those of the records in the store, and all else is as the members told it last.
        """
        outcomes: list[Counter[str]] = []
        try:
            self._loop.try_run(self._drain_last(outcomes), "reading what the samplers did last", limit_s=_END_S)
        finally:
            self._loop.close()
            self._place.close()
        total = {name: counts - self._before[name] for name, counts in self._drained.items()}
        return SamplingTotals(
            # A store that is away has ended the run, so what was told before has to do.
            outcomes=outcomes[0] if outcomes else total["outcomes"],
            groups=total["groups"],
            llm_calls=self.llm_calls,
            cpu_seconds={name: float(total["cpu_ms"][name]) / 1000 for name in ("agent", "gateway", "engine")},
        )

    def _report(self) -> Mapping[str, Any]:
        return {"version": self._version, "step": self._steps_done, "waits_for": self.waits_for}

    async def _drain_last(self, outcomes: list[Counter[str]]) -> None:
        self._drained = _counts(await self._store.members(self._run_id))
        outcomes.append(await self._ended() - self._ended_before)

    async def _ended(self) -> Counter[str]:
        """Return the number of ended records by outcome."""
        records = await self._store.records(self._run_id)
        return Counter(label(record) for record in records if record.outcome is not Outcome.RUNNING)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run(work, asked_to_stop=self._asked_to_stop)

    async def _until_loaded(self) -> None:
        """Wait until every live server has the current version, and at least one is there."""
        while True:
            members = await self._store.members(self._run_id, live=True)
            servers = [member for member in members if member.role == "serve"]
            behind = [server for server in servers if int(server.report.get("version", -1)) < self._version]
            if servers and not behind:
                self._servers = servers
                self._wait.over()
                self._loading.over()
                return
            refused = [error for server in servers if (error := _refusal(server, self._version))]
            if refused and len(refused) == len(servers):
                raise RunError(f"no server could load version {self._version}: {refused[0]}")
            if not await self._missing(members, "serve"):
                names = ", ".join(server.name for server in behind)
                self._wait.over()
                self._loading.on(
                    f"{names} to load version {self._version} of the weights from {self._place.root}",
                    "see its log, or end that process",
                )
            await asyncio.sleep(LOOK_S)

    async def _watched(self, work: Coroutine[Any, Any, T]) -> T:
        """Await what samplers do; raise `RunError` if a kind of member is missing for too long, or all stand still."""
        task = asyncio.ensure_future(work)
        ended = -1
        try:
            while not (await asyncio.wait({task}, timeout=_WATCH_S))[0]:
                members = await self._store.members(self._run_id, live=True)
                paused = (await self._store.control(self._run_id)).wanted == "pause"
                if not paused and (await self._missing(members, "serve") or await self._missing(members, "sample")):
                    continue
                self._wait.over()
                counts = _counts(members)
                # A served call is progress too, because episodes may be long; so is a member that comes or goes.
                before, ended = ended, counts["outcomes"].total() + counts["calls"].total()
                if paused or ended != before:
                    self._stall.over()
                else:
                    self._stand_still(members)
            return task.result()
        finally:
            task.cancel()
            self._wait.over()
            self._stall.over()

    async def _missing(self, members: Sequence[Member], role: Role) -> bool:
        """Return whether none of the live members has a role; wait for one then."""
        if any(member.role == role for member in members):
            return False
        earlier = [member for member in await self._store.members(self._run_id) if member.role == role]
        if earlier and earlier[-1].state == "live":  # it has joined meanwhile
            return False
        last = f" (the last one, {_end_of(earlier[-1])})" if earlier else ""
        self._wait.on(f"{_KINDS[role]}{last}", f"start one with `{self._command(role)}`")
        return True

    def _stand_still(self, members: Sequence[Member]) -> None:
        """Wait for any episode to end or any call to be served."""
        waiting = {
            f"{member.name} waits for {what}"
            for member in members
            if member.role != "train" and (what := member.report.get("waits_for"))
        }
        self._stall.on(
            "an episode to end" + (f" ({'; '.join(sorted(waiting))})" if waiting else ""),
            f"see the samplers' logs; an episode ends after rollout.timeout_s = {self._config.rollout.timeout_s:g} s",
        )


def _counts(members: Sequence[Member]) -> dict[str, Counter[str]]:
    """Return the sums of what members have counted."""
    sums: dict[str, Counter[str]] = {name: Counter() for name in _COUNTED}
    for member in members:
        for name, total in sums.items():
            total.update(member.report.get(name, {}))
    return sums


def _end_of(member: Member) -> str:
    """Say who a member was, and how it ended."""
    how = "is lost" if member.state == "lost" else "has left"
    why = f" after an error: {member.report['error']}" if member.report.get("error") else ""
    return f"{member.name}, {how}{why}"


def _refusal(server: Member, version: int) -> str:
    """Return why a server could not load a version; empty if it has not tried, or could."""
    refused = server.report.get("refused", {})
    return str(refused["error"]) if refused.get("version") == version else ""
