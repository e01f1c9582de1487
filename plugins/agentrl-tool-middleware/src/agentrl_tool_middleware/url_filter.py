"""Middleware `url_filter`: keeps addresses of some hosts out of calls and results, such as those with the answers."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

import attrs
from attrs import field, validators

from agentrl_core.api.tools import ToolResult

if TYPE_CHECKING:
    from agentrl_core.api.tools import CallNext, ToolRequest

T = TypeVar("T")

_AUTHORITY = r"[^\s/\\?#\"'<>()\[\]{}]+"
_URL = re.compile(rf"https?:[/\\]+({_AUTHORITY})", re.IGNORECASE)
_NO_SCHEME = re.compile(rf"\s*[/\\]*({_AUTHORITY})")
_BLOCK = re.compile(r"(\n[ \t]*\n+)")
_LEFT_OUT = "(filtered out)"


@attrs.frozen(kw_only=True)
class UrlFilter:
    """Refuses calls for blocked hosts, and removes what names them from results.

    Of several addresses in a call the allowed ones are passed on. In results that are JSON, entries of lists that name
    a blocked host are removed; in other texts, paragraphs. Redirects are not seen: a server follows them by itself.
    """

    blocked: Sequence[str] = field(validator=validators.min_len(1))
    """Hosts, with all hosts below them: `huggingface.co` also means `datasets-server.huggingface.co`. A word without a
    dot means every host that contains it."""
    arguments: Sequence[str] = ("url", "urls", "uri", "link", "links")
    """Arguments with addresses, with or without `https://`; each a text or a list of texts."""
    results: bool = True
    """Filters results, too."""
    _tools: Sequence[str] | None = None
    """Tools that it concerns; None: all."""

    async def call(self, request: ToolRequest, call_next: CallNext) -> ToolResult:
        """Call the tool with the allowed addresses, and return what is allowed of its result."""
        if self._tools is not None and request.name not in self._tools:
            return await call_next(request)
        arguments, refused = self._arguments(request.arguments)
        if refused and not any(arguments.get(name) for name in self.arguments):
            return ToolResult.of_text(f"Error: these addresses may not be visited: {', '.join(refused)}", is_error=True)
        result = await call_next(attrs.evolve(request, arguments=arguments) if refused else request)
        return self._result(result) if self.results else result

    def _arguments(self, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """Return the arguments without blocked addresses, and those addresses."""
        kept, refused = dict(given), []
        for name in self.arguments:
            value = given.get(name)
            addresses = value if isinstance(value, list) else [value]
            bad = [item for item in addresses if isinstance(item, str) and self._blocks_any(hosts_of(item))]
            refused += bad
            if bad and isinstance(value, list):
                kept[name] = [item for item in value if item not in bad]
            elif bad:
                del kept[name]
        return kept, refused

    def _result(self, result: ToolResult) -> ToolResult:
        content = tuple(
            {**part, "text": self._text(part["text"])} if part.get("type") == "text" else part
            for part in result.content
        )
        structured = self._value(result.structured)
        if content == result.content and structured == result.structured:
            return result
        return attrs.evolve(result, content=content, structured=structured)

    def _text(self, text: str) -> str:
        if not self._names_blocked(text):
            return text
        if text.lstrip()[:1] in {"[", "{"}:
            try:
                return json.dumps(self._value(json.loads(text)), ensure_ascii=False)
            except (ValueError, RecursionError):
                pass
        parts = _BLOCK.split(text)
        kept = [part for part in parts[::2] if not self._names_blocked(part)]
        return "\n\n".join(kept) if kept else _LEFT_OUT

    def _value(self, value: T) -> T:
        """Return a JSON value without the entries of lists that name a blocked host; elsewhere texts are replaced."""
        if isinstance(value, list):
            return [self._value(item) for item in value if not self._names_blocked_directly(item)]  # type: ignore[return-value]
        if isinstance(value, Mapping):
            return {key: self._value(item) for key, item in value.items()}  # type: ignore[return-value]
        if isinstance(value, str) and self._names_blocked(value):
            return self._text(value)  # type: ignore[return-value]
        return value

    def _names_blocked_directly(self, item: Any) -> bool:
        """Return whether an entry of a list is about a blocked host: it, or a text in it, names one."""
        if isinstance(item, Mapping):
            return any(isinstance(value, str) and self._names_blocked(value) for value in item.values())
        return isinstance(item, str) and self._names_blocked(item)

    def _names_blocked(self, text: str) -> bool:
        return self._blocks_any(hosts_in(text))

    def _blocks_any(self, hosts: Sequence[str]) -> bool:
        return any(_covers(name.lower(), host) for host in hosts for name in self.blocked)


def _covers(name: str, host: str) -> bool:
    return host == name or host.endswith(f".{name}") if "." in name else name in host


def hosts_of(address: str) -> list[str]:
    """Return the host of an address with or without a scheme, and those of addresses inside of it, as of a proxy."""
    found = hosts_in(address)
    if not _URL.match(address.strip()) and (first := _NO_SCHEME.match(unquote(address))):
        found.append(_host(first[1]))
    return found


def hosts_in(text: str) -> list[str]:
    """Return the hosts of all addresses in a text that begin with `http:` or `https:`, in lower case."""
    return [_host(authority) for authority in _URL.findall(unquote(text))]


def _host(authority: str) -> str:
    """Return the host in `user@host:port`."""
    host = unicodedata.normalize("NFKC", authority).rpartition("@")[2].partition(":")[0]
    return host.rstrip(".").lower()
