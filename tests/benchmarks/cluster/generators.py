"""GPUs that generate responses, as queues with processor sharing: each decoding step advances all that are running."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from tests.benchmarks.cluster.published import Decoding


@attrs.define
class Gpu:
    """One GPU with its running responses, whose ends are given on a clock that counts decoding steps."""

    decoding: Decoding
    steps: float = 0.0
    at: float = 0.0
    """Time for which `steps` holds; in the future while weights are loaded and keys and values recomputed."""
    running: list[tuple[float, int, float, Any]] = attrs.field(factory=list)
    """Heap of (last step, number, first step, response)."""
    first_steps: float = 0.0
    """Sum of the running responses' first steps."""
    busy_s: float = 0.0
    recomputing_s: float = 0.0
    changes: int = 0

    def advance(self, now: float) -> None:
        """Decode until `now`."""
        if now > self.at:
            if self.running:
                self.steps += (now - self.at) / self.step_s
                self.busy_s += now - self.at
            self.at = now

    @property
    def step_s(self) -> float:
        """Seconds of a decoding step."""
        return self.decoding.fixed_s + self.decoding.each_s * len(self.running)

    @property
    def next_end(self) -> float:
        """Time at which the first of the running responses ends."""
        return self.at + max(0.0, self.running[0][0] - self.steps) * self.step_s

    def add(self, now: float, number: int, tokens: float, response: Any) -> None:
        """Begin a response."""
        self.advance(now)
        heapq.heappush(self.running, (self.steps + tokens, number, self.steps, response))
        self.first_steps += self.steps
        self.changes += 1

    def end_first(self, now: float) -> Any:
        """End the response that is done at `now`, and return it."""
        self.advance(now)
        _, _, first, response = heapq.heappop(self.running)
        self.first_steps -= first
        self.changes += 1
        return response

    def interrupt(self, now: float, pause_s: float, token_s: float) -> None:
        """Stop for new weights, and recompute the keys and values of the running responses' tokens so far."""
        self.advance(now)
        tokens = len(self.running) * self.steps - self.first_steps
        recompute_s = max(0.0, tokens) * token_s
        self.at = max(self.at, now) + pause_s + recompute_s
        self.busy_s += recompute_s
        self.recomputing_s += recompute_s
        self.changes += 1


class Generators:
    """Some GPUs; each response goes to the one with the fewest running responses."""

    def __init__(self, count: int, decoding: Decoding) -> None:
        self.gpus = [Gpu(decoding) for _ in range(count)]
        self.count = 0
        self._numbers = 0
        self._ends: list[tuple[float, int, int]] = []
        self._least = [(0, index) for index in range(count)]

    def add(self, now: float, tokens: float, response: Any) -> None:
        """Begin a response of so many tokens."""
        while True:
            running, index = heapq.heappop(self._least)
            if running == len(self.gpus[index].running):
                break
        self._numbers += 1
        self.count += 1
        self.gpus[index].add(now, self._numbers, tokens, response)
        self._changed(index)

    @property
    def next_end(self) -> float:
        """Time at which the next response ends; infinite if none is running."""
        while self._ends and self._ends[0][2] != self.gpus[self._ends[0][1]].changes:
            heapq.heappop(self._ends)
        return self._ends[0][0] if self._ends else float("inf")

    def end_next(self) -> tuple[float, Any]:
        """End the next response; return the time and the response."""
        now, index, _ = heapq.heappop(self._ends)
        response = self.gpus[index].end_first(now)
        self.count -= 1
        self._changed(index)
        return now, response

    def interrupt(self, now: float, pause_s: float, token_s: float) -> None:
        """Load new weights into all GPUs while responses are running."""
        for index, gpu in enumerate(self.gpus):
            gpu.interrupt(now, pause_s, token_s)
            self._changed(index)

    def settle(self, now: float) -> None:
        """Count the work of all GPUs until `now`."""
        for index, gpu in enumerate(self.gpus):
            gpu.advance(now)
            gpu.changes += 1
            self._changed(index)

    def running(self) -> list[Any]:
        """Return the responses that are running."""
        return [entry[3] for gpu in self.gpus for entry in gpu.running]

    def _changed(self, index: int) -> None:
        gpu = self.gpus[index]
        heapq.heappush(self._least, (len(gpu.running), index))
        if gpu.running:
            heapq.heappush(self._ends, (gpu.next_end, index, gpu.changes))
