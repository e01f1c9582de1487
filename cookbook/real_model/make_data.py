"""Write train.jsonl and heldout.jsonl: pairs of two-digit numbers, of which the larger one is asked for.

No number of a held-out task occurs in training or in the examples, and no pair occurs twice.
"""

import itertools
import json
import random
from pathlib import Path

QUESTION = "Which number is larger, {} or {}?"
EXAMPLES = [(30, 41), (63, 27)]
BEGINNING = [{"role": "system", "content": "Reply with the number only."}]
"""The same beginning of every prompt: an instruction and two examples."""
for pair in EXAMPLES:
    BEGINNING += [
        {"role": "user", "content": QUESTION.format(*pair)},
        {"role": "assistant", "content": str(max(pair))},
    ]


def tasks(prefix: str, numbers: list[int], count: int, draw: random.Random) -> list[dict]:
    """Return `count` tasks about different pairs of `numbers`, in random order; their ids begin with `prefix`."""
    pairs = draw.sample(list(itertools.combinations(numbers, 2)), count)
    rows = []
    for index, pair in enumerate(pairs):
        shown = draw.sample(pair, 2)
        messages = [*BEGINNING, {"role": "user", "content": QUESTION.format(*shown)}]
        rows.append(
            {"id": f"{prefix}-{index}", "messages": messages, "answer": str(max(pair)), "other": str(min(pair))}
        )
    return rows


if __name__ == "__main__":
    draw = random.Random(0)  # noqa: S311 - not for secrets
    others = [number for number in range(10, 100) if number not in itertools.chain(*EXAMPLES)]
    draw.shuffle(others)
    folder = Path(__file__).parent
    for name, numbers, count in (("heldout", others[:24], 256), ("train", others[24:], 1024)):
        rows = tasks(name, numbers, count, draw)
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
