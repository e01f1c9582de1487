"""AReaL's `RLVRWorkflow`: one prompt, one reply, and a reward from a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from agentrl_areal import workflow_context
from agentrl_areal.api import AsyncRewardWrapper, InferenceEngine, ModelRequest, ModelResponse, RolloutWorkflow
from agentrl_areal.api.cli_args import GenerationHyperparameters  # noqa: TC001 (options are held against it)
from agentrl_areal.utils import stats_tracker
from agentrl_areal.utils.dynamic_import import import_from_string
from agentrl_areal.utils.hf_utils import apply_chat_template, load_hf_tokenizer

__all__ = ["RLVRWorkflow", "default_data_extract_prompt_fn", "default_get_input_ids_fn"]


def default_get_input_ids_fn(data: Any, tokenizer: Any, enable_thinking: bool) -> list[int]:  # noqa: FBT001 (AReaL's)
    """Return the token ids of a conversation with the generation prompt, [T]."""
    ids: list[int] = apply_chat_template(
        tokenizer, data, tokenize=True, add_generation_prompt=True, enable_thinking=enable_thinking
    )
    return ids


def default_data_extract_prompt_fn(data: dict[str, Any]) -> Any:
    """Return the part of a row that is the prompt: its `messages`."""
    return data["messages"]


class RLVRWorkflow(RolloutWorkflow):
    """Samples one reply; the reward is `reward_fn(prompt, completion, prompt_ids, completion_ids, **row)`.

    `data_extract_prompt_fn(row)` returns the prompt, and `get_input_ids_fn(prompt, tokenizer, enable_thinking)` its
    token ids. The three functions and the tokenizer may also be given by name.
    """

    def __init__(
        self,
        reward_fn: Callable[..., Any] | str,
        gconfig: GenerationHyperparameters,
        tokenizer: Any,
        enable_thinking: bool = False,  # noqa: FBT001, FBT002 (AReaL's)
        get_input_ids_fn: Callable[..., list[int]] | str = default_get_input_ids_fn,
        data_extract_prompt_fn: Callable[..., Any] | str = default_data_extract_prompt_fn,
    ) -> None:
        self.tokenizer = load_hf_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
        self.gconfig = gconfig.new_with_stop_and_pad_token_ids(self.tokenizer)
        self.enable_thinking = enable_thinking
        self.async_reward_fn = AsyncRewardWrapper(reward_fn)
        self.get_input_ids_fn = _named(get_input_ids_fn)
        self.data_extract_prompt_fn = _named(data_extract_prompt_fn)

    async def _compute_rewards(self, resp: ModelResponse, prompt_str: str, task_data: dict[str, Any]) -> float:
        return await self.async_reward_fn(
            prompt_str, self.tokenizer.decode(resp.output_tokens), resp.input_tokens, resp.output_tokens, **task_data
        )

    async def arun_episode(self, engine: InferenceEngine, data: dict[str, Any]) -> dict[str, Any]:
        """Run one episode; the returned tensors have one row."""
        ids = self.get_input_ids_fn(self.data_extract_prompt_fn(data), self.tokenizer, self.enable_thinking)
        request = ModelRequest(input_ids=ids, gconfig=self.gconfig.new(n_samples=1), tokenizer=self.tokenizer)
        resp = await engine.agenerate(request)
        reward = await self._compute_rewards(resp, self.tokenizer.decode(ids), data)
        stats_tracker.get(workflow_context.stat_scope()).scalar(reward=reward)
        return row_of([*resp.input_tokens, *resp.output_tokens], columns(resp), reward)


Columns: TypeAlias = tuple[list[Any], list[Any], list[Any]]
"""Loss mask, logprobs and policy versions of a row, [T] each."""


def columns(resp: ModelResponse, num_known: int = 0) -> Columns:
    """Return the columns of a response, for its prompt after the first `num_known` tokens and for its output.

    Prompt tokens have mask 0, logprob 0 and version -1.
    """
    new = resp.input_len - num_known
    return [0] * new + [1] * resp.output_len, [0.0] * new + resp.output_logprobs, [-1] * new + resp.output_versions


def row_of(ids: list[int], row: Columns, reward: float) -> dict[str, Any]:
    """Return AReaL's dict of tensors for one row: [1, T] each, and `rewards` [1]."""
    import torch

    loss_mask, logprobs, versions = row
    tensors = {
        "input_ids": torch.tensor(ids, dtype=torch.int32),
        "loss_mask": torch.tensor(loss_mask, dtype=torch.int32),
        "logprobs": torch.tensor(logprobs, dtype=torch.float32),
        "versions": torch.tensor(versions, dtype=torch.int32),
        "attention_mask": torch.ones(len(ids), dtype=torch.bool),
        "rewards": torch.tensor(reward, dtype=torch.float32),
    }
    return {name: tensor.unsqueeze(0) for name, tensor in tensors.items()}


def _named(function: Callable[..., Any] | str) -> Callable[..., Any]:
    found: Callable[..., Any] = import_from_string(function) if isinstance(function, str) else function
    return found
