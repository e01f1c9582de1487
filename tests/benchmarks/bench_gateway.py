"""CPU milliseconds per LLM call, latency and memory of the gateway and of other projects' proxies.

Each server runs in a separate process whose CPU seconds are read from the system, so the client's cost and other
programs on the machine do not count. For all costs less is better; for `fidelity_score` more is better.
"""

from __future__ import annotations

import argparse
import signal
import sys

import uvloop
from tests.benchmarks.gateway import compare, ours
from tests.benchmarks.report import Row, report

BARS = (
    "bars: c64 <= 1.0 ms; rate_200 p99_added_ms <= 10 in a quiet run; turn_100_minus_5 <= 25 us per KB;",
    "cpu_ratio <= 0.5 with the engine in process, <= 0.7 before the same upstream (cases c…_upstream)",
)


def main() -> None:
    """Measure, print the table and write build/benchmarks/gateway.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--calls", type=int, default=1000, help="of each repeat")
    parser.add_argument("--sessions", type=int, default=1000, help="open at once in sessions_1000")
    cases = [*ours.CASES, "peers"]
    parser.add_argument("--cases", nargs="+", default=cases, choices=cases, help="peers: c1, c8, c32 and fidelity")
    parser.add_argument("--peer-calls", type=int, default=150, help="of each repeat, to each server")
    arguments = parser.parse_args()
    size = ours.Size(repeats=arguments.repeats, calls=arguments.calls, sessions=arguments.sessions)
    rows: list[Row] = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the servers are ended, too
    notes = list(BARS)
    lost = ""
    for case in arguments.cases:
        print(f"{case} …", file=sys.stderr, flush=True)  # noqa: T201 - all of it takes many minutes
        if case in ours.CASES:
            rows += ours.measure(case, size)
    if "peers" in arguments.cases:
        with compare.contenders() as (running, missing):
            notes += missing
            rows += uvloop.run(compare.compare(running, calls=arguments.peer_calls, repeats=arguments.repeats))
            found, lacking, lost = uvloop.run(compare.capabilities(running))
            rows += found
            notes += lacking
    report("gateway", rows, better="less is better, but for fidelity_score", notes=notes)
    if lost:
        sys.exit(f"error: the gateway's answers lack {lost}; a figure of answers that are worse measures nothing")


if __name__ == "__main__":
    main()
