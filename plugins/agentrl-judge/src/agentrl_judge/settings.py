"""Which models judge, as a config names them: read from nodes that know where they were written."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import attrs

from agentrl_core.api.http import PROXY_OPTION, is_proxy_option
from agentrl_core.api.options import Node, Problem, describe, did_you_mean

Readers: TypeAlias = Mapping[str, Callable[[Any], Any]]
"""Key -> what checks and converts its plain value; a ValueError says what was expected."""

RESERVED = frozenset({"model", "messages", "stream", "n", "response_format"})
"""Fields of a request that `extra_body` cannot set."""

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_PLACEHOLDER = re.compile(r"<YOUR_[A-Z0-9_]+>")
_FOREIGN = ("OPENAI_", "ANTHROPIC_")
"""Variables that point agents at the gateway of a run start so: a judge behind one would be the policy itself."""


@attrs.frozen(kw_only=True)
class ModelSettings:
    """One model on one OpenAI-compatible server."""

    model: str
    base_url: str
    """Up to what stands before `/chat/completions`."""
    api_key: str = attrs.field(default="", repr=False)
    """The key itself, where the file has it."""
    api_key_env: str | None = None
    """The variable that has the key; it is read for each call, and kept nowhere."""
    proxy: str | None = None
    """Address of an HTTP proxy, or `direct`; None: as the environment says."""
    extra_body: Mapping[str, Any] = attrs.field(factory=dict)
    """Further fields of each request."""
    input_price: float = 0.0
    """US dollars per million prompt tokens."""
    output_price: float = 0.0
    """US dollars per million tokens of the reply."""

    @property
    def label(self) -> str:
        """How messages call it."""
        return f"{self.model} at {self.base_url}"

    def cost(self, prompt_tokens: int, output_tokens: int) -> float:
        """US dollars for one call."""
        return (prompt_tokens * self.input_price + output_tokens * self.output_price) / 1e6


def read_models(node: Node, problems: list[Problem], *, keys_in_file: bool) -> tuple[ModelSettings, ...]:
    """Read a list of models; what is wrong with it is added to `problems`.

    `keys_in_file` allows an `api_key` as it is: in a file that nobody stores. Elsewhere it must be a `${VARIABLE}`.
    """
    if not isinstance(node.value, list) or not node.value:
        problems.append(Problem(node.place, "models: expected a list of {base_url: …, model: …}, at least one"))
        return ()
    found = [_read_model(item, problems, keys_in_file=keys_in_file) for item in node.value]
    return tuple(model for model in found if model is not None)


def read_section(node: Node, readers: Readers, problems: list[Problem]) -> dict[str, Any]:
    """Read the keys of a section; unknown ones and wrong values are added to `problems`."""
    if not isinstance(node.value, dict):
        problems.append(Problem(node.place, f"expected a section of keys, found {describe(node.plain())}"))
        return {}
    found = {}
    for key, item in node.value.items():
        if key not in readers:
            hint = did_you_mean(key, readers) or f"; known are {', '.join(readers)}"
            problems.append(Problem(item.place, f"unknown key {key}{hint}"))
            continue
        try:
            found[key] = readers[key](item.plain())
        except ValueError as error:
            problems.append(Problem(item.place, f"{key}: {error}"))
    return found


def text(value: Any) -> str:
    """Read a text, with `${VARIABLES}` put in."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("expected a text")
    if match := _PLACEHOLDER.search(value):
        raise ValueError(f"{match[0]} is a placeholder; replace it with your own value")
    return _VARIABLE.sub(_variable, value)


def count(value: Any) -> int:
    """Read a whole number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"expected a whole number of at least 0, found {describe(value)}")
    return value


def seconds(value: Any) -> float:
    """Read a duration above 0."""
    number = amount(value)
    if not number:
        raise ValueError("expected a number above 0, found 0")
    return number


def amount(value: Any) -> float:
    """Read a finite number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"expected a number of at least 0, found {describe(value)}")
    return float(value)


def extra_body(value: Any) -> Mapping[str, Any]:
    """Read further fields of each request."""
    if not isinstance(value, Mapping):
        raise ValueError(f"expected a section, found {describe(value)}")  # noqa: TRY004  (all that is wrong is one kind)
    if taken := sorted(RESERVED & value.keys()):
        raise ValueError(f"{taken[0]} is set by the judge itself")
    return dict(value)


def base_url(value: Any) -> str:
    """Read a server's address; one without a path gets `/v1`, where OpenAI-compatible servers have their routes."""
    for name in _VARIABLE.findall(value) if isinstance(value, str) else ():
        if name.startswith(_FOREIGN):
            raise ValueError(f"{name} may point at the gateway of a run, which is no judge; write the address here")
    url = text(value).strip().rstrip("/").removesuffix("/chat/completions")
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and parts.hostname and (parts.port or True)
    except ValueError:
        usable = False
    if not usable or parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("expected http(s)://host[:port][/path], without user, password or query")
    return url if parts.path.strip("/") else f"{url}/v1"


def proxy(value: Any) -> str:
    """Read the address of a proxy, or `direct`."""
    if not isinstance(value, str) or not is_proxy_option(value):
        raise ValueError(f"expected {PROXY_OPTION}")
    return value


def _read_model(node: Node, problems: list[Problem], *, keys_in_file: bool) -> ModelSettings | None:
    before = len(problems)
    readers: Readers = {
        "model": text,
        "base_url": base_url,
        "api_key": _literal_key if keys_in_file else _named_key,
        "api_key_env": _variable_name,
        "proxy": proxy,
        "extra_body": extra_body,
        "input_price": amount,
        "output_price": amount,
    }
    found = read_section(node, readers, problems)
    missing = [key for key in ("base_url", "model") if key not in (node.value if isinstance(node.value, dict) else ())]
    if len(problems) == before and missing:
        problems.append(Problem(node.place, f"a model of the judge needs {' and '.join(missing)}"))
    if len(problems) > before:
        return None
    key = found.pop("api_key", {})
    if key and "api_key_env" in found:
        problems.append(Problem(node.place, "give api_key or api_key_env, not both"))
        return None
    return ModelSettings(**found, **key)


def _literal_key(value: Any) -> dict[str, str]:
    """Read a key, or the variable that has it; its value is in no message."""
    if not isinstance(value, str):
        raise ValueError("expected a text (quote it)")  # noqa: TRY004  (all that is wrong is one kind)
    if match := _VARIABLE.fullmatch(value.strip()):
        return {"api_key_env": match[1]}
    key = text(value).strip() if value.strip() else ""
    if not key.isascii() or not (key.isprintable() or not key):
        raise ValueError("holds characters that no HTTP header can")
    return {"api_key": key}


def _named_key(value: Any) -> dict[str, str]:
    match = _VARIABLE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError("a run's config is stored with the run: name a variable, `api_key_env: JUDGE_API_KEY`")
    return {"api_key_env": match[1]}


def _variable_name(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
        raise ValueError("expected the name of an environment variable, not a key")
    return value


def _variable(match: re.Match[str]) -> str:
    value = os.environ.get(match[1], "")
    if not value:
        raise ValueError(f"the environment variable {match[1]} is empty or not set")
    return value
