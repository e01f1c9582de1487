"""Prove that each server of a remote engine samples from the weights that it was told to load."""

from __future__ import annotations

import asyncio
import functools
import logging
import uuid
from typing import TYPE_CHECKING

import attrs

from agentrl_core.api.remote import ServerRequest
from agentrl_core.api.weights import DirectoryWeights
from agentrl_core.concurrency.threads import call_on_thread
from agentrl_core.engines.remote.failures import BACKOFF, LostReplyError
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
    change: float | None


class WeightProof:
    """Proofs of the servers of one engine, which all load the same weights.

    `max_gap` is the option `engine.max_canary_gap`. The canary of a version is computed while the servers still sample,
    and the servers answer theirs before the engine's requests go on.
    """

    def __init__(self, *, max_gap: float | None) -> None:
        self._max_gap = max_gap
        self._judges: dict[str, Judge] = {}
        self._initial: Canary | None = None
        self._current: Canary | None = None
        self._is_told = False

    async def canary(self, version: int, source: WeightSource) -> Canary | None:
        """Return the canary of weights that are to be published; None if they come without one.

        Raises `EngineError` if the canary beside a directory's weights is damaged.
        """
        if isinstance(source, DirectoryWeights):
            try:
                found = read_canary(source.path)
            except ValueError as error:
                raise EngineError(f"the weights of version {version} cannot be proven: {error}") from error
            return None if found is None else attrs.evolve(found, version=version)
        return await call_on_thread(functools.partial(canary_of, source.module, version), name="canary")

    async def prove(self, servers: Sequence[RemoteServer], canary: Canary | None) -> Proof | None:
        """Prove that every server has the weights of `canary`; None without one, which `note_use` tells in the log.

        Raises `EngineError` that names the servers, the version that each of them serves, and the distances.
        """
        self._current = canary
        if canary is None:
            return None
        findings = await asyncio.gather(*(self._finding(server, canary) for server in servers))
        if faults := [fault for _, fault in findings if fault]:
            raise EngineError("; ".join(faults))
        found = [finding for finding, _ in findings]
        for server, finding in zip(servers, found, strict=True):
            if finding.verdict is Verdict.PROVEN:
                self._judge(server).accept(canary, finding)
        self._initial = self._initial or canary
        changes = [finding.largest_change for finding in found if finding.largest_change is not None]
        proof = Proof(
            proven=all(finding.verdict is Verdict.PROVEN for finding in found),
            gap=max(finding.largest_gap for finding in found),
            change=max(changes, default=None),
        )
        log.info("version %d: %s on %d servers", canary.version, "proven" if proof.proven else "as before", len(found))
        return proof

    def note_use(self, version: int) -> None:
        """Tell once that weights are sampled from which nobody has proven; version 0 is proven with the first one."""
        if self._current is None and version and not self._is_told:
            self._is_told = True
            log.warning(
                "version %d of the weights is not proven to have arrived: it came without canary.json, which the "
                "trainer writes beside the weights that it publishes",
                version,
            )

    async def check_returned(self, server: RemoteServer) -> None:
        """Check the weights of a server that was away, before it gets calls again.

        Raises `LostReplyError` with `outdated` if it has other weights than those that were published last: a server
        that was restarted has those of its start, whatever it calls them.
        """
        canary = self._current
        if canary is None:
            return
        seen = await self._seen(server, canary, tries=1)
        judge = self._judge(server)
        initial = None if self._initial is None or self._initial.version == canary.version else self._initial
        finding = judge.judge(seen.logprobs, canary, old=initial)
        if finding.verdict in {Verdict.STALE, Verdict.WRONG}:
            which = f"version {initial.version}" if initial and finding.verdict is Verdict.STALE else "another version"
            raise LostReplyError(
                f"{server.url}: was away, and now serves the weights of {which} instead of version {canary.version} "
                f"(its canary is {finding.gap:.2g} nats away); was the server restarted? It gets no calls until it "
                "loads the next version",
                outdated=True,
            )

    def _judge(self, server: RemoteServer) -> Judge:
        return self._judges.setdefault(server.url, Judge(max_gap=self._max_gap))

    async def _finding(self, server: RemoteServer, canary: Canary) -> tuple[Finding, str]:
        """Return the finding on a server, and the message about its fault; empty if there is none."""
        judge = self._judge(server)
        try:
            seen = await self._seen(server, canary)
        except UnavailableError as error:
            message = f"{server.url}: cannot be proven to have version {canary.version} of the weights: {error}"
            raise EngineError(message) from error
        finding = judge.judge(seen.logprobs, canary)
        if finding.verdict in {Verdict.STALE, Verdict.WRONG}:
            return finding, _fault(server, canary, finding, judge)
        strayed = judge.strays(seen.token, seen.token_logprob, canary)
        if strayed is not None:
            return finding, (
                f"{server.url}: has loaded version {canary.version}, but samples with keys and values of older weights "
                f"(the logprob of a sampled token is {strayed:.2g} nats away, those of the prompt {finding.gap:.2g}): "
                "its prefix cache was not dropped. Restart the server without prefix caching, or update it"
            )
        return finding, ""

    async def _seen(self, server: RemoteServer, canary: Canary, *, tries: int = _TRIES) -> CanaryReply:
        """Return a server's reply to the canary; repeats lost calls, and raises `EngineError` after the last."""
        for attempt in range(tries):
            try:
                scores = await server.score(_request(server, canary.ids[:1]), canary.ids[1:])
                token, logprob = await server.sample_one(_request(server, canary.ids))
            except LostReplyError as failure:
                if attempt + 1 == tries:
                    raise
                log.info("the canary is sent again: %s", failure)
                await asyncio.sleep(BACKOFF.wait_s(attempt, failure.retry_after_s))
            else:
                return CanaryReply(logprobs=scores, token=token, token_logprob=logprob)
        raise AssertionError("expected at least one try")


@attrs.frozen(kw_only=True)
class CanaryReply:
    """Logprobs that a server returned for the canary, and the token that it sampled greedily after it."""

    logprobs: tuple[float, ...]
    token: int
    token_logprob: float


def _request(server: RemoteServer, prompt_ids: Sequence[int]) -> ServerRequest:
    """Return a call for the likeliest token after a prompt."""
    served = server.served
    assert served is not None  # noqa: S101 (set by the engine's start)
    return ServerRequest(
        id=f"canary-{uuid.uuid4().hex}",
        request_id="canary",
        prompt_ids=prompt_ids,
        max_tokens=1,
        temperature=0.0,
        top_p=1.0,
        top_k=0,
        stop=(),
        stop_token_ids=(),
        seed=1,
        grammar=None,
        top_logprobs=0,
        stream=False,
        model=served.model,
    )


def _fault(server: RemoteServer, canary: Canary, finding: Finding, judge: Judge) -> str:
    """Return the message about a server that has other weights than those that it was told to load."""
    distances = f"{finding.gap:.2g} nats from version {canary.version}"
    if finding.gap_to_old is not None and judge.proven is not None:
        distances += f", {finding.gap_to_old:.2g} from version {judge.proven.version}"
    if finding.verdict is Verdict.STALE and judge.proven is not None:
        said = f"still serves the weights of version {judge.proven.version}, although it was told to load version"
        said = f"{said} {canary.version} and answered that it had"
    elif judge.proven is None:
        said = f"serves other weights than the policy's of version {canary.version}"
    else:
        said = f"serves neither the weights of version {canary.version} nor those before: a part of them arrived"
    return (
        f"{server.url}: {said} (the canary's logprobs are {distances}). If a router stands in front of several "
        "servers, name each server's own address in engine.url; if this server rounds so much, raise "
        "engine.max_canary_gap"
    )
