"""Ask the context policy before each call to the policy, and build the prompt from what it made of the history.

The agent goes on to send its whole history. The longest beginning of it that was compacted before is replaced by the
result, so the calls after a compaction continue the compacted branch by its exact tokens. Only then is the context
policy asked. Raw prompts (legacy completions, token-level calls) and calls to upstreams stay as they are.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.api.compaction import COMPACTION, CompactionNote, ContextUsage
from agentrl_core.errors import AgentRLError, ConfigError, ContextLengthError, RequestError
from agentrl_core.gateway.call_types import ChatRequest, ToolChoice
from agentrl_core.gateway.conversations import problem_of
from agentrl_core.gateway.history.compacted import Compacted, digests_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agentrl_core.api.compaction import AskPolicy, ContextPolicy
    from agentrl_core.gateway.admission import Admission
    from agentrl_core.gateway.history.ledger import Prompt
    from agentrl_core.gateway.large_requests import LargeRequests
    from agentrl_core.gateway.policy_calls import PolicyCalls
    from agentrl_core.gateway.sessions import Session
    from agentrl_core.gateway.upstream_calls import UpstreamCalls
    from agentrl_core.gateway.upstreams import Upstreams
    from agentrl_core.types import Message

_ID_PREFIX = "ctx-"


@attrs.frozen
class Unchanged:
    """Context policy that leaves every history as it is; without options."""

    async def compact(
        self,
        messages: Sequence[Message],  # noqa: ARG002 - the protocol's
        usage: ContextUsage,  # noqa: ARG002
        ask: AskPolicy,  # noqa: ARG002
    ) -> None:
        """Return None."""
        return


@attrs.frozen(kw_only=True)
class NamedPolicy:
    """Context policy with the name by which the config chose it, for messages and notes."""

    name: str
    policy: ContextPolicy

    @property
    def is_none(self) -> bool:
        """Whether it never changes anything, so that calls need not ask it."""
        return isinstance(self.policy, Unchanged)


@attrs.frozen(kw_only=True)
class _Size:
    """Prompt of a history, with its length in tokens."""

    tokens: int
    """A lower bound if the prompt was not counted to its end."""
    prompts: Sequence[Prompt] | None
    """The prompt; None if it is too long for a reply."""


@attrs.frozen(kw_only=True, eq=False)
class Compactor:
    """Builds the prompts of all sessions' calls by way of the context policy."""

    policy: NamedPolicy
    calls: PolicyCalls
    upstreams: Upstreams
    upstream_calls: UpstreamCalls
    admission: Admission
    large: LargeRequests
    context_length: int

    def __attrs_post_init__(self) -> None:
        """Raise `ConfigError` if the policy asks an upstream that the config does not have."""
        for name in getattr(self.policy.policy, "upstreams", ()):
            if self.upstreams.find(name) is None:
                raise ConfigError(
                    f"context: '{self.policy.name}' asks the upstream '{name}', which is not in gateway.upstreams; "
                    "expected one of: " + (", ".join(self.upstreams.names) or "none are defined")
                )

    def concerns(self, request: ChatRequest) -> bool:
        """Return whether a request is for the policy and has a history that can be compacted."""
        return bool(request.messages) and self.upstreams.find(request.model) is None

    async def prompts(
        self, session: Session, request: ChatRequest, num_bytes: int
    ) -> tuple[Sequence[Prompt], Mapping[str, Any]]:
        """Return the prompts of a request after compaction, with the note for `Interaction.requested`.

        `num_bytes` is the size of the request's body: large ones are tokenized on threads. `RequestError` if the
        request is too long, or for a context policy that fails.
        """
        request = _written_out(session, request)
        digests = digests_of(request.messages)
        histories = session.compacted
        async with histories.deciding(digests[-1]):
            known = histories.find(digests)
            messages = (*known.messages, *request.messages[known.replaced :])
            call = _Compaction(self, session, attrs.evolve(request, messages=messages), digests[-1], num_bytes)
            size = await call.size(messages)
            # A call that repeats one which was compacted before it failed is not compacted twice.
            if known.replaced < len(digests):
                found = await call.compacted(size, known)
                if found is not None:
                    after = await call.size(found)
                    self._check_room(after, size)
                    sizes = (len(messages), len(found)), (size.tokens, after.tokens)
                    known = histories.add(digests[-1], known, replaced=len(digests), messages=found, sizes=sizes)
                    size = after
        if size.prompts is None:
            raise ContextLengthError(prompt_tokens=size.tokens, context_length=self.context_length)
        return size.prompts, self._note(known, size.prompts[0])

    def _check_room(self, after: _Size, before: _Size) -> None:
        if after.prompts is None:
            raise RequestError(
                400,
                "context_length_exceeded",
                f"context policy '{self.policy.name}' left {after.tokens} of {before.tokens} prompt tokens, but the "
                f"context length is {self.context_length}; let it keep less",
                param="messages",
            )

    def _note(self, known: Compacted, prompt: Prompt) -> Mapping[str, Any]:
        """Return the note on a call that begins a compacted branch; later calls of the branch have none."""
        if not known.number or (prompt.parent is not None and prompt.parent.length > len(known.messages)):
            return {}
        messages, tokens = known.sizes
        note = CompactionNote(
            name=self.policy.name,
            number=known.number,
            compactions=known.compactions,
            messages=messages,
            tokens=tokens,
            context_length=self.context_length,
        )
        return {COMPACTION: attrs.asdict(note)}


@attrs.define(eq=False)
class _Compaction:
    """One call that may be compacted, and what the policy asks meanwhile."""

    _compactor: Compactor
    _session: Session
    _request: ChatRequest
    """With the messages that earlier compactions left."""
    _digest: int
    """Of the conversation as the agent sent it."""
    _num_bytes: int
    _num_asked: int = attrs.field(default=0, init=False)

    async def size(self, messages: tuple[Message, ...]) -> _Size:
        """Build and count the prompt of other messages in place of the request's."""
        request = attrs.evolve(self._request, messages=messages)
        length = self._compactor.context_length
        try:
            prompts = await self._built(lambda: self._compactor.calls.prompts(self._session, request))
        except ContextLengthError as error:
            return _Size(tokens=error.prompt_tokens, prompts=None)
        tokens = len(prompts[0].ids)
        return _Size(tokens=tokens, prompts=prompts if tokens < length else None)

    async def compacted(self, size: _Size, known: Compacted) -> tuple[Message, ...] | None:
        """Return what the context policy makes of the messages; None if it leaves them."""
        request, session, named = self._request, self._session, self._compactor.policy
        wanted = request.max_tokens if request.max_tokens is not None else session.policy.max_tokens
        usage = ContextUsage(
            prompt_tokens=size.tokens,
            context_length=self._compactor.context_length,
            max_tokens=self._compactor.context_length if wanted is None else wanted,
            calls=session.num_calls,
            compactions=known.compactions,
        )
        try:
            # Copies, because the messages themselves are the record's: a policy that writes into them must not.
            found = await named.policy.compact([dict(message) for message in request.messages], usage, self._ask)
        except AgentRLError:
            raise
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            what = f"{type(error).__name__}: {error} ({frame.filename}:{frame.lineno})"
            raise self._failure(f"raised {what}") from error
        if found is None:
            return None
        if problem := problem_of(found, request.messages):
            raise self._failure(f"returned {problem}")
        messages = tuple(found)
        return None if messages == request.messages else messages

    async def _ask(self, messages: Sequence[Message], *, max_tokens: int | None = None, upstream: str = "") -> Message:
        """Answer a question of the context policy; the protocol is `AskPolicy`."""
        asked = tuple(messages)
        if problem := problem_of(asked, self._request.messages):
            raise self._failure(f"asks with {problem}")
        self._num_asked += 1
        number, histories = self._num_asked, self._session.compacted
        answer = histories.answer(self._digest, number, asked)
        if answer is None:
            answer = await self._answered(asked, max_tokens, upstream)
            histories.keep_answer(self._digest, number, asked, answer)
        return dict(answer)

    async def _answered(self, messages: tuple[Message, ...], max_tokens: int | None, upstream: str) -> Message:
        compactor, session, origin = self._compactor, self._session, self._request
        note = {COMPACTION: {"name": compactor.policy.name}}
        await compactor.admission.admit(session)
        if upstream:
            provider = compactor.upstreams.find(upstream)
            if provider is None:
                raise self._failure(f"asks the upstream '{upstream}', which is not in gateway.upstreams")
            request = ChatRequest(api="context", messages=messages, model=upstream, max_tokens=max_tokens, ignored=note)
            reply = await compactor.upstream_calls.begin(session, request, _ID_PREFIX, provider, None).complete()
            return reply.first.interaction.output
        request = ChatRequest(
            api="context",
            messages=messages,
            # Tools stay in the prompt, which otherwise would not continue the tokens of the history.
            tools=origin.tools,
            tool_choice=ToolChoice(mode="none"),
            template_options=origin.template_options,
            model=origin.model,
            temperature=origin.temperature,
            top_p=origin.top_p,
            top_k=origin.top_k,
            max_tokens=max_tokens,
            shown=origin.shown,
            trainable=origin.trainable,
        )
        prompts = await self._built(lambda: compactor.calls.prompts(session, request))
        reply = await compactor.calls.begin(session, request, _ID_PREFIX, prompts, notes=note).complete()
        # Agents get calls of other sessions or weights only between two replies; so does the call that follows.
        await compactor.admission.ready(session)
        return reply.first.interaction.output

    async def _built(self, build: Callable[[], Sequence[Prompt]]) -> Sequence[Prompt]:
        return await self._compactor.large.run(self._session.record_id, self._num_bytes, build)

    def _failure(self, what: str) -> RequestError:
        return RequestError(400, "context_policy", f"context policy '{self._compactor.policy.name}' {what}")


def _written_out(session: Session, request: ChatRequest) -> ChatRequest:
    """Return the request with the conversation of its `previous` reply among its messages."""
    if request.previous is None:
        return request
    shown = request.shown | {request.previous}
    return attrs.evolve(session.ledger.continued(request), previous=None, shown=shown)
