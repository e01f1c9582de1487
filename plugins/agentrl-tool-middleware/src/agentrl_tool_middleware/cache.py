"""Middleware `cache`: answers repeated calls from memory."""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import attrs

if TYPE_CHECKING:
    from agentrl_core.api.tools import CallNext, ToolRequest, ToolResult


@attrs.define(eq=False)
class Kept:
    """Results with their sizes, the one that was used last at the end."""

    max_bytes: int
    clock: Callable[[], float] = time.monotonic
    results: OrderedDict[str, tuple[ToolResult, int, float]] = attrs.field(factory=OrderedDict)
    size: int = 0
    """Sum of the sizes, in bytes."""

    def get(self, key: str) -> ToolResult | None:
        """Return a result that has not expired."""
        if key not in self.results:
            return None
        result, size, ends_at = self.results.pop(key)
        if ends_at <= self.clock():
            self.size -= size
            return None
        self.results[key] = (result, size, ends_at)
        return result

    def add(self, key: str, result: ToolResult, ttl_s: float) -> None:
        """Keep a result for `ttl_s`, and forget others if there is no room."""
        size = len(json.dumps([list(map(dict, result.content)), result.structured], default=str))
        if size > self.max_bytes:
            return
        if key in self.results:
            self.size -= self.results.pop(key)[1]
        self.results[key] = (result, size, self.clock() + ttl_s)
        self.size += size
        while self.size > self.max_bytes:
            self.size -= self.results.popitem(last=False)[1][1]


class Cache:
    """Keeps results of calls, and answers a call with equal arguments by the kept one; errors are not kept.

    Only calls are kept that may be repeated: those of tools with `readOnlyHint` or `idempotentHint`, or that `tools`
    names. With the scope `episode`, a call that may change something forgets what the episode had of its server. With
    the scope `run`, results are those of any episode in this process: use it where they depend on the arguments alone,
    such as a search. `ttl_s` is the time in seconds that a result is kept, None: for ever. `max_bytes` limits the
    memory of each scope; what was not used for longest is forgotten first.
    """

    def __init__(
        self,
        *,
        scope: Literal["episode", "run"] = "episode",
        tools: Sequence[str] = (),
        ttl_s: float | None = None,
        max_bytes: int = 100_000_000,
    ) -> None:
        if ttl_s is not None and ttl_s <= 0:
            raise ValueError(f"'ttl_s': expected a number above 0, found {ttl_s:g}")
        if max_bytes < 1:
            raise ValueError(f"'max_bytes': expected at least 1, found {max_bytes}")
        self._tools = frozenset(tools)
        self._ttl_s = float("inf") if ttl_s is None else ttl_s
        self._max_bytes = max_bytes
        # A config may list several caches; each has its own part of the episode's state.
        self._state = f"cache {id(self)}"
        self._shared = Kept(max_bytes) if scope == "run" else None

    async def call(self, request: ToolRequest, call_next: CallNext) -> ToolResult:
        """Return the kept result of an equal call, or that of the tool."""
        of_episode: dict[str, Kept] = request.state.setdefault(self._state, {})
        if not self._may_keep(request):
            of_episode.pop(request.server, None)
            try:
                return await call_next(request)
            finally:
                # Again: a call at the same time may have kept what it read before the change.
                of_episode.pop(request.server, None)
        kept = self._shared or of_episode.setdefault(request.server, Kept(self._max_bytes))
        key = json.dumps([request.server, request.name, request.arguments], sort_keys=True, default=str)
        if (found := kept.get(key)) is not None:
            return found
        result = await call_next(request)
        if not result.is_error:
            kept.add(key, result, self._ttl_s)
        return result

    def _may_keep(self, request: ToolRequest) -> bool:
        if request.tool is None:
            return False
        return request.tool.repeatable or request.name in self._tools
