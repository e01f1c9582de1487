"""Judge by a canary prompt whether an engine samples from the weights that were published, and not from older ones.

The canary is a fixed prompt. The publishing process computes its log-probabilities with the live weights; the engine
computes them after loading. They are compared with those of the new weights and of the last weights that were proven.
Imports torch only where log-probabilities are computed. K tokens of the canary, in nats.
"""

from __future__ import annotations

import json
import math
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

CANARY_FILE = "canary.json"

MAX_GAP = 0.5
"""Largest root mean square of |engine - learner| over the canary, where no option sets it. vLLM on
SmolLM2-135M has 0.08 in bfloat16 and 1e-5 in float32."""

_TOKENS = 33
"""Length of the canary. 32 logprobs react to every layer, and their computation is cheap beside a training step. It is
longer than a block of the usual prefix caches (16 tokens), so a stale cache shows."""
_NEXT = 32
"""Likeliest tokens after the canary whose logprobs are kept: an engine's greedy token is one of them."""
_LEAST_NOISE = 2e-6
"""Rounding noise of one logprob that is always granted: of float32."""
_SEPARATION = 8.0
"""Distance of two versions' canaries, in standard deviations of the noise along it, from which on they can be told
apart: the middle between them is then four of them away from both."""
_NOISES = 10.0
"""Deviation, in root mean squares of the noise at the start, beyond which rounding does not explain it."""
_CLOSER = 0.5
"""Share of its distance to the new weights within which an engine of unknown noise must be to older ones, to be said to
have those. An engine with the new weights comes there by five standard deviations of its noise, however large that is:
of the noise in K = 32 dimensions, only the part along the change helps."""
_SHARE = 0.01
"""Deviation as a share of the change between both versions that is granted although it exceeds the noise, which grows
with the weights' scale. A part that never arrives deviates further with each version: vLLM on a CPU with SmolLM2-135M,
whose output head is tied, by 0.6 % of the first change, 1.2 % after the second."""


class Verdict(StrEnum):
    """Result of a proof."""

    PROVEN = "proven"
    """The engine has the new weights."""
    SAME = "not distinguishable"
    """The engine is as close to the new weights as rounding allows, and so it is to the last proven ones."""
    STALE = "stale"
    """The engine still has the last proven weights."""
    WRONG = "wrong"
    """The engine has neither."""


@attrs.frozen(kw_only=True)
class Canary:
    """Log-probabilities of the canary prompt under the weights of one policy version."""

    version: int
    ids: tuple[int, ...]
    """The prompt. [K + 1]"""
    logprobs: tuple[float, ...]
    """Of `ids[1:]`, at temperature 1. [K]"""
    following: Mapping[int, float]
    """The likeliest tokens after the prompt, with their logprobs."""


@attrs.frozen(kw_only=True)
class Finding:
    """Verdict on one engine, with the distances that it rests on: root mean squares over the canary, in nats."""

    verdict: Verdict
    gap: float
    """Distance between engine and new weights."""
    largest_gap: float
    """Largest |engine - learner| of one token under the new weights."""
    gap_to_old: float | None = None
    """Distance between the engine and the last proven weights; None if there are none."""
    change: float | None = None
    """Distance between the new and the last proven weights."""
    largest_change: float | None = None
    """Largest difference of one token between both weights."""


def canary_ids(vocab_size: int) -> tuple[int, ...]:
    """Return the canary prompt for a vocabulary: ids spread over it, in an order that no text has.

    Unlikely tokens have the largest gradients, so their logprobs react most to a change of any layer. The last quarter
    of the vocabulary is left out: there are the special tokens and rows that no token uses.
    """
    usable = max(1, vocab_size * 3 // 4)
    # Multiples of the golden ratio spread evenly, whatever the size.
    return tuple(int(usable * math.modf(index * 0.6180339887498949)[0]) for index in range(1, _TOKENS + 1))


def canary_of(module: Any, version: int) -> Canary | None:
    """Compute the canary with a transformers model, on its device and in its dtype; blocks for one small forward.

    None if the module has no embeddings of tokens, and so no prompt.
    """
    import torch

    if getattr(module, "get_input_embeddings", None) is None:
        return None
    embeddings = module.get_input_embeddings()
    ids = canary_ids(int(embeddings.num_embeddings))
    with torch.inference_mode():
        tokens = torch.tensor([ids], device=embeddings.weight.device)
        table = torch.log_softmax(module(input_ids=tokens, use_cache=False).logits[0].float(), dim=-1)
        values = table[:-1].gather(1, tokens[0, 1:, None]).flatten().tolist()
        likeliest = table[-1].topk(min(_NEXT, table.shape[-1]))
        following = dict(zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True))
    return Canary(version=version, ids=ids, logprobs=tuple(values), following=following)


def write_canary(directory: Path, canary: Canary) -> None:
    """Write the canary beside the weights, for a process that serves them and has no learner."""
    (directory / CANARY_FILE).write_text(json.dumps(attrs.asdict(canary)), encoding="utf-8")


def read_canary(directory: Path) -> Canary | None:
    """Read the canary beside weights; None if there is none. Raises `ValueError` if the file is damaged."""
    path = directory / CANARY_FILE
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        canary = Canary(
            version=int(found["version"]),
            ids=tuple(map(int, found["ids"])),
            logprobs=tuple(map(float, found["logprobs"])),
            following={int(token): float(value) for token, value in found["following"].items()},
        )
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: its content is not a canary of weights") from error
    if len(canary.logprobs) != len(canary.ids) - 1:
        raise ValueError(f"{path} is damaged: {len(canary.ids)} ids with {len(canary.logprobs)} logprobs")
    return canary


class Judge:
    """Judge of one engine's canaries, version after version; the first shows how much the engine's rounding differs.

    The first weights that it sees are only compared with `max_gap`, and with `old` weights if there are any. The noise
    that they show is the measure for what follows: a server in float32 is then held to a hundred-thousandth of a nat,
    one in bfloat16 to what it can do.
    """

    def __init__(self, *, max_gap: float | None = None) -> None:
        self.max_gap = MAX_GAP if max_gap is None else max_gap
        self._noise: float | None = None
        self.proven: Canary | None = None
        """The last weights that the engine was proven to have; None before the first."""

    def judge(self, seen: Sequence[float], new: Canary, *, old: Canary | None = None) -> Finding:
        """Judge logprobs [K] that an engine returned for the canary; `old` replaces the last proven weights."""
        old = old or self.proven
        gap, largest = _distance(seen, new.logprobs)
        if not math.isfinite(gap):
            return Finding(verdict=Verdict.WRONG, gap=gap, largest_gap=largest)
        if old is None:
            verdict = Verdict.PROVEN if gap <= self.max_gap else Verdict.WRONG
            return Finding(verdict=verdict, gap=gap, largest_gap=largest)
        change, largest_change = _distance(new.logprobs, old.logprobs)
        gap_to_old, _ = _distance(seen, old.logprobs)
        return Finding(
            verdict=(
                self._first_verdict(gap, gap_to_old)
                if self._noise is None
                else self._verdict(seen, new, old, gap, change)
            ),
            gap=gap,
            largest_gap=largest,
            gap_to_old=gap_to_old,
            change=change,
            largest_change=largest_change,
        )

    def _first_verdict(self, gap: float, gap_to_old: float) -> Verdict:
        """Judge an engine whose noise is not known; no noise brings an engine much closer to other weights."""
        if gap > _NOISES * _LEAST_NOISE and gap_to_old < _CLOSER * gap and gap_to_old <= self.max_gap:
            return Verdict.STALE
        return Verdict.PROVEN if gap <= self.max_gap else Verdict.WRONG

    def _verdict(self, seen: Sequence[float], new: Canary, old: Canary, gap: float, change: float) -> Verdict:
        noise = self._noise or _LEAST_NOISE
        strays = gap > self.max_gap or (gap > _NOISES * noise and gap > _SHARE * change)
        if change * math.sqrt(len(seen)) < _SEPARATION * noise:
            return Verdict.WRONG if strays else Verdict.SAME
        # Position on the line from the old weights (0) to the new ones (1); rounding hardly moves it.
        steps = [to - by for to, by in zip(new.logprobs, old.logprobs, strict=True)]
        moved = sum(step * (value - by) for step, value, by in zip(steps, seen, old.logprobs, strict=True))
        position = moved / sum(step * step for step in steps)
        if position < 0.5:  # noqa: PLR2004 (the middle)
            gap_to_old, _ = _distance(seen, old.logprobs)
            far = gap_to_old > self.max_gap or (gap_to_old > _NOISES * noise and gap_to_old > _SHARE * change)
            return Verdict.WRONG if far else Verdict.STALE
        return Verdict.WRONG if strays else Verdict.PROVEN

    def strays(self, token: int, logprob: float, new: Canary, *, old: Canary | None = None) -> float | None:
        """Return how far a sampled token's logprob is from the new weights', if rounding does not explain it.

        `token` was sampled greedily after the canary prompt. Keys and values of older weights in a prefix cache show
        here, and nowhere else: logprobs of a prompt are computed without the cache. None if all is well, or unknown.
        """
        expected, old = new.following.get(token), old or self.proven
        if expected is None:
            return math.inf if math.isfinite(logprob) and logprob > min(new.following.values()) + self.max_gap else None
        gap = abs(logprob - expected)
        if self._noise is None or old is None:
            return gap if gap > 2 * self.max_gap else None
        _, largest_change = _distance(new.logprobs, old.logprobs)
        return gap if gap > max(_NOISES * self._noise, _SHARE * largest_change) else None

    def accept(self, new: Canary, finding: Finding) -> None:
        """Take proven weights as those that the engine has now; the first ones show the noise."""
        # Only the first: a noise that followed the gap would grow with a tensor that never arrives.
        if self._noise is None:
            self._noise = max(finding.gap, _LEAST_NOISE)
        self.proven = new


def _distance(seen: Sequence[float], expected: Sequence[float]) -> tuple[float, float]:
    """Return root mean square and largest |difference| of two sequences [K]; infinite if they do not fit together."""
    gaps = [abs(one - other) for one, other in zip(seen, expected, strict=False)]
    if len(seen) != len(expected) or not gaps or not all(map(math.isfinite, gaps)):
        return math.inf, math.inf
    return math.sqrt(sum(gap * gap for gap in gaps) / len(gaps)), max(gaps)
