"""Shaping: what the advantages see in place of the rewards that agents and scorers gave.

Rewards are shaped group by group, in the order of the config's `shaping`, before the baseline. What is stored, what
filters see of a record and the metric `reward/mean` stay the rewards as given; `reward/shaped_mean` is the other.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import attrs
from attrs import field, validators

from agentrl_core.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentrl_core.types import Episode, Group


class Shaping(Protocol):
    """Changes the rewards of one group; a registered `shaping`."""

    def shape(self, group: Group, rewards: Sequence[float]) -> Sequence[float]:
        """One reward per episode of `group`; `rewards` are those that the shapings before left.

        Where a record was rewarded per interaction, what its sum changes by is paid as a scalar would be, by the
        credit's shares.
        """
        ...


@runtime_checkable
class Bounds(Protocol):
    """A shaping that has the last word on advantages, after every normalisation."""

    def bound(self, group: Group, advantages: Mapping[str, float]) -> Mapping[str, float]:
        """Interaction id -> advantage, of those in `advantages`, which are what `group` trains."""
        ...


@attrs.frozen(kw_only=True)
class Overlong:
    """Less reward for a response near its limit: DAPO's soft overlong punishment (arXiv 2503.14476, Equation 13).

    With L sampled tokens: 0 up to max_tokens - buffer_tokens, then -(L - (max_tokens - buffer_tokens)) /
    buffer_tokens, and -1 beyond max_tokens; times `penalty`, added to the reward. A response is there one completion;
    here it is all that the policy sampled in a record, or its longest call (`of: call`).
    """

    max_tokens: int = field(validator=validators.gt(0))
    buffer_tokens: int = field(validator=validators.gt(0))
    penalty: float = field(default=1.0, validator=validators.gt(0.0))
    of: Literal["record", "call"] = field(default="record", validator=validators.in_(("record", "call")))

    @buffer_tokens.validator
    def _within(self, _attribute: object, value: int) -> None:
        if value > self.max_tokens:
            raise ValueError(
                f"'buffer_tokens' must be at most max_tokens ({self.max_tokens}), whose end it is: {value}"
            )

    def shape(self, group: Group, rewards: Sequence[float]) -> list[float]:
        """The rewards less the punishments."""
        return [reward - self._punishment(episode) for reward, episode in zip(rewards, group.episodes, strict=True)]

    def _punishment(self, episode: Episode) -> float:
        tokens = sampled_tokens(episode) or [0]
        length = sum(tokens) if self.of == "record" else max(tokens)
        excess = length - (self.max_tokens - self.buffer_tokens)
        return self.penalty * min(max(excess, 0) / self.buffer_tokens, 1.0)


@attrs.frozen(kw_only=True)
class Rank:
    """Up to `spread` more or less by length, among the right records of a group and among the wrong ones.

    AgentRL's `efficient_rewarding`: of n right records the shortest gets +spread, the longest -spread, the others
    steps of 2 * spread / (n - 1) between, equal lengths the mean of theirs; of the wrong ones the longest gets
    +spread. A record alone on its side gets 0. AgentRL writes that where its training never reads it; here it is
    what the baseline sees.
    """

    spread: float = field(default=0.1, validator=validators.gt(0.0))
    """AgentRL's."""
    right_at: float = 0.5
    """A record with at least this reward, as it was given, is right; AgentRL's."""
    by: Literal["calls", "tokens"] = field(default="calls", validator=validators.in_(("calls", "tokens")))
    """Length: LLM calls of the policy, or tokens that it sampled."""

    def shape(self, group: Group, rewards: Sequence[float]) -> list[float]:
        """The rewards and each one's bonus."""
        lengths = [self._length(episode) for episode in group.episodes]
        right = [(episode.record.reward or 0.0) >= self.right_at for episode in group.episodes]
        shaped = []
        for reward, side, length in zip(rewards, right, lengths, strict=True):
            others = [other for other, its_side in zip(lengths, right, strict=True) if its_side == side]
            longer = sum(other > length for other in others) - sum(other < length for other in others)
            # n - 1 - 2 * rank, ties averaged, is the others that are longer less those that are shorter.
            bonus = self.spread * longer / (len(others) - 1) if len(others) > 1 else 0.0
            shaped.append(reward + (bonus if side else -bonus))
        return shaped

    def _length(self, episode: Episode) -> int:
        tokens = sampled_tokens(episode)
        return len(tokens) if self.by == "calls" else sum(tokens)


@attrs.frozen(kw_only=True)
class Affine:
    """(reward + bias) * scale, at most `clip` above or below 0: AReaL's reward_bias, reward_scaling, reward_clip."""

    bias: float = 0.0
    scale: float = field(default=1.0, validator=validators.gt(0.0))
    clip: float | None = field(default=None, validator=validators.optional(validators.gt(0.0)))
    """AReaL's default is 20; None: unlimited."""

    def shape(self, group: Group, rewards: Sequence[float]) -> list[float]:  # noqa: ARG002  # the shaping protocol
        """The rewards on the other scale."""
        values = [(reward + self.bias) * self.scale for reward in rewards]
        return values if self.clip is None else [min(max(value, -self.clip), self.clip) for value in values]


@attrs.frozen(kw_only=True)
class Malformed:
    """A call with a malformed tool call never gets a positive advantage, however its record ended.

    AgentRL's rule for its status FORMATERROR: min(0, A) for the calls concerned.
    """

    def shape(self, group: Group, rewards: Sequence[float]) -> list[float]:  # noqa: ARG002  # the shaping protocol
        """The rewards as they are."""
        return list(rewards)

    def bound(self, group: Group, advantages: Mapping[str, float]) -> dict[str, float]:
        """At most 0 for malformed calls."""
        malformed = {call.id for episode in group.episodes for call in episode.interactions if call.tool_errors}
        return {name: min(value, 0.0) if name in malformed else value for name, value in advantages.items()}


@attrs.frozen(kw_only=True)
class FunctionShaping:
    """A plain function as a shaping: `fn(group, rewards)`, which returns what `Shaping.shape` does."""

    name: str
    function: Callable[..., Any]

    def shape(self, group: Group, rewards: Sequence[float]) -> Any:
        """Ask the function."""
        return self.function(group, rewards)


def as_shaping(built: object, name: str, *, where: str = "shaping") -> Any:
    """Return `built`, or a shaping that asks it where it is a function; `name` is what the config calls it.

    Raises `PluginError` for a function that takes something else, or that is async.
    """
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
    """Number of tokens that the policy sampled in each of its calls."""
    return [len(call.output_ids) for call in episode.interactions if call.trainable]
