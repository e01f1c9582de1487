"""Write the words of this recipe and its demonstrations: `python cookbook/verifiers/make_data.py`."""

import itertools
import json
import random
from pathlib import Path

FOLDER = Path(__file__).parent
SYSTEM = "Reverse the text character-by-character. Put your answer in <reversed_text> tags."
"""System prompt of the environment."""
LETTERS = "abdegiklmnoprstu"
SHUFFLED = 0.6


def write(name: str, rows: list[dict]) -> None:
    """Write one JSON object per line."""
    (FOLDER / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def demonstration(word: str, draw: random.Random) -> dict:
    """Return a reply in the right format; in `SHUFFLED` of all cases its letters are in any order."""
    letters = list(reversed(word))
    if draw.random() < SHUFFLED:
        draw.shuffle(letters)
    reply = f"<reversed_text>{''.join(letters)}</reversed_text>"
    roles = zip(("system", "user", "assistant"), (SYSTEM, word, reply), strict=True)
    return {"messages": [{"role": role, "content": content} for role, content in roles]}


def main() -> None:
    """Write all files; the words to train on and the held-out words differ."""
    draw = random.Random(0)  # noqa: S311  (no secrets)
    words = draw.sample(["".join(letters) for letters in itertools.product(LETTERS, repeat=4)], 600)
    train, test = words[:400], words[400:]
    write("words/train.jsonl", [{"prompt": word} for word in train])
    write("words/test.jsonl", [{"prompt": word} for word in test])
    write("demos.jsonl", [demonstration(word, draw) for word in train for _ in range(3)])


if __name__ == "__main__":
    main()
