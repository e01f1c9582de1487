"""Write corpus, tasks and demonstrations of this recipe: `python make_data.py`.

The corpus and its questions are those of agentrl-tool-servers: questions about one name, or one that leads to another.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mcp import Client

from agentrl_tool_servers import sample_corpus
from agentrl_tool_servers.search import server

HERE = Path(__file__).parent
SYSTEM = "Search, browse, then write <answer>NAME</answer>."
WORLDS = 24
"""Corpora of the demonstrations. Each has other names, so that the policy learns to copy names, not to know them."""
DEMONSTRATIONS = 40
"""Demonstrations in each of these corpora."""
EXPERTS = 0.25
"""Share of demonstrations that follow a question to its end; the others answer with the first name that they find."""
HOPS = 2
"""Largest number of names whose documents a question needs."""
KEPT_TURNS = 2
"""Turns that config.yaml keeps of a long history (`context`)."""


class Research:
    """The tools of the recipe, called as an agent calls them."""

    def __init__(self, client: Client, tools: list[dict[str, Any]]) -> None:
        self.client, self.tools, self.calls = client, tools, 0

    async def turn(self, name: str, arguments: dict[str, str]) -> list[dict[str, Any]]:
        """Return a reply that calls a tool, and the result."""
        result = await self.client.call_tool(name, arguments)
        call_id, self.calls = f"call_{self.calls}", self.calls + 1
        function = {"name": name, "arguments": json.dumps(arguments)}
        call = {"id": call_id, "type": "function", "function": function}
        text = "\n".join(part.text for part in result.content)
        return [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call_id, "content": text},
        ]


async def demonstrate(
    task: dict[str, Any], titles: dict[str, str], research: Research, *, is_expert: bool
) -> list[list[dict[str, Any]]]:
    """Return the turns of an episode: one list of messages for each reply of the policy."""
    path = task["path"] if is_expert else task["path"][:1]
    turns = []
    for document in path:
        turns.append(await research.turn("search", {"query": titles[document]}))
        turns.append(await research.turn("browse", {"id": document}))
    answer = task["answer"] if is_expert or len(task["path"]) == 1 else titles[task["path"][1]]
    return [*turns, [{"role": "assistant", "content": f"<answer>{answer}</answer>"}]]


def chats(question: str, turns: list[list[dict[str, Any]]], tools: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the episode, and its end as the policy sees it after the history was shortened."""
    opening = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    yield {"messages": [*opening, *(message for turn in turns for message in turn)], "tools": tools}
    for last in range(KEPT_TURNS + 1, len(turns)):
        kept = [message for turn in turns[last - KEPT_TURNS : last] for message in turn]
        seen = [{**message, "weight": 0} if message["role"] == "assistant" else message for message in kept]
        yield {"messages": [*opening, *seen, turns[last][0]], "tools": tools}


async def demonstrations(folder: Path, tools: list[dict[str, Any]], chance: random.Random) -> list[dict[str, Any]]:
    """Return the demonstrations in one corpus as chats."""
    tasks = [row for row in rows(folder / "train.jsonl") if row["hops"] <= HOPS]
    titles = {document["id"]: document["title"] for document in rows(folder / "documents.jsonl")}
    found = []
    async with Client(server(str(folder / "documents.jsonl"), results=1, snippet_chars=20)) as client:
        for task in chance.choices(tasks, k=DEMONSTRATIONS):
            is_expert = chance.random() < EXPERTS
            turns = await demonstrate(task, titles, Research(client, tools), is_expert=is_expert)
            found += chats(task["query"], turns, tools)
    return found


def rows(path: Path) -> list[dict[str, Any]]:
    """Read one JSON object per line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write(name: str, lines: Iterable[dict[str, Any]]) -> None:
    """Write one JSON object per line."""
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (HERE / name).write_text(text, encoding="utf-8")


def main() -> None:
    """Write `documents.jsonl`, `train.jsonl`, `heldout.jsonl` and `demos.jsonl`."""
    tools = json.loads((HERE / "tools.json").read_text(encoding="utf-8"))
    chance = random.Random(0)  # noqa: S311  # reproducible data, no secrets
    demos = []
    with TemporaryDirectory() as name:
        folder = Path(name)
        sample_corpus.main([name])
        write("documents.jsonl", rows(folder / "documents.jsonl"))
        for source, target in (("train", "train"), ("test", "heldout")):
            write(f"{target}.jsonl", (row for row in rows(folder / f"{source}.jsonl") if row["hops"] <= HOPS))
        for seed in range(1, WORLDS + 1):
            sample_corpus.main([name, "--seed", str(seed)])
            demos += asyncio.run(demonstrations(folder, tools, chance))
    chance.shuffle(demos)
    write("demos.jsonl", demos)


if __name__ == "__main__":
    main()
