"""Write train.jsonl and heldout.jsonl: sentences about two people, and a question whose answer is a number.

No name of a held-out task occurs in training.
"""

import json
import random
from pathlib import Path

TRAINING = (
    "Alice Ben Carla David Elena Frank Grace Hugo Ines James Karen Leo Maria Nina Oscar Paula Rosa Simon Tara Victor"
)
HELD_OUT = "Amir Bella Chloe Diego Emma Felix Hannah Ivan Julia Kevin"
FACTS = (
    "{a} is {x} years old, and {b} is {y}.",
    "{a}, whose neighbour {b} is {y}, is {x} years old.",
    "{a} turned {x} in spring, {b} turned {y} in autumn.",
    "At {x}, {a} is a colleague of {b}, who is {y}.",
)
BEGINNING = [
    {"role": "system", "content": "Reply with the number only."},
    {"role": "user", "content": "Anna is 30 years old, and Paul is 41. How old is Paul?"},
    {"role": "assistant", "content": "41"},
    {"role": "user", "content": "Mark, whose neighbour Lucy is 27, is 63 years old. How old is Mark?"},
    {"role": "assistant", "content": "63"},
]
"""The same beginning of every prompt: an instruction and two examples."""


def tasks(prefix: str, names: str, count: int, seed: int) -> list[dict]:
    """Return `count` different tasks about the named people; their ids begin with `prefix`."""
    draw, questions = random.Random(seed), {}  # noqa: S311 - not for secrets
    while len(questions) < count:
        a, b = draw.sample(names.split(), 2)
        x, y = draw.sample(range(18, 90), 2)
        asked, answer = draw.choice([(a, x), (b, y)])
        text = f"{draw.choice(FACTS).format(a=a, b=b, x=x, y=y)} How old is {asked}?"
        questions[text] = str(answer)
    return [
        {"id": f"{prefix}-{index}", "messages": [*BEGINNING, {"role": "user", "content": text}], "answer": answer}
        for index, (text, answer) in enumerate(questions.items())
    ]


if __name__ == "__main__":
    folder = Path(__file__).parent
    for name, people, count, seed in (("train", TRAINING, 512, 0), ("heldout", HELD_OUT, 256, 1)):
        rows = tasks(name, people, count, seed)
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
