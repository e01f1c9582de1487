"""Build the prompt of a legacy completion, which comes as text or token ids and is used without a chat template."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentrl_core.chat.tokenizer import TooManyTokensError
from agentrl_core.errors import RequestError
from agentrl_core.gateway.history.ledger import CallNode, Prompt

if TYPE_CHECKING:
    from agentrl_core.chat.facade import Chat
    from agentrl_core.gateway.history.raw_calls import RawCalls


def raw_prompt(chat: Chat, prompt: str | tuple[int, ...], earlier: RawCalls[CallNode], *, most_tokens: int) -> Prompt:
    """Build a prompt that continues from the ids of the longest earlier call that it begins with, else a new root.

    `TooManyTokensError` if the new part is certain to have more than `most_tokens`. `RequestError` (400) for an empty
    prompt, or for ids outside the vocabulary.
    """
    if not prompt:
        raise RequestError(400, "invalid_value", "prompt is empty; there is nothing to continue", param="prompt")
    if isinstance(prompt, str):
        continued = earlier.begins_text(prompt)
        if continued is None:
            return _prompt(prompt, tuple(chat.encode(prompt, most_tokens=most_tokens)), None, prompt)
        parent, rest = continued
        return _prompt(prompt, chat.encode_continuation(rest, most_tokens=most_tokens), parent, rest)
    # Before the search below: decoding and hashing ids that cannot fit would be wasted.
    if len(prompt) > most_tokens:
        raise TooManyTokensError(len(prompt))
    if max(prompt) >= chat.vocab_size:
        raise RequestError(
            400,
            "invalid_value",
            f"prompt has the token id {max(prompt)}; the policy's vocabulary ends at {chat.vocab_size - 1}",
            param="prompt",
        )
    text = chat.decode(prompt)
    known = earlier.begins_ids(prompt)
    if known is None:
        return _prompt(text, prompt, None, text)
    return _prompt(text, known[1], known[0], chat.decode(known[1]))


def _prompt(text: str, new_ids: tuple[int, ...], parent: CallNode | None, new_text: str) -> Prompt:
    return Prompt(
        ids=new_ids if parent is None else parent.full_ids() + new_ids,
        new_ids=new_ids,
        parent=parent,
        fingerprint=None,
        messages=({"role": "user", "content": new_text},),
        text=text,
    )
