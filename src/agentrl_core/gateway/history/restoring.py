"""Rebuild a session's ledger and retries from the store, when another process answered its earlier calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl_core.chat.fingerprint import Fingerprint
from agentrl_core.gateway.call_types import Choice
from agentrl_core.gateway.history.ledger import Prompt
from agentrl_core.gateway.retries import RetryKey
from agentrl_core.gateway.sampling import finish_reason_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentrl_core.chat.facade import Chat
    from agentrl_core.gateway.history.ledger import CallNode, Ledger
    from agentrl_core.gateway.retries import Attempts
    from agentrl_core.types import Episode, Interaction, Message


def restore(ledger: Ledger, chat: Chat, interactions: Sequence[Interaction]) -> None:
    """Fill an empty ledger from stored interactions, given in order of completion."""
    nodes: dict[str, CallNode] = {}
    for interaction in interactions:
        if interaction.upstream:
            ledger.note(interaction)
        else:
            parent = nodes.get(interaction.parent or "")
            nodes[interaction.id] = ledger.add(chat, _prompt_of(chat, interaction, parent), interaction)


def restore_attempts(attempts: Attempts, chat: Chat, episode: Episode) -> None:
    """Restore the attempts that have an `Idempotency-Key`, so that retries get their stored replies.

    Attempts without a key are not restored: it is not stored whether their replies were sent.
    """
    by_key: dict[str, list[Interaction]] = {}
    for interaction in episode.interactions:
        # Several calls may have the same retry key, so the call's id is part of this one. The choices of one call have
        # the same id up to the dot.
        by_key.setdefault(f"{interaction.retry_key} {interaction.id.partition('.')[0]}", []).append(interaction)
    for choices in by_key.values():
        key = RetryKey.parse(choices[0].retry_key)
        if key.name is not None:
            attempts.restore(key, tuple(_choice_of(chat, episode, choice) for choice in choices))


def _choice_of(chat: Chat, episode: Episode, interaction: Interaction) -> Choice:
    """Return the client's view of a stored reply, without `top_logprobs` and stop string, which are not stored."""
    ids = episode.full_ids(interaction)
    prompt_ids = ids[: len(ids) - len(interaction.output_ids)]
    thoughts = interaction.output.get("reasoning_content", "")
    return Choice(
        interaction=interaction,
        prompt_tokens=len(prompt_ids),
        finish_reason=finish_reason_of(interaction),
        reasoning_tokens=len(chat.encode(thoughts)) if thoughts else 0,
        prompt_ids=prompt_ids,
    )


def _prompt_of(chat: Chat, interaction: Interaction, parent: CallNode | None) -> Prompt:
    """Rebuild the prompt of a stored call."""
    new_ids = interaction.prompt_ids
    # An interaction stores only what its prompt adds to its parent's, so the whole is put together along the lineage.
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
    """Return new messages whose tool results name the calls that they answer.

    A client that renames calls does so in the history and in the results alike, but only the results are stored. If no
    result names a known call, the results are taken as answers to the last calls, in their order.
    """
    known = [call["id"] for call in before[-1].get("tool_calls", ())] if before else []
    results = [message.get("tool_call_id") for message in messages if message["role"] == "tool"]
    if len(results) > len(known) or not set(known).isdisjoint(results):
        return list(messages)
    ids = iter(known)
    return [{**message, "tool_call_id": next(ids)} if message["role"] == "tool" else message for message in messages]
