"""AReaL's `GenerationHyperparameters`: sampling options with its defaults, as arguments for OpenAI's clients, too."""

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
"""Kind of API -> its name of `max_new_tokens`."""


@attrs.define(kw_only=True)
class GenerationHyperparameters(agentrl_core.GenerationHyperparameters):
    """AReaL's options of a call; what they do is told where they are defined.

    While training, the policy's temperature holds, and top-p and top-k are off.
    """

    n_samples: int = 1
    """Records of a task, in the options of a workflow; of a single call, 1."""
    max_new_tokens: int | None = 16384
    min_new_tokens: int | None = 0
    max_tokens: int | None = 32768
    temperature: float | None = 1.0
    """None: that of the run, or of its evaluations."""
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
        """Return the options that a client of OpenAI's takes, under its names.

        An option that is left out, for it is not OpenAI's or is in `exclude_args`, is logged where it is not at its
        default. `ValueError` for another API.
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
                logger.warning("%s = %r is no argument of OpenAI's clients and is left out", name, value)
        return arguments


_CONFIG = "a run is described by an agentrl config; `agentrl config show` prints one with its defaults"
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
