"""Model servers behind one engine: a fleet of which one server is killed every 20 s, and the cost of a server's call.

`fleet`: four server processes at 10 ms per token, 32 requests at a time each, a publication every 4 s; the same fleet
undisturbed is the peer. All tokens are checked. `back_s_max`: from the moment at which the restarted server accepts
connections until the throughput is at 95 % of the undisturbed one. `failover_s_max`: from the kill until it is at 95 %
of the share of the servers that are left. `remote_overhead`: CPU per call of a gateway in front of a server.
"""

from __future__ import annotations

import argparse
import signal
import sys

from tests.benchmarks.fleet.load import fleet
from tests.benchmarks.fleet.overhead import remote_overhead
from tests.benchmarks.report import Row, report

BARS = (
    "bars: fleet requests_lost 0, wrong_tokens 0, back_s_max <= 5, failover_s_max <= 5;",
    "remote_overhead cpu_ratio_of_pairs <= 1.3",
)


def main() -> None:
    """Measure, print the table and write build/benchmarks/fleet.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", default=["fleet", "remote_overhead"])
    parser.add_argument("--seconds", type=float, default=70.0, help="of the disturbed fleet; the other takes a third")
    parser.add_argument("--period-s", type=float, default=20.0, help="time between two kills")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--calls", type=int, default=500, help="of each repeat")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the servers are ended, too
    rows: list[Row] = []
    if "fleet" in options.cases:
        rows += fleet(options.seconds, options.period_s)
    if "remote_overhead" in options.cases:
        rows += remote_overhead(options.repeats, options.calls)
    report("fleet", rows, better="less is better, but for requests and tokens_per_s", notes=BARS)


if __name__ == "__main__":
    main()
