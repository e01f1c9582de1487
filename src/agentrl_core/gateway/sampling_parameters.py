"""Decide a call's sampling parameters: training fixes some, the agent may choose others, the config has the defaults.

Also derives seeds and reply ids from the run's seed, so that equal runs sample equal tokens.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import attrs

from agentrl_core.errors import RequestError
from agentrl_core.types import Sampling

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agentrl_core.gateway.call_types import ChatRequest

T = TypeVar("T")
N = TypeVar("N", int, float)

NAME_CHARS = 32
"""Number of characters that `reply_name` returns."""
_MOST_LOST_CALLS = 10_000
"""Most call numbers that `count_used` tries beyond the stored ones: calls that began but were aborted or lost."""

_LEAST_TEMPERATURE = 1e-3
"""Lowest temperature above 0; logits divided by a smaller one may not be finite."""

_WITHOUT_EFFECT: Mapping[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "min_p": (0,),
    "typical_p": (1,),
    "seed": (),
}
"""Sampling parameters that are always ignored, with their neutral values, which need no mention in the trace.

A penalty or a bias would change the distribution that is trained, and seeds come from the run.
"""


@attrs.frozen(kw_only=True)
class SamplingPolicy:
    """Sampling rules of one session.

    Calls that are trained are samples of one distribution: temperature, top-p and top-k are the policy's, unless
    `others` allows the agent's. In evaluations, and in calls that are not trained, the agent's values count.
    """

    temperature: float
    top_p: float = 1.0
    top_k: int = 0
    """0: all tokens."""
    max_tokens: int | None
    """Limit of a reply for which the agent sets none; None: up to the context length."""
    training: bool
    """Whether the session's calls are trained; False in evaluations."""
    others: Literal["force", "refuse", "allow"]
    """Treatment of a trained call that asks for another temperature, top-p or top-k: use the policy's, refuse it, or
    obey it."""
    stop_token_ids: tuple[int, ...]
    """End tokens of the model."""
    min_tokens: int = 0
    """Least length of a reply for which the agent sets none."""
    stop: tuple[str, ...] = ()
    """Stop strings of a call for which the agent gives none."""
    more_stop_token_ids: tuple[int, ...] = ()
    """Stop tokens of the config, in addition to the model's and the agent's."""
    ignore_eos: bool = False
    """Whether the model's end tokens do not end replies."""

    def decide(self, request: ChatRequest, *, room: int) -> Decision:
        """Return the sampling of one call, without seed and grammar; `room` is the rest of the context in tokens.

        `RequestError` (400) for a distribution that the config refuses, for a temperature that is too small, and for a
        `min_tokens` above the limit.
        """
        training = self.training and request.trainable
        temperature = self._temperature(request.temperature, training=training)
        wanted = request.max_tokens if request.max_tokens is not None else self.max_tokens
        sampling = Sampling(
            temperature=temperature,
            top_p=self._truncation("top_p", request.top_p, self.top_p, training=training),
            # Both 0 and -1 stand for all tokens.
            top_k=self._truncation(
                "top_k", None if request.top_k is None else max(request.top_k, 0), self.top_k, training=training
            ),
            max_tokens=room if wanted is None else min(wanted, room),
            stop=request.stop or self.stop,
            stop_token_ids=self._stop_token_ids(request),
            min_tokens=self._min_tokens(request, room),
            ignore_eos=self.ignore_eos or request.ignore_eos,
        )
        # All that follows is for the trace and the counters: the agent's values that were not used.
        asked = {name: getattr(request, name) for name in ("temperature", "top_p", "top_k", "max_tokens")}
        changed = {
            name: value for name, value in asked.items() if value is not None and value != getattr(sampling, name)
        }
        without_effect = changed.keys() & {"top_p", "top_k"}
        if request.ignored:
            without_effect |= {
                name
                for name, neutral in _WITHOUT_EFFECT.items()
                if name in request.ignored and request.ignored[name] not in neutral
            }
        return Decision(
            sampling=sampling,
            requested={**request.ignored, **changed},
            forced="temperature" in changed,
            without_effect=frozenset(without_effect),
        )

    def _stop_token_ids(self, request: ChatRequest) -> tuple[int, ...]:
        more = [*self.more_stop_token_ids, *request.stop_token_ids]
        # The agent may list the model's own end tokens; with `ignore_eos` they are removed even then.
        if self.ignore_eos or request.ignore_eos:
            return tuple(dict.fromkeys(token for token in more if token not in self.stop_token_ids))
        return tuple(dict.fromkeys([*self.stop_token_ids, *more]))

    def _min_tokens(self, request: ChatRequest, room: int) -> int:
        wanted = self.min_tokens if request.min_tokens is None else request.min_tokens
        most = request.max_tokens if request.max_tokens is not None else self.max_tokens
        if most is not None and wanted > most:
            raise RequestError(
                400,
                "invalid_value",
                f"min_tokens is {wanted}, above max_tokens, which is {most}; lower min_tokens or raise max_tokens",
                param="min_tokens",
            )
        return min(wanted, room)

    def _temperature(self, asked: float | None, *, training: bool) -> float:
        if asked is None or asked == self.temperature:
            return self.temperature
        # Only where the agent's temperature would be used: `force` ignores it, and `refuse` has its own message.
        if 0 < asked < _LEAST_TEMPERATURE and (not training or self.others == "allow"):
            raise RequestError(
                400,
                "invalid_value",
                f"temperature {asked:g} is too small to sample at: use 0, or at least {_LEAST_TEMPERATURE:g}",
                param="temperature",
            )
        if not training:
            return asked
        if self.others == "refuse":
            raise _refused("temperature", asked, self.temperature)
        if self.others == "force":
            return self.temperature
        if asked == 0:
            raise RequestError(
                400,
                "temperature_not_allowed",
                "temperature 0 has no logprobs to train on: use a positive one, or set gateway.temperature to force",
                param="temperature",
            )
        return asked

    def _truncation(self, name: str, asked: N | None, own: N, *, training: bool) -> N:
        """Return top-p or top-k of a call."""
        if asked is None or asked == own:
            return own
        if training and self.others == "refuse":
            raise _refused(name, asked, own)
        return own if training and self.others == "force" else asked


def _refused(name: str, asked: float, own: float) -> RequestError:
    return RequestError(
        400,
        f"{name}_not_allowed",
        f"{name} {asked:g} differs from the policy's {own:g}: leave it out, or set gateway.temperature to force or "
        "allow",
        param=name,
    )


@attrs.frozen(kw_only=True)
class Decision:
    """Sampling of one call, and the agent's wishes that it does not follow."""

    sampling: Sampling
    requested: Mapping[str, Any]
    """Options of the request that were ignored or changed, with the agent's values, for the trace."""
    forced: bool
    """Whether the agent asked for another temperature than it got."""
    without_effect: frozenset[str] = frozenset()
    """Names of the other sampling parameters that were ignored."""


def call_seed(*parts: int) -> int:
    """Mix integers into a 63-bit seed, the same in every process."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def reply_name(*parts: object) -> str:
    """Hash the parts that identify a reply into 32 hex digits, the same in every process.

    Frameworks and agents write the ids of replies into later prompts. Random ids would therefore make runs of equal
    seed sample different tokens.
    """
    return hashlib.blake2b(repr(parts).encode(), digest_size=NAME_CHARS // 2).hexdigest()


def count_used(unseen: set[T], of_number: Callable[[int], T], *, most: int) -> int:
    """Return the smallest number above all those whose value is in `unseen`.

    The values are hashes, so numbers are tried from 0 on. There may be gaps: calls that began and were never stored.
    """
    for number in range(most + _MOST_LOST_CALLS):
        if not unseen:
            return number
        unseen.discard(of_number(number))
    return most + _MOST_LOST_CALLS
