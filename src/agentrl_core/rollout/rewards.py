"""Check the value that a workflow or a scorer returned as reward: a finite number, or one per interaction."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.errors import EpisodeError
from agentrl_core.scorers.call import finite_number

if TYPE_CHECKING:
    from agentrl_core.types import Interaction

_SHOWN_IDS = 8
"""Known ids that a message lists."""


@attrs.frozen(kw_only=True)
class GivenReward:
    """A checked, finite reward."""

    value: float
    """Reward of the whole record; the sum of `by_interaction` if that was given."""
    by_interaction: Mapping[str, float] = attrs.field(factory=dict)
    """Interaction id → reward; empty if one number was given."""


def read_reward(given: Any, interactions: Sequence[Interaction], *, giver: str = "the workflow") -> GivenReward | None:
    """Check the value that `giver` returned: a number, `{interaction id or turn index: number}`, or None for no reward.

    Raises `EpisodeError` with reason `not_finite`, `unknown_interaction` or `reward_type`.
    """
    if given is None:
        return None
    if not isinstance(given, Mapping):
        return GivenReward(value=_number(given, giver))
    if not given:
        raise EpisodeError(
            "reward_type", f"{giver} returned an empty dict; return a number, or None to leave it to the scorer"
        )
    rewards: dict[str, float] = {}
    for key, value in given.items():
        interaction = _find(key, interactions, giver)
        if interaction.id in rewards:
            raise EpisodeError("reward_type", f"{giver} named {interaction.id} twice, by id and by turn index")
        rewards[interaction.id] = _number(value, f"{giver}, for {key!r},")
    return GivenReward(value=math.fsum(rewards.values()), by_interaction=rewards)


def _number(given: Any, giver: str) -> float:
    try:
        return finite_number(given)
    except EpisodeError as error:
        raise EpisodeError(error.reason, f"{giver} gave no usable reward: {error}") from error


def _find(key: Any, interactions: Sequence[Interaction], giver: str) -> Interaction:
    # `numbers.Integral` includes numpy's integers. It includes bool as well, but True is no turn index.
    if isinstance(key, numbers.Integral) and not isinstance(key, bool):
        turn = int(key)
        if 0 <= turn < len(interactions):
            return interactions[turn]
    else:
        for interaction in interactions:
            if interaction.id == key:
                return interaction
    known = [interaction.id for interaction in interactions[:_SHOWN_IDS]]
    more = len(interactions) - len(known)
    raise EpisodeError(
        "unknown_interaction",
        f"{giver} gave a reward to {key!r}, which is not an interaction of this record; expected "
        f"{', '.join(known)}{f' and {more} more' if more else ''}, or a turn index from 0 to {len(interactions) - 1}",
    )
