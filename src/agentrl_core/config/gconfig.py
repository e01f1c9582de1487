"""Options of AReaL's `gconfig` and `eval_gconfig` that we accept only at the one value that we always use.

Other values are errors, so that a config from AReaL never silently means something else. Options with a counterpart of
ours are in `aliases.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from agentrl_core.config.nodes import describe


@attrs.frozen
class Rule:
    """Accepted values of an option: those that describe what we do anyway."""

    accepts: Callable[[Any], bool]
    reason: str
    """Reason why other values are refused, and the expected value."""

    def problem(self, value: Any) -> str:
        """Return the problem with `value`; empty if the value is accepted."""
        return "" if value is None or self.accepts(value) else f"{self.reason}, found {describe(value)}"


def rule(section: str, option: str) -> Rule | None:
    """Return the rule of an option of `gconfig` or `eval_gconfig`; None if it has a counterpart or is unknown."""
    return (_OF_EVALUATIONS if section == "eval_gconfig" else _OF_TRAINING).get(option)


def _number(accepts: Callable[[float], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int | float) and not isinstance(value, bool) and accepts(value)


_COMMON: Mapping[str, Rule] = {
    "frequency_penalty": Rule(
        _number(lambda value: value == 0), "a penalty would change the distribution that is trained, expected 0"
    ),
    "use_beam_search": Rule(lambda value: value is False, "replies are sampled, expected false"),
    "skip_special_tokens": Rule(lambda value: isinstance(value, bool), "expected true or false"),
    "lora_name": Rule(lambda value: isinstance(value, str), "there is only one policy, expected any text"),
}
_OF_TRAINING = {
    **_COMMON,
    "greedy": Rule(
        lambda value: value is False,
        "greedy sampling never explores, expected false; for evaluations: eval.temperature: 0",
    ),
}
_WHOLE_RUN = "evaluations differ from training only in temperature, top_p and top_k; set it in gconfig"
_OF_EVALUATIONS = {
    **_COMMON,
    "greedy": Rule(lambda value: value is False, "expected true or false"),
    "n_samples": Rule(_number(lambda value: value == 1), "an evaluation samples each task once, expected 1"),
    **{
        name: Rule(lambda _: False, _WHOLE_RUN)
        for name in ("max_new_tokens", "min_new_tokens", "max_tokens", "stop", "stop_token_ids", "ignore_eos")
    },
}
