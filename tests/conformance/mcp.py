"""The official conformance suite of MCP against the tool server `mcp` (client) and `agentrl tools serve` (server).

`python -m tests.conformance.mcp [SCENARIO …]` prints a line for each scenario, and fails where a result is not the
expected one: `mcp_suite/expected_failures.yaml` says what fails, and why. The suite comes from npm.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import yaml

HERE = Path(__file__).with_name("mcp_suite")
FOLDER = HERE.parents[2] / ".nox" / "mcp-conformance"
PACKAGE = "@modelcontextprotocol/conformance@0.2.0-alpha.12"
"""The first version whose scenarios cover both eras of the protocol; 0.1.16 has fewer, of one."""
REVISIONS = ("2025-11-25", "2026-07-28")
"""Versions of the protocol at which each scenario is played, if it applies to them."""
LIMIT_S = 120
NO_RESULT = "no result"
"""Stands for the checks of a scenario that did not get to its end, which nothing excuses."""

Run: TypeAlias = tuple[str, str, str]
"""Side (`client` or `server`), scenario, and revision; the revision is empty for a scenario that applies to none."""
Expected: TypeAlias = Mapping[str, Mapping[str, str | Mapping[str, str]]]
"""Side -> scenario -> why it fails, or its checks that fail -> why."""


def suite() -> list[str]:
    """Install the suite where it is missing, and return the command that starts it."""
    program = FOLDER / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    version = FOLDER / "version.txt"
    if not version.exists() or version.read_text() != PACKAGE:
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(parents=True)
        subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--silent", PACKAGE], cwd=FOLDER, check=True)
        version.write_text(PACKAGE)
    return ["node", str(program)]


def runs(command: list[str]) -> Iterator[Run]:
    """Yield every scenario of clients and servers, once for each revision that it applies to."""
    told = subprocess.run([*command, "list"], check=True, capture_output=True, text=True).stdout
    side = ""
    for line in told.splitlines():
        if line.endswith(":"):
            side = line.split()[0].lower()
        elif side in {"client", "server"} and (found := re.fullmatch(r"  - (\S+) \[(.*)\]", line)):
            applies = [revision for revision in REVISIONS if revision in found[2].split(",")]
            yield from ((side, found[1], revision) for revision in applies or [""])


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve the suite's tools, and yield the address."""
    config = folder / "config.yaml"
    entry = {"use": "mcp", "name": "tested", "server": f"{HERE / 'served.py'}:server"}
    config.write_text(json.dumps({"tools": {"servers": [entry]}}))
    command = [sys.executable, "-m", "agentrl_core", "tools", "serve", str(config), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            yield process.stderr.readline().split()[-1]
        finally:
            process.terminate()


def failures(run: Run, command: list[str], address: str, folder: Path) -> list[str]:
    """Play a scenario, and return the checks that fail, or `NO_RESULT`."""
    side, scenario, revision = run
    results = Path(tempfile.mkdtemp(dir=folder))
    target = ["--url", address] if side == "server" else ["--command", f"{sys.executable} {HERE / 'client.py'}"]
    version = ["--spec-version", revision] if revision else []
    played = [*command, side, "--scenario", scenario, *target, *version, "-o", str(results)]
    played += ["--timeout", str(LIMIT_S * 1000)]
    subprocess.run(played, capture_output=True, check=False, timeout=2 * LIMIT_S)
    found = list(results.rglob("checks.json"))
    if not found:
        return [NO_RESULT]
    checks = [check for path in found for check in json.loads(path.read_text())]
    return sorted({check["id"] for check in checks if check["status"] == "FAILURE"})


def verdict(run: Run, failed: list[str], expected: Expected) -> tuple[bool, str]:
    """Return whether failing checks are the expected ones of a scenario, and what to print about them."""
    side, scenario, _ = run
    why = expected[side].get(scenario, {})
    if isinstance(why, str) and failed != [NO_RESULT]:
        return bool(failed), f"fail, as expected: {why}" if failed else "passes now: take it off the list"
    surprises = [check for check in failed if isinstance(why, str) or check not in why]
    if surprises:
        return False, f"fail: {', '.join(surprises)}"
    reasons = dict.fromkeys(why[check] for check in failed) if isinstance(why, Mapping) else ()
    return True, f"fail, as expected: {'; '.join(reasons)}" if failed else "pass"


def stale(played: Mapping[Run, list[str]], expected: Expected) -> Iterator[str]:
    """Yield a line for each check on the list that did not fail in any of the revisions that were played."""
    for side, scenarios in expected.items():
        for scenario, checks in scenarios.items():
            found = [failed for run, failed in played.items() if run[:2] == (side, scenario)]
            if isinstance(checks, Mapping) and found:
                left = set(checks).difference(*found)
                yield from (f"{side} {scenario}: {check} passes now: take it off the list" for check in sorted(left))


def main(chosen: list[str]) -> int:
    """Play all scenarios, or the chosen ones; return 1 if a result is not the expected one."""
    expected: Expected = yaml.safe_load((HERE / "expected_failures.yaml").read_text(encoding="utf-8"))
    command = suite()
    wanted = [run for run in runs(command) if not chosen or run[1] in chosen]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # Each client is a process of its own, which takes a core while it starts.
        with served(folder) as address, ThreadPoolExecutor(os.cpu_count() or 1) as threads:
            found = threads.map(lambda run: failures(run, command, address, folder), wanted)
            played = {}
            surprises = 0
            for run, failed in zip(wanted, found, strict=True):
                played[run] = failed
                as_expected, told = verdict(run, failed, expected)
                surprises += not as_expected
                mark = " " if as_expected else "!"
                sys.stdout.write(f"{mark} {run[0]} {run[1]:<48} {run[2]:<10} {told}\n")
                sys.stdout.flush()
    problems = list(stale(played, expected))
    passed = sum(not failed for failed in played.values())
    sys.stdout.write("".join(f"! {line}\n" for line in problems))
    sys.stdout.write(f"{passed} of {len(played)} scenarios pass, {surprises + len(problems)} surprises\n")
    return surprises + len(problems) > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
