"""Decide how a call is really sampled: what the policy fixes, what the agent may choose, what the config fills in."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Literal

import attrs

from agentrl_core.errors import RequestError
from agentrl_core.types import Sampling

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentrl_core.gateway.exchange import ChatRequest

NAME_CHARS = 32
"""Of what `reply_name` returns."""

_LEAST_TEMPERATURE = 1e-3
"""Of those above 0: logits divided by less may not be finite any more."""

_WITHOUT_EFFECT: Mapping[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "min_p": (0,),
    "typical_p": (1,),
    "seed": (),
}
"""Parameters that no call is sampled by: a penalty or a bias would change the distribution that is trained, and seeds
are the run's. With the values that ask for nothing."""


@attrs.frozen(kw_only=True)
class SamplingPolicy:
    """The sampling rules of one session.

    While training, logprobs are only right for the distribution that the learner assumes, so the temperature
    is the policy's and top-p and top-k are off; an evaluation may sample as its agent likes, and so may
    a call that is not trained.
    """

    temperature: float
    max_tokens: int | None
    """Where the agent asks for no limit; None: up to the context limit."""
    training: bool
    other_temperature: Literal["force", "refuse", "allow"]
    """What happens while training when the agent asks for another temperature."""
    stop_token_ids: tuple[int, ...]
    """The model's own."""
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    """Used where the agent gives none."""
    more_stop_token_ids: tuple[int, ...] = ()
    """Beside the model's and the agent's."""
    ignore_eos: bool = False

    def decide(self, request: ChatRequest, *, room: int) -> Decision:
        """Settle the sampling of one call but for its seed; `room` is how many tokens the context has left.

        `RequestError` (400) where the config refuses the temperature, or no engine could sample at it.
        """
        training = self.training and request.trainable
        temperature = self._temperature(request.temperature, training=training)
        wanted = request.max_tokens if request.max_tokens is not None else self.max_tokens
        sampling = Sampling(
            temperature=temperature,
            top_p=1.0 if training or request.top_p is None else request.top_p,
            top_k=0 if training or request.top_k is None else max(request.top_k, 0),
            max_tokens=room if wanted is None else min(wanted, room),
            stop=request.stop or self.stop,
            stop_token_ids=self._stop_token_ids(request),
            min_tokens=self._min_tokens(request, room),
            ignore_eos=self.ignore_eos or request.ignore_eos,
        )
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
                f"min_tokens is {wanted}, and max_tokens {most}: expected at most as many",
                param="min_tokens",
            )
        return min(wanted, room)

    def _temperature(self, asked: float | None, *, training: bool) -> float:
        if asked is None or asked == self.temperature:
            return self.temperature
        if 0 < asked < _LEAST_TEMPERATURE and (not training or self.other_temperature == "allow"):
            raise RequestError(
                400,
                "invalid_value",
                f"temperature {asked:g} is too small to sample at: use 0, or at least {_LEAST_TEMPERATURE:g}",
                param="temperature",
            )
        if not training:
            return asked
        if self.other_temperature == "refuse":
            raise RequestError(
                400,
                "temperature_not_allowed",
                f"temperature {asked:g} differs from the policy's {self.temperature:g}: leave it out, or set "
                "gateway.temperature to force or allow",
                param="temperature",
            )
        if self.other_temperature == "force":
            return self.temperature
        if asked == 0:
            raise RequestError(
                400,
                "temperature_not_allowed",
                "temperature 0 has no logprobs to train on: use a positive one, or set gateway.temperature to force",
                param="temperature",
            )
        return asked


@attrs.frozen(kw_only=True)
class Decision:
    """How one call is sampled."""

    sampling: Sampling
    requested: Mapping[str, Any]
    """What the agent asked for and did not get."""
    forced: bool
    """Whether the agent asked for another temperature and got the policy's."""
    without_effect: frozenset[str] = frozenset()
    """The other parameters that the agent asked for in vain."""


def call_seed(*parts: int) -> int:
    """Mix integers into a 63-bit seed, the same in every process."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def reply_name(*parts: object) -> str:
    """Mix what tells a reply apart into 32 hex digits, the same in every process.

    Frameworks and agents write the ids of replies into later prompts: random ones would make runs of equal seed
    sample different tokens.
    """
    return hashlib.blake2b(repr(parts).encode(), digest_size=NAME_CHARS // 2).hexdigest()
