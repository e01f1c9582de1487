"""Prepare a call to the policy: refuse what cannot be served, build its prompts, fix its sampling, seeds and reply ids.

Nothing is sampled here: `begin` returns a call for `sampling`. Calls of several event loops are prepared at the same
time, so shared state is guarded by locks of `threading`, never by asyncio's.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

import attrs

from agentrl_core.chat.tokenizer import TooManyTokensError
from agentrl_core.errors import ContextLengthError, RequestError
from agentrl_core.gateway.history.ledger import Prompt, build_prompt
from agentrl_core.gateway.history.raw_prompts import raw_prompt
from agentrl_core.gateway.sampling import Generation, PolicyCall
from agentrl_core.gateway.sampling_parameters import call_seed, count_used, reply_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentrl_core.api.engines import Engine
    from agentrl_core.chat.facade import Chat
    from agentrl_core.chat.replies import ReplyReader
    from agentrl_core.gateway.call_types import ChatRequest
    from agentrl_core.gateway.recording import Recorder
    from agentrl_core.gateway.retries import Attempt
    from agentrl_core.gateway.sessions import Session
    from agentrl_core.types import Grammar, Interaction


class PolicyCalls:
    """Prepares the calls of all sessions to the policy, and counts for the run's metrics what they ask for."""

    def __init__(
        self,
        *,
        engine: Engine,
        chat: Chat,
        recorder: Recorder,
        history: Literal["exact", "template"],
        most_replies: int,
        unseen_tools: Literal["refuse", "allow"],
        seed: int,
    ) -> None:
        self.chat = chat
        self._engine = engine
        self._history = history
        self._most_replies = most_replies
        self._allows_unseen_tools = unseen_tools == "allow"
        self._seed = seed
        self._recorder = recorder
        self._lock = threading.Lock()
        self.forced_temperatures = 0
        """Number of calls that asked for another temperature and were sampled at the policy's."""
        self.calls_with_unseen_tools = 0
        """Number of calls whose tools the chat template left out of the prompt."""
        self.past_is_concerned = False
        """Whether any call continued a turn that the chat template does not render as it was sampled."""
        self.without_effect: Counter[str] = Counter()
        """Number of calls whose sampling parameter was ignored, by the parameter's name."""

    def begin(
        self,
        session: Session,
        request: ChatRequest,
        id_prefix: str,
        prompts: Sequence[Prompt] | None = None,
        attempt: Attempt | None = None,
        notes: Mapping[str, Any] | None = None,
    ) -> PolicyCall:
        """Prepare a call: prompt ids, sampling parameters, seeds and ids of its replies; nothing is sampled yet.

        `prompts` is the result of the method `prompts` for this request if it was called before, `attempt` the entry by
        which a retry finds the call; `notes` are added to `Interaction.requested`. `RequestError` where the request
        cannot be served.
        """
        session.check_open()
        unseen_tools = self._unseen_tools(request)
        prompts = prompts or self.prompts(session, request)
        room = min(self._room(prompt) for prompt in prompts)
        decision = session.policy.decide(request, room=room)
        grammar = self._grammar(request, prompts[0])
        count = len(prompts) * request.n
        # Numbers are taken after all checks, so a refused call does not shift the seeds and ids of later calls.
        with session.lock:
            first = session.num_calls
            session.num_calls += count
        with self._lock:
            self.forced_temperatures += decision.forced
            self.calls_with_unseen_tools += bool(unseen_tools)
            self.past_is_concerned = self.past_is_concerned or any(map(self._concerns_past, prompts))
            self.without_effect.update(decision.without_effect)
        call_id = f"{id_prefix}{reply_name(self._seed, session.seed_key, session.twin, first)}"
        generations = tuple(
            Generation(
                id=(reply_id := f"{call_id}.{index}" if index else call_id),
                index=index,
                prompt=(prompt := prompts[index // request.n]),
                sampling=attrs.evolve(
                    decision.sampling,
                    seed=call_seed(self._seed, *session.seed_key, first + index),
                    grammar=grammar,
                ),
                reader=self._reader(request, prompt, decision.sampling.stop, reply_id),
            )
            for index in range(count)
        )
        return PolicyCall(
            id=call_id,
            session=session,
            request=request,
            requested={**decision.requested, **unseen_tools, **(notes or {})},
            generations=generations,
            started_at=time.time(),
            chat=self.chat,
            engine=self._engine,
            attempt=attempt,
            recorder=self._recorder,
        )

    def _check_replies(self, request: ChatRequest) -> None:
        prompts = max(len(request.prompts), 1)
        if prompts * request.n > self._most_replies:
            raise RequestError(
                400,
                "invalid_value",
                f"{prompts} prompts times n = {request.n} are {prompts * request.n} replies; one request may ask for "
                f"at most {self._most_replies} (gateway.max_replies_per_call)",
                param="n",
            )

    def _unseen_tools(self, request: ChatRequest) -> dict[str, str]:
        """Return the trace's note about tools that the template drops; `RequestError` if such calls are refused."""
        if not request.parse_tools or request.prompts or self.chat.takes_tools:
            return {}
        names = ", ".join(tool["function"]["name"] for tool in request.tools)
        if not self._allows_unseen_tools:
            raise RequestError(
                400,
                "tools_not_supported",
                f"this model's chat template drops tools: the policy would never see {names}. Train a model whose "
                "template has tools, or describe them in the prompt and set gateway.unseen_tools: allow",
                param="tools",
            )
        return {"tools": f"{names}: not in the prompt, as the chat template drops tools"}

    def _concerns_past(self, prompt: Prompt) -> bool:
        """Return whether the template would change a past turn of a prompt: the one before, or those of a fork."""
        if prompt.parent is not None:
            return self.chat.verdict.concerns([prompt.parent.interaction.output])
        return self.chat.verdict.concerns(turn for turn in prompt.messages if turn.get("role") == "assistant")

    def _grammar(self, request: ChatRequest, prompt: Prompt) -> Grammar | None:
        required = request.tool_choice.mode == "required"
        if request.grammar is None and not required:
            return None
        return self.chat.grammar(
            request.grammar,
            request.callable_tools,
            required=required,
            parallel=request.parallel_tool_calls,
            prompt_ids=prompt.ids,
        )

    def _reader(self, request: ChatRequest, prompt: Prompt, stop: tuple[str, ...], reply_id: str) -> ReplyReader:
        # A raw prompt has no template whose markers for reasoning and calls could be parsed.
        if request.prompts:
            return self.chat.text_reader(stop=stop)
        return self.chat.reader(
            parse_tools=request.parse_tools,
            parallel=request.parallel_tool_calls,
            tools=request.tools,
            stop=stop,
            prompt_ids=prompt.ids,
            reply_id=reply_id,
        )

    def prompts(self, session: Session, request: ChatRequest) -> Sequence[Prompt]:
        """Build the prompts of a request, continuing earlier calls of the session where they match.

        Thread-safe; blocks. A text of megabytes may take seconds, but tokenizing stops soon after the context length.
        `RequestError` if the prompt is empty or too long.
        """
        self._check_replies(request)
        most = self._engine.context_length
        try:
            return self._prompts(session, request, most)
        except TooManyTokensError as error:
            raise ContextLengthError(prompt_tokens=error.tokens, context_length=most, at_least=True) from error

    def _prompts(self, session: Session, request: ChatRequest, most: int) -> Sequence[Prompt]:
        if request.prompts:
            return [raw_prompt(self.chat, prompt, session.ledger.raw, most_tokens=most) for prompt in request.prompts]
        continued = session.ledger.continued(request)
        prompt = build_prompt(self.chat, continued, session.ledger, self._history, most_tokens=most)
        if not prompt.ids:
            raise RequestError(
                400, "invalid_messages", "the chat template made an empty prompt of these messages", param="messages"
            )
        return [prompt]

    def count_calls(self, session: Session, interactions: Sequence[Interaction]) -> int:
        """Return how many calls a restored session has begun, derived from the seeds of the stored ones.

        New calls continue from this number, so that no seed is used twice.
        """
        unseen = {interaction.sampling.seed for interaction in interactions if not interaction.upstream}
        # Call numbers are not stored, but the seeds made from them are.
        seed_of = functools.partial(call_seed, self._seed, *session.seed_key)
        return count_used(unseen, seed_of, most=len(interactions))

    async def abort_all(self, session: Session) -> None:
        """Abort the running generations of a closed session, and wait until its finished calls are stored."""
        # A copy: generations leave `running` as they are aborted.
        with session.lock:
            running = tuple(session.running)
        for request_id in running:
            await self._engine.abort(request_id)
        with session.lock:
            writes = tuple(session.writes)
        for write in writes:
            await asyncio.wrap_future(write)

    def _room(self, prompt: Prompt) -> int:
        """Return how many tokens fit into the context after a prompt; `ContextLengthError` if none does."""
        room = self._engine.context_length - len(prompt.ids)
        if room < 1:
            raise ContextLengthError(prompt_tokens=len(prompt.ids), context_length=self._engine.context_length)
        return room
