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
class OptionHint:
    """Option of ours that replaces another trainer's option."""

    trainers: str
    """Name of the trainer that has the option."""
    here: str
    """Our option as `section.option: value`, with an example value."""
    note: str = field(default="", kw_only=True)
    """Remark on the value; empty if there is none."""


FOREIGN: Mapping[str, OptionHint] = {
    # losses
    "eps_clip_higher": OptionHint("AReaL", "loss.clip_higher: 0.08", note="added to loss.clip, so 0.28 is 0.08"),
    "use_decoupled_loss": OptionHint(
        "AReaL", "loss: {use: ppo, behaviour_weight: false}", note="true is the paper's form"
    ),
    "recompute_logprob": OptionHint("AReaL", "loss.proximal: recompute", note="for losses with a proximal policy"),
    "behave_imp_weight_cap": OptionHint("AReaL", "loss: {use: ppo, behaviour_weight_cap: 5.0}"),
    "rejection_sampling": OptionHint(
        "AReaL",
        "loss.corrections: [{use: masked_is, level: token, low: 0.5, high: 5.0}]",
        note="for its action `clamp`: `use: truncated_is` with a cap",
    ),
    "importance_sampling_level": OptionHint("AReaL", "loss: gspo", note="for its level `sequence`"),
    "use_sapo_loss": OptionHint("AReaL", "loss: sapo"),
    "kl_ctl": OptionHint(
        "AReaL", "loss.corrections: [{use: kl, beta: 0.1, estimator: k1}]", note="a term of the loss, not of the reward"
    ),
    "kl_estimator": OptionHint("AReaL", "loss.corrections: [{use: kl, beta: 0.1, estimator: k1}]"),
    # rewards and advantages
    "adv_norm": OptionHint(
        "AReaL",
        "advantage: {use: norm, mean_level: batch, std_level: batch, weigh: token}",
        note="with the levels that it has",
    ),
    "reward_norm": OptionHint(
        "AReaL", "advantage: {use: norm, mean_level: group, std_level: group}", note="with the levels that it has"
    ),
    "reward_normalization": OptionHint("AReaL", "advantage: {use: norm, mean_level: group, std_level: group}"),
    "reward_bias": OptionHint("AReaL", "shaping: [{use: affine, bias: 0.5}]"),
    "reward_scaling": OptionHint("AReaL", "shaping: [{use: affine, scale: 2.0}]"),
    "reward_clip": OptionHint("AReaL", "shaping: [{use: affine, clip: 20.0}]"),
    "overlong_tokens": OptionHint(
        "AReaL",
        "shaping: [{use: overlong, max_tokens: 4096, buffer_tokens: 512}]",
        note="overlong_tokens is buffer_tokens here",
    ),
    "efficient_rewarding": OptionHint("AgentCPM's AgentRL", "shaping: [rank]"),
    # groups
    "drop_zero_advantage": OptionHint("AgentCPM's AgentRL", "filters: [zero_variance]", note="the default"),
    "balance_sample": OptionHint("AgentCPM's AgentRL", "filters: [zero_variance, balance_sample]"),
    "min_turns": OptionHint("AgentCPM's AgentRL", "filters: [zero_variance, {use: min_turns, turns: 1}]"),
    "reserve_context_error_count": OptionHint(
        "AgentCPM's AgentRL", "filters: [zero_variance, {use: overlong, reserve: 0}]"
    ),
    "dynamic_bs": OptionHint("AReaL", "rollout.dynamic_sampling: true", note="for its `dynamic_bs: false`"),
    "drop_incomplete_group": OptionHint(
        "AReaL", "rollout.min_group_size: 8", note="the same number as rollout.group_size"
    ),
    "n_samples": OptionHint("AReaL", "rollout.group_size: 8"),
    # sampling and training
    "max_new_tokens": OptionHint("AReaL and AgentCPM's AgentRL", "sampling.max_tokens: 1024"),
    "consumer_batch_size": OptionHint("AReaL", "rollout.tasks_per_step: 16", note="groups per step"),
    "request_timeout": OptionHint("AReaL", "rollout.timeout_s: 3600.0", note="seconds of one episode"),
    "sync_sampling": OptionHint("AgentCPM's AgentRL", "rollout.max_head_offpolicyness: 0"),
    "max_concurrent_samples_per_process": OptionHint(
        "AgentCPM's AgentRL", "rollout.max_concurrent_rollouts: 32", note="for the whole run, not per process"
    ),
    "ppo_n_minibatches": OptionHint("AReaL", "trainer.updates: 4"),
    "optimizer": OptionHint("AReaL", "trainer.lr: 5.0e-6", note="also betas, weight_decay and max_grad_norm"),
    "max_tokens_per_mb": OptionHint("AReaL", "trainer.max_tokens_per_microbatch: 8192"),
    "enable_tree_training": OptionHint("AReaL", "trainer.attention: auto", note="`rows` turns it off"),
    "torch_dtype": OptionHint("AgentCPM's AgentRL", "model.dtype: float32"),
    # the gateway
    "tool_call_parser": OptionHint("AReaL and AgentCPM's AgentRL", "gateway.tool_parser: auto"),
    "mcp_manager_url": OptionHint(
        "AgentCPM's AgentRL",
        'tools.servers: [{use: agentdock, url: "http://127.0.0.1:8000/mcpapi"}]',
        note="of the package agentrl-mcp; `use: mcp` for an address that ends in /mcp",
    ),
    "admin_api_key": OptionHint(
        "AReaL", "gateway.admin_key_env: AGENTRL_ADMIN_KEY", note="the environment variable that holds the key"
    ),
    "session_timeout_seconds": OptionHint("AReaL", "gateway.session_ttl_s: 3600.0"),
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
