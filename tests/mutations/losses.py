"""Mutations of losses: sign, ratio, clip, masked terms and denominator."""

from tests.mutations.mutation import of

VALUES = (
    "tests/losses/test_values.py",
    "tests/losses/test_page.py::test_every_loss_is_told_with_what_it_brings_along",
    "tests/losses/test_golden.py",
    "tests/losses/test_section.py",
    "tests/losses/test_conformance.py::TestLosses",
)

SURROGATE = "-torch.minimum(ratio * batch.advantages, clipped * batch.advantages)"

TABLE = [
    *of(
        "losses/grpo.py",
        VALUES,
        {
            "sign": (SURROGATE, SURROGATE.removeprefix("-")),
            "the larger of the two surrogates": ("-torch.minimum(", "-torch.maximum("),
            "clip_higher left out": ("1 + self.clip + self.clip_higher", "1 + self.clip"),
            "lower bound off": ("ratio.clamp(1 - self.clip,", "ratio.clamp(1 - self.clip - self.clip_higher,"),
            "dropped tokens kept": ("keep=keep,", "keep=batch.mask,"),
            "dropped tokens not told as clipped": (" | (keep == 0)", ""),
        },
    ),
    *of(
        "losses/dapo.py",
        VALUES,
        {
            "upper bound taken for what is added": ("default=0.08", "default=0.28"),
            "no clip-higher": ("default=0.08", "default=0.0"),
            "mean over sequences": ('"token_mean"', '"seq_mean_token_mean"'),
        },
    ),
    *of(
        "losses/dr_grpo.py",
        VALUES,
        {
            "mean over tokens": ('"constant"', '"token_mean"'),
            "divided by the spread": ('"std": False', '"std": True'),
            "another baseline": ('"use": "grpo"', '"use": "leave_one_out"'),
        },
    ),
    *of(
        "losses/gspo.py",
        VALUES,
        {
            "sign": (SURROGATE, SURROGATE.removeprefix("-")),
            "sum of log-ratios for their mean": ("batch.seq_mean(log_ratio(batch))", "batch.seq_sum(log_ratio(batch))"),
            "gradient of all tokens in each": ("(log_ratio(batch))).detach()", "(log_ratio(batch)))"),
            "gradient reversed": (
                "batch.logprobs - batch.logprobs.detach()",
                "batch.logprobs.detach() - batch.logprobs",
            ),
            "ten times as wide": ("default=3e-4", "default=3e-3"),
            "clip_higher left out": ("1 + self.clip + self.clip_higher", "1 + self.clip"),
            "said to look at single tokens": (
                "whole_sequences: ClassVar[bool] = True",
                "whole_sequences: ClassVar[bool] = False",
            ),
            "mean over tokens": ('"seq_mean_token_mean"', '"token_mean"'),
        },
    ),
    *of(
        "losses/cispo.py",
        VALUES,
        {
            "sign": ("per_token=-ratio.clamp", "per_token=ratio.clamp"),
            "weight not capped": ("-ratio.clamp(max=self.cap)", "-ratio"),
            "weight capped from below": ("ratio.clamp(max=self.cap)", "ratio.clamp(min=self.cap)"),
            "gradient through the weight": ("importance_ratio(batch).detach()", "importance_ratio(batch)"),
            "what is below the cap told as clipped": ("ratio > self.cap", "ratio < self.cap"),
            "mean over sequences": ('"token_mean"', '"seq_mean_token_mean"'),
        },
    ),
    *of(
        "losses/minirl.py",
        VALUES,
        {
            "sign": ("per_token=-ratio", "per_token=ratio"),
            "weight left out": ("per_token=-ratio * batch.advantages", "per_token=-batch.advantages"),
            "upper bound taken for what is added": ("default=0.07", "default=0.27"),
            "nothing dropped": ("strict_in_bound: bool = True", "strict_in_bound: bool = False"),
            "mean over tokens": ('"seq_mean_token_sum"', '"token_mean"'),
            "paper's: sign": ("per_token=-weight.clamp", "per_token=weight.clamp"),
            "paper's: weight not truncated": ("-weight.clamp(max=self.weight_cap)", "-weight"),
            "paper's: masked by the sampler": (
                "self.keep(batch, ratio), batch.mask",
                "self.keep(batch, weight), batch.mask",
            ),
            "paper's: weighed by the proximal policy": (
                "sampling_ratio(batch).detach()",
                "importance_ratio(batch).detach()",
            ),
            "paper's: corrected twice, and not told": (
                "weighs_behaviour: ClassVar[bool] = True",
                "weighs_behaviour: ClassVar[bool] = False",
            ),
        },
    ),
    *of(
        "losses/ppo.py",
        VALUES,
        {
            "sign": ("per_token=-self._applied", "per_token=self._applied"),
            "the larger of the two surrogates": (
                "torch.minimum(ratio * advantages",
                "torch.maximum(ratio * advantages",
            ),
            "clip_higher left out": ("1 + self.clip + self.clip_higher)\n", "1 + self.clip)\n"),
            "dual clip of good tokens": ("torch.where(advantages < 0,", "torch.where(advantages > 0,"),
            "dual clip from the other side": ("torch.maximum(surrogate,", "torch.minimum(surrogate,"),
            "weight inverted": ("torch.exp(log_behaviour_weight(batch))", "torch.exp(-log_behaviour_weight(batch))"),
            "weight not capped": ("weight.clamp(max=self.behaviour_weight_cap)", "weight"),
            "weight left out": ("-self._applied(weight) * surrogate", "-surrogate"),
            "mean over sequences": ('"token_mean"', '"seq_mean_token_mean"'),
        },
    ),
    *of(
        "losses/sapo.py",
        VALUES,
        {
            "sign": ("per_token=-4", "per_token=4"),
            "temperatures swapped": (
                "self.tau_positive, self.tau_negative)",
                "self.tau_negative, self.tau_positive)",
            ),
            "gate not about a ratio of 1": ("tau * (ratio - 1)", "tau * ratio"),
            "not divided by the temperature": ("-4 / tau * gate", "-4 * gate"),
            "gate told four times too small": ("open_share = 4 * gate", "open_share = gate"),
            "mean over tokens": ('"seq_mean_token_mean"', '"token_mean"'),
        },
    ),
    *of(
        "losses/reinforce.py",
        VALUES,
        {
            "sign": ("terms = -batch.advantages", "terms = batch.advantages"),
            "always weighted": ("ratio * terms if self.importance_weight else terms", "ratio * terms"),
            "never weighted": ("ratio * terms if self.importance_weight else terms", "terms"),
            "gradient through the weight": ("importance_ratio(batch).detach()", "importance_ratio(batch)"),
            "mean over each sequence's tokens": ('"seq_mean_token_sum"', '"seq_mean_token_mean"'),
            "rloo: the record in its own baseline": ('"use": "leave_one_out"', '"use": "grpo"'),
        },
    ),
    *of(
        "losses/cross_entropy.py",
        (VALUES[0], "tests/losses/test_conformance.py::TestCrossEntropy"),
        {
            "sign": ("per_token=-batch.logprobs", "per_token=batch.logprobs"),
            "masked tokens kept": ("keep=batch.mask", "keep=batch.mask * 0 + 1"),
            "times the advantage": ("-batch.logprobs", "-batch.logprobs * batch.advantages"),
            "likelihood for its logarithm": ("-batch.logprobs", "-batch.logprobs.exp()"),
        },
    ),
    *of(
        "losses/proximal.py",
        VALUES,
        {
            "off by one version": ("detach(), lag / (lag + 1)", "detach(), lag / (lag + 2)"),
            "from the other end": ("detach(), lag / (lag + 1)", "detach(), 1 / (lag + 1)"),
            "gradient through the proximal policy": ("batch.logprobs.detach()", "batch.logprobs"),
        },
    ),
    *of(
        "losses/trust_region.py",
        (*VALUES, "tests/training/test_metrics.py"),
        {
            "ratio inverted": ("batch.logprobs - anchor(batch)", "anchor(batch) - batch.logprobs"),
            "masked tokens have a ratio": (
                "torch.where(batch.mask > 0, batch.logprobs - anchor(batch), 0.0)",
                "batch.logprobs - anchor(batch)",
            ),
            "anchor always the sampler": (
                "batch.behaviour_logprobs if batch.proximal_logprobs is None else batch.proximal_logprobs",
                "batch.behaviour_logprobs",
            ),
            "ratio to the sampler taken against the anchor": (
                "batch.logprobs - batch.behaviour_logprobs",
                "batch.logprobs - anchor(batch)",
            ),
            "weight of the sampler inverted": (
                "anchor(batch) - batch.behaviour_logprobs",
                "batch.behaviour_logprobs - anchor(batch)",
            ),
            "clip_higher left out": ("(self.clip + self.clip_higher) * width", "self.clip * width"),
            "clip_higher downwards, too": ("1 - self.clip * width", "1 - (self.clip + self.clip_higher) * width"),
            "a rise drops bad tokens": (
                "(batch.advantages > 0) & (ratio >",
                "(batch.advantages < 0) & (ratio >",
            ),
            "cap left out": ("width = self.importance_weight_cap_ratio * torch.exp", "width = torch.exp"),
            "strict twice as wide": ("width = torch.ones_like(ratio)", "width = 2 * torch.ones_like(ratio)"),
            "old tokens get more room": ("torch.exp(-decay *", "torch.exp(decay *"),
            "masked tokens kept": ("return batch.mask * (~self", "return (~self"),
            "share of the clipped among all": ("(batch.mask * above).sum()", "batch.mask.sum()"),
        },
    ),
    *of(
        "api/losses.py",
        VALUES,
        {
            "masked tokens summed": ("self.sequence, values * self.mask)", "self.sequence, values)"),
            "mean over the micro-batch": (
                "self.seq_sum(values.new_ones(len(self.mask))).clamp_min(1.0)",
                "self.mask.sum()",
            ),
            "another sequence's value": ("return values[self.sequence]", "return values.flip(0)[self.sequence]"),
        },
    ),
]
