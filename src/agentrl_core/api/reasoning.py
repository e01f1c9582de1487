"""Tags around the reasoning of a model, by the names of `gateway.reasoning_parser`."""

from __future__ import annotations

from collections.abc import Mapping

import attrs


@attrs.frozen(kw_only=True)
class ReasoningFormat:
    """Opening and closing tag of a model's reasoning."""

    open: str
    close: str
    separate: bool = True
    """Whether reasoning is kept out of the content. If not, the tags only mark text in which tool calls do not
    count."""


THINK = ReasoningFormat(open="<think>", close="</think>")

REASONING_FORMATS: Mapping[str, ReasoningFormat] = {
    "none": attrs.evolve(THINK, separate=False),
    "think": THINK,
    "mistral": ReasoningFormat(open="[THINK]", close="[/THINK]"),
    "minicpm": ReasoningFormat(open="<|thought_start|>", close="<|thought_end|>"),
}
"""Values of `gateway.reasoning_parser` besides `auto`; `none` leaves reasoning in the content."""
