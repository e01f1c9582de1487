"""AReaL's `MultiTurnWorkflow`: several tries in one conversation, until a function gives a reward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentrl_areal import workflow_context
from agentrl_areal.api import AsyncRewardWrapper, InferenceEngine, ModelRequest, RolloutWorkflow
from agentrl_areal.api.cli_args import GenerationHyperparameters  # noqa: TC001 (options are held against it)
from agentrl_areal.utils import stats_tracker
from agentrl_areal.utils.hf_utils import apply_chat_template
from agentrl_areal.workflow.rlvr import Columns, columns, row_of

__all__ = ["MultiTurnWorkflow"]

_FEEDBACK = (
    "Your answer is either wrong or not parsable to the reward function. You may misunderstand the original question. "
    "Please carefully read the original question, check the previous errors, and try to answer it again."
)


class MultiTurnWorkflow(RolloutWorkflow):
    """Asks up to `max_turns` times, with the same feedback after each try, until the reward is not 0.

    Each prompt continues the exact token ids of the conversation so far. The reward of the episode is the last try's,
    times `turn_discount` for each try before it.
    """

    def __init__(
        self,
        reward_fn: Callable[..., Any] | str,
        gconfig: GenerationHyperparameters,
        tokenizer: Any,
        max_turns: int,
        turn_discount: float,
    ) -> None:
        if max_turns <= 0:
            raise ValueError("max_turns must be positive")
        if not 0.0 < turn_discount <= 1.0:
            raise ValueError("turn_discount must be in (0, 1].")
        self.gconfig = gconfig.new_with_stop_and_pad_token_ids(tokenizer)
        self.tokenizer = tokenizer
        self.max_turns = max_turns
        self.turn_discount = turn_discount
        self.async_reward_fn = AsyncRewardWrapper(reward_fn)
        # Token ids of the feedback as it follows a turn, without the text that a template puts before a conversation.
        turn = [{"role": "assistant", "content": "some random message."}]
        before = apply_chat_template(tokenizer, turn)
        asked = [*turn, {"role": "user", "content": _FEEDBACK}]
        self.multi_turn_prompt_ids = apply_chat_template(tokenizer, asked, add_generation_prompt=True)[len(before) :]

    async def arun_episode(self, engine: InferenceEngine, data: dict[str, Any]) -> dict[str, Any]:
        """Run one episode; the returned tensors have one row, which holds all tries."""
        ids: list[int] = apply_chat_template(self.tokenizer, data["messages"], add_generation_prompt=True)
        known: list[int] = []
        row: Columns = ([], [], [])
        reward, turns = 0.0, 0
        while reward == 0.0 and turns < self.max_turns:
            if turns:
                # A reply that was cut at the token limit has no end token; the template expects one.
                ended = known[-1] == self.tokenizer.eos_token_id
                ids = [*known, *([] if ended else [self.tokenizer.eos_token_id]), *self.multi_turn_prompt_ids]
            request = ModelRequest(input_ids=ids, gconfig=self.gconfig.new(n_samples=1), tokenizer=self.tokenizer)
            resp = await engine.agenerate(request)
            reply = self.tokenizer.decode(resp.output_tokens)
            reward = await self.async_reward_fn(
                self.tokenizer.decode(ids), reply, resp.input_tokens, resp.output_tokens, **data
            )
            for column, more in zip(row, columns(resp, len(known)), strict=True):
                column.extend(more)
            known = [*resp.input_tokens, *resp.output_tokens]
            turns += 1
        reward = float(reward * self.turn_discount ** (turns - 1))
        stats_tracker.get(workflow_context.stat_scope()).scalar(reward=reward, num_turns=turns)
        return row_of(known, row, reward)
