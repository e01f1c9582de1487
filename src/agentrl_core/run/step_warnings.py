"""Watchdog over the metrics of each step: one plain warning, once, per likely mistake in the set-up."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from agentrl_core.config.invocation import command_line
from agentrl_core.losses import LossSection
from agentrl_core.run.no_signal import Giver, failing_tool, has_no_signal, reward_fell, why_no_signal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from agentrl_core.config.schema import RunConfig

_FIRST_STEPS = 3
"""Number of first steps whose largest entropy counts as the entropy at the start."""
_COLLAPSED = 0.2
"""Share of the starting entropy below which a policy gives nearly the same reply to everything. Runs that learn well
keep half of it; a learning rate that destroys the model takes it below a fifth within a few steps."""
_MANY_CUT = 0.2
"""Share of replies cut off at their token limit from which on a warning is given."""
_NEARLY_ALL_CUT = 0.9
"""The same from which on it explains that every reward is 0."""
_MISMATCH_KL = 1e-3
"""KL(engine || learner) per token from which on rounding is worth a correction: in reports of collapsed runs (TIS,
fengyao.notion.site/off-policy-rl; IcePop, arXiv 2510.18855) it rose above this before the reward fell."""
_LARGE_MISMATCH_KL = 1e-2
"""The same from which on whole sequences should be left out: a sequence of 100 tokens is then off by a factor."""
_GAP_LIKE_A_CLIP = 0.18
"""99th percentile of the gaps that equals a usual trust region: log(1.2)."""
_WEIGHED = frozenset({"truncated_is", "masked_is"})
"""Corrections that weigh by policy / engine."""
_WEIGHING_LOSSES = frozenset({"ppo", "minirl_paper"})
"""Losses that do so by themselves."""
_COMPARED = 4
"""Number of last steps, this one included, among which a fall of the reward is looked for."""
_TELL_AGAIN = 0.3
"""Change of a share since it was told after which it is told again."""
_WHOLE_ANSWER = frozenset({"exact_match"})
"""Scorers for which the tags matter: they compare the whole answer, and search no text for it."""
_CAUSES = frozenset({"nothing right", "cut", "tool", "fell"})
"""Problems that explain replies without an answer, and rewards of 0."""


class StepWarnings:
    """Checker of each step's metrics that gives one notice per kind of problem, the first time it shows.

    A share that has changed much since then is told again. `max_tokens` is the limit of replies for which the agent
    sets none, `pretrained` says whether the policy began with trained weights, and `giver` who gives the rewards.
    `tool_error(name)` returns the message of one failed call of a tool. `earlier` are the metrics of the steps before
    the run was resumed, needed for the entropy at the start.
    """

    def __init__(
        self,
        config: RunConfig,
        notice: Callable[[str], None],
        *,
        max_tokens: int,
        pretrained: bool,
        giver: Giver,
        tool_error: Callable[[str], str] = lambda _: "",
        earlier: Iterable[Mapping[str, float]] = (),
    ) -> None:
        self._config, self._notice, self._max_tokens = config, notice, max_tokens
        self._pretrained, self._giver, self._tool_error = pretrained, giver, tool_error
        self._told: dict[str, float] = {}
        self._entropies: list[float] = []
        self._last: list[Mapping[str, float]] = []
        self.no_signal = ""
        """Reason why the last step had nothing to learn from; empty if it had."""
        for metrics in earlier:
            self._keep(metrics)

    def step(
        self,
        step: int,
        metrics: Mapping[str, float],
        answers: Mapping[str, int],
        tools: Mapping[str, int] | None = None,
    ) -> None:
        """Check a step.

        `answers` counts where the answers of its records were (`outcome_counts.answer_name`), and `tools` the calls of
        each tool (`outcome_counts.tool_names`).
        """
        self._keep(metrics)
        giver = self._giver.told(scored=bool(answers))
        self.no_signal = why_no_signal(metrics, giver) if has_no_signal(metrics) else ""
        problems = {
            **dict(_missing_schemas(answers)),
            "nothing right": (self._nothing_right(metrics), math.nan),
            "cut": self._cut(metrics),
            "tool": self._tool(tools or {}),
            "fell": (self._fell(step), math.nan),
            "entropy": (self._collapse(metrics), math.nan),
            "gap": (self._gap(metrics), math.nan),
            "tools": (_unseen_tools(metrics), math.nan),
            "no signal": self._no_signal(metrics),
            "replies": (self._wrong_replies(answers), math.nan),
        }
        causes = {about for about in _CAUSES if problems[about][0] or about in self._told}
        # Symptoms of these are not told as well; a few replies that are cut do not make every reward 0.
        if causes:
            problems["replies"] = ("", math.nan)
        nearly_all_cut = metrics.get("rollout/replies_cut", 0.0) >= _NEARLY_ALL_CUT
        if metrics.get("reward/mean") == 0 and (causes - {"cut"} or nearly_all_cut):
            problems["no signal"] = ("", math.nan)
        if problems["nothing right"][0]:  # a policy that writes random text does not end its replies
            problems["cut"] = ("", math.nan)
        for about, (text, share) in problems.items():
            if text and (about not in self._told or abs(share - self._told[about]) >= _TELL_AGAIN):
                self._told[about] = share
                self._notice(f"WARNING step {step}: {text}")

    def _keep(self, metrics: Mapping[str, float]) -> None:
        if "loss/entropy" in metrics and len(self._entropies) < _FIRST_STEPS:
            self._entropies.append(metrics["loss/entropy"])
        self._last = [*self._last, metrics][-_COMPARED:]

    def _no_signal(self, metrics: Mapping[str, float]) -> tuple[str, float]:
        if not self.no_signal:
            return "", math.nan
        most = self._config.trainer.max_steps_without_signal
        text = f"{self.no_signal}. {most} such steps in a row end the run (trainer.max_steps_without_signal)"
        return text, metrics.get("reward/mean", math.nan)

    def _tool(self, tools: Mapping[str, int]) -> tuple[str, float]:
        name, share = failing_tool(tools)
        if not name:
            return "", math.nan
        error = f": {message}" if (message := self._tool_error(name)) else ""
        text = (
            f"{share:.0%} of the {tools[f'called {name}']} calls of the tool {name} failed{error}. If the tool is at "
            f"fault, correct it; `{command_line('tools', 'call')}` calls it without a model"
        )
        return text, share

    def _fell(self, step: int) -> str:
        ago = reward_fell(self._last, group_size=self._config.rollout.group_size)
        if ago is None:
            return ""
        before, now = (metrics["reward/mean"] for metrics in (self._last[-1 - ago], self._last[-1]))
        updates = f"update {step - 1}" if ago == 1 else f"updates {step - ago} to {step - 1}"
        return (
            f"the reward fell from {before:.2f} to {now:.2f} after {updates}: the updates are too large. Start again "
            f"with a lower trainer.lr (now {self._config.trainer.lr})"
        )

    def _collapse(self, metrics: Mapping[str, float]) -> str:
        entropy, start = metrics.get("loss/entropy"), max(self._entropies, default=0.0)
        if entropy is None or entropy >= _COLLAPSED * start:
            return ""
        return (
            f"the policy's entropy fell from {start:.2g} to {entropy:.2g} nats per token: it gives nearly the same"
            " reply every time, and soon there will be nothing left to learn from. If the reward should still rise,"
            f" start again with a lower trainer.lr (now {self._config.trainer.lr}), or slow the policy's change with "
            "loss.corrections: [{use: kl, beta: 0.001}] or [{use: entropy_bonus}]"
        )

    def _gap(self, metrics: Mapping[str, float]) -> str:
        kl, p99 = metrics.get("loss/logprob_gap_kl", 0.0), metrics.get("loss/logprob_gap_p99", 0.0)
        loss = self._config.loss
        named = {item.use for item in LossSection.read(loss.options).corrections}
        if (kl < _MISMATCH_KL and p99 < _GAP_LIKE_A_CLIP) or named & _WEIGHED or loss.use in _WEIGHING_LOSSES:
            return ""
        advice = "loss.corrections: [{use: truncated_is}], which weighs each token, or [{use: masked_is}], which drops"
        advice = f"{advice} the worst ones"
        if kl >= _LARGE_MISMATCH_KL:
            advice += (
                "; at this size also whole sequences, with [{use: masked_is, level: geometric, low: 0.9, high: 1.1}]"
            )
        return (
            f"engine and learner round differently: with the same weights their log-probabilities differ by"
            f" {metrics.get('loss/logprob_gap_mean', 0.0):.2g} on average and {p99:.2g} at the 99th percentile, a KL"
            f" divergence of {kl:.1g} per token, so every sample is a little off-policy. Correct it with {advice}; or"
            " let both compute in float32"
        )

    def _cut(self, metrics: Mapping[str, float]) -> tuple[str, float]:
        share = metrics.get("rollout/replies_cut", 0.0)
        if share < _MANY_CUT:
            return "", math.nan
        text = (
            f"{share:.0%} of the replies were cut off at their token limit: the agent's own limit, or else "
            f"sampling.max_tokens = {self._max_tokens}. If answers are lost that way, raise the limit, or ask for "
            "shorter replies in the prompt"
        )
        return text, share

    def _nothing_right(self, metrics: Mapping[str, float]) -> str:
        model, taught = self._config.model, self._config.warm_start is not None
        if self._pretrained or taught or not metrics.get("reward/mean") == 0 == metrics.get("reward/std"):
            return ""
        return (
            f"every reward is 0. The policy is built from nothing (model.use: {model.use}) and had no warm_start, so it"
            " writes random text. Train it on demonstrations first, `warm_start: {data: demos.jsonl}`,"
            " or use a pretrained model (model.path)"
        )

    def _wrong_replies(self, answers: Mapping[str, int]) -> str:
        wrong = answers.get("reply 0")
        if not wrong or answers.get("reply") or any(name.startswith("schema ") for name in answers):
            return ""
        if not _WHOLE_ANSWER.issuperset(self._giver.scorers):
            return ""
        return (
            f"0 of {wrong} replies have <answer>…</answer>, so whole replies were scored, and none of them got more "
            "than 0. `agentrl trace show RECORD` shows what was compared. If the answer is only a part of the reply, "
            "ask for the tags in the prompt, or use a scorer that searches the text (numeric, choice, f1, regex)"
        )


def answers_found(answers: Mapping[str, int]) -> dict[str, float]:
    """Return the metric `rollout/answers_found`, the share of replies with their answer between tags or in a box."""
    replies = {name: count for name, count in answers.items() if name != "workflow"}
    found = sum(count for name, count in replies.items() if name.startswith("schema "))
    return {"rollout/answers_found": found / sum(replies.values())} if replies else {}


def _missing_schemas(answers: Mapping[str, int]) -> Iterator[tuple[str, tuple[str, float]]]:
    for name, count in answers.items():
        source, _, schema = name.partition(" ")
        if source == "nowhere":
            found = answers.get(f"schema {schema}", 0)
            text = (
                f"{found} of {found + count} replies have {schema}, which their tasks name as answer_schema; the others"
                " have no answer to score. Ask for it in the prompt, or leave answer_schema out: then a reply without"
                " it is scored as a whole"
            )
            yield name, (text, found / (found + count))


def _unseen_tools(metrics: Mapping[str, float]) -> str:
    count = metrics.get("rollout/calls_with_unseen_tools", 0.0)
    if not count:
        return ""
    return (
        f"{count:.0f} calls offered tools, which the chat template dropped: the policy never saw them, and can use"
        " them only if the prompt itself describes them"
    )
