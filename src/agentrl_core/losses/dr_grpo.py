"""Dr. GRPO: GRPO without the divisions by response length and by the group's standard deviation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs

from agentrl_core.losses.grpo import GRPO


@attrs.frozen(kw_only=True)
class DrGRPO(GRPO):
    """GRPO's surrogate without its two biased divisions (arXiv 2503.20783).

        l = -min(rho * A, clip(rho, 1 - clip, 1 + clip + clip_higher) * A),  A = R - mean(R of the group)

    Division by a sequence's own length favours long wrong answers. Division by the group's standard deviation favours
    tasks that are almost solved or almost hopeless. Normaliser: sum over loss tokens / (number of sequences x
    `horizon`), a constant; `horizon` is `sampling.max_tokens` unless given. Advantage: `grpo` with `std: false`.
    """

    aggregation_defaults: ClassVar[Mapping[str, Any]] = {"aggregation": "constant"}
    advantage_default: ClassVar[Mapping[str, Any]] = {"use": "grpo", "std": False}
