"""Hints for options of AReaL and AgentCPM's AgentRL that cannot be translated: the option to write instead.

Their values need a change: several options of ours, another unit, or another structure. `aliases.py` translates the
names whose values can stay. The hints end up in the message for an unknown option.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from attrs import field

from agentrl_core.config.aliases import RENAMED


@attrs.frozen
class Counterpart:
    """Option of ours that replaces another trainer's option."""

    trainers: str
    """Name of the trainer that has the option."""
    here: str
    """Our option as `section.option: value`, with an example value."""
    note: str = field(default="", kw_only=True)
    """Remark on the value; empty if there is none."""


FOREIGN: Mapping[str, Counterpart] = {
    # losses
    "eps_clip_higher": Counterpart("AReaL", "loss.clip_higher: 0.08", note="added to loss.clip, so 0.28 is 0.08"),
    "use_decoupled_loss": Counterpart(
        "AReaL", "loss: {use: ppo, behaviour_weight: false}", note="true is the paper's form"
    ),
    "recompute_logprob": Counterpart("AReaL", "loss.proximal: recompute", note="for losses with a proximal policy"),
    "behave_imp_weight_cap": Counterpart("AReaL", "loss: {use: ppo, behaviour_weight_cap: 5.0}"),
    "rejection_sampling": Counterpart(
        "AReaL",
        "loss.corrections: [{use: masked_is, level: token, low: 0.5, high: 5.0}]",
        note="for its action `clamp`: `use: truncated_is` with a cap",
    ),
    "importance_sampling_level": Counterpart("AReaL", "loss: gspo", note="for its level `sequence`"),
    "use_sapo_loss": Counterpart("AReaL", "loss: sapo"),
    "kl_ctl": Counterpart(
        "AReaL", "loss.corrections: [{use: kl, beta: 0.1, estimator: k1}]", note="a term of the loss, not of the reward"
    ),
    "kl_estimator": Counterpart("AReaL", "loss.corrections: [{use: kl, beta: 0.1, estimator: k1}]"),
    # rewards and advantages
    "adv_norm": Counterpart(
        "AReaL",
        "advantage: {use: norm, mean_level: batch, std_level: batch, weigh: token}",
        note="with the levels that it has",
    ),
    "reward_norm": Counterpart(
        "AReaL", "advantage: {use: norm, mean_level: group, std_level: group}", note="with the levels that it has"
    ),
    "reward_normalization": Counterpart("AReaL", "advantage: {use: norm, mean_level: group, std_level: group}"),
    "reward_bias": Counterpart("AReaL", "shaping: [{use: affine, bias: 0.5}]"),
    "reward_scaling": Counterpart("AReaL", "shaping: [{use: affine, scale: 2.0}]"),
    "reward_clip": Counterpart("AReaL", "shaping: [{use: affine, clip: 20.0}]"),
    "overlong_tokens": Counterpart(
        "AReaL",
        "shaping: [{use: overlong, max_tokens: 4096, buffer_tokens: 512}]",
        note="overlong_tokens is buffer_tokens here",
    ),
    "efficient_rewarding": Counterpart("AgentCPM's AgentRL", "shaping: [rank]"),
    # groups
    "drop_zero_advantage": Counterpart("AgentCPM's AgentRL", "filters: [zero_variance]", note="the default"),
    "balance_sample": Counterpart("AgentCPM's AgentRL", "filters: [zero_variance, balance_sample]"),
    "min_turns": Counterpart("AgentCPM's AgentRL", "filters: [zero_variance, {use: min_turns, turns: 1}]"),
    "reserve_context_error_count": Counterpart(
        "AgentCPM's AgentRL", "filters: [zero_variance, {use: overlong, reserve: 0}]"
    ),
    "dynamic_bs": Counterpart("AReaL", "rollout.dynamic_sampling: true", note="for its `dynamic_bs: false`"),
    "drop_incomplete_group": Counterpart(
        "AReaL", "rollout.min_group_size: 8", note="the same number as rollout.group_size"
    ),
    "n_samples": Counterpart("AReaL", "rollout.group_size: 8"),
    # sampling and training
    "max_new_tokens": Counterpart("AReaL and AgentCPM's AgentRL", "sampling.max_tokens: 1024"),
    "consumer_batch_size": Counterpart("AReaL", "rollout.tasks_per_step: 16", note="groups per step"),
    "request_timeout": Counterpart("AReaL", "rollout.timeout_s: 3600.0", note="seconds of one episode"),
    "sync_sampling": Counterpart("AgentCPM's AgentRL", "rollout.max_head_offpolicyness: 0"),
    "max_concurrent_samples_per_process": Counterpart(
        "AgentCPM's AgentRL", "rollout.max_concurrent_rollouts: 32", note="for the whole run, not per process"
    ),
    "ppo_n_minibatches": Counterpart("AReaL", "trainer.updates: 4"),
    "optimizer": Counterpart("AReaL", "trainer.lr: 5.0e-6", note="also betas, weight_decay and max_grad_norm"),
    "max_tokens_per_mb": Counterpart("AReaL", "trainer.max_tokens_per_microbatch: 8192"),
    "enable_tree_training": Counterpart("AReaL", "trainer.attention: auto", note="`rows` turns it off"),
    "torch_dtype": Counterpart("AgentCPM's AgentRL", "model.dtype: float32"),
    # the gateway
    "tool_call_parser": Counterpart("AReaL and AgentCPM's AgentRL", "gateway.tool_parser: auto"),
    "admin_api_key": Counterpart(
        "AReaL", "gateway.admin_key_env: AGENTRL_ADMIN_KEY", note="the environment variable that holds the key"
    ),
    "session_timeout_seconds": Counterpart("AReaL", "gateway.session_ttl_s: 3600.0"),
}
"""Our counterpart for each foreign option name, in whatever section a user writes it."""


def counterpart(name: str) -> str:
    """Return the end of a message: whose option `name` is, and what to write instead; empty if it is unknown."""
    if known := FOREIGN.get(name):
        return f" (from {known.trainers}); write {known.here}{f' ({known.note})' if known.note else ''}"
    return _ALIASES.get(name, "")


_ALIASES = {
    there[-1]: f" (did you mean {'.'.join(here)}?)"
    for there, here in RENAMED.items()
    if there[-1] != here[-1] and (len(there) == 1 or there[0] == "actor")
}
"""Hints for aliases that stand in the wrong section."""
