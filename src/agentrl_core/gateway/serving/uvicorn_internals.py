"""Names inside uvicorn, public and private, that `connection` relies on, and a check that this uvicorn has them."""

from __future__ import annotations

import inspect

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from agentrl_core.errors import RunError

READ = (0, 54)
"""Newest uvicorn in which the code behind these names was read; pyproject.toml excludes later ones."""

NAMES: dict[type, tuple[str, ...]] = {
    HttpToolsProtocol: (
        *("connections", "cycle", "flow", "headers", "loop", "parser", "pipeline", "scope", "server_state"),
        *("transport", "url", "_start_asgi_task"),
    ),
    RequestResponseCycle: (
        *("chunked_encoding", "disconnected", "keep_alive", "message_event", "more_body", "response_complete"),
        *("response_started", "scope", "waiting_for_100_continue"),
    ),
}
"""Class -> its attributes and overridden private methods."""


def check_uvicorn() -> None:
    """Raise `RunError` if this uvicorn lacks one of the names."""
    missing = [
        f"{kind.__name__}.{name}" for kind, names in NAMES.items() for name in sorted({*names} - _names_in(kind))
    ]
    if missing:
        newest = ".".join(map(str, READ))
        raise RunError(
            f"gateway: uvicorn {uvicorn.__version__} has no {', '.join(missing)}, which the gateway needs; install "
            f"uvicorn {newest}"
        )


def _names_in(kind: type) -> set[str]:
    """Return the names of a class and those that its methods use, among them the attributes of its objects."""
    codes = [item.__code__ for item in vars(kind).values() if inspect.isfunction(item)]
    return {*dir(kind)}.union(*(code.co_names for code in codes))
