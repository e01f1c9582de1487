"""Middleware that decides which tools the model sees, and under which names: `rename` and `block`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import attrs
from attrs import field, validators

from agentrl_core.api.tools import ToolResult

if TYPE_CHECKING:
    from agentrl_core.api.tools import CallNext, ToolRequest, ToolSpec


@attrs.frozen(kw_only=True)
class Rename:
    """Shows tools under other names, with other descriptions if wanted."""

    names: Mapping[str, str] = field(factory=dict)
    """Name of a tool, with its server's prefix -> name that the model uses."""
    descriptions: Mapping[str, str] = field(factory=dict)
    """Name of a tool, with its server's prefix -> description that the model reads."""

    def __attrs_post_init__(self) -> None:
        """Refuse two tools with one name."""
        shown = list(self.names.values())
        twice = sorted({name for name in shown if shown.count(name) > 1})
        if twice:
            raise ValueError(f"'names': two tools get the name '{twice[0]}'")

    def tools(self, specs: Sequence[ToolSpec]) -> Sequence[ToolSpec]:
        """Return the tools with their new names and descriptions."""
        return [
            attrs.evolve(
                spec,
                name=self.names.get(spec.name, spec.name),
                description=self.descriptions.get(spec.name, spec.description),
            )
            for spec in specs
        ]

    async def call(self, request: ToolRequest, call_next: CallNext) -> ToolResult:
        """Call the tool by its own name."""
        own = {shown: name for name, shown in self.names.items()}
        name = own.get(request.name, request.name)
        return await call_next(request if name == request.name else attrs.evolve(request, name=name))


@attrs.frozen(kw_only=True)
class Block:
    """Hides tools from the model, and refuses calls of them."""

    _tools: Sequence[str] = field(validator=validators.min_len(1))
    """Names, or patterns such as `write_*`; with their servers' prefixes."""
    message: str = "this tool may not be used"
    """Error that the model is shown."""

    def tools(self, specs: Sequence[ToolSpec]) -> Sequence[ToolSpec]:
        """Return the tools that are not blocked."""
        return [spec for spec in specs if not self._blocks(spec.name)]

    async def call(self, request: ToolRequest, call_next: CallNext) -> ToolResult:
        """Refuse the call of a blocked tool."""
        if self._blocks(request.name):
            return ToolResult.of_text(f"Error: {request.name}: {self.message}", is_error=True)
        return await call_next(request)

    def _blocks(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self._tools)
