"""Checks that `agentrl plugins check` can run on any registered component, without fixtures from its author.

Each component is built without options, as a config that names it alone would build it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from agentrl_core.config.component import Component
from agentrl_core.errors import AgentRLError, ConfigError, PluginError
from agentrl_core.plugins.references import one_line

if TYPE_CHECKING:
    from agentrl_core.plugins.registry import Entry, Registry

_Check = Callable[[Any], None]


def component_problems(entry: Entry, registry: Registry) -> list[str]:
    """Return the problem that the checks of its kind find in a component, as at most one line.

    A component that cannot be built without options is not checked: its package's own tests must do that.
    """
    check = _CHECKS.get(entry.kind)
    if check is None:
        return []
    component = Component(f"{entry.distribution}/{entry.name}")
    try:
        built = registry.build(entry.kind, component)
    # Options are missing, not wrong: the component is sound, but only its author can choose their values.
    except ConfigError:
        return []
    except PluginError as error:
        return [str(error)]
    try:
        check(built)
    except (AssertionError, AgentRLError) as error:
        return [f"{entry.kind} '{entry.name}': {str(error).splitlines()[0]}"]
    except Exception as error:  # noqa: BLE001 - whatever a component raises is its fault, and is told
        return [f"{entry.kind} '{entry.name}' raised {one_line(error)}"]
    return []


def _scorer(scorer: Any) -> None:
    from agentrl_core.scorers.call import normalize_scorer

    normalize_scorer(scorer, "scorer")


def _loss(loss: Any) -> None:
    from agentrl_testing.losses import check_contract, check_sign

    check_contract(loss)
    check_sign(loss)


def _advantage(estimator: Any) -> None:
    from agentrl_testing.advantages import check_advantage

    check_advantage(estimator)


def _correction(correction: Any) -> None:
    from agentrl_testing.corrections import check_correction

    check_correction(correction)


def _context(policy: Any) -> None:
    from agentrl_testing.contexts import check_context

    check_context(policy)


def _credit(credit: Any) -> None:
    from agentrl_testing.credits import check_credit

    check_credit(credit)


def _filter(group_filter: Any) -> None:
    from agentrl_testing.filters import check_filter

    check_filter(group_filter)


def _group_order(order: Any) -> None:
    from agentrl_testing.group_orders import check_group_order

    check_group_order(order)


def _shaping(shaping: Any) -> None:
    from agentrl_testing.shapings import check_shaping

    check_shaping(shaping)


def _tool_parser(parser: Any) -> None:
    from agentrl_testing.tool_parsers import check_tool_parser

    check_tool_parser(parser)


def _tool_server(server: Any) -> None:
    from agentrl_testing.tool_servers import check_tool_server

    check_tool_server(server)


def _tool_middleware(middleware: Any) -> None:
    from agentrl_testing.tool_middleware import check_tool_middleware

    check_tool_middleware(middleware)


def _command(command: Any) -> None:
    from agentrl_testing.commands import check_command

    check_command(command)


_CHECKS: Mapping[str, _Check] = {
    "advantages": _advantage,
    "commands": _command,
    "contexts": _context,
    "corrections": _correction,
    "credits": _credit,
    "filters": _filter,
    "group_orders": _group_order,
    "losses": _loss,
    "scorers": _scorer,
    "shapings": _shaping,
    "tool_middleware": _tool_middleware,
    "tool_parsers": _tool_parser,
    "tools": _tool_server,
}
"""Kind -> its checks; they need no examples, no folder and no network, and they are fast."""
