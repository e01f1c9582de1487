"""Mutations of log-probabilities and entropies in tiles, on one rank and over shards of the vocabulary."""

from tests.mutations.mutation import of

ALONE = ("tests/losses/test_logprob.py",)
SHARDS = ("tests/losses/test_vocab_parallel.py",)

TABLE = [
    *of(
        "losses/logprob.py",
        ALONE,
        {
            "sign of the gradient": ("scale = -to_logprobs[rows, None]", "scale = to_logprobs[rows, None]"),
            "the token itself in every tile": ("(to_logprobs[rows] * inside)[:, None]", "to_logprobs[rows][:, None]"),
            "last column of a tile in the next, too": ("(places < count)", "(places <= count)"),
            "first column of a tile in the one before, too": ("(places >= 0)", "(places >= -1)"),
            "gradient without the temperature": ("to_logits.div_(divisor[rows])", "to_logits.div_(1.0)"),
            "times the temperature": ("else logits.div_(divisor[rows])", "else logits.mul_(divisor[rows])"),
            "logits times the temperature": ("wide / divisor", "wide * divisor"),
            "one temperature of 1 is all": ("(column == 1.0).all()", "(column == 1.0).any()"),
            "earlier tiles not rescaled": ("self.total[rows] * old", "self.total[rows]"),
            "entropy of earlier tiles not rescaled": ("self.weighted[rows] * old", "self.weighted[rows]"),
            "largest logit of the last tile": ("torch.maximum(self.maximum[rows], logits.amax(-1))", "logits.amax(-1)"),
            "largest logit left out": (
                "normalisers = sums.maximum + sums.total.log()",
                "normalisers = sums.total.log()",
            ),
            "sign of the entropy": (
                "normalisers - sums.weighted / sums.total",
                "sums.weighted / sums.total - normalisers",
            ),
            "sign in the entropy's gradient": (
                "(log_distribution + entropies[rows, None])",
                "(log_distribution - entropies[rows, None])",
            ),
            "sign of the entropy from logits": (
                "-(distribution.exp() * distribution)",
                "(distribution.exp() * distribution)",
            ),
            "narrow sums": (
                "return torch.float64 if tensor.dtype == torch.float64 else torch.float32",
                "return tensor.dtype",
            ),
            "an id past the last accepted": ("(targets < vocabulary)", "(targets <= vocabulary)"),
        },
    ),
    *of(
        "losses/logprob.py",
        SHARDS,
        {
            "shards not merged": ("shard.merge(sums)", "sums.total.add_(0)"),
            "token looked for in the first shard": (
                "_places(targets[rows], start + columns.start",
                "_places(targets[rows], columns.start",
            ),
            "gradient of the own shard alone": ("ctx.shard.add_up(to_hidden)", "to_hidden.add_(0)"),
        },
        slow=True,
    ),
    *of(
        "losses/vocab_parallel.py",
        SHARDS,
        {
            "smallest of the maxima": ("distributed.ReduceOp.MAX", "distributed.ReduceOp.MIN"),
            "sums not rescaled": ("sums.total * scale", "sums.total"),
            "rescaled the wrong way": ("(sums.maximum - maximum).exp_()", "(maximum - sums.maximum).exp_()"),
            "a row in two shards": ("vocabulary * (rank + 1) // size", "vocabulary * (rank + 1) // size + 1 - rank"),
        },
        slow=True,
    ),
]
