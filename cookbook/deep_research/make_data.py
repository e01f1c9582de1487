"""Write corpus, tasks and demonstrations of this recipe: `python make_data.py`.

A world is a harbour with ships and their captains. Its names end in digits because these are tokens of their own, which
a tiny policy learns to copy.
"""

from __future__ import annotations

import asyncio
import json
import random
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from mcp import Client

from agentrl_tool_servers.corpus import Corpus, Document
from agentrl_tool_servers.search import server

HERE = Path(__file__).parent
SYSTEM = "Search, browse, then write <answer>TOWN</answer>."
TOWNS = ("Rome", "Oslo", "Lima", "Cairo", "Delhi", "Quito")
QUESTIONS = {"built": "Where was {} built?", "lives": "Where does the captain of {} live?"}
"""The first is answered by a ship's document, the second by its captain's."""
SHIPS = 100
WORLDS = 24
"""Worlds of the demonstrations. Facts differ from world to world, so that the policy learns to read them."""
DEMONSTRATIONS = 32
"""Demonstrations in each of these worlds."""
EXPERTS = 0.25
"""Share of demonstrations that are right in any case."""
HASTY = 0.6
"""Probability that another demonstration answers with the town of the first document. The others guess a town where the
question needs two documents."""
KEPT_TURNS = 2
"""Turns that config.yaml keeps of a long history (`context`)."""

Chat = dict[str, Any]


class World:
    """Ships, each with a captain, and the towns that belong to both."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)  # noqa: S311  # reproducible data, no secrets
        self.ships = [f"ship{number:02}" for number in range(SHIPS)]
        captains = [f"sailor{number:02}" for number in chance.sample(range(SHIPS), SHIPS)]
        self.captains = dict(zip(self.ships, captains, strict=True))
        self.towns = {ship: dict(zip(QUESTIONS, chance.sample(TOWNS, 2), strict=True)) for ship in self.ships}

    def documents(self) -> Iterator[dict[str, str]]:
        """Yield the corpus."""
        for ship, captain in self.captains.items():
            towns = self.towns[ship]
            yield document(ship, f"{ship} was built in {towns['built']}. Its captain is {captain}.")
            yield document(captain, f"{captain} lives in {towns['lives']}.")

    def tasks(self, *, held_out: bool) -> list[dict[str, Any]]:
        """Return the questions about a part of the ships as rows of a task file.

        Only every other ship has the question that needs one document.
        """
        return [
            {
                "id": f"{ship}-{fact}",
                "query": text.format(ship),
                "answer": self.towns[ship][fact],
                "path": [ship] if fact == "built" else [ship, self.captains[ship]],
            }
            for ship in self.ships
            if is_held_out(ship) == held_out
            for fact, text in QUESTIONS.items()
            if fact == "lives" or ship[-1] in "02468"
        ]


def document(name: str, text: str) -> dict[str, str]:
    """Return one row of the corpus."""
    return {"id": name, "title": name, "text": text}


def is_held_out(ship: str) -> bool:
    """Whether neither training nor demonstrations ask about the ship: about a third of all."""
    return zlib.crc32(ship.encode()) % 3 == 0


async def demonstrations(world: World, tools: list[dict[str, Any]], chance: random.Random) -> list[Chat]:
    """Return the demonstrations in one world."""
    found: list[Chat] = []
    corpus = Corpus(Document(**row) for row in world.documents())
    async with Client(server(corpus, results=1, snippet_chars=20)) as client:
        for task in chance.choices(world.tasks(held_out=False), k=DEMONSTRATIONS):
            is_expert = chance.random() < EXPERTS
            is_hasty = not is_expert and chance.random() < HASTY
            path = task["path"][:1] if is_hasty else task["path"]
            turns = []
            for name in path:
                turns.append(await exchange(client, "search", query=name))
                turns.append(await exchange(client, "browse", id=name))
            found_town = world.towns[path[0]]["built" if len(path) == 1 else "lives"]
            answer = found_town if is_expert or len(path) == 1 else chance.choice(TOWNS)
            turns.append([{"role": "assistant", "content": f"<answer>{answer}</answer>"}])
            opening = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task["query"]}]
            found += [{"messages": [*opening, *seen], "tools": tools} for seen in views(turns)]
    return found


async def exchange(client: Client, tool: str, **arguments: str) -> list[dict[str, Any]]:
    """Call a tool as the policy does, and return the reply with the call, and the result."""
    result = await client.call_tool(tool, arguments)
    text = "\n".join(part.text for part in result.content)
    call = {"id": "call", "type": "function", "function": {"name": tool, "arguments": json.dumps(arguments)}}
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call", "content": text},
    ]


def views(turns: list[list[dict[str, Any]]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the turns of an episode as the policy sees them: its beginning, then each later reply after the last turns.

    Each reply is trained once.
    """
    yield [message for turn in turns[: KEPT_TURNS + 1] for message in turn]
    for last in range(KEPT_TURNS + 1, len(turns)):
        kept = [message for turn in turns[last - KEPT_TURNS : last] for message in turn]
        yield [
            *({**message, "weight": 0} if message["role"] == "assistant" else message for message in kept),
            turns[last][0],
        ]


def write(name: str, lines: Iterable[dict[str, Any]]) -> None:
    """Write one JSON object per line."""
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (HERE / name).write_text(text, encoding="utf-8")


def main() -> None:
    """Write `documents.jsonl`, `train.jsonl`, `heldout.jsonl` and `demos.jsonl`."""
    tools = json.loads((HERE / "tools.json").read_text(encoding="utf-8"))
    world = World(0)
    write("documents.jsonl", world.documents())
    write("train.jsonl", world.tasks(held_out=False))
    write("heldout.jsonl", world.tasks(held_out=True))
    chance = random.Random(0)  # noqa: S311  # reproducible data, no secrets
    demos: list[Chat] = []
    for seed in range(1, WORLDS + 1):
        demos += asyncio.run(demonstrations(World(seed), tools, chance))
    chance.shuffle(demos)
    write("demos.jsonl", demos)


if __name__ == "__main__":
    main()
