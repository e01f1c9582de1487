"""Write the data of the recipes, here and in the folders of the other recipes: `python make_data.py`."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from quest import DIRECTIONS, TOOLS, Quest, first_message, held_out, situations

HERE = Path(__file__).parent
EVAL_TASKS = 256
DEMONSTRATIONS = 1000
FEW = 400
FINAL_ANSWER = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
EXPERTS = 0.2
"""Share of demonstrations that are right throughout; most moves of the others are rotated by 90 degrees."""
LUCK = 0.22
"""Probability that a move of the other demonstrations is right."""
QUARTER_TURN = {"up": "right", "right": "down", "down": "left", "left": "up"}


def task(name: str, situation: tuple[str, int, int]) -> dict[str, Any]:
    """Return one row of a task file."""
    _, sideways, up = situation
    return {"id": name, "messages": [first_message(situation)], "sideways": sideways, "up": up}


def demonstration(situation: tuple[str, int, int], chance: random.Random) -> dict[str, Any]:
    """Return one demonstration as a chat; `chance` decides how good it is."""
    expert = chance.random() < EXPERTS
    quest = Quest(*situation[1:])
    messages: list[dict[str, Any]] = [first_message(situation)]
    while not quest.finished:
        axis = 0 if quest.offset[0] else 1
        distance = quest.offset[axis]
        right = next(name for name, (a, sign) in DIRECTIONS.items() if a == axis and sign * distance > 0)
        taken = right if expert or chance.random() < LUCK else QUARTER_TURN[right]
        arguments = json.dumps({"dir": taken, "steps": abs(distance)})
        call = {"id": f"call_{quest.calls}", "type": "function", "function": {"name": "move", "arguments": arguments}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        result = quest.move(arguments)
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    return {"messages": messages, "tools": TOOLS}


def without_last_result(row: dict[str, Any]) -> dict[str, Any]:
    """Return the chat for the quickstart's agent: it never shows the policy the tool result that ends a quest."""
    return {**row, "messages": row["messages"][:-1]}


def with_farewell(row: dict[str, Any]) -> dict[str, Any]:
    """Return the chat for frameworks that go on until a reply calls no tool."""
    return {**row, "messages": [*row["messages"], {"role": "assistant", "content": "Done."}]}


def with_one_move(row: dict[str, Any], parameters: tuple[str, ...] = (), *prompt: dict[str, str]) -> dict[str, Any]:
    """Return the chat of an agent with one move, whose tool only confirms it.

    `parameters` are those that a framework adds to every tool; `prompt` are messages before the task.
    """
    question, call = row["messages"][:2]
    moved = json.loads(call["tool_calls"][0]["function"]["arguments"])
    said = {"role": "tool", "tool_call_id": "call_0", "content": f"You went {moved['steps']} {moved['dir']}."}
    schema = {"type": "object", "properties": {name: {} for name in (*parameters, "dir", "steps")}}
    tools = [{"type": "function", "function": {"name": "move", "parameters": schema}}]
    return {"messages": [*prompt, question, call, said, {"role": "assistant", "content": "Done."}], "tools": tools}


def smolagents_steps(row: dict[str, Any], chance: random.Random) -> Iterable[dict[str, Any]]:
    """Yield the two steps of an agent with one move, each as a chat.

    smolagents writes earlier steps into the next prompt as text, and ends an episode with the call `final_answer`.
    """
    question, reply = row["messages"][:2]
    arguments = json.loads(reply["tool_calls"][0]["function"]["arguments"])
    made: dict[str, Any] = {"id": f"call_{chance.getrandbits(96):024x}", "type": "function"}
    made["function"] = {"name": "move", "arguments": arguments}
    observed = f"You went {arguments['steps']} {arguments['dir']}."
    function = {"name": "final_answer", "arguments": '{"answer": "Done."}'}
    call = {"id": "call_1", "type": "function", "function": function}
    tools = [*TOOLS, {"type": "function", "function": {"name": "final_answer", "parameters": FINAL_ANSWER}}]
    task = f"New task:\n{question['content']}"
    then = f"{task}\nCalling tools:\n{[made]}\nObservation:\n{observed}"
    for said, answer in ((task, reply), (then, {"role": "assistant", "content": "", "tool_calls": [call]})):
        prompt = [{"role": "system", "content": "Follow the clue."}, {"role": "user", "content": said}]
        yield {"messages": [*prompt, answer], "tools": tools}


def write(name: str, rows: Iterable[dict[str, Any]]) -> None:
    """Write one JSON object per line."""
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (HERE / name).write_text(text, encoding="utf-8")


def main() -> None:
    """Write tasks and demonstrations; only `heldout.jsonl` has the held-out situations."""
    seen = [item for item in situations() if not held_out(item)]
    unseen = [item for item in situations() if held_out(item)]
    chance = random.Random(0)  # noqa: S311  # reproducible data, no secrets
    write("train.jsonl", (task(f"train-{i}", item) for i, item in enumerate(seen)))
    write("seen.jsonl", (task(f"seen-{i}", chance.choice(seen)) for i in range(EVAL_TASKS)))
    write("heldout.jsonl", (task(f"heldout-{i}", chance.choice(unseen)) for i in range(EVAL_TASKS)))
    demonstrations = [demonstration(chance.choice(seen), chance) for _ in range(DEMONSTRATIONS)]
    write("demos.jsonl", map(without_last_result, demonstrations))
    write("../langchain/demos.jsonl", map(with_farewell, demonstrations))
    few = demonstrations[:FEW]
    ids = random.Random(1)  # noqa: S311  # reproducible data, no secrets
    write("../smolagents/demos.jsonl", (step for row in few for step in smolagents_steps(row, ids)))
    prompt = {"role": "system", "content": "Follow the clue."}
    write("../camel/demos.jsonl", map(with_one_move, few))
    write("../openhands/demos.jsonl", (with_one_move(row, ("security_risk", "summary"), prompt) for row in few))


if __name__ == "__main__":
    main()
