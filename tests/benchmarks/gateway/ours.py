"""Costs of a call in agentrl's gateway: fifth turn, long histories, new prompts, streams, many sessions."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import attrs
import uvloop
from tests.benchmarks.gateway.model import model_dir
from tests.benchmarks.gateway.process import Server
from tests.benchmarks.gateway.raw_client import Sent, Target, closed_loop, open_loop
from tests.benchmarks.gateway.talk import NEW_CHARS, Talk, opening, opening_chars, text
from tests.benchmarks.report import FOLDER, Row

_REPLY_CHARS = 320
"""About what 64 tokens of the scripted replies are."""
OPENING_CHARS = opening_chars(turns=5, reply_chars=_REPLY_CHARS)
"""Of the conversations whose turn 5 has 4 KB."""
_LONG_CHARS = 2700
"""Of each new message in the long conversation: with the replies, turn 100 has 64k tokens behind it."""


@attrs.frozen(kw_only=True)
class Size:
    """How much is measured."""

    repeats: int = 5
    calls: int = 1000
    """Of each repeat."""
    sessions: int = 1000
    """At once, in `sessions_1000`."""


@contextmanager
def our_server() -> Iterator[Server]:
    """Serve our gateway; the first thing it says is its URL."""
    arguments = ("--model", str(model_dir()))
    with Server.of_module("tests.benchmarks.gateway.serve", *arguments, log=FOLDER / "gateway.log") as server:
        yield server


class Ours:
    """Measures one running gateway of ours."""

    def __init__(self, server: Server, url: str) -> None:
        self.server = server
        split = urlsplit(url)
        self.host, self.port = str(split.hostname), int(split.port or 0)
        self._seeds = itertools.count()

    def talks(self, count: int, *, chars: int, stream: bool = False) -> list[Talk]:
        """Open sessions, and begin a conversation in each."""
        fields = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        return [
            Talk(target=self._target(session), messages=opening((next(self._seeds), "ours"), chars), fields=fields)
            for session in self.server.ask(do="open", count=count)
        ]

    def _target(self, session: dict[str, str]) -> Target:
        path = urlsplit(session["url"]).path + "/v1/chat/completions"
        return Target(
            host=self.host, port=self.port, path=path, headers=(("authorization", f"Bearer {session['key']}"),)
        )

    async def turns(self, talks: list[Talk], count: int, *, clients: int, new_chars: int = NEW_CHARS) -> None:
        """Let every conversation make `count` calls and have its next message ready."""
        for _ in range(count):
            sent = await self.send(talks, clients)
            for talk, answer in zip(talks, sent.answers, strict=True):
                talk.reply(answer, text((next(self._seeds), "new"), new_chars))

    async def send(self, talks: list[Talk], clients: int) -> Sent:
        """Let every conversation make its next call."""
        requests = [talk.request() for talk in talks]
        return await closed_loop(requests, host=self.host, port=self.port, clients=clients)

    async def cpu_ms(self, sending: Callable[[], Awaitable[Sent]]) -> tuple[float, Sent]:
        """Return the server's CPU milliseconds per call of a load."""
        before = self.server.cpu_seconds()
        sent = await sending()
        return 1e3 * (self.server.cpu_seconds() - before) / len(sent.answers), sent


def measure(case: str, size: Size) -> list[Row]:
    """Measure one case in a fresh process."""
    with our_server() as server:
        return uvloop.run(_CASES[case](Ours(server, server.read()["url"]), size))


def _row(case: str, metric: str, value: float) -> Row:
    return Row(case=case, metric=metric, ours=value)


async def _prepared(ours: Ours, size: Size, *, stream: bool = False) -> list[Talk]:
    """Return conversations whose next call is turn 5, of 4 KB."""
    talks = ours.talks(size.calls, chars=OPENING_CHARS)
    await ours.turns(talks, 4, clients=16)
    for talk in talks:
        talk.fields = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    return talks


async def _turn_5(ours: Ours, size: Size, *, case: str, clients: int, stream: bool = False) -> list[Row]:
    await ours.turns(ours.talks(200, chars=2000), 2, clients=8)  # warm
    costs = []
    for _ in range(size.repeats):
        talks = await _prepared(ours, size, stream=stream)
        cost, _sent = await ours.cpu_ms(lambda talks=talks: ours.send(talks, clients))
        costs.append(cost)
        ours.server.ask(do="close")
    return [_row(case, "cpu_ms_per_call", statistics.median(costs))]


async def _c64(ours: Ours, size: Size) -> list[Row]:
    rows = await _turn_5(ours, size, case="c64", clients=64)
    spent = [ours.server.ask(do="in_process", count=size.calls // 4) for _ in range(size.repeats)]
    for way in ("handle", "client"):
        rows.append(_row("c64", f"cpu_ms_per_call_in_process_{way}", statistics.median(item[way] for item in spent)))
    return rows


async def _sse(ours: Ours, size: Size) -> list[Row]:
    return await _turn_5(ours, size, case="sse", clients=64, stream=True)


async def _all_new_4k(ours: Ours, size: Size) -> list[Row]:
    costs = []
    for _ in range(size.repeats):
        talks = ours.talks(size.calls // 4, chars=opening_chars(turns=1, reply_chars=0))
        cost, _ = await ours.cpu_ms(lambda talks=talks: ours.send(talks, 64))
        costs.append(cost)
        ours.server.ask(do="close")
    return [_row("all_new_4k", "cpu_ms_per_call", statistics.median(costs))]


async def _rate_200(ours: Ours, size: Size) -> list[Row]:
    latencies, costs = [], []
    for _ in range(size.repeats):
        requests = [talk.request() for talk in await _prepared(ours, size)]
        cost, sent = await ours.cpu_ms(
            lambda requests=requests: open_loop(requests, host=ours.host, port=ours.port, rate=200)
        )
        costs.append(cost)
        latencies.append(1e3 * statistics.quantiles(sent.latencies, n=100)[98])
        ours.server.ask(do="close")
    return [
        _row("rate_200", "cpu_ms_per_call", statistics.median(costs)),
        _row("rate_200", "p99_added_ms", statistics.median(latencies)),
    ]


async def _turn_100_minus_5(ours: Ours, size: Size) -> list[Row]:
    """Measure turns 3 to 7 and 98 to 102 of conversations with long messages: cost grows linearly between."""
    slopes = []
    tokens = 0
    for _ in range(max(size.repeats - 2, 1)):
        talks = ours.talks(max(size.calls // 50, 2), chars=2 * _LONG_CHARS)
        turn, points = 1, []
        for middle in (5, 100):
            await ours.turns(talks, middle - 2 - turn, clients=4, new_chars=_LONG_CHARS)
            costs, sizes = [], []
            for _ in range(5):
                sizes.append(statistics.mean(len(talk.body()) for talk in talks) / 1024)
                cost, sent = await ours.cpu_ms(lambda talks=talks: ours.send(talks, 4))
                costs.append(cost)
                for talk, answer in zip(talks, sent.answers, strict=True):
                    talk.reply(answer, text((middle, len(talk.messages), id(talk)), _LONG_CHARS))
            turn = middle + 3
            points.append((statistics.mean(costs), statistics.mean(sizes)))
        (early, small), (late, large) = points
        tokens = ours.server.ask(do="longest_prompt")
        slopes.append(1e3 * (late - early) / (large - small))
        ours.server.ask(do="close")
    return [
        _row("turn_100_minus_5", "us_per_kb", statistics.median(slopes)),
        _row("turn_100_minus_5", "history_tokens", tokens),
    ]


async def _sessions_1000(ours: Ours, size: Size) -> list[Row]:
    ask = ours.server.ask
    ask(do="grow", sessions=20, turns=50)
    ask(do="close")
    first = ask(do="grow", sessions=size.sessions, turns=50)
    ask(do="close")
    after = []
    for _ in range(9):
        ask(do="grow", sessions=size.sessions, turns=5)
        ask(do="close")
        after.append(ask(do="rss"))
    return [
        _row("sessions_1000", "mb", first["after"] - first["before"]),
        _row("sessions_1000", "mb_after_2000_closed", after[0]),
        _row("sessions_1000", "mb_after_10000_closed", after[-1]),
    ]


_CASES: dict[str, Callable[[Ours, Size], Awaitable[list[Row]]]] = {
    "c64": _c64,
    "rate_200": _rate_200,
    "turn_100_minus_5": _turn_100_minus_5,
    "all_new_4k": _all_new_4k,
    "sse": _sse,
    "sessions_1000": _sessions_1000,
}
CASES = tuple(_CASES)
