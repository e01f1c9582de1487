"""Mutations of credit, shaping, baselines and filters, which turn rewards into advantages."""

from tests.mutations.mutation import of

SIGNAL = ("tests/batching/test_signal.py", "tests/batching/test_filters.py", "tests/batching/test_shaping.py")

TABLE = [
    *of(
        "batching/credit.py",
        ("tests/batching/test_credit.py", "tests/batching/test_filters.py"),
        {
            "discount off by one turn": ("self.turn_discount**turns *", "self.turn_discount ** (turns + 1) *"),
            "the first child's branch": ("max(((latest[c][0]", "min(((latest[c][0]"),
            "returns without discount": ("self.turn_discount * sum(returns[c]", "sum(returns[c]"),
            "the scalar to the first call": ("policys[-1:]", "policys[:1]"),
            "other models are links of the chain": (
                "(self.turn_discount if node.trainable else 1.0)",
                "self.turn_discount",
            ),
            "aborted outputs trained": (" and interaction.finish_reason is not FinishReason.ABORT", ""),
            "outputs of others trained": ("interaction.trainable and interaction.finish", "interaction.finish"),
        },
    ),
    *of(
        "batching/shaping.py",
        ("tests/batching/test_shaping.py",),
        {
            "overlong: sign": ("reward - self._punishment(episode)", "reward + self._punishment(episode)"),
            "overlong: buffer behind the limit": (
                "length - (self.max_tokens - self.buffer_tokens)",
                "length - self.max_tokens",
            ),
            "overlong: calls for records": ('if self.of == "record" else', 'if self.of != "record" else'),
            "rank: longer is better": ("(bonus if side else -bonus)", "(-bonus if side else bonus)"),
            "rank: denominator off by one": ("longer / (len(others) - 1)", "longer / len(others)"),
            "rank: right and wrong ones together": (" if its_side == side]", "]"),
            "rank: at the bound wrong": (">= self.right_at", "> self.right_at"),
            "affine: clipped above only": ("min(max(value, -self.clip), self.clip)", "min(value, self.clip)"),
            "malformed: the others bounded": ("if name in malformed", "if name not in malformed"),
            "tokens of other models counted": (
                "for call in episode.interactions if call.trainable]",
                "for call in episode.interactions]",
            ),
        },
    ),
    *of(
        "batching/filters.py",
        SIGNAL[1:2] + SIGNAL[:1],
        {
            "negative advantages are no signal": ("abs(value) > tolerance", "value > tolerance"),
            "rounding is a signal": ("abs(value) > tolerance", "abs(value) > 0"),
            "a range of just enough dropped": ("< self.min_range:", "<= self.min_range:"),
            "balance: one wrong record less": ("draw.sample(wrong, min(fewer + 1,", "draw.sample(wrong, min(fewer,"),
            "balance: at the bound right": ("record.reward > self.right_above", "record.reward >= self.right_above"),
            "draws do not know their seed": ('f"{seed}:{group.task_id}', 'f"0:{group.task_id}'),
            "overlong: others' calls cut a record": ("any(is_trained(call) and call.finish", "any(call.finish"),
            "overlong: whole ones left out": (".difference(cut).union(drawn)", ".intersection(cut).union(drawn)"),
            "min_turns: off by one": ("> self.turns", ">= self.turns"),
            "min_turns: at the bound right": ("<= self.right_above", "< self.right_above"),
        },
    ),
    *of(
        "batching/signal.py",
        SIGNAL,
        {
            "shares left out": ("[value * shares[name] for name in names]", "[value for name in names]"),
            "a scalar paid whole to every return": ("{name: share * reward for", "{name: reward for"),
            "shaping that does not reach returns": ("change = reward - (record.reward or 0.0)", "change = 0.0"),
            "shaping of returns reversed": ("value + change * shares[name]", "value - change * shares[name]"),
            "shapings that do not follow each other": (
                "item.shape(group, tuple(rewards))",
                "item.shape(group, tuple(_reward(group, episode) for episode in group.episodes))",
            ),
            "what is not trained has an advantage": ("if is_trained(item)] for episode", "] for episode"),
            "flat groups have a signal": (
                "int(not dropped and has_signal(advantages))",
                "int(not dropped)",
            ),
            "the step's bounds lost": ("advantages |= of_group\n", "pass\n"),
            "the step's normalisation lost": ("advantages |= dict(zip(names, found, strict=True))", "del found"),
            "records numbered within their group": ("record=record, group=group))", "record=0, group=group))"),
            "records that a filter left out trained": ("if k in trained}", "}"),
            "records that a filter left out not counted": (
                "left_out[_reason(item)] += before - len(group.episodes)",
                "left_out[_reason(item)] += 1",
            ),
            "groups in the order of their arrival": (
                "sorted(union.groups, key=by_index)",
                "union.groups",
            ),
        },
    ),
]
