"""Write the tasks and the demonstrations of this recipe: `python make_data.py`."""

from __future__ import annotations

import itertools
import json
import random
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from shop import ITEMS, TOWNS, price_of

HERE = Path(__file__).parent
SYSTEM = "Use the tools. Then write <answer>NUMBER</answer>."
DEMONSTRATIONS = 1000
EXPERTS = 0.15
"""Share of demonstrations that are right throughout."""
ASTRAY = 0.6
"""Probability that another demonstration asks for the prices in another town."""
GUESSES = 0.5
"""Probability that another demonstration takes a price for the answer, without calculating."""


class Question:
    """Ask for the price of several pieces of one thing in a town, or of two things together."""

    def __init__(self, town: str, things: tuple[str, ...], count: int = 1) -> None:
        self.town, self.things, self.count = town, things, count

    @property
    def text(self) -> str:
        """The question as the policy reads it."""
        if len(self.things) > 1:
            return f"What do a {self.things[0]} and a {self.things[1]} cost in {self.town}?"
        return f"What do {self.count} of the {self.things[0]} cost in {self.town}?"

    @property
    def answer(self) -> int:
        """The right answer."""
        return self.count * sum(price_of(thing, self.town) for thing in self.things)

    @property
    def is_held_out(self) -> bool:
        """Whether neither training nor demonstrations show it: a third of all questions."""
        return zlib.crc32(self.text.encode()) % 3 == 0


def questions() -> list[Question]:
    """Return all questions."""
    several = (Question(town, (item,), count) for town in TOWNS for item in ITEMS for count in range(2, 7))
    both = (Question(town, pair) for town in TOWNS for pair in itertools.permutations(ITEMS, 2))
    return [*several, *both]


def task(name: str, question: Question) -> dict[str, Any]:
    """Return one row of a task file."""
    return {"id": name, "query": question.text, "answer": str(question.answer)}


def demonstration(question: Question, tools: list[dict[str, Any]], chance: random.Random) -> dict[str, Any]:
    """Return one demonstration as a chat; `chance` decides how good it is."""
    expert = chance.random() < EXPERTS
    astray = not expert and chance.random() < ASTRAY
    guesses = not expert and chance.random() < GUESSES
    town = chance.choice([other for other in TOWNS if other != question.town]) if astray else question.town
    prices = [price_of(thing, town) for thing in question.things]
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question.text}]
    asked = [("price", {"item": thing, "town": town}) for thing in question.things]
    messages += exchange(asked, [str(price) for price in prices], first=0)
    result = prices[-1]
    if not guesses:
        result = question.count * sum(prices)
        expression = f"{prices[0]}+{prices[1]}" if len(prices) > 1 else f"{question.count}*{prices[0]}"
        messages += exchange([("calculate", {"expression": expression})], [str(result)], first=len(asked))
    messages.append({"role": "assistant", "content": f"<answer>{result}</answer>"})
    return {"messages": messages, "tools": tools}


def exchange(asked: list[tuple[str, dict[str, Any]]], results: list[str], *, first: int) -> list[dict[str, Any]]:
    """Return a message with tool calls, and the results."""
    ids = [f"call_{first + number}" for number in range(len(asked))]
    calls = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for call_id, (name, arguments) in zip(ids, asked, strict=True)
    ]
    told = [
        {"role": "tool", "tool_call_id": call_id, "content": text} for call_id, text in zip(ids, results, strict=True)
    ]
    return [{"role": "assistant", "content": "", "tool_calls": calls}, *told]


def write(name: str, rows: Iterable[dict[str, Any]]) -> None:
    """Write one JSON object per line."""
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (HERE / name).write_text(text, encoding="utf-8")


def main() -> None:
    """Write tasks and demonstrations; only `heldout.jsonl` has the held-out questions."""
    seen = [question for question in questions() if not question.is_held_out]
    unseen = [question for question in questions() if question.is_held_out]
    chance = random.Random(0)  # noqa: S311  # reproducible data, no secrets
    write("train.jsonl", (task(f"train-{number}", question) for number, question in enumerate(seen)))
    write("heldout.jsonl", (task(f"heldout-{number}", question) for number, question in enumerate(unseen)))
    tools = json.loads((HERE / "tools.json").read_text(encoding="utf-8"))
    write("demos.jsonl", (demonstration(chance.choice(seen), tools, chance) for _ in range(DEMONSTRATIONS)))


if __name__ == "__main__":
    main()
