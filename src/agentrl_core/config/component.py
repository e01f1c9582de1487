"""Value of an option that names a pluggable part of a run, with that part's own options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from attrs import field

from agentrl_core.config.validators import filled, without

AUTO = "auto"
"""Placeholder for a component that another part of the config chooses."""


@attrs.frozen
class Component:
    """Pluggable part of a run, `{use: NAME, …options}`; a bare string means `{use: …}`."""

    use: str = field(validator=filled)
    """Registry name, `distribution/name`, `module:attr`, `file.py:attr` or `pkg.mod.Attr`."""
    options: Mapping[str, Any] = field(factory=dict, validator=without("use"))
    """Arguments of the component's constructor."""
