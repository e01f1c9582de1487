"""Mutations of supervised fine-tuning: weights, learning rates, trained tokens, exports."""

from tests.mutations.mutation import of, of_file

TABLE = [
    *of(
        "training/supervised.py",
        ("tests/training/test_supervised.py", "tests/training/test_warm_start.py"),
        {
            "weights not counted in the mean": ("tokens=weights.sum(), ", ""),
            "weights not counted in a chat's mean": (", sequence_tokens=per_sequence)", ")"),
            "weights left out of the loss": ("output.per_token * batch.advantages)", "output.per_token)"),
            "sign of the held-out loss": ("total -= float(", "total += float("),
            "rate falls one step early": ("done = (step - 1) / self.steps", "done = step / self.steps"),
            "rate rises one step late": (
                "min(1.0, step / max(self.warmup_steps, 1))",
                "min(1.0, (step - 1) / max(self.warmup_steps, 1))",
            ),
            "rate falls to nothing": ("(1.0 - (1.0 - _LAST_LR) * fallen)", "(1.0 - fallen)"),
            "skipped steps keep their batches": ("for _ in range(steps):", "for _ in range(0):"),
        },
    ),
    *of(
        "training/supervised.py",
        of_file("tests/training/test_supervised.py", "every_demonstration_is_seen_once_per_pass"),  # others would wait
        {
            "the last rows of a pass left out": (
                "for start in range(0, len(order), size * pool):",
                "for start in range(0, len(order) - size * pool + 1, size * pool):",
            ),
        },
    ),
    *of(
        "training/demonstrations.py",
        ("tests/training/test_demonstrations.py",),
        {
            "a reply trained one token late": (
                "range(len(self.ids), len(self.ids) + len(ids))",
                "range(len(self.ids) + 1, len(self.ids) + len(ids) + 1)",
            ),
            "the stop token not trained": ("[found + len(stop) for stop", "[found for stop"),
            "a reply up to its last stop token": (
                "text[: min(ends)]",
                "text[: max(text.rfind(stop) + len(stop) for stop in self._stops)]",
            ),
            "the first reply for the last": ("(replies[-1:] if", "(replies[:1] if"),
            "a weight of 0 trained": ("        if weight:\n", "        if weight >= 0:\n"),
            "the same weight for all tokens": (
                "self.weights.extend([weight] * len(ids))",
                "self.weights.extend([1.0] * len(ids))",
            ),
            "tools left out": ("messages, tools=tools, add", "messages, tools=None, add"),
            "ids of another tokenizer accepted": (
                "if tokens.tokenizer and tokens.tokenizer != self._digest:",
                "if tokens.tokenizer is self._digest:",
            ),
        },
    ),
    *of(
        "data/export/selection.py",
        ("tests/data/test_export.py",),
        {
            "the least reward left out": ("record.reward >= least", "record.reward > least"),
            "the worst of a group": ("return -(record.reward or 0.0),", "return (record.reward or 0.0),"),
            "evaluations exported": ("(self.evaluations or not record.is_eval)", "(self.evaluations or record.id)"),
        },
    ),
    *of(
        "data/export/sft.py",
        ("tests/data/test_export.py",),
        {
            "a sampled token in two rows": ("if is_trained(item)} - branch.shared", "if is_trained(item)}"),
            "spans one token late": (
                "[len(ids), len(ids) + len(item.output_ids)]",
                "[len(ids) + 1, len(ids) + len(item.output_ids) + 1]",
            ),
            "what is not trained keeps its weight": ('**message, "weight": 0}', "**message}"),
        },
    ),
]
