"""CPU per call of the gateway's process in front of a model server, against the engine in the same process."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import uvloop
from tests.benchmarks.gateway.model import model_dir
from tests.benchmarks.gateway.ours import OPENING_CHARS, Ours
from tests.benchmarks.gateway.process import Server
from tests.benchmarks.report import FOLDER, Row

_CLIENTS = 64


def remote_overhead(repeats: int, calls: int) -> list[Row]:
    """Measure turn 5 of `calls` conversations in turns with both engines, which say the same replies of 64 tokens.

    The engine in process costs nothing: all that is compared is what a model server adds to the gateway.
    """
    with _gateways() as gateways:
        return uvloop.run(_measure(gateways, repeats, calls))


@contextmanager
def _gateways() -> Iterator[dict[str, Ours]]:
    """Start a server of prepared replies, a gateway in front of it, and one with the replies in process."""
    with ExitStack() as stack:
        mock = stack.enter_context(Server.of_module("tests.benchmarks.gateway.mock", log=FOLDER / "mock.log"))
        upstream = mock.read()["url"]
        gateways = {}
        for name, more in (("remote", ("--upstream", upstream)), ("in_process", ("--says-mock",))):
            server = stack.enter_context(
                Server.of_module(
                    "tests.benchmarks.gateway.serve",
                    *("--model", str(model_dir()), *more),
                    log=FOLDER / f"gateway-{name}.log",
                )
            )
            gateways[name] = Ours(server, server.read()["url"])
        yield gateways


async def _measure(gateways: dict[str, Ours], repeats: int, calls: int) -> list[Row]:
    costs: dict[str, list[float]] = {name: [] for name in gateways}
    for repeat in range(repeats + 1):
        # In turns first, because the machine's load may change within a pair.
        for name, ours in sorted(gateways.items(), reverse=repeat % 2 == 1):
            talks = ours.talks(calls, chars=OPENING_CHARS)
            await ours.turns(talks, 4, clients=16)
            cost, _ = await ours.cpu_ms(lambda ours=ours, talks=talks: ours.send(talks, _CLIENTS))
            ours.server.ask(do="close")
            if repeat:  # the first one warms both up
                costs[name].append(cost)
    ratios = [one / other for one, other in zip(costs["remote"], costs["in_process"], strict=True)]
    remote, in_process = (statistics.median(costs[name]) for name in ("remote", "in_process"))
    return [
        Row(
            case="remote_overhead",
            metric="cpu_ms_per_call",
            ours=remote,
            peer=in_process,
            peer_name="engine in process",
        ),
        Row(case="remote_overhead", metric="cpu_ratio_of_pairs", ours=statistics.median(ratios)),
    ]
