"""Mutations of loss corrections and of the loss normalisers."""

from tests.mutations.mutation import of

VALUES = (
    "tests/losses/test_values.py",
    "tests/losses/test_section.py",
    "tests/losses/test_conformance.py::TestCorrections",
)

TABLE = [
    *of(
        "losses/importance.py",
        VALUES,
        {
            "weight not truncated": ("output.per_token * weight.clamp(max=self.cap)", "output.per_token * weight"),
            "mean for a sequence's product": (
                "log = batch.expand(batch.seq_sum(log))",
                "log = batch.expand(batch.seq_mean(log))",
            ),
            "product for the geometric mean": (
                "log = batch.expand(batch.seq_mean(log))",
                "log = batch.expand(batch.seq_sum(log))",
            ),
            "no lower bound": ("(weight >= self.low) & (weight <= self.high)", "weight <= self.high"),
            "no upper bound": ("(weight >= self.low) & (weight <= self.high)", "weight >= self.low"),
            "never weighted": (
                "torch.where(inside, weight, 0.0) if self.weighted else",
                "inside.to(weight.dtype) if self.weighted else",
            ),
            "infinite weights multiplied": ("torch.where(inside, weight, 0.0) if", "weight if"),
            "what is outside kept": ("keep=output.keep * inside.to(output.keep.dtype)", "keep=output.keep"),
            "tokens that the loss dropped come back": ("keep=output.keep * inside", "keep=batch.mask * inside"),
            "gradient through the weight": (
                "log_behaviour_weight(batch).detach()",
                "(batch.logprobs - batch.behaviour_logprobs)",
            ),
            "what is inside told as cut": (", ~inside)", ", inside)"),
            "said to look at single tokens": ('return self.level != "token"', "return False"),
        },
    ),
    *of(
        "losses/kl.py",
        VALUES,
        {
            "sign": ("+ self.beta * divergence", "- self.beta * divergence"),
            "policies swapped": (
                "batch.reference_logprobs - batch.logprobs",
                "batch.logprobs - batch.reference_logprobs",
            ),
            "k3 off by one": ("torch.exp(difference) - difference - 1", "torch.exp(difference) - difference"),
            "k3 without its linear part": ("torch.exp(difference) - difference - 1", "torch.exp(difference) - 1"),
            "k2 not halved": ("difference.square() / 2", "difference.square()"),
            "k1 has the value of k2": ("half_square + (-difference - half_square).detach()", "half_square"),
            "k1 has its own gradient": ("half_square + (-difference - half_square).detach()", "-difference"),
            "k3's weight a constant": ('(ratio if self.estimator == "k3" else ratio.detach())', "ratio.detach()"),
            "gradient through k2's weight": ('(ratio if self.estimator == "k3" else ratio.detach())', "ratio"),
            "terms of dropped tokens come back": ("output.per_token * output.keep +", "output.per_token +"),
            "dropped tokens not held": ("keep=batch.mask,", "keep=output.keep,"),
        },
    ),
    *of(
        "losses/lag_decay.py",
        VALUES,
        {
            "sign": ("torch.exp(-self.rate", "torch.exp(self.rate"),
            "off by one version": ("batch.lag.clamp_min(0)", "(batch.lag + 1).clamp_min(0)"),
            "told without the mask": ("(factor * batch.mask).sum()", "factor.sum()"),
        },
    ),
    *of(
        "losses/entropy_bonus.py",
        VALUES,
        {
            "sign": ("output.keep - self.coefficient", "output.keep + self.coefficient"),
            "terms of dropped tokens come back": ("output.per_token * output.keep", "output.per_token"),
            "dropped tokens have no entropy": ("keep=batch.mask", "keep=output.keep"),
        },
    ),
    *of(
        "losses/corrected.py",
        VALUES,
        {
            "corrections from the outside in": (
                "for item in self.corrections:\n            changed",
                "for item in self.corrections[::-1]:\n            changed",
            ),
            "metrics of the loss lost": ("{**output.metrics, **changed.metrics}", "changed.metrics"),
            "what the loss reads forgotten": ("self.calculator.needs.union(", "frozenset[str]().union("),
            "weights that count twice accepted": ("len(weighing) > 1", "len(weighing) > 2"),
            "traits of the corrections forgotten": (
                "(self.calculator, *self.corrections))\n\n\n",
                "(self.calculator,))\n\n\n",
            ),
        },
    ),
    *of(
        "losses/section.py",
        VALUES[1:2],
        {
            "defaults win over the config": (
                "{**(defaults if same else {}), **own}",
                "{**own, **(defaults if same else {})}",
            ),
            "defaults of another aggregation kept": ("{**(defaults if same else {}), **own}", "{**defaults, **own}"),
        },
    ),
    *of(
        "losses/aggregate.py",
        (
            "tests/losses/test_aggregate.py",
            "tests/batching/test_packing.py::test_sequences_are_what_the_config_says",
            "tests/training/test_learner.py::test_neither_loss_nor_gradient_depends_on_micro_batches",
        ),
        {
            "dropped tokens summed": ("terms = output.per_token * output.keep", "terms = output.per_token"),
            "token_mean over the micro-batch": (
                "terms.sum() / denominators.tokens.clamp_min(1.0)",
                "terms.sum() / batch.mask.sum()",
            ),
            "token_mean over kept tokens": (
                "terms.sum() / denominators.tokens.clamp_min(1.0)",
                "terms.sum() / output.keep.sum()",
            ),
            "token_mean off by one": ("denominators.tokens.clamp_min(1.0)", "(denominators.tokens - 1).clamp_min(1.0)"),
            "seq_mean_token_mean without the tokens": (
                "(terms / denominators.sequence_tokens[batch.sequence]).sum()",
                "terms.sum()",
            ),
            "seq_mean_token_mean without the sequences": (
                "[batch.sequence]).sum() / num_sequences",
                "[batch.sequence]).sum()",
            ),
            "seq_mean_token_mean by the micro-batch's tokens": (
                "denominators.sequence_tokens[batch.sequence]",
                "batch.expand(batch.seq_sum(batch.mask))",
            ),
            "seq_mean_token_sum over the micro-batch": (
                "return terms.sum() / num_sequences\n",
                "return terms.sum() / float(len(batch.sequence.unique()))\n",
            ),
            "constant without the sequences": (
                "(num_sequences * float(config.horizon or 1))",
                "float(config.horizon or 1)",
            ),
            "constant without the horizon": ("(num_sequences * float(config.horizon or 1))", "num_sequences"),
            "agentcpm_rows over all loss tokens": ("batch.sequence, output.keep)", "batch.sequence, batch.mask)"),
            "tokens counted without the mask": ("tokens=mask.sum(),", "tokens=mask.new_tensor(len(mask)),"),
            "sequences without a token counted": ("(per_sequence > 0).sum()", "(per_sequence >= 0).sum()"),
            "agentcpm_rows over records": ('return "row" if', 'return "record" if'),
        },
    ),
]
