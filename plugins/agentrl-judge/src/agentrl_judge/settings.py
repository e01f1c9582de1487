"""Parsing of a judge's models and options, shared by `config.yaml` and `agent_config.yml`.

Values come as nodes that know their file and line, so that every mistake can be reported with its place.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import attrs

from agentrl_core.api.http import PROXY_FORMS, is_proxy_option
from agentrl_core.api.options import Node, Problem, describe, did_you_mean

Readers: TypeAlias = Mapping[str, Callable[[Any], Any]]
"""Key -> function that checks and converts its plain value, or raises a ValueError that says what was expected."""

_SERVED_NAMES = ("served-model-name", "served_model_name")
"""Names that AgentRL's users give `model`, after vLLM's and SGLang's option."""

RESERVED = frozenset({"model", "messages", "stream", "n", "response_format"})
"""Fields of a request that `extra_body` cannot set."""

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_PLACEHOLDER = re.compile(r"<YOUR_[A-Z0-9_]+>")
_PART = 6
"""Characters of an API key that are removed wherever they stand together."""
_FOREIGN = ("OPENAI_", "ANTHROPIC_")
"""Prefixes of variables that point agents at the run's gateway. A judge at such an address would be the policy."""


@attrs.frozen(kw_only=True)
class ModelSettings:
    """One model on one OpenAI-compatible server."""

    model: str
    base_url: str
    """Address without `/chat/completions`."""
    api_key: str = attrs.field(default="", repr=False)
    """API key, if the file contains it."""
    api_key_env: str | None = None
    """Environment variable with the API key; it is read for each call, and its value is not kept."""
    proxy: str | None = None
    """Address of an HTTP proxy, or `direct` for none; None: use the proxy variables of the environment."""
    extra_body: Mapping[str, Any] = attrs.field(factory=dict)
    """Additional fields of each request's body."""
    input_price: float = 0.0
    """US dollars per million prompt tokens."""
    output_price: float = 0.0
    """US dollars per million tokens of the reply."""

    @property
    def label(self) -> str:
        """Name of the model in messages."""
        return f"{self.model} at {self.base_url}"

    def read_key(self) -> str:
        """Return the API key, empty if the server needs none. Raises ValueError, without the key, if it is unusable."""
        key = self.api_key
        if variable := self.api_key_env:
            key = os.environ.get(variable, "").strip()
            if not key or not key.isascii() or not key.isprintable():
                state = "holds characters that an HTTP header cannot" if key else "is empty or not set"
                raise ValueError(f"no API key: the variable {variable} {state}")
        return key

    def without_key(self, said: str) -> str:
        """Return a text of the server without the API key, and without parts of it: some servers quote both ends."""
        key = os.environ.get(self.api_key_env or "", "").strip() or self.api_key
        if not key:
            return said
        parts = "|".join(re.escape(key[at : at + _PART]) for at in range(max(1, len(key) - _PART + 1)))
        # Parts overlap, so each match may begin inside of another one.
        matches = re.finditer(f"(?=({parts}))", said)
        hidden = set().union(*(range(match.start(1), match.end(1)) for match in matches))
        first = hidden - {at + 1 for at in hidden}
        return "".join("…" if at in first else sign for at, sign in enumerate(said) if at in first or at not in hidden)

    def cost(self, prompt_tokens: int, output_tokens: int) -> float:
        """Return the price of one call in US dollars."""
        return (prompt_tokens * self.input_price + output_tokens * self.output_price) / 1e6


def read_models(node: Node, problems: list[Problem], *, keys_in_file: bool) -> tuple[ModelSettings, ...]:
    """Read a list of models, and add mistakes to `problems`.

    With `keys_in_file` an `api_key` may be the key itself. A run's config is stored with the run, so there it must be a
    `${VARIABLE}`.
    """
    if not isinstance(node.value, list) or not node.value:
        problems.append(Problem(node.place, "models: expected a list of {base_url: …, model: …}, at least one"))
        return ()
    found = [_read_model(item, problems, keys_in_file=keys_in_file) for item in node.value]
    return tuple(model for model in found if model is not None)


def read_section(node: Node, readers: Readers, problems: list[Problem]) -> dict[str, Any]:
    """Read the keys of a section, and add unknown keys and wrong values to `problems`."""
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
    """Read a text and replace each `${VARIABLE}` by its value."""
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
    """Read additional fields for the body of each request."""
    if not isinstance(value, Mapping):
        raise ValueError(f"expected a section, found {describe(value)}")  # noqa: TRY004  (all that is wrong is one kind)
    if taken := sorted(RESERVED & value.keys()):
        raise ValueError(f"{taken[0]} is set by agentrl itself")
    return dict(value)


def base_url(value: Any) -> str:
    """Read a server's address; without a path it gets `/v1`, the usual path of OpenAI-compatible servers."""
    for name in _VARIABLE.findall(value) if isinstance(value, str) else ():
        if name.startswith(_FOREIGN):
            raise ValueError(f"{name} may point at the gateway of a run, so the policy would judge; write the address")
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
        raise ValueError(f"expected {PROXY_FORMS}")
    return value


def _read_model(node: Node, problems: list[Problem], *, keys_in_file: bool) -> ModelSettings | None:
    before = len(problems)
    readers: Readers = {
        "model": text,
        **dict.fromkeys(_SERVED_NAMES, text),
        "base_url": base_url,
        "api_key": _literal_key if keys_in_file else _named_key,
        "api_key_env": _variable_name,
        "proxy": proxy,
        "extra_body": extra_body,
        "input_price": amount,
        "output_price": amount,
    }
    found = read_section(node, readers, problems)
    names = {key: found.pop(key) for key in ("model", *_SERVED_NAMES) if key in found}
    if len(set(names.values())) > 1:
        problems.append(Problem(node.place, f"{' and '.join(names)} differ; keep one of them"))
    found |= {"model": next(iter(names.values()))} if names else {}
    # Reported only without other mistakes: the key may be there, with a wrong value or a misspelled name.
    given = [*node.value, *found] if isinstance(node.value, dict) else ()
    missing = [key for key in ("base_url", "model") if key not in given]
    if len(problems) == before and missing:
        problems.append(Problem(node.place, f"the model has no {' and no '.join(missing)}"))
    if len(problems) > before:
        return None
    key = found.pop("api_key", {})
    if key and "api_key_env" in found:
        problems.append(Problem(node.place, "set api_key or api_key_env, not both"))
        return None
    return ModelSettings(**found, **key)


def _literal_key(value: Any) -> dict[str, str]:
    """Read a key, or the variable that holds it. No error message contains the value."""
    if not isinstance(value, str):
        raise ValueError("expected a text (quote it)")  # noqa: TRY004  (all that is wrong is one kind)
    if match := _VARIABLE.fullmatch(value.strip()):
        return {"api_key_env": match[1]}
    if match := _PLACEHOLDER.search(value):
        variable = match[0].strip("<>").removeprefix("YOUR_")
        raise ValueError(
            f'{match[0]} is a placeholder; write api_key: "${{{variable}}}" and set that environment variable, or '
            'api_key: "" if the server needs no key'
        )
    key = text(value).strip() if value.strip() else ""
    if not key.isascii() or not (key.isprintable() or not key):
        raise ValueError("contains characters that an HTTP header cannot hold")
    return {"api_key": key}


def _named_key(value: Any) -> dict[str, str]:
    match = _VARIABLE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(
            "a run's config is stored with the run; fix: name a variable with the key, `api_key_env: JUDGE_API_KEY`"
        )
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
