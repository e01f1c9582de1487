"""Validators of single options, whose messages state the expected value in the terms of a config file."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import attrs

from agentrl_core.config.nodes import without_password
from agentrl_core.http import proxies


@attrs.frozen
class Must:
    """Validator whose message states the expected value in the terms of a config file."""

    expected: str
    holds: Callable[[Any], bool]

    def __call__(self, _instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        """Raise `ValueError` if `value` is not as expected."""
        if not self.holds(value):
            found = without_password(repr(value))
            raise ValueError(f"{attribute.name}: expected {self.expected}, found {found}")


positive = Must("a number above 0", lambda value: value > 0)
not_negative = Must("a number of at least 0", lambda value: value >= 0)
at_least_one = Must("a number of at least 1", lambda value: value >= 1)
fraction = Must("a number from 0 to 1", lambda value: 0 <= value <= 1)
probability_mass = Must("a number above 0 and at most 1", lambda value: 0 < value <= 1)
filled = Must("a text that is not empty", bool)
port_number = Must("a port from 0 to 65535", lambda value: 0 <= value <= 65535)  # noqa: PLR2004  (16 bits)
seed_number = Must("a whole number from 0 to 2**63 - 1", lambda value: 0 <= value < 2**63)
run_name = Must(
    "letters, digits, '.', '_' and '-', the first a letter or a digit",
    lambda value: not value or re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value) is not None,
)
provider_url = Must(
    "http(s)://host[:port][/path], the part before /chat/completions, without user, password or query",
    lambda value: re.fullmatch(r"https?://[^/?#@\s]+(/(?![^?#\s]*/?chat/completions/?$)[^?#\s]*)?", value) is not None,
)
public_url = Must(
    "http(s)://host[:port][/path], without user, password, query or /v1",
    lambda value: re.fullmatch(r"https?://[^/?#@\s]+(/(?![^?#\s]*v1/?$)[^?#\s]*)?", value) is not None,
)
device_name = Must("auto, cpu, cuda or cuda:N", lambda value: re.fullmatch(r"auto|cpu|cuda(:\d+)?", value) is not None)
limit = Must("a number above 0, or null for no limit", lambda value: value is None or value > 0)
proxy_option = Must(proxies.FORMS, proxies.is_option)
no_policy = Must("no model named default, which is the policy's name", lambda value: "default" not in value)
no_episode_variable = Must(
    "no variable that is set per episode (OPENAI_BASE_URL, OPENAI_API_KEY, ANTHROPIC_BASE_URL, ANTHROPIC_API_KEY)",
    lambda value: (
        not {f"{api}_{item}" for api in ("OPENAI", "ANTHROPIC") for item in ("BASE_URL", "API_KEY")} & set(value)
    ),
)


def without(*names: str) -> Must:
    """Return a validator that refuses options with the names of the section's own fields."""
    return Must(f"no option named {' or '.join(names)}", lambda options: not set(names) & set(options))
