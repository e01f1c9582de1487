"""Demonstrations from stored episodes: the best records, with the very token ids that were sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.batching.credit import children_of, is_trained
from agentrl_core.types import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agentrl_core.api.stores import StepRow
    from agentrl_core.types import Episode, Interaction, Message, Record


@attrs.frozen(kw_only=True)
class Selection:
    """Which records are worth learning from."""

    min_reward: float | None = None
    """Least reward; None for any."""
    best_of_group: int | None = None
    """Most records of a group, those with the highest rewards; of equal ones those that come first."""
    evaluations: bool = False
    """Whether the records of evaluations are taken, too: their tasks are then seen in training."""

    def choose(self, records: Sequence[Record]) -> list[Record]:
        """Return the scored records that pass, in their order."""
        least = float("-inf") if self.min_reward is None else self.min_reward
        passing = [
            record
            for record in records
            if record.outcome is Outcome.SCORED
            and record.reward is not None
            and record.reward >= least
            and (self.evaluations or not record.is_eval)
        ]
        if self.best_of_group is None:
            return passing
        groups: dict[str, list[Record]] = {}
        for record in passing:
            groups.setdefault(record.group_id, []).append(record)
        best = {
            record.id for members in groups.values() for record in sorted(members, key=_by_reward)[: self.best_of_group]
        }
        return [record for record in passing if record.id in best]


def taken_again(steps: Sequence[StepRow]) -> set[str]:
    """Ids of the records that only voided steps consumed: a resumed run sampled their tasks once more."""
    voided, live = ({name for step in steps if step.voided == kind for name in step.records} for kind in (True, False))
    return voided - live


def _by_reward(record: Record) -> tuple[float, int, int]:
    return -(record.reward or 0.0), record.sample_index, record.attempt


def export_rows(episode: Episode, *, tokenizer: str = "") -> Iterator[dict[str, Any]]:
    """Yield a row per leaf of the episode's tree, in the shape that `data.demonstrations` reads.

    It ends with the last call that it trains. A call that several leaves continue is trained by the first of their
    rows alone, so that every sampled token counts once; messages of calls that a row does not train have the weight 0
    there. A leaf that adds nothing has no row.
    """
    children = children_of(episode)
    done: set[str] = set()
    for leaf in (item for item in episode.interactions if not children[item.id]):
        lineage = episode.lineage(leaf)
        new = {item.id for item in lineage if is_trained(item)} - done
        if new:
            done |= new
            yield _row(episode.record, lineage, new, tokenizer)


def _row(record: Record, lineage: Sequence[Interaction], new: set[str], tokenizer: str) -> dict[str, Any]:
    ids: list[int] = []
    spans: list[list[int]] = []
    messages: list[Message] = []
    tools: Sequence[Mapping[str, Any]] = ()
    for item in lineage[: 1 + max(place for place, item in enumerate(lineage) if item.id in new)]:
        ids.extend(item.prompt_ids)
        if item.id in new:
            spans.append([len(ids), len(ids) + len(item.output_ids)])
            tools = item.tools
        ids.extend(item.output_ids)
        messages.extend(_untrained(message) for message in item.messages)
        messages.append({"content": "", **item.output} if item.id in new else _untrained(item.output))
    return {
        "messages": messages,
        **({"tools": list(tools)} if tools else {}),
        "ids": ids,
        "spans": spans,
        **({"tokenizer": tokenizer} if tokenizer else {}),
        "task": record.task_id,
        "record": record.id,
        "reward": record.reward,
    }


def _untrained(message: Message) -> Message:
    """Return the message so that it is not trained: an assistant's may be an example, or what another model said."""
    return {"content": "", **message, "weight": 0} if message.get("role") == "assistant" else message
