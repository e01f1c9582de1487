"""Remember a session's finished calls, and let a request go on from the exact ids of the one that it continues.

What was sampled is what is trained: a prompt that continues an earlier call starts with that call's prompt and
output ids verbatim, whatever the client made of the text, and only what is new is rendered and tokenized.
"""

from __future__ import annotations

import threading
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import attrs

from agentrl_core.chat.canonical import Fingerprint, is_same_call
from agentrl_core.chat.images import images_of
from agentrl_core.errors import RequestError
from agentrl_core.gateway.history.raw_calls import RawCalls

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from agentrl_core.chat.facade import Chat
    from agentrl_core.gateway.exchange import ChatRequest
    from agentrl_core.types import Interaction, Message


INSTRUCTIONS = "instructions"
"""Key of a message that holds instructions for one reply, which a later one does not inherit."""


@attrs.define(kw_only=True, eq=False)
class Node:
    """One finished call in the session's tree."""

    interaction: Interaction
    parent: Node | None
    length: int
    """Messages of the conversation up to and including its output; 0 where there is no conversation."""
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
            return tuple(
                chain.from_iterable(
                    ids for item in self.lineage() for ids in (item.interaction.prompt_ids, item.interaction.output_ids)
                )
            )
        return ids

    def lineage(self) -> list[Node]:
        """The calls from the root to this one, inclusive."""
        found: list[Node] = []
        node: Node | None = self
        while node is not None:
            found.append(node)
            node = node.parent
        found.reverse()
        return found

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
    fingerprint: Fingerprint | None
    """Of all the request's messages; the output is added when it is known. None where there are no messages."""
    messages: tuple[Message, ...]
    images: tuple[str, ...] = ()
    """Data URLs of the images that the ids have places for."""
    text: str = ""
    """All of a prompt that came without messages."""

    @property
    def new_messages(self) -> tuple[Message, ...]:
        """The messages after the parent's output."""
        return self.messages if self.parent is None else self.messages[self.parent.length :]


class Ledger:
    """The tree of one session's finished calls, indexed by the digest of their conversation."""

    def __init__(self) -> None:
        self._by_digest: dict[int, list[Node]] = {}
        self._by_id: dict[str, Node] = {}
        self._calls: dict[str, Mapping[str, Any]] = {}
        """Sampled tool calls by their ids."""
        self._lock = threading.Lock()
        self.raw: RawCalls[Node] = RawCalls()
        """The calls without messages."""

    def add(self, chat: Chat, prompt: Prompt, interaction: Interaction) -> Node:
        """Append a finished call."""
        node = Node(
            interaction=interaction,
            parent=prompt.parent,
            length=0 if prompt.fingerprint is None else len(prompt.messages) + 1,
            ids=prompt.ids + interaction.output_ids,
        )
        if prompt.fingerprint is None:
            self.raw.add(node, prompt.text + chat.decode(interaction.output_ids), node.full_ids())
        else:
            outputs = [interaction.output, *_with_stop_string(chat, interaction)]
            digests = [digest for output in outputs for digest in prompt.fingerprint.after(output)]
            with self._lock:
                self._by_id[interaction.id] = node
                self._calls.update((call["id"], call) for call in interaction.output.get("tool_calls", ()))
                for digest in digests:
                    self._by_digest.setdefault(digest, []).append(node)
        if prompt.parent is not None:
            prompt.parent.release()
        return node

    def note(self, interaction: Interaction) -> None:
        """Remember a call of an upstream, which has no ids to go on from: a later one may name it as its previous."""
        node = Node(interaction=interaction, parent=None, length=len(interaction.messages) + 1, ids=())
        with self._lock:
            self._by_id[interaction.id] = node

    def find(self, interaction_id: str) -> Node | None:
        """Return a finished call of this session; None where it has no such."""
        with self._lock:
            return self._by_id.get(interaction_id)

    def as_sampled(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Return the messages with the arguments of sampled tool calls as they were sampled.

        Many clients know them as objects only and write them anew: a template that prints their text would show the
        policy other text than its own.
        """
        return tuple(
            {**message, "tool_calls": [self._as_sampled(call) for call in calls]}
            if (calls := message.get("tool_calls"))
            else message
            for message in messages
        )

    def _as_sampled(self, call: Mapping[str, Any]) -> Mapping[str, Any]:
        sampled = self._calls.get(call.get("id") or "")
        if sampled is None or not is_same_call(sampled, call):
            return call
        return {**call, "function": {**call["function"], "arguments": sampled["function"]["arguments"]}}

    def conversation(self, request: ChatRequest) -> list[Message]:
        """Return the messages up to and with the reply that a request names as its `previous` one, and its own.

        Instructions were for one reply only; the request's come first. `RequestError` (400) where this session never
        gave that reply.
        """
        node = self.find(request.previous or "")
        if node is None:
            raise RequestError(
                400,
                "previous_response_not_found",
                f"Previous response with id '{request.previous}' not found: it is no reply of this session",
                param="previous_response_id",
            )
        calls = (item.interaction for item in node.lineage())
        messages = (message for call in calls for message in (*call.messages, call.output))
        return [
            *(message for message in request.messages if message.get(INSTRUCTIONS)),
            *(message for message in messages if not message.get(INSTRUCTIONS)),
            *(message for message in request.messages if not message.get(INSTRUCTIONS)),
        ]

    def ancestors(
        self, digests: Sequence[int], messages: Sequence[Message], named: Collection[str | None] = ()
    ) -> list[Node]:
        """Earlier calls that the conversation continues, the longest first; of equal ones a `named` one."""
        with self._lock:
            return [
                _best(nodes, messages[index], named)
                for index in range(len(messages) - 1, -1, -1)
                if messages[index]["role"] == "assistant" and (nodes := self._by_digest.get(digests[index]))
            ]


def _with_stop_string(chat: Chat, interaction: Interaction) -> list[Message]:
    """Return the output with the stop string that ended it: agents put a closing tag back for which they stopped."""
    stop, content = interaction.sampling.stop, interaction.output.get("content")
    if not stop or not content:
        return []
    text = chat.reply_text(interaction.output_ids)
    found = min(((at, string) for string in stop if (at := text.find(string)) >= 0), default=None)
    return [] if found is None else [{**interaction.output, "content": content + found[1]}]


def build_prompt(
    chat: Chat, request: ChatRequest, ledger: Ledger, history: Literal["exact", "template"], *, most_tokens: int
) -> Prompt:
    """Continue the longest earlier call whose messages and output begin the request, else start a new root.

    `TooManyTokensError` where what is new surely has more than `most_tokens`.
    """
    fingerprint = Fingerprint(request.tools)
    messages = request.messages
    digests = [fingerprint.add(message) for message in messages]
    images = images_of(messages)
    if images and not chat.takes_images:
        raise RequestError(
            400,
            "unsupported_content",
            "messages: this model's chat template has no place for images; send text only",
            param="messages",
        )
    ancestors = ledger.ancestors(digests, messages, {request.previous, *request.shown})
    if history == "exact" and ancestors:
        parent = ancestors[0]
        new_ids = chat.continuation_ids(
            messages[: parent.length],
            messages[parent.length :],
            request.tools,
            parent.last_id,
            request.template_options,
            most_tokens=most_tokens,
        )
        if new_ids is not None:
            return Prompt(
                ids=parent.full_ids() + new_ids,
                new_ids=new_ids,
                parent=parent,
                fingerprint=fingerprint,
                messages=messages,
                images=images,
            )
    messages = ledger.as_sampled(messages)
    ids = chat.prompt_ids(messages, request.tools, request.template_options, most_tokens=most_tokens)
    if history == "template":  # a render that changed the past forks from the last call that it left untouched
        for parent in ancestors:
            past = parent.full_ids()
            if ids[: len(past)] == past:
                return Prompt(
                    ids=ids,
                    new_ids=ids[len(past) :],
                    parent=parent,
                    fingerprint=fingerprint,
                    messages=messages,
                    images=images,
                )
    return Prompt(ids=ids, new_ids=ids, parent=None, fingerprint=fingerprint, messages=messages, images=images)


def _best(nodes: Sequence[Node], message: Message, named: Collection[str | None]) -> Node:
    """Of calls with the same text, the one that the client means by ids or by thoughts that came back; else the latest.

    A client names the reply, or tells it by the ids of its tool calls, or by sending its thoughts.
    """
    if len(nodes) == 1:
        return nodes[0]
    calls = [call["id"] for call in message.get("tool_calls", ())]
    thoughts = message.get("reasoning_content")

    def likeness(node: Node) -> tuple[bool, bool, bool]:
        output = node.interaction.output
        return (
            node.interaction.id in named,
            bool(calls) and [call["id"] for call in output.get("tool_calls", ())] == calls,
            thoughts is not None and output.get("reasoning_content") == thoughts,
        )

    return max(reversed(nodes), key=likeness)
