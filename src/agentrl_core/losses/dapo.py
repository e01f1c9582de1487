"""DAPO: GRPO with a higher upper clip bound and a mean over all tokens of the update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
from attrs import field, validators

from agentrl_core.losses.grpo import GRPO


@attrs.frozen(kw_only=True)
class DAPO(GRPO):
    """DAPO's surrogate (arXiv 2503.14476, eq. 8) with its clip-higher: 0.2 down, 0.28 up.

        l = -min(rho * A, clip(rho, 1 - 0.2, 1 + 0.28) * A)

    Normaliser: sum over loss tokens / number of loss tokens of the whole optimizer update. Advantage: `grpo`. The
    paper's other two parts are separate options: dynamic sampling is `rollout.dynamic_sampling`, overlong episodes are
    handled by the shaping or the filter `overlong`.
    """

    clip_higher: float = field(default=0.08, validator=validators.ge(0.0))
    aggregation_defaults: ClassVar[Mapping[str, Any]] = {"aggregation": "token_mean"}
