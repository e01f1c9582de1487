"""Where models write their thoughts, by name."""

from __future__ import annotations

from collections.abc import Mapping

import attrs


@attrs.frozen(kw_only=True)
class ReasoningFormat:
    """The tags between which a model thinks."""

    open: str
    close: str
    separate: bool = True
    """Whether thoughts are kept out of the content; if not, they are only no place for calls."""


THINK = ReasoningFormat(open="<think>", close="</think>")

REASONING_FORMATS: Mapping[str, ReasoningFormat] = {
    "none": attrs.evolve(THINK, separate=False),
    "think": THINK,
    "mistral": ReasoningFormat(open="[THINK]", close="[/THINK]"),
    "minicpm": ReasoningFormat(open="<|thought_start|>", close="<|thought_end|>"),
}
"""Values of `gateway.reasoning_parser` besides `auto`; `none` leaves thoughts in the content."""
