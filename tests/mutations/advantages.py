"""Mutations of advantage estimators: signs, baselines, spreads and weights."""

from tests.mutations.mutation import of

ADVANTAGES = ("tests/batching/test_advantages.py",)

TABLE = [
    *of(
        "batching/advantages.py",
        ADVANTAGES,
        {
            "grpo: sign": ("[[(value - mean) * factor for", "[[(mean - value) * factor for"),
            "grpo: rounding blown up": ("if _is_rounding(spread, counted):", "if spread == 0:"),
            "grpo: population's spread": (
                "math.sqrt(squares / (len(returns) - 1))",
                "math.sqrt(squares / len(returns))",
            ),
            "grpo: spread weighs calls": (
                "_mean_of([(value - mean) ** 2 for value in turns]) for",
                "sum([(value - mean) ** 2 for value in turns]) for",
            ),
            "grpo: baseline over calls": (
                "_mean_of([_mean_of(turns) for turns in returns])",
                "_mean_of([value for turns in returns for value in turns])",
            ),
            "dr_grpo: divided by the spread": ("GRPO(std=False, scale", "GRPO(std=True, scale"),
            "per_turn: baseline of all turns": (
                "grpo.advantages([returns[index][turn] for index in reached])",
                "[grpo.turn_advantages(returns)[index][turn] for index in reached]",
            ),
            "leave_one_out: the record in its own baseline": (
                "(total - _mean_of(turns)) / (len(means) - 1)",
                "total / len(means)",
            ),
            "leave_one_out: denominator off by one": (
                "(total - _mean_of(turns)) / (len(means) - 1)",
                "(total - _mean_of(turns)) / len(means)",
            ),
            "leave_one_out: clipped the other way": (
                "min(advantage, 0.0) if reward <= 0.5 else max(advantage, 0.0)",
                "max(advantage, 0.0) if reward <= 0.5 else min(advantage, 0.0)",
            ),
            "leave_one_out: a reward of a half is right": ("if reward <= 0.5", "if reward < 0.5"),
            "agentcpm: not clipped": ("sign_clip: bool = True", "sign_clip: bool = False"),
            "reinforce_pp: baseline the other way round": (
                "(DrGRPO() if self.baseline else",
                "(DrGRPO() if not self.baseline else",
            ),
            "reinforce_pp: not centred": (
                "centred = _centred(calls, weights)",
                "centred = [call.advantage for call in calls]",
            ),
            "reinforce_pp: groups not compared": ("return not self.baseline", "return self.baseline"),
            "mean of the calls": ("total / math.fsum(weights)", "total / len(calls)"),
            "population's spread": ("math.fsum(weights) - 1.0", "math.fsum(weights)"),
            "long records count for more": ("1.0 / of_record[call.record]", "1.0"),
            "norm: scale left out": ("[value * self.scale for value in values]", "list(values)"),
            "norm: the record in its own baseline": ("LeaveOneOut() if self.mean_leave1out else DrGRPO()", "DrGRPO()"),
            "norm: groups divided twice": (
                'if self.std_level != "group" or self.mean_level == "batch" or not counted:',
                'if self.std_level != "group" or not counted:',
            ),
            "norm: another group's spread": ("(spreads[call.group] + self.eps)", "(spreads[0] + self.eps)"),
            "norm: a single record divided by 0": ("if len(centred) > 1 else 1.0", "if len(centred) > 1 else 0.0"),
        },
    ),
]
