"""Registration of agentrl-core's own components, by the same hooks as any package; holds names and strings only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentrl_core.plugins.hookspecs import hookimpl

if TYPE_CHECKING:
    from agentrl_core.plugins.hookspecs import Register

COMMANDS: Mapping[str, tuple[str, str]] = {
    "init": ("Write a demo, or a config for an agent that you already have.", "agentrl_core.cli.init:init"),
    "run": ("Train an agent from a config file.", "agentrl_core.cli.run:run"),
    "train": (
        "Train on what a run's samplers produce: create the run, or resume it.",
        "agentrl_core.cli.roles:train",
    ),
    "serve": (
        "Serve the policy of a run to its samplers, always with the newest weights.",
        "agentrl_core.cli.roles:serve",
    ),
    "sample": (
        "Run the agent of a run on its servers; start as many of these as you like.",
        "agentrl_core.cli.roles:sample",
    ),
    "sft": ("Fine-tune a model on demonstrations.", "agentrl_core.cli.sft:sft"),
    "config": ("Show and check configs.", "agentrl_core.cli.config:app"),
    "doctor": ("Find what keeps a run from working, and how to fix it.", "agentrl_core.cli.doctor:doctor"),
    "plugins": ("Show what is installed and what each package provides.", "agentrl_core.cli.plugins:app"),
    "runs": ("List, show, control and tidy up runs.", "agentrl_core.cli.runs:app"),
    "tools": ("List, call and serve the tools of a config.", "agentrl_core.cli.tools:app"),
    "trace": ("Look into the episodes of a run.", "agentrl_core.cli.trace:app"),
}
"""Command -> (first line of its help, "module:attr"), in the order of `agentrl --help`."""


@hookimpl
def register_workflows(register: Register[Any]) -> None:
    """Register the ready-made agents."""
    turns = "agentrl_core.rollout.ready_made.turns"
    register("single_turn", f"{turns}:SingleTurn", summary="one question, one answer, scored by the task's scorer")
    register("multi_turn", f"{turns}:MultiTurn", summary="asks again, with feedback, until the answer is right")


@hookimpl
def register_scorers(register: Register[Any]) -> None:
    """Register the scorers of answers, and those that combine other scorers."""
    scorers = "agentrl_core.scorers"
    register("exact_match", f"{scorers}.text:exact_match", summary="1 if the answer equals the reference")
    register("numeric", f"{scorers}.text:numeric", summary="1 if the answer equals the reference as a number")
    register("choice", f"{scorers}.choice:Choice", summary="1 if the answer picks the right option")
    register("f1", f"{scorers}.f1:F1", summary="word overlap of answer and reference, as in SQuAD")
    register("regex", f"{scorers}.regex:Regex", summary="1 if a pattern matches the answer, or the whole reply")
    register("json_match", f"{scorers}.json_match:JsonMatch", summary="compares the answer's JSON with the reference's")
    register("weighted", f"{scorers}.compose:Weighted", summary="a weighted sum of other scorers")
    register("gated", f"{scorers}.compose:Gated", summary="one scorer, unless another scores too low")
    register(
        "scheduled", f"{scorers}.schedule:Scheduled", summary="chooses a scorer by a field of the task, or by the step"
    )


@hookimpl
def register_losses(register: Register[Any]) -> None:
    """Register the policy-gradient losses."""
    losses = "agentrl_core.losses"
    register("grpo", f"{losses}.grpo:GRPO", summary="clipped importance ratio per token")
    register("dr_grpo", f"{losses}.dr_grpo:DrGRPO", summary="grpo without division by length or std")
    register("dapo", f"{losses}.dapo:DAPO", summary="grpo with a wider upper clip bound")
    register("gspo", f"{losses}.gspo:GSPO", summary="clipped importance ratio per sequence")
    register("cispo", f"{losses}.cispo:CISPO", summary="REINFORCE with a clipped importance weight")
    register("sapo", f"{losses}.sapo:SAPO", summary="a smooth gate on the importance ratio")
    register("minirl", f"{losses}.minirl:MiniRL", summary="REINFORCE within a trust region of the ratio")
    register("minirl_paper", f"{losses}.minirl:MiniRLPaper", summary="minirl with a proximal policy, as published")
    register("ppo", f"{losses}.ppo:PPO", summary="decoupled PPO, clipped around a proximal policy")
    register("reinforce", f"{losses}.reinforce:Reinforce", summary="the plain policy gradient")
    register("rloo", f"{losses}.reinforce:RLOO", summary="REINFORCE against the mean of the group's others")
    register("cross_entropy", f"{losses}.cross_entropy:CrossEntropy", summary="imitate the sampled tokens")


@hookimpl
def register_corrections(register: Register[Any]) -> None:
    """Register the corrections that wrap a loss."""
    importance = "agentrl_core.losses.importance"
    register("truncated_is", f"{importance}:TruncatedIS", summary="weights by proximal / behaviour, truncated")
    register(
        "masked_is", f"{importance}:MaskedIS", summary="weights by proximal / behaviour; drops tokens outside bounds"
    )
    register("lag_decay", "agentrl_core.losses.lag_decay:LagDecay", summary="gives stale tokens less weight")
    register("kl", "agentrl_core.losses.kl:KL", summary="penalty for leaving a reference policy")
    register(
        "entropy_bonus", "agentrl_core.losses.entropy_bonus:EntropyBonus", summary="rewards the entropy of the policy"
    )


@hookimpl
def register_advantages(register: Register[Any]) -> None:
    """Register the baselines over a group, and over a step."""
    advantages = "agentrl_core.batching.advantages"
    register("grpo", f"{advantages}:GRPO", summary="reward minus the group's mean, over its std")
    register("dr_grpo", f"{advantages}:DrGRPO", summary="reward minus the group's mean")
    register("leave_one_out", f"{advantages}:LeaveOneOut", summary="reward minus the others' mean")
    register(
        "agentcpm", f"{advantages}:AgentCPM", summary="leave_one_out; wrong records never get a positive advantage"
    )
    register("per_turn", f"{advantages}:PerTurn", summary="grpo with a baseline for every turn")
    register(
        "reinforce_pp", f"{advantages}:ReinforcePP", summary="reward minus the group's mean, whitened over the step"
    )
    register("norm", f"{advantages}:Norm", summary="normalizes by mean and std of group, step or nothing")
    register("none", f"{advantages}:NoBaseline", summary="the reward itself")


@hookimpl
def register_credits(register: Register[Any]) -> None:
    """Register the ways to share a record's reward among its interactions."""
    credit = "agentrl_core.batching.credit"
    register("tree", f"{credit}:TreeCredit", summary="discounted from every branch's leaf to its root")
    register("insertion_order", f"{credit}:InsertionOrderCredit", summary="discounted along the order of the calls")


@hookimpl
def register_shapings(register: Register[Any]) -> None:
    """Register the transformations of rewards before the baseline."""
    shaping = "agentrl_core.batching.shaping"
    register("overlong", f"{shaping}:Overlong", summary="lowers rewards of responses near the token limit")
    register("rank", f"{shaping}:Rank", summary="raises rewards of short right and long wrong records")
    register("affine", f"{shaping}:Affine", summary="scales, shifts and clips rewards")
    register("malformed", f"{shaping}:Malformed", summary="malformed tool calls never get a positive advantage")


@hookimpl
def register_filters(register: Register[Any]) -> None:
    """Register the rules that choose groups, or records, to train on."""
    filters = "agentrl_core.batching.filters"
    register("zero_variance", f"{filters}:ZeroVariance", summary="drops groups whose rewards are all equal")
    register("balance_sample", f"{filters}:BalanceSample", summary="trains about as many wrong records as right ones")
    register("overlong", f"{filters}:Overlong", summary="drops records that were cut at their length")
    register("min_turns", f"{filters}:MinTurns", summary="drops right records of too few calls")


@hookimpl
def register_group_orders(register: Register[Any]) -> None:
    """Register the orders in which a step takes groups."""
    orders = "agentrl_core.batching.group_orders"
    register("fifo", f"{orders}:Fifo", summary="in the order of submission; no group gets too old")
    register("freshest", f"{orders}:Freshest", summary="newest version first")
    register("priority", f"{orders}:Priority", summary="highest number in a task's field first")


@hookimpl
def register_engines(register: Register[Any]) -> None:
    """Register the engine in this process, and the scripted one for tests."""
    engines = "agentrl_core.engines"
    register("embedded", f"{engines}.embedded:EmbeddedEngine", summary="any Hugging Face causal LM, in process")
    moved = f"{engines}.remote:OpenAICompatibleEngine"
    register("openai_compatible", moved, summary="now `sglang` and `vllm`, of packages")
    register("scripted", f"{engines}.scripted:ScriptedEngine", summary="plays replies that a test wrote down")


@hookimpl
def register_stores(register: Register[Any]) -> None:
    """Register the stores on this machine."""
    register("sqlite", "agentrl_core.stores.sqlite:SQLiteStore", summary="one SQLite file per run")


@hookimpl
def register_trackers(register: Register[Any]) -> None:
    """Register the receivers of a run's metrics."""
    register("console", "agentrl_core.trackers.console:ConsoleTracker", summary="live progress on the terminal")
    register("jsonl", "agentrl_core.trackers.jsonl:JsonlTracker", summary="one line per event in metrics.jsonl")
    register("curve", "agentrl_core.trackers.curve:CurveTracker", summary="the reward curve as reward.png")


@hookimpl
def register_tool_parsers(register: Register[Any]) -> None:
    """Register the formats of tool calls."""
    parsers = "agentrl_core.chat.parsers"
    register("hermes", f"{parsers}.hermes:HermesParser", summary="<tool_call>{JSON}</tool_call>")
    register("qwen3_coder", f"{parsers}.qwen3_coder:Qwen3CoderParser", summary="<function=…><parameter=…>")
    register("llama3", f"{parsers}.llama3:Llama3Parser", summary='{"name": …, "parameters": …}')


@hookimpl
def register_tools(register: Register[Any]) -> None:
    """Register the tool servers that need no other package."""
    register("functions", "agentrl_core.tools.functions:FunctionTools", summary="plain Python functions as tools")


@hookimpl
def register_contexts(register: Register[Any]) -> None:
    """Register the context policy that changes nothing."""
    register("none", "agentrl_core.gateway.compaction:Unchanged", summary="the whole history, as the agent sends it")


@hookimpl
def register_models(register: Register[Any]) -> None:
    """Register the builders of models with random weights."""
    register("tiny", "agentrl_core.models.tiny:build", summary="a tiny Qwen3 and its tokenizer")


@hookimpl
def register_datasets(register: Register[Any]) -> None:
    """Register the sources of tasks."""
    register("jsonl", "agentrl_core.data.tasks:load_tasks", summary="one task per line")


@hookimpl
def register_commands(register: Register[Any]) -> None:
    """Register the command line's own commands."""
    for name, (summary, path) in COMMANDS.items():
        register(name, path, summary=summary)
