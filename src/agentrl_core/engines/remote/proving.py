"""Prove that each server of a remote engine samples from the weights that it was told to load."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import uuid
from typing import TYPE_CHECKING

import attrs

from agentrl_core.api.remote import ServerRequest
from agentrl_core.api.weights import DirectoryWeights
from agentrl_core.concurrency.threads import call_on_thread
from agentrl_core.engines.remote.failures import BACKOFF, LostReplyError, UnprovenError
from agentrl_core.errors import EngineError, UnavailableError
from agentrl_core.weights.proof import Judge, Verdict, canary_of, read_canary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentrl_core.api.weights import WeightSource
    from agentrl_core.engines.remote.server import RemoteServer
    from agentrl_core.weights.proof import Canary, Finding

log = logging.getLogger(__name__)

_TRIES = 6
"""Calls for one canary, with growing waits between them, before a server counts as unable to answer."""


@attrs.frozen(kw_only=True)
class Proof:
    """Result of the proofs of all servers after one publication; the largest gap of any of them counts."""

    proven: bool
    """False if the new weights cannot be told apart from the last proven ones."""
    gap: float
    """Largest |server - learner| of the canary's logprobs."""
    change: float | None
    """Largest difference of the canary's logprobs between the new and the last proven weights; None before those."""


class WeightProof:
    """Proofs of the servers of one engine, which all load the same weights.

    `max_gap` is the option `engine.max_canary_gap`. `expect` computes the canary of a version, while the servers still
    sample; `prove` asks one server for it, before the engine's calls go there.
    """

    def __init__(self, *, max_gap: float | None) -> None:
        self._max_gap = max_gap
        self._judges: dict[str, Judge] = {}
        self._initial: Canary | None = None
        self._current: Canary | None = None
        self._before: Canary | None = None
        """Canary of the weights in use while the next ones are prepared: a server may return meanwhile."""
        self._found: dict[str, Finding] = {}
        """Address of a server -> finding on the current weights."""
        self._is_told = False

    async def expect(self, version: int, source: WeightSource) -> None:
        """Take the canary of weights that are to be published, or None if they come without one; blocks no loop.

        Raises `EngineError` if the canary beside a directory's weights is damaged.
        """
        canary = await self._canary(version, source)
        self._before, self._current, self._found = self._current, canary, {}
        self._initial = self._initial or canary

    async def prove(self, server: RemoteServer, version: int) -> None:
        """Prove that a server has the weights of `version`, if these have a canary.

        Raises `UnprovenError` that names the version that it serves, and the distances; `LostReplyError` if the server
        does not answer.
        """
        known = (self._current, self._before)
        canary = next((one for one in known if one is not None and one.version == version), None)
        if canary is None:
            return
        judge = self._judges.setdefault(server.url, Judge(max_gap=self._max_gap))
        old = judge.proven
        if old is None or old.version == version:
            # A server that joins late was started with the first weights, and may have kept them.
            old = self._initial if old is not None or canary is not self._initial else None
        try:
            seen = await _ask(server, canary)
        except LostReplyError:
            raise
        except UnavailableError as error:
            message = f"{server.url}: cannot be proven to have version {version} of the weights: {error}"
            raise UnprovenError(message) from error
        finding = judge.judge(seen.logprobs, canary, old=old)
        if finding.verdict in {Verdict.STALE, Verdict.WRONG}:
            raise UnprovenError(_fault(server, canary, finding, old))
        # Servers that return sampling masks renormalise over the one token that is left, so it tells nothing there.
        tells = server.served is None or not server.served.returns_kept
        if tells and (strayed := judge.strays(seen.token, seen.token_logprob, canary, old=old)) is not None:
            raise UnprovenError(
                f"{server.url}: has loaded version {version}, but samples with keys and values of older weights (the "
                f"logprob of a sampled token is {strayed:.2g} nats away, those of the prompt {finding.gap:.2g}): its "
                "prefix cache was not dropped. Start the server without prefix caching, or update it"
            )
        if finding.verdict is Verdict.PROVEN:
            judge.accept(canary, finding)
        if canary is self._current:
            self._found.setdefault(server.url, finding)
        log.info("%s: version %d is %s", server.url, version, finding.verdict)

    def result(self) -> Proof | None:
        """Return the proof of the current weights; None if no server was proven."""
        found = list(self._found.values())
        if not found:
            return None
        changes = [finding.largest_change for finding in found if finding.largest_change is not None]
        return Proof(
            proven=all(finding.verdict is Verdict.PROVEN for finding in found),
            gap=max(finding.largest_gap for finding in found),
            change=max(changes, default=None),
        )

    def note_use(self, version: int) -> None:
        """Tell once that weights are sampled from which nobody has proven; version 0 is proven with the first one."""
        if self._current is None and version and not self._is_told:
            self._is_told = True
            log.warning(
                "version %d of the weights is not proven to have arrived: it came without canary.json, which the "
                "trainer writes beside the weights that it publishes",
                version,
            )

    async def _canary(self, version: int, source: WeightSource) -> Canary | None:
        if isinstance(source, DirectoryWeights):
            try:
                found = read_canary(source.path)
            except ValueError as error:
                raise EngineError(f"the weights of version {version} cannot be proven: {error}") from error
            return None if found is None else attrs.evolve(found, version=version)
        return await call_on_thread(functools.partial(canary_of, source.module, version), name="canary")


@attrs.frozen(kw_only=True)
class _Reply:
    """Logprobs that a server returned for the canary, and the token that it sampled greedily after it."""

    logprobs: tuple[float, ...]
    token: int
    token_logprob: float


async def _ask(server: RemoteServer, canary: Canary) -> _Reply:
    """Return a server's reply to the canary; repeats lost calls, and raises `LostReplyError` after the last."""
    for attempt in itertools.count(1):
        try:
            scores = await server.score(_request(server, canary.ids[:1]), canary.ids[1:])
            token, logprob = await server.sample_one(_request(server, canary.ids))
        except LostReplyError as failure:
            if attempt == _TRIES:
                raise
            log.info("the canary is sent again: %s", failure)
            await asyncio.sleep(BACKOFF.wait_s(attempt - 1, failure.retry_after_s))
        else:
            return _Reply(logprobs=scores, token=token, token_logprob=logprob)
    raise AssertionError("the loop above has no end")


def _request(server: RemoteServer, prompt_ids: Sequence[int]) -> ServerRequest:
    """Return a call for the likeliest token after a prompt."""
    served = server.served
    assert served is not None  # noqa: S101 (set by the engine's start)
    return ServerRequest(
        id=f"canary-{uuid.uuid4().hex}",
        request_id="canary",
        prompt_ids=prompt_ids,
        max_tokens=1,
        # A server that returns sampling masks refuses temperature 0 and all tokens.
        temperature=1.0 if served.returns_kept else 0.0,
        top_p=1.0,
        top_k=1 if served.returns_kept else 0,
        stop=(),
        stop_token_ids=(),
        seed=1,
        grammar=None,
        top_logprobs=0,
        stream=False,
        model=served.model,
    )


def _fault(server: RemoteServer, canary: Canary, finding: Finding, old: Canary | None) -> str:
    """Return the message about a server that has other weights than those that it was told to load."""
    new = f"version {canary.version}"
    distances = f"{finding.gap:.2g} nats from {new}"
    if finding.gap_to_old is None or old is None:
        said = f"serves other weights than the policy's of {new}"
    else:
        distances += f", {finding.gap_to_old:.2g} from version {old.version}"
        said = f"serves neither the weights of {new} nor those of version {old.version}: a part of them arrived"
        if finding.verdict is Verdict.STALE:
            said = f"still serves the weights of version {old.version}, although it answered that it has {new}"
    return (
        f"{server.url}: {said} (the canary's logprobs are {distances}). If a router stands in front of several "
        "servers, name each server's own address in engine.url; if this server rounds so much, raise "
        "engine.max_canary_gap"
    )
