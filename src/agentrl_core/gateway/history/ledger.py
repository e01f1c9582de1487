"""Find the earlier call that a chat request continues, and build its prompt from that call's exact token ids.

Clients send the whole conversation as text with each call. To render and tokenize all of it again may give other ids
than were sampled. So a prompt that continues an earlier call begins with that call's prompt and output ids verbatim,
and only the new messages are rendered and tokenized. Then the ids that are trained are the ids that were sampled.
"""

from __future__ import annotations

import threading
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import attrs

from agentrl_core.chat.fingerprint import Fingerprint, is_same_call
from agentrl_core.chat.images import images_of
from agentrl_core.errors import RequestError
from agentrl_core.gateway.history.raw_calls import RawCalls

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from agentrl_core.chat.facade import Chat
    from agentrl_core.gateway.call_types import ChatRequest
    from agentrl_core.types import Interaction, Message


INSTRUCTIONS = "instructions"
"""Key that marks a message as the Responses API's `instructions`, which later replies do not inherit."""


@attrs.define(kw_only=True, eq=False)
class CallNode:
    """One finished call in the session's tree; its children are the calls that continued from it."""

    interaction: Interaction
    parent: CallNode | None
    length: int
    """Number of messages in the conversation up to and including the output; 0 for a prompt without messages."""
    _ids: tuple[int, ...] | None
    """Prompt and output ids of the whole lineage, else None. Only the leaves of the tree keep them: so memory grows
    with the new part of each call, not with its whole prompt."""

    @property
    def last_id(self) -> int:
        """Id of the last sampled token."""
        return self.interaction.output_ids[-1]

    def full_ids(self) -> tuple[int, ...]:
        """Return the prompt and output ids of the whole lineage. [T]."""
        ids = self._ids
        if ids is None:
            return tuple(
                chain.from_iterable(
                    ids for item in self.lineage() for ids in (item.interaction.prompt_ids, item.interaction.output_ids)
                )
            )
        return ids

    def lineage(self) -> list[CallNode]:
        """Return the calls from the root to this one, inclusive."""
        found: list[CallNode] = []
        node: CallNode | None = self
        while node is not None:
            found.append(node)
            node = node.parent
        found.reverse()
        return found

    def release(self) -> None:
        """Drop the full ids, because a child holds them now; `full_ids` still works, but more slowly."""
        self._ids = None


@attrs.frozen(kw_only=True)
class Prompt:
    """Prompt of one call, with the earlier call that it continues."""

    ids: tuple[int, ...]
    """Ids of the whole prompt, as the engine sees it. [T]."""
    new_ids: tuple[int, ...]
    """Ids after the parent's prompt and output. [T]."""
    parent: CallNode | None
    """Earlier call whose ids the prompt begins with; None for a new root."""
    fingerprint: Fingerprint | None
    """Hash chain of the request's messages, to which the output is added later; None for a prompt without messages."""
    messages: tuple[Message, ...]
    images: tuple[str, ...] = ()
    """Data URLs of the images that the ids have placeholders for."""
    text: str = ""
    """Text of a whole prompt without messages; empty for a chat."""

    @property
    def new_messages(self) -> tuple[Message, ...]:
        """Messages after the parent's output."""
        return self.messages if self.parent is None else self.messages[self.parent.length :]


class Ledger:
    """Tree of one session's finished calls, indexed by the digest of their conversations; thread-safe."""

    def __init__(self) -> None:
        self._by_digest: dict[int, list[CallNode]] = {}
        self._by_id: dict[str, CallNode] = {}
        self._calls: dict[str, Mapping[str, Any]] = {}
        """Sampled tool calls by their ids."""
        self._lock = threading.Lock()
        self.raw: RawCalls[CallNode] = RawCalls()
        """Index of the calls without messages (legacy completions)."""

    def add(self, chat: Chat, prompt: Prompt, interaction: Interaction) -> CallNode:
        """Append a finished call of the policy, so that later requests can continue it."""
        node = CallNode(
            interaction=interaction,
            parent=prompt.parent,
            length=0 if prompt.fingerprint is None else len(prompt.messages) + 1,
            ids=prompt.ids + interaction.output_ids,
        )
        if prompt.fingerprint is None:
            self.raw.add(node, prompt.text + chat.decode(interaction.output_ids), node.full_ids())
        else:
            # Both forms of an output lead to this call: as it was sent, and with the stop string put back.
            outputs = [interaction.output, *_with_stop_string(chat, interaction)]
            digests = [digest for output in outputs for digest in prompt.fingerprint.after(output)]
            with self._lock:
                self._by_id[interaction.id] = node
                self._calls.update((call["id"], call) for call in interaction.output.get("tool_calls", ()))
                for digest in digests:
                    self._by_digest.setdefault(digest, []).append(node)
        # A second child of this parent rebuilds the ids from its lineage.
        if prompt.parent is not None:
            prompt.parent.release()
        return node

    def note(self, interaction: Interaction) -> None:
        """Append a call of an upstream; it has no ids to continue from, but a request may name it as its `previous`."""
        node = CallNode(interaction=interaction, parent=None, length=len(interaction.messages) + 1, ids=())
        with self._lock:
            self._by_id[interaction.id] = node

    def find(self, interaction_id: str) -> CallNode | None:
        """Return a finished call of this session by its interaction's id; None if there is none."""
        with self._lock:
            return self._by_id.get(interaction_id)

    def as_sampled(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Return the messages with the arguments of tool calls replaced by the text that was sampled.

        Many clients parse the arguments and serialize them again, perhaps with other whitespace. A template that
        renders their text would then show the policy another text than its own.
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

    def continued(self, request: ChatRequest) -> ChatRequest:
        """Return the request with the conversation of its `previous` reply put before its messages."""
        return (
            request if request.previous is None else attrs.evolve(request, messages=tuple(self.conversation(request)))
        )

    def conversation(self, request: ChatRequest) -> list[Message]:
        """Return the conversation up to and including the request's `previous` reply, followed by its own messages.

        Instructions of earlier requests are left out, as they hold for one reply only; the request's own come first.
        `RequestError` (400) if this session has no such reply.
        """
        node = self.find(request.previous or "")
        if node is None:
            raise RequestError(
                400,
                "previous_response_not_found",
                f"Previous response with id '{request.previous}' not found: this session has no such reply",
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
    ) -> list[CallNode]:
        """Return the earlier calls that the conversation continues, longest first; of equal texts, a `named` call.

        `digests` are those of the `messages`' prefixes, one per message.
        """
        # Only an assistant's message can end an earlier call's conversation.
        with self._lock:
            return [
                _best(nodes, messages[index], named)
                for index in range(len(messages) - 1, -1, -1)
                if messages[index]["role"] == "assistant" and (nodes := self._by_digest.get(digests[index]))
            ]


def _with_stop_string(chat: Chat, interaction: Interaction) -> list[Message]:
    """Return the output with the stop string that ended it appended, else nothing.

    The output lacks its stop string. Agents that stop at a closing tag often append the tag before they send the
    message back, and must be recognised, too.
    """
    stop, content = interaction.sampling.stop, interaction.output.get("content")
    if not stop or not content:
        return []
    text = chat.reply_text(interaction.output_ids)
    # The stop string that comes first in the sampled text is the one that ended it.
    found = min(((at, string) for string in stop if (at := text.find(string)) >= 0), default=None)
    return [] if found is None else [{**interaction.output, "content": content + found[1]}]


def build_prompt(
    chat: Chat, request: ChatRequest, ledger: Ledger, history: Literal["exact", "template"], *, most_tokens: int
) -> Prompt:
    """Build a chat request's prompt: continue the longest earlier call that the request begins with, else a new root.

    With history `exact`, the earlier call's ids are taken verbatim. With `template`, all is rendered again, and the
    prompt continues only a call whose ids that rendering left unchanged. `TooManyTokensError` if the new part is
    certain to have more than `most_tokens`.
    """
    fingerprint = Fingerprint(request.tools)
    messages = request.messages
    digests = [fingerprint.add(message) for message in messages]
    images = images_of(messages)
    if images and not chat.takes_images:
        raise RequestError(
            400,
            "unsupported_content",
            "messages: this model's chat template does not support images; send text only",
            param="messages",
        )
    ancestors = ledger.ancestors(digests, messages, {request.previous, *request.shown})
    if history == "exact" and ancestors:
        # If the template allows no continuation of the longest one, everything is rendered again below.
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
    # A rendering that changed the past forks from the last call that it left unchanged.
    if history == "template":
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


def _best(nodes: Sequence[CallNode], message: Message, named: Collection[str | None]) -> CallNode:
    """Return the call that the client means among calls with the same conversation; the latest if it does not say.

    Clients identify a reply by its id, by the ids of its tool calls, or by its reasoning, in this order of preference.
    """
    if len(nodes) == 1:
        return nodes[0]
    calls = [call["id"] for call in message.get("tool_calls", ())]
    thoughts = message.get("reasoning_content")

    def likeness(node: CallNode) -> tuple[bool, bool, bool]:
        output = node.interaction.output
        return (
            node.interaction.id in named,
            bool(calls) and [call["id"] for call in output.get("tool_calls", ())] == calls,
            thoughts is not None and output.get("reasoning_content") == thoughts,
        )

    return max(reversed(nodes), key=likeness)
