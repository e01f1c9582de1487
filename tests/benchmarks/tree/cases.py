"""Cases of the token trie's benchmark: sets of LLM calls that share much, little or nothing, with random token ids.

Every call is a separate sample, as in a trainer that does not know the other calls.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import attrs

from agentrl_core.batching.samples import Sample

VOCABULARY = 8192

PROMPT, COMPLETION, TOOL_OUTPUT = 384, 48, 128
"""Tokens of a ReAct episode's prompt, of each call's completion and of what each tool returns."""


@attrs.define(kw_only=True)
class Episodes:
    """Collects the calls of one group of episodes."""

    random: random.Random
    calls: list[Sample] = attrs.field(factory=list)
    records: int = 0

    def tokens(self, count: int) -> list[int]:
        """Return new token ids."""
        return [self.random.randrange(VOCABULARY) for _ in range(count)]

    def call(self, prompt: Sequence[int], completion: Sequence[int]) -> None:
        """Record a call of the current episode, sampled by a policy a little off the one that is trained."""
        count, number = len(completion), len(self.calls)
        self.calls.append(
            Sample(
                ids=[*prompt, *completion],
                positions=range(len(prompt), len(prompt) + count),
                logprobs=[self.random.gauss(-math.log(VOCABULARY), 0.1) for _ in range(count)],
                temperatures=[1.0] * count,
                advantages=[self.random.uniform(-1, 1)] * count,
                versions=[0] * count,
                interactions=[number] * count,
                sequences=[number] * count,
                record=self.records,
                group=0,
            )
        )

    def react(self, prompt: Sequence[int], turns: int, *, discard_every: int = 0) -> None:
        """Play an episode whose context grows by completion and tool output.

        With `discard_every` a manager of contexts cuts it back to prompt and a summary after so many turns.
        """
        context = list(prompt)
        for turn in range(1, turns + 1):
            completion = self.tokens(COMPLETION)
            self.call(context, completion)
            context = [*context, *completion, *self.tokens(TOOL_OUTPUT)]
            if discard_every and turn % discard_every == 0:
                context = [*prompt, *self.tokens(COMPLETION)]
        self.records += 1

    def group(self, *, size: int, prompt: int, completion: int) -> None:
        """Answer one prompt `size` times."""
        ids = self.tokens(prompt)
        for _ in range(size):
            self.call(ids, self.tokens(completion))
            self.records += 1

    def strangers(self, *, size: int, prompt: int, completion: int) -> None:
        """Answer `size` prompts that have nothing in common."""
        for _ in range(size):
            self.group(size=1, prompt=prompt, completion=completion)

    def group_react(self, *, size: int, turns: int) -> None:
        """Play `size` ReAct episodes from one prompt."""
        prompt = self.tokens(PROMPT)
        for _ in range(size):
            self.react(prompt, turns)


CASES: dict[str, Callable[[Episodes], None]] = {
    "react_2": lambda episodes: episodes.react(episodes.tokens(PROMPT), 2),
    "react_5": lambda episodes: episodes.react(episodes.tokens(PROMPT), 5),
    "react_10": lambda episodes: episodes.react(episodes.tokens(PROMPT), 10),
    "react_20": lambda episodes: episodes.react(episodes.tokens(PROMPT), 20),
    "group_8": lambda episodes: episodes.group(size=8, prompt=1024, completion=64),
    "group_8_short": lambda episodes: episodes.group(size=8, prompt=256, completion=256),
    "group_react": lambda episodes: episodes.group_react(size=8, turns=5),
    "discard_10": lambda episodes: episodes.react(episodes.tokens(PROMPT), 10, discard_every=3),
    "nothing_shared": lambda episodes: episodes.strangers(size=8, prompt=1024, completion=64),
}
"""Name -> what the episodes do."""


def calls_of(name: str) -> list[Sample]:
    """Return the calls of a case; the same every time."""
    episodes = Episodes(random=random.Random(0))
    CASES[name](episodes)
    return episodes.calls


def group_of(tokens: int) -> list[Sample]:
    """Return a group of 4 that takes so many tokens merged: half of them the prompt, an eighth each completion."""
    episodes = Episodes(random=random.Random(0))
    episodes.group(size=4, prompt=tokens // 2, completion=tokens // 8)
    return episodes.calls
