"""Comparison of the CPU time per request of all servers, with the same upstream, client and conversations."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.benchmarks.environment import UnavailableError
from tests.benchmarks.gateway.fidelity import fidelity
from tests.benchmarks.gateway.ours import OPENING_CHARS
from tests.benchmarks.gateway.peers import PEERS, BeforeUpstream, Contender, InProcess
from tests.benchmarks.gateway.process import Server
from tests.benchmarks.gateway.raw_client import Sent, closed_loop
from tests.benchmarks.gateway.talk import NEW_CHARS, Talk, opening, text
from tests.benchmarks.report import FOLDER, Row

CONCURRENCY = (1, 8, 32)
_seeds = itertools.count()


@contextmanager
def contenders() -> Iterator[tuple[list[Contender], list[str]]]:
    """Start the upstream, both forms of ours, and every peer that can be had; the others are named with the reason."""
    notes: list[str] = []
    with ExitStack() as stack:
        upstream = stack.enter_context(Server.of_module("tests.benchmarks.gateway.mock", log=FOLDER / "mock.log"))
        url = upstream.read()["url"]
        running: list[Contender] = []
        for kind in (InProcess, BeforeUpstream, *PEERS):
            try:
                contender = kind(url)
            except UnavailableError as reason:
                notes.append(f"{kind.name} is left out: {reason}")
                continue
            stack.callback(lambda contender=contender: contender.server.close())
            running.append(contender)
        yield running, notes


async def compare(running: list[Contender], *, calls: int, repeats: int) -> list[Row]:
    """Measure turn 5 of conversations, for every concurrency; medians of the repeats."""
    costs: dict[tuple[int, str], list[float]] = defaultdict(list)
    slow: dict[tuple[int, str], list[float]] = defaultdict(list)
    for contender in running:
        await _prepared(contender, 20)  # warm
    for _, clients, contender in itertools.product(range(repeats), CONCURRENCY, running):
        requests = [talk.request() for talk in await _prepared(contender, calls)]
        before = contender.server.cpu_seconds()
        sent = await _send(contender, requests, clients)
        costs[clients, contender.name].append(1e3 * (contender.server.cpu_seconds() - before) / calls)
        slow[clients, contender.name].append(1e3 * statistics.quantiles(sent.latencies, n=100)[98])
    return [*_rows(running, costs, slow), *_memory(running)]


async def capabilities(running: list[Contender]) -> tuple[list[Row], list[str], str]:
    """Return the share of fields and habits that get through, who lacks what, and what ours lacks."""
    rows, notes, ours = [], [], ""
    scores = {}
    for item in running:
        if isinstance(item, BeforeUpstream):  # the same gateway
            continue
        found = await fidelity(item)
        scores[item.name] = sum(found.values()) / len(found)
        lacking = ", ".join(name for name, there in found.items() if not there)
        notes.append(f"{item.name} lacks: {lacking or 'nothing'}")
        if isinstance(item, InProcess):
            ours = lacking
    for item in running:
        if not isinstance(item, InProcess):
            mine, theirs = scores[InProcess.name], scores[item.name]
            rows.append(Row(case="fidelity", metric="fidelity_score", ours=mine, peer=theirs, peer_name=item.name))
    return rows or [Row(case="fidelity", metric="fidelity_score", ours=scores[InProcess.name])], notes, ours


def _rows(
    running: list[Contender], costs: dict[tuple[int, str], list[float]], slow: dict[tuple[int, str], list[float]]
) -> Iterator[Row]:
    ours = [item.name for item in running if isinstance(item, InProcess)]
    peers = [item.name for item in running if not isinstance(item, InProcess)]
    for clients, form in itertools.product(CONCURRENCY, ours):
        case = f"c{clients}" if form == InProcess.name else f"c{clients}_upstream"
        mine, my_slow = statistics.median(costs[clients, form]), statistics.median(slow[clients, form])
        if not peers:
            yield Row(case=case, metric="cpu_ms_per_call", ours=mine)
        for name in peers:
            theirs = statistics.median(costs[clients, name])
            yield Row(case=case, metric="cpu_ms_per_call", ours=mine, peer=theirs, peer_name=name)
            yield Row(case=case, metric="cpu_ratio", ours=mine / theirs, peer_name=name)
            their_slow = statistics.median(slow[clients, name])
            yield Row(case=case, metric="p99_ms", ours=my_slow, peer=their_slow, peer_name=name)


def _memory(running: list[Contender]) -> Iterator[Row]:
    mine = next(item.server.rss_mb() for item in running if item.name == InProcess.name)
    for item in running:
        if not isinstance(item, InProcess):
            yield Row(case="after_all", metric="mb", ours=mine, peer=item.server.rss_mb(), peer_name=item.name)


async def _prepared(contender: Contender, count: int) -> list[Talk]:
    """Return conversations whose next call is turn 5, of 4 KB; the turns before went the same way."""
    talks = [
        Talk(target=target, model=contender.model, messages=opening((next(_seeds), "compared"), OPENING_CHARS))
        for target in contender.open(count)
    ]
    for _ in range(4):
        sent = await _send(contender, [talk.request() for talk in talks], 8)
        for talk, answer in zip(talks, sent.answers, strict=True):
            talk.reply(answer, text((next(_seeds), "next"), NEW_CHARS))
    return talks


async def _send(contender: Contender, requests: list[bytes], clients: int) -> Sent:
    target = contender.target("/")
    return await closed_loop(requests, host=target.host, port=target.port, clients=clients)
