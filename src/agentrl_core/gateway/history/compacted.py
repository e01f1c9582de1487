"""Remember which beginnings of a session's conversations were compacted, so that later calls go on from the result.

Agents send the whole history with each call and know nothing of compactions. A conversation is recognised by the
digests of its messages, as in the ledger, but without its tools: an agent may offer others later.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import attrs

from agentrl_core.chat.fingerprint import Fingerprint

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from agentrl_core.types import Message


@attrs.frozen(kw_only=True)
class Compacted:
    """Result of compacting a conversation, which stands for that conversation in all calls that continue it."""

    messages: tuple[Message, ...] = ()
    replaced: int = 0
    """Number of the agent's messages that `messages` stand for."""
    number: int = 0
    """Number of the compaction within the session, from 1; 0 if nothing was compacted."""
    compactions: int = 0
    """Number of compactions that led here, this one included."""
    sizes: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))
    """Messages before and after, tokens before and after."""


NOT_COMPACTED = Compacted()


class CompactedHistories:
    """Compactions of one session's conversations; thread-safe, usable from several event loops."""

    def __init__(self) -> None:
        self._by_digest: dict[int, Compacted] = {}
        self._deciding: dict[int, concurrent.futures.Future[None]] = {}
        """Conversations about which a call is asking the policy now."""
        self._answers: dict[tuple[int, int], tuple[tuple[Message, ...], Message]] = {}
        """Question and answer by (conversation, number of the question), until the compaction is done."""
        self._lock = threading.Lock()
        self._count = 0

    def find(self, digests: Sequence[int]) -> Compacted:
        """Return the compaction of the longest beginning of a conversation, given the digests of its beginnings."""
        with self._lock:
            for digest in reversed(digests):
                if (found := self._by_digest.get(digest)) is not None:
                    return found
        return NOT_COMPACTED

    @asynccontextmanager
    async def deciding(self, digest: int) -> AsyncIterator[None]:
        """Context in which a single call decides about a conversation; others with the same one wait for its end."""
        done: concurrent.futures.Future[None] = concurrent.futures.Future()
        while True:
            with self._lock:
                other = self._deciding.setdefault(digest, done)
            if other is done:
                break
            # Shielded, as a client that stops waiting must not cancel the future for all others.
            await asyncio.shield(asyncio.wrap_future(other))
        try:
            yield
        finally:
            with self._lock:
                del self._deciding[digest]
            done.set_result(None)

    def add(
        self,
        digest: int,
        before: Compacted,
        *,
        replaced: int,
        messages: tuple[Message, ...],
        sizes: tuple[tuple[int, int], tuple[int, int]],
    ) -> Compacted:
        """Remember that the conversation with `digest`, of `replaced` messages, became `messages`.

        `before` is the earlier compaction that it began with.
        """
        with self._lock:
            self._count += 1
            found = Compacted(
                messages=messages,
                replaced=replaced,
                number=self._count,
                compactions=before.compactions + 1,
                sizes=sizes,
            )
            self._by_digest[digest] = found
            # The Responses API goes on from the conversation as it was compacted (`previous_response_id`).
            self._by_digest[digests_of(messages)[-1]] = attrs.evolve(found, replaced=len(messages))
            for key in [key for key in self._answers if key[0] == digest]:
                del self._answers[key]
        return found

    def answer(self, digest: int, number: int, messages: tuple[Message, ...]) -> Message | None:
        """Return what was answered to a question when this conversation was about to be compacted before.

        So a call that is repeated because it failed after the answer does not ask again.
        """
        with self._lock:
            asked, answer = self._answers.get((digest, number), ((), None))
        return answer if asked == messages else None

    def keep_answer(self, digest: int, number: int, messages: tuple[Message, ...], answer: Message) -> None:
        """Remember an answer until the conversation is compacted."""
        with self._lock:
            self._answers[digest, number] = messages, answer


def digests_of(messages: Sequence[Message]) -> list[int]:
    """Return the digest of each beginning of a conversation, by its number of messages from 1."""
    fingerprint = Fingerprint(())
    return [fingerprint.add(message) for message in messages]
