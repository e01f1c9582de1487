"""Reward shaping: change the rewards of a group before its baseline is computed.

The shapings of the config run in their order, group by group. Only advantages see shaped rewards. The store, filters
that look at a record's reward, and the metric `reward/mean` keep the rewards as given; `reward/shaped_mean` is the mean
of the shaped ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import attrs
from attrs import field, validators

from agentrl_core.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentrl_core.types import Episode, Group


@attrs.frozen(kw_only=True)
class Overlong:
    """DAPO's soft overlong punishment: less reward for long responses (arXiv 2503.14476, Equation 13).

    Added to the reward, for L sampled tokens: 0 up to max_tokens - buffer_tokens, then
    -penalty * (L - (max_tokens - buffer_tokens)) / buffer_tokens, and -penalty beyond max_tokens. We differ: in the
    paper a response is one completion; here it is everything that the policy sampled in a record, or its longest call
    (`of: call`).
    """

    max_tokens: int = field(validator=validators.gt(0))
    """Length in tokens from which the penalty is full."""
    buffer_tokens: int = field(validator=validators.gt(0))
    """Length in tokens, before `max_tokens`, over which the penalty grows linearly."""
    penalty: float = field(default=1.0, validator=validators.gt(0.0))
    """Largest amount that is subtracted."""
    of: Literal["record", "call"] = field(default="record", validator=validators.in_(("record", "call")))
    """Length that counts: all sampled tokens of the record, or of its longest call."""

    @buffer_tokens.validator
    def _within(self, _attribute: object, value: int) -> None:
        if value > self.max_tokens:
            raise ValueError(
                f"'buffer_tokens' must be at most max_tokens ({self.max_tokens}), because it is its last part; found "
                f"{value}"
            )

    def shape(self, group: Group, rewards: Sequence[float]) -> list[float]:
        """Return the rewards minus the penalties."""
        return [reward - self._punishment(episode) for reward, episode in zip(rewards, group.episodes, strict=True)]

    def _punishment(self, episode: Episode) -> float:
        tokens = sampled_tokens(episode) or [0]
        length = sum(tokens) if self.of == "record" else max(tokens)
        excess = length - (self.max_tokens - self.buffer_tokens)
        return self.penalty * min(max(excess, 0) / self.buffer_tokens, 1.0)


@attrs.frozen(kw_only=True)
class Rank:
    """Bonus between -`spread` and +`spread` by length rank, separately among a group's right and wrong records.

    `efficient_rewarding` in AgentCPM's AgentRL. Of n right records the shortest gets +spread, the longest -spread, and
    the others lie between in steps of 2 * spread / (n - 1); equal lengths share the mean of their ranks. Of the wrong
    records the longest gets +spread. The only right or only wrong record gets 0. We differ: AgentRL computes the bonus
    but its training never reads it; here the baseline sees it.
    """

    spread: float = field(default=0.1, validator=validators.gt(0.0))
    """Largest bonus; AgentRL's value."""
    right_at: float = 0.5
    """Smallest reward, before shaping, of a right record; AgentRL's value."""
    by: Literal["calls", "tokens"] = field(default="calls", validator=validators.in_(("calls", "tokens")))
    """Unit of length: LLM calls of the policy, or tokens that it sampled."""

    def shape(self, group: Group, rewards: Sequence[float]) -> list[float]:
        """Return the rewards plus each record's bonus."""
        lengths = [self._length(episode) for episode in group.episodes]
        right = [(episode.record.reward or 0.0) >= self.right_at for episode in group.episodes]
        shaped = []
        for reward, side, length in zip(rewards, right, lengths, strict=True):
            others = [other for other, its_side in zip(lengths, right, strict=True) if its_side == side]
            longer = sum(other > length for other in others) - sum(other < length for other in others)
            # (number of longer records) - (number of shorter ones) equals n - 1 - 2 * rank with averaged ties.
            bonus = self.spread * longer / (len(others) - 1) if len(others) > 1 else 0.0
            shaped.append(reward + (bonus if side else -bonus))
        return shaped

    def _length(self, episode: Episode) -> int:
        tokens = sampled_tokens(episode)
        return len(tokens) if self.by == "calls" else sum(tokens)


@attrs.frozen(kw_only=True)
class Affine:
    """Affine map (reward + bias) * scale within [-clip, clip]: AReaL's reward_bias, reward_scaling, reward_clip."""

    bias: float = 0.0
    scale: float = field(default=1.0, validator=validators.gt(0.0))
    clip: float | None = field(default=None, validator=validators.optional(validators.gt(0.0)))
    """Largest absolute value; None: unlimited. AReaL's default is 20."""

    def shape(self, group: Group, rewards: Sequence[float]) -> list[float]:  # noqa: ARG002  # the shaping protocol
        """Return the mapped rewards."""
        values = [(reward + self.bias) * self.scale for reward in rewards]
        return values if self.clip is None else [min(max(value, -self.clip), self.clip) for value in values]


@attrs.frozen(kw_only=True)
class Malformed:
    """Bound of the advantages of calls with a malformed tool call: at most 0, whatever the record's reward is.

    AgentCPM's AgentRL has this rule for its status FORMATERROR: min(0, A) for these calls.
    """

    def shape(self, group: Group, rewards: Sequence[float]) -> list[float]:  # noqa: ARG002  # the shaping protocol
        """Return the rewards unchanged."""
        return list(rewards)

    def bound(self, group: Group, advantages: Mapping[str, float]) -> dict[str, float]:
        """Return the advantages, at most 0 for malformed calls."""
        malformed = {call.id for episode in group.episodes for call in episode.interactions if call.tool_errors}
        return {name: min(value, 0.0) if name in malformed else value for name, value in advantages.items()}


@attrs.frozen(kw_only=True)
class FunctionShaping:
    """Adapter from a plain function to a shaping: `fn(group, rewards)`, returning as `Shaping.shape`."""

    name: str
    function: Callable[..., Any]

    def shape(self, group: Group, rewards: Sequence[float]) -> Any:
        """Call the function and return its rewards."""
        return self.function(group, rewards)


def as_shaping(built: object, name: str, *, where: str = "shaping") -> Any:
    """Return `built`, wrapped as a shaping if it is a plain function; `name` is its name in the config.

    Raises `PluginError` for a function with other parameters, or an async one.
    """
    # A shaping object may be callable as well; it is used by its `shape`.
    if not callable(built) or hasattr(built, "shape"):
        return built
    parameters = inspect.signature(built).parameters.values()
    positional = [item for item in parameters if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)]
    needed = sum(item.default is item.empty for item in positional)
    if len(positional) < 2 or needed > 2 or inspect.iscoroutinefunction(built):  # noqa: PLR2004  (group and rewards)
        found = f"{'async ' if inspect.iscoroutinefunction(built) else ''}{name}{inspect.signature(built)}"
        raise PluginError(
            f"{where}: expected a shaping shape(group, rewards), with options as keyword-only parameters, found {found}"
        )
    return FunctionShaping(name=name, function=built)


def sampled_tokens(episode: Episode) -> list[int]:
    """Return the number of tokens that the policy sampled in each of its calls."""
    return [len(call.output_ids) for call in episode.interactions if call.trainable]
