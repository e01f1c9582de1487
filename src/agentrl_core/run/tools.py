"""Start the tool servers of a process that samples, and close them with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl_core.run.scheduling import END_S
from agentrl_core.tools.toolbox import Toolbox

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from agentrl_core.run.components import RunComponents
    from agentrl_core.run.threads import LoopThread


def toolbox_of(components: RunComponents) -> Toolbox | None:
    """Return the tools that the config lists, of the servers that the checks have built; None if it lists none."""
    servers = components.of("tools")
    return Toolbox(components.config.tools, servers, components.of("tool_middleware")) if servers else None


def start_tools(
    components: RunComponents, loop: LoopThread, undo: ExitStack, asked_to_stop: Callable[[], None]
) -> Toolbox | None:
    """Start the config's tool servers on the agents' loop; `undo` closes them. None if the config lists none.

    Raises `ToolServerError` for a server that does not start.
    """
    toolbox = toolbox_of(components)
    if toolbox is not None:
        undo.callback(lambda: loop.try_run(toolbox.close(), "closing the tool servers", limit_s=END_S))
        loop.run(toolbox.start(), asked_to_stop=asked_to_stop)
    return toolbox
