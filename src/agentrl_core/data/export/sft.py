"""The export format `sft`: demonstrations for `agentrl sft`, with the token ids as they were sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentrl_core.batching.credit import is_trained
from agentrl_core.data.export.branches import branches_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agentrl_core.types import Episode, Interaction, Message, Record


def export_rows(episode: Episode, *, tokenizer: str = "") -> Iterator[dict[str, Any]]:
    """Yield a row for each leaf of the episode's conversation tree, in the form that `data.demonstrations` reads.

    A row ends with the last call that it trains. A call shared by several leaves is trained only in the first of
    their rows, so that every sampled token counts once; in other rows its messages have the weight 0. A leaf without
    a call that is left to train has no row.
    """
    for branch in branches_of(episode):
        new = {item.id for item in branch.calls if is_trained(item)} - branch.shared
        if new:
            yield _row(episode.record, branch.calls, new, tokenizer)


def _row(record: Record, lineage: Sequence[Interaction], new: set[str], tokenizer: str) -> dict[str, Any]:
    ids: list[int] = []
    spans: list[list[int]] = []
    messages: list[Message] = []
    tools: Sequence[Mapping[str, Any]] = ()
    # Later calls of the branch are trained by no row or by an earlier one, so they would only lengthen this row.
    for item in lineage[: 1 + max(place for place, item in enumerate(lineage) if item.id in new)]:
        ids.extend(item.prompt_ids)
        if item.id in new:
            spans.append([len(ids), len(ids) + len(item.output_ids)])
            # A row has one list of tools: that of its last trained call.
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
    """Return the message with the weight 0 if it is an assistant's.

    Such a message was not sampled in this row: it is an example in the prompt, the reply of another model, or trained
    by another row.
    """
    return {"content": "", **message, "weight": 0} if message.get("role") == "assistant" else message
