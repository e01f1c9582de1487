"""Mutations of sampling masks: what engines sample from, what predictions share, and what the learner computes."""

from tests.mutations.mutation import of

KEPT = ("tests/losses/test_kept.py",)

TABLE = [
    *of(
        "losses/kept.py",
        KEPT,
        {
            "a part's masks from the beginning": ("self.ids[shift + torch", "self.ids[shift * 0 + torch"),
            "times the temperature": ("logits / divisor.squeeze(1)[owner]", "logits * divisor.squeeze(1)[owner]"),
            "largest logit not taken off": ("logits - highest[owner]", "logits"),
            "entropy without log Z": ("return logprobs, normaliser - weighted / total", "return logprobs, weighted"),
            "sign of the entropy": ("normaliser - weighted / total", "weighted / total - normaliser"),
            "a mask without its token accepted": ("if not bool((found == 1).all())", "if False"),
            "an id past the last accepted": ("(kept.ids < vocabulary)", "(kept.ids <= vocabulary)"),
            "gradient of hidden states lost": (
                "to_hidden.index_add_(0, owner[part], weight[rows[part]].to(scale.dtype) * scale)",
                "to_hidden.add_(0)",
            ),
            "gradient of the head lost": (
                "to_weight.index_add_(0, rows[part], hidden[owner[part]].to(scale.dtype) * scale)",
                "to_weight.add_(0)",
            ),
            "narrow products": (
                "wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32",
                "wide = hidden.dtype",
            ),
        },
    ),
    *of(
        "losses/kept.py",
        ("tests/losses/test_vocab_parallel.py",),
        {
            "logits of the own shard alone": ("shard.add_up(logits)", "logits.add_(0)"),
            "gradient of the own shard alone": ("ctx.shard.add_up(to_hidden)", "to_hidden.add_(0)"),
            "rows of the first shard": ("rows = ids - shard.start", "rows = ids.clone()"),
        },
        slow=True,
    ),
    *of(
        "losses/logprob.py",
        KEPT,
        {
            "tokens with and without masks in another order": (".argsort()", ".argsort().flip(0)"),
            "masks left out": ("if kept is None or not len(kept.ids):", "if True:"),
        },
    ),
    *of(
        "batching/packing.py",
        ("tests/batching/test_packing.py",),
        {
            "masks of one place shared": ("or 0\n", "and 0\n"),
            "masks in the order of their numbers": ("[chosen]\n", "[chosen[::-1]]\n"),
        },
    ),
    *of(
        "batching/samples.py",
        ("tests/batching/test_samples.py",),
        {
            "trained without masks": ("if item.sampling.truncates and", "if False and"),
            "masks of other numbers": ("if item.kept and len(item.kept) != tokens", "if False"),
        },
    ),
    *of(
        "training/policy.py",
        ("tests/training/test_learner.py::test_the_learner_agrees_with_a_sampler_of_few_tokens",),
        {
            "temperature left out": (
                "wanted.token, wanted.temperature, wanted.kept",
                "wanted.token, torch.ones_like(wanted.temperature), wanted.kept",
            ),
            "masks left out": (
                "wanted.token, wanted.temperature, wanted.kept",
                "wanted.token, wanted.temperature, None",
            ),
        },
    ),
    *of(
        "engines/truncation.py",
        ("tests/engines/test_truncation.py",),
        {
            "one token too many by top-p": ("(before_RK < top_p", "(before_RK - ordered_RK < top_p"),
            "top-p of the whole distribution": ("weights_RV.masked_fill(weights_RV < kth_R1, 0.0)", "weights_RV"),
            "one token too many by top-k": (".clamp(max=count) - 1)", ".clamp(max=count - 1))"),
            "few tokens always enough": ("is_enough = count == size or", "is_enough = True or"),
        },
    ),
    *of(
        "engines/sampling.py",
        ("tests/engines/test_truncation.py",),
        {
            "not renormalised": ("- sums_BK.sum(-1, keepdim=True, dtype=torch.float64).log()", "- total_B1.log()"),
            "recorded before truncation": (
                "before_B1.index_copy(0, draw.keeping, left_B1.index_select(0, draw.keeping))",
                "before_B1",
            ),
            "all rows truncated alike": (
                "top_p_B.index_select(0, draw.truncated)",
                "top_p_B[:1].expand(len(draw.truncated))",
            ),
        },
    ),
]
