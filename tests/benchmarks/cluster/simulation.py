"""One simulated run: samplers that claim groups, GPUs that generate and GPUs that train, joined by a store.

Which groups start is decided by `Admission`, which groups a step takes by `next_groups`: the code of a real run. The
store is one server, in which every claim and every finished record waits for those before it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
from tests.benchmarks.cluster.generators import Generators
from tests.benchmarks.cluster.published import TOKEN_S, Responses

from agentrl_core.api.claims import Admission
from agentrl_core.api.group_queue import OvertakeLimits, next_groups


@attrs.frozen(kw_only=True)
class Setting:
    """One run to simulate."""

    eta: int
    """`rollout.max_head_offpolicyness`."""
    generators: int
    """GPUs that generate. In a synchronous run they are also those that train."""
    groups: int
    """Groups per step."""
    group_size: int
    responses: Responses
    train_s: float
    publish_s: float
    store_s: float
    """Seconds of the store per claim and per record, as measured on this machine."""
    partial: bool = True
    """Whether new weights interrupt running responses, which go on with them; else their end is awaited."""
    running_per_gpu: int = 256
    """vLLM's default of `max_num_seqs`."""
    steps: int = 16
    warm_up: int = 4
    """First steps, which fill the pipeline and are not counted."""
    seed: int = 0


@attrs.frozen(kw_only=True)
class Result:
    """Means over the counted steps."""

    step_s: float
    generators_idle: float
    """Share of the generators' time in which they had no response to work on."""
    trainers_idle: float
    """Share of the time in which the trainer waited: for groups or, without `partial`, for responses to end."""
    recomputing: float
    """Share of the generators' time in which they recomputed keys and values after an interruption."""
    partial: float
    """Share of the trained records whose tokens are of several versions."""
    mean_lag: float
    max_lag: int
    """Versions between a group's claim and its training."""
    store_busy: float


@attrs.define(eq=False)
class _Group:
    """A claimed group."""

    step: int
    """Number of steps done when it was claimed."""
    left: int
    ready: bool = False
    interrupted: set[int] = attrs.field(factory=set)
    """Members that new weights interrupted."""


@attrs.define
class _Totals:
    """Sums at the begin of the counted steps or at their end."""

    at: float = 0.0
    busy_s: float = 0.0
    recomputing_s: float = 0.0
    trainer_s: float = 0.0
    store_s: float = 0.0


class Simulation:
    """State of one run; `run` carries it out."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._admission = Admission(max_head_offpolicyness=setting.eta, tasks_per_step=setting.groups)
        self._generators = Generators(setting.generators, setting.responses.decoding)
        self._source = np.random.default_rng(setting.seed)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._number = 0
        self._queue: list[_Group] = []
        """Claimed groups that no step has taken, in the order of their claims."""
        self._pending = self._ready = self._starting = 0
        self._trained_steps = self._admitted_steps = 0
        self._store_free = self._store_s = self._trainer_s = 0.0
        self._training = self._draining = False
        self._lags: list[int] = []
        self._partial = 0
        self._began = _Totals()

    def run(self) -> Result:
        """Simulate all steps."""
        self._claim(0.0)
        now = 0.0
        while self._admitted_steps < self.setting.steps:
            if self._generators.next_end <= (self._events[0][0] if self._events else float("inf")):
                now, (group, member) = self._generators.end_next()
                self._at(self._commit(now), lambda at, group=group, member=member: self._end_record(at, group, member))
            else:
                now, _, action = heapq.heappop(self._events)
                action(now)
        return self._result(now)

    def _at(self, time: float, action: Callable[[float], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (time, self._number, action))

    def _commit(self, now: float) -> float:
        """Return the time at which the store has done one more operation."""
        self._store_free = max(self._store_free, now) + self.setting.store_s
        self._store_s += self.setting.store_s
        return self._store_free

    def _claim(self, now: float) -> None:
        """Claim the groups that may start and for which the generators have room."""
        if self._draining:
            return
        size = self.setting.group_size
        allowed = self._admission.groups(
            admitted_steps=self._admitted_steps, trained_steps=self._trained_steps, pending=self._pending, replaced=0
        )
        room = self.setting.generators * self.setting.running_per_gpu - self._generators.count - self._starting
        for _ in range(min(allowed, room // size)):
            group = _Group(step=self._admitted_steps, left=size)
            self._queue.append(group)
            self._pending += 1
            self._starting += size
            self._at(self._commit(now), lambda at, group=group: self._start(at, group))

    def _start(self, now: float, group: _Group) -> None:
        self._starting -= self.setting.group_size
        for member, tokens in enumerate(self.setting.responses.draw(self._source, self.setting.group_size)):
            self._generators.add(now, float(tokens), (group, member))

    def _end_record(self, now: float, group: _Group, _member: int) -> None:
        group.left -= 1
        if not group.left:
            group.ready = True
            self._ready += 1
            self._train(now)
        if self._draining and not self._generators.count + self._starting:
            self._load(now)
        self._claim(now)

    def _train(self, now: float) -> None:
        """Begin a step if its groups are there."""
        if self._training or self._ready < self.setting.groups:
            return
        limits = OvertakeLimits(step=self._trained_steps, max_lag=self.setting.eta, per_step=self.setting.groups)
        taken = next_groups(self._queue, self.setting.groups, limits)
        if taken is None:
            return
        gone = set(map(id, taken))
        self._queue = [group for group in self._queue if id(group) not in gone]
        self._ready -= len(taken)
        self._training = True
        if self._trained_steps >= self.setting.warm_up:
            self._lags += [self._trained_steps - group.step for group in taken]
            self._partial += sum(len(group.interrupted) for group in taken)
        self._at(now + self.setting.train_s, self._trained)

    def _trained(self, now: float) -> None:
        self._trainer_s += self.setting.train_s
        self._trained_steps += 1
        self._pending -= self.setting.groups
        if self.setting.partial or not self._generators.count + self._starting:
            self._load(now)
        else:
            self._draining = True

    def _load(self, now: float) -> None:
        """Load the weights of the next version; the trainer waits for it, and then admits more groups."""
        self._draining = False
        for group, member in self._generators.running():
            group.interrupted.add(member)
        self._generators.interrupt(now, self.setting.publish_s, TOKEN_S)
        self._trainer_s += self.setting.publish_s
        self._at(now + self.setting.publish_s, self._published)

    def _published(self, now: float) -> None:
        self._admitted_steps = self._trained_steps
        self._training = False
        if self._trained_steps == self.setting.warm_up:
            self._began = self._totals(now)
        if self._admitted_steps < self.setting.steps:
            self._train(now)
            self._claim(now)

    def _totals(self, now: float) -> _Totals:
        self._generators.settle(now)
        return _Totals(
            at=now,
            busy_s=sum(gpu.busy_s for gpu in self._generators.gpus),
            recomputing_s=sum(gpu.recomputing_s for gpu in self._generators.gpus),
            trainer_s=self._trainer_s,
            store_s=self._store_s,
        )

    def _result(self, now: float) -> Result:
        began, ended = self._began, self._totals(now)
        wall_s = ended.at - began.at
        gpu_s = wall_s * self.setting.generators
        return Result(
            step_s=wall_s / (self.setting.steps - self.setting.warm_up),
            generators_idle=1 - (ended.busy_s - began.busy_s) / gpu_s,
            trainers_idle=1 - (ended.trainer_s - began.trainer_s) / wall_s,
            recomputing=(ended.recomputing_s - began.recomputing_s) / gpu_s,
            partial=self._partial / (len(self._lags) * self.setting.group_size),
            mean_lag=float(np.mean(self._lags)),
            max_lag=max(self._lags),
            store_busy=(ended.store_s - began.store_s) / wall_s,
        )


def simulate(setting: Setting, **changes: Any) -> Result:
    """Simulate a setting with some changes."""
    return Simulation(attrs.evolve(setting, **changes)).run()
