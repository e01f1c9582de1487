"""Remember a session's finished calls, and let a request go on from the exact ids of the one that it continues.

What was sampled is what is trained: a prompt that continues an earlier call starts with that call's prompt and
output ids verbatim, whatever the client made of the text, and only what is new is rendered and tokenized.
"""

from __future__ import annotations

import threading
from itertools import chain
from typing import TYPE_CHECKING, Literal

import attrs

from agentrl_core.chat.canonical import Fingerprint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentrl_core.chat.facade import Chat
    from agentrl_core.gateway.exchange import ChatRequest
    from agentrl_core.types import Interaction, Message


@attrs.define(kw_only=True, eq=False)
class Node:
    """One finished call in the session's tree."""

    interaction: Interaction
    parent: Node | None
    length: int
    """Messages of the conversation up to and including its output."""
    _ids: tuple[int, ...] | None
    """Prompt and output of the whole lineage. Kept by the tips of the tree only: memory grows with what is
    new in each call, not with its whole prompt."""

    @property
    def last_id(self) -> int:
        """The last sampled token."""
        return self.interaction.output_ids[-1]

    def full_ids(self) -> tuple[int, ...]:
        """Prompt and output of the whole lineage. [T]."""
        ids = self._ids
        if ids is None:
            lineage: list[Node] = []
            node: Node | None = self
            while node is not None:
                lineage.append(node)
                node = node.parent
            return tuple(
                chain.from_iterable(
                    ids
                    for item in reversed(lineage)
                    for ids in (item.interaction.prompt_ids, item.interaction.output_ids)
                )
            )
        return ids

    def release(self) -> None:
        """Drop the full ids: a child holds them now."""
        self._ids = None


@attrs.frozen(kw_only=True)
class Prompt:
    """The prompt of one call, and where it hangs in the session's tree."""

    ids: tuple[int, ...]
    """What the engine sees. [T]."""
    new_ids: tuple[int, ...]
    """The part after the parent's prompt and output. [T]."""
    parent: Node | None
    fingerprint: Fingerprint
    """Of all the request's messages; the output is added when it is known."""
    messages: tuple[Message, ...]

    @property
    def new_messages(self) -> tuple[Message, ...]:
        """The messages after the parent's output."""
        return self.messages if self.parent is None else self.messages[self.parent.length :]


class Ledger:
    """The tree of one session's finished calls, indexed by the digest of their conversation."""

    def __init__(self) -> None:
        self._by_digest: dict[bytes, list[Node]] = {}
        self._lock = threading.Lock()

    def add(self, prompt: Prompt, interaction: Interaction) -> None:
        """Append a finished call."""
        node = Node(
            interaction=interaction,
            parent=prompt.parent,
            length=len(prompt.messages) + 1,
            ids=prompt.ids + interaction.output_ids,
        )
        digest = prompt.fingerprint.add(interaction.output)
        with self._lock:
            self._by_digest.setdefault(digest, []).append(node)
        if prompt.parent is not None:
            prompt.parent.release()

    def ancestors(self, digests: Sequence[bytes], messages: Sequence[Message]) -> list[Node]:
        """Earlier calls that the conversation continues, the longest first."""
        with self._lock:
            return [
                _best(nodes, messages[index])
                for index in range(len(messages) - 1, -1, -1)
                if messages[index]["role"] == "assistant" and (nodes := self._by_digest.get(digests[index]))
            ]


def build_prompt(chat: Chat, request: ChatRequest, ledger: Ledger, history: Literal["exact", "template"]) -> Prompt:
    """Continue the longest earlier call whose messages and output begin the request, else start a new root."""
    fingerprint = Fingerprint(request.tools)
    messages = request.messages
    digests = [fingerprint.add(message) for message in messages]
    ancestors = ledger.ancestors(digests, messages)
    if history == "exact" and ancestors:
        parent = ancestors[0]
        new_ids = chat.continuation_ids(
            messages[: parent.length], messages[parent.length :], request.tools, parent.last_id
        )
        if new_ids is not None:
            return Prompt(
                ids=parent.full_ids() + new_ids,
                new_ids=new_ids,
                parent=parent,
                fingerprint=fingerprint,
                messages=messages,
            )
    ids = chat.prompt_ids(messages, request.tools)
    if history == "template":  # a render that changed the past forks from the last call that it left untouched
        for parent in ancestors:
            past = parent.full_ids()
            if ids[: len(past)] == past:
                return Prompt(
                    ids=ids, new_ids=ids[len(past) :], parent=parent, fingerprint=fingerprint, messages=messages
                )
    return Prompt(ids=ids, new_ids=ids, parent=None, fingerprint=fingerprint, messages=messages)


def _best(nodes: Sequence[Node], message: Message) -> Node:
    """Of calls with the same text, the one whose tool calls have the ids that came back; else the latest."""
    calls = [call["id"] for call in message.get("tool_calls", ())]
    same = (
        node for node in reversed(nodes) if calls and [c["id"] for c in node.interaction.output["tool_calls"]] == calls
    )
    return next(same, nodes[-1])
