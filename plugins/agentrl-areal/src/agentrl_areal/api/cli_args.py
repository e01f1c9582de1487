"""Counterpart of `areal.api.cli_args`: `GenerationHyperparameters`, sampling options with AReaL's defaults.

The options can also be converted to arguments of OpenAI's clients.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal

import attrs

import agentrl_core
from agentrl_areal.elsewhere import explain
from agentrl_areal.utils import logging

__all__ = ["GenerationHyperparameters"]

logger = logging.getLogger("CLIArgs")

_NOT_OPENAIS = frozenset(
    {
        "min_new_tokens", "greedy", "top_k", "stop_token_ids", "ignore_eos", "skip_special_tokens", "lora_name",
        "use_beam_search", "max_tokens",
    }
)  # fmt: skip
_LIMITS = {
    "completions": "max_completion_tokens",
    "responses": "max_output_tokens",
    "openai-agents": "max_tokens",
}
"""Kind of API -> name of the argument for `max_new_tokens`."""


@attrs.define(kw_only=True)
class GenerationHyperparameters(agentrl_core.GenerationHyperparameters):
    """Sampling options of a call, as in AReaL; the base class documents their meaning.

    While training, the policy's temperature applies, and top-p and top-k are off.
    """

    n_samples: int = 1
    """Records per task, in the options of a workflow; 1 for a single call."""
    max_new_tokens: int | None = 16384
    min_new_tokens: int | None = 0
    max_tokens: int | None = 32768
    temperature: float | None = 1.0
    """None: the temperature of the run, or of its evaluations."""
    top_k: int = 10**8
    stop_token_ids: Sequence[int] = attrs.field(factory=list)

    def to_openai_completions_args_dict(self, exclude_args: Collection[str] | None = None) -> dict[str, Any]:
        """Return the arguments of `chat.completions.create`."""
        return self.to_openai_args_dict(exclude_args=exclude_args, api_format="completions")

    def to_openai_responses_args_dict(self, exclude_args: Collection[str] | None = None) -> dict[str, Any]:
        """Return the arguments of `responses.create`."""
        return self.to_openai_args_dict(exclude_args=exclude_args, api_format="responses")

    def to_openai_agents_model_settings_dict(self, exclude_args: Collection[str] | None = None) -> dict[str, Any]:
        """Return the arguments of `agents.ModelSettings`."""
        return self.to_openai_args_dict(exclude_args=exclude_args, api_format="openai-agents")

    def to_openai_args_dict(
        self,
        exclude_args: Collection[str] | None = None,
        api_format: Literal["completions", "responses", "openai-agents"] = "completions",
    ) -> dict[str, Any]:
        """Return the options as arguments of an OpenAI client, under its names.

        Options that OpenAI does not have, and those in `exclude_args`, are left out, with a warning in the log if they
        are not at their default. Raises `ValueError` for an unknown `api_format`.
        """
        if api_format not in _LIMITS:
            raise ValueError(f"Unsupported API format: {api_format}; expected one of {', '.join(_LIMITS)}")
        names = {"n_samples": "n", "max_new_tokens": _LIMITS[api_format]}
        left_out = _NOT_OPENAIS | set(exclude_args or ())
        unchanged = type(self)()
        arguments = {}
        for name, value in attrs.asdict(self, recurse=False).items():
            if name not in left_out:
                arguments[names.get(name, name)] = value
            elif value != getattr(unchanged, name):
                logger.warning("%s = %r is ignored: OpenAI's clients have no such argument", name, value)
        return arguments


_CONFIG = "use an agentrl config instead; `agentrl config show` prints one with its defaults"
_ELSEWHERE = dict.fromkeys(
    (
        "AgentConfig", "BaseExperimentConfig", "EvaluatorConfig", "GRPOConfig", "InferenceEngineConfig", "NormConfig",
        "OptimizerConfig", "PPOActorConfig", "PPOConfig", "PPOCriticConfig", "PerfTracerConfig", "SFTConfig",
        "SGLangConfig", "TrainDatasetConfig", "TrainEngineConfig", "ValidDatasetConfig", "load_expr_config",
        "parse_cli_args", "vLLMConfig",
    ),
    _CONFIG,
)  # fmt: skip


def __getattr__(name: str) -> Any:
    raise explain(__name__, name, _ELSEWHERE)
