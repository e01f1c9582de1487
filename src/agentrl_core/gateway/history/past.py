"""Rebuild what a session said before from its stored calls: another process answered them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl_core.chat.canonical import Fingerprint
from agentrl_core.gateway.history.ledger import Prompt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentrl_core.chat.facade import Chat
    from agentrl_core.gateway.history.ledger import Ledger, Node
    from agentrl_core.types import Interaction, Message


def restore(ledger: Ledger, chat: Chat, interactions: Sequence[Interaction]) -> None:
    """Fill an empty ledger with the policy's calls, given in order of completion."""
    nodes: dict[str, Node] = {}
    for interaction in interactions:
        if not interaction.upstream:
            parent = nodes.get(interaction.parent or "")
            nodes[interaction.id] = ledger.add(chat, _prompt_of(chat, interaction, parent), interaction)


def _prompt_of(chat: Chat, interaction: Interaction, parent: Node | None) -> Prompt:
    """Return the prompt that a stored call had."""
    new_ids = interaction.prompt_ids
    ids = new_ids if parent is None else parent.full_ids() + new_ids
    past = [] if parent is None else [item.interaction for item in parent.lineage()]
    if interaction.api == "completions":
        texts = [call.messages[0]["content"] + chat.decode(call.output_ids) for call in past]
        text = "".join([*texts, interaction.messages[0]["content"]])
        return Prompt(
            ids=ids, new_ids=new_ids, parent=parent, fingerprint=None, messages=interaction.messages, text=text
        )
    messages: list[Message] = []
    for call in past:
        messages += [*_answering(call.messages, messages), call.output]
    messages += _answering(interaction.messages, messages)
    fingerprint = Fingerprint(interaction.tools)
    for message in messages:
        fingerprint.add(message)
    return Prompt(ids=ids, new_ids=new_ids, parent=parent, fingerprint=fingerprint, messages=tuple(messages))


def _answering(messages: Sequence[Message], before: Sequence[Message]) -> list[Message]:
    """Return new messages with their tool results tied to the calls that they answer.

    A client that renames the calls does so in the history, too, which is not stored: its results answer the last
    calls in their order.
    """
    known = [call["id"] for call in before[-1].get("tool_calls", ())] if before else []
    results = [message.get("tool_call_id") for message in messages if message["role"] == "tool"]
    if len(results) > len(known) or not set(known).isdisjoint(results):
        return list(messages)
    ids = iter(known)
    return [{**message, "tool_call_id": next(ids)} if message["role"] == "tool" else message for message in messages]
