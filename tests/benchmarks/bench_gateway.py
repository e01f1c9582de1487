"""CPU milliseconds per LLM call of the gateway, its latency and memory, and the same of other projects' proxies.

Each server runs in a process of its own; its CPU seconds are read from the system, so the client's cost and what else
runs on the machine do not count. For all costs less is better; for `fidelity_score` more is.
"""

from __future__ import annotations

import argparse

from tests.benchmarks.gateway import ours
from tests.benchmarks.report import Row, report


def main() -> None:
    """Measure, print the table and write build/benchmarks/gateway.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--calls", type=int, default=1000, help="of each repeat")
    parser.add_argument("--sessions", type=int, default=1000, help="open at once in sessions_1000")
    parser.add_argument("--cases", nargs="+", default=list(ours.CASES))
    arguments = parser.parse_args()
    size = ours.Size(repeats=arguments.repeats, calls=arguments.calls, sessions=arguments.sessions)
    rows: list[Row] = []
    for case in arguments.cases:
        rows += ours.measure(case, size)
    report("gateway", rows, better="less is better, but for scores")


if __name__ == "__main__":
    main()
