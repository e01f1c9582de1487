"""Compare the held-out replies before training with those after it.

`agentrl trace export RUN --format jsonl --evaluations | python cookbook/real_model/compare.py`
"""

import json
import math
import sys
from collections.abc import Iterable


def p_value(gained: int, lost: int) -> float:
    """Return the two-sided p-value of McNemar's exact test, for the tasks that only one of two policies gets right."""
    changed = gained + lost
    tail = sum(math.comb(changed, count) for count in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / 2**changed)


def held_out(lines: Iterable[str]) -> list[dict[str, dict]]:
    """Return the first and the last evaluation: by task, its `answer`, its `other` number and the `reply`."""
    evaluations: dict[int, dict[str, dict]] = {}
    for episode in map(json.loads, lines):
        if episode["record"]["is_eval"]:
            task, (call,) = episode["task"], episode["interactions"]
            version = call["versions"][0][0]
            row = {**task["data"], "reply": call["output"]["content"].strip()}
            evaluations.setdefault(version, {})[task["id"]] = row
    return [evaluations[version] for version in (min(evaluations), max(evaluations))]


if __name__ == "__main__":
    right = []
    for name, rows in zip(("before", "after"), held_out(sys.stdin), strict=True):
        right.append({task for task, row in rows.items() if row["reply"] == row["answer"]})
        wrong = sum(row["reply"] == row["other"] for row in rows.values())
        well_formed = len(right[-1]) + wrong
        print(
            f"{name:6}  right {len(right[-1])} of {len(rows)} ({len(right[-1]) / len(rows):.3f}),"
            f" the other number {wrong}, something else {len(rows) - well_formed};"
            f" right among the well-formed {len(right[-1]) / well_formed:.3f}"
        )
    before, after = right
    gained, lost = len(after - before), len(before - after)
    print(f"only after {gained}, only before {lost}: p = {p_value(gained, lost):.1g} (McNemar)")
