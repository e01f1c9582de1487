"""Read the reward from AReaL's dict of tensors, after checking that its rows are what the record's calls sampled.

Shapes: B rows, L tokens of the longest.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentrl_core.errors import EpisodeError

if TYPE_CHECKING:
    from agentrl_core.types import Episode, Interaction

_LOGPROB_SLACK = 1e-4
"""Allowed difference of log-probabilities: a value loses digits in a 32-bit tensor."""


def is_tensor_rows(given: Any) -> bool:
    """Return whether a workflow returned AReaL's dict of tensors."""
    return isinstance(given, Mapping) and "input_ids" in given


def reward_of_rows(given: Mapping[str, Any], episode: Episode) -> float | dict[str, float]:
    """Return the reward of the one row, or of the interaction that each row ends with.

    The record's interactions are trained, not these rows. So each row must be the prompt and output of an interaction
    with its past, and its `loss_mask`, `logprobs` and `versions`, if given, must be as recorded. Raises `EpisodeError`
    (`tensor_rows`) for anything else.
    """
    rows = _table(given, "input_ids")
    rewards = given.get("rewards")
    values = _plain(rewards)
    if not isinstance(values, Sequence) or len(values) != len(rows):
        raise _refusal(f"'rewards' must be of shape [{len(rows)}], one number per row, found {values!r:.80}")
    others = {
        name: _table(given, name) for name in ("attention_mask", "loss_mask", "logprobs", "versions") if name in given
    }
    for name, table in others.items():
        if [len(row) for row in table] != [len(row) for row in rows]:
            raise _refusal(f"'{name}' must have the shape of 'input_ids'")
    by_leaf: dict[str, float] = {}
    for number, (row, value) in enumerate(zip(rows, values, strict=True)):
        kept = (
            [bool(bit) for bit in others["attention_mask"][number]] if "attention_mask" in others else [True] * len(row)
        )
        columns = {name: _only(table[number], kept) for name, table in others.items() if name != "attention_mask"}
        leaf = _check_row(_only(row, kept), columns, episode, number, taken=by_leaf)
        by_leaf[leaf.id] = value
    # One row is the whole episode: its reward is the record's, to be shared by the run's credit assignment.
    return next(iter(by_leaf.values())) if len(by_leaf) == 1 else by_leaf


def _check_row(
    ids: Sequence[int],
    columns: Mapping[str, Sequence[Any]],
    episode: Episode,
    number: int,
    *,
    taken: Collection[str],
) -> Interaction:
    """Compare a row with the record; return the interaction that it ends with, one that is not `taken`."""
    alike = [item for item in episode.interactions if episode.full_ids(item) == tuple(ids)]
    # Two calls may have sampled the same tokens.
    leaf = next((item for item in alike if item.id not in taken), None)
    if alike and leaf is None:
        raise _refusal(f"row {number} ends with the interaction {alike[-1].id}, as an earlier row does")
    if leaf is None:
        raise _refusal(
            f"row {number} of 'input_ids' has {len(ids)} tokens that are not the prompt and output of any call of this "
            "record; what was not sampled through `engine.agenerate` cannot be trained"
        )
    recorded = _recorded(episode, leaf)
    if "loss_mask" in columns and [bool(bit) for bit in columns["loss_mask"]] != [
        item is not None for item in recorded
    ]:
        raise _refusal(
            f"row {number} of 'loss_mask' does not mark exactly the tokens that were sampled; to leave a call out of "
            "training, make it with metadata={'trainable': False}"
        )
    for position, item in enumerate(recorded):
        if item is None:
            continue
        logprob, version = item
        if "logprobs" in columns and not math.isclose(columns["logprobs"][position], logprob, abs_tol=_LOGPROB_SLACK):
            found = columns["logprobs"][position]
            raise _refusal(f"row {number} has logprob {found:g} at {position}, where {logprob:g} was recorded")
        if "versions" in columns and columns["versions"][position] != version:
            found = columns["versions"][position]
            raise _refusal(f"row {number} has version {found} at {position}, where {version} was recorded")
    return leaf


def _recorded(episode: Episode, leaf: Interaction) -> list[tuple[float, int] | None]:
    """Return logprob and version of each token of a lineage; None for tokens that are not trained. [T]."""
    found: list[tuple[float, int] | None] = []
    for item in episode.lineage(leaf):
        found += [None] * len(item.prompt_ids)
        sampled = zip(item.logprobs, item.output_versions, strict=True)
        found += sampled if item.trainable else [None] * len(item.output_ids)
    return found


def _only(row: Sequence[Any], kept: Sequence[bool]) -> list[Any]:
    return [value for value, keep in zip(row, kept, strict=True) if keep]


def _table(given: Mapping[str, Any], name: str) -> list[list[Any]]:
    """Return a tensor of shape [B, L] as lists."""
    table = _plain(given[name])
    if not isinstance(table, Sequence) or not table or not all(isinstance(row, list | tuple) for row in table):
        raise _refusal(f"'{name}' must be of shape [B, L], found {given[name]!r:.80}")
    return [list(row) for row in table]


def _plain(value: Any) -> Any:
    """Return a tensor or an array as lists of numbers."""
    return value.tolist() if hasattr(value, "tolist") else value


def _refusal(text: str) -> EpisodeError:
    return EpisodeError("tensor_rows", f"the workflow returned a dict of tensors that cannot be used: {text}")
