"""Write the recipe's task directories, in the layout of `harbor init`, and the demonstrations: `python make_tasks.py`.

A task: memo.txt has two words, and the last one has to be written into another file. The agent has to look before it
can write. Held-out tasks have pairs of words that are in no training task and no demonstration.
"""

from __future__ import annotations

import itertools
import json
import random
import shutil
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
THINGS = ("lamp", "door", "key", "box", "map", "cup", "hat", "bell")
COLOURS = ("red", "blue", "green", "black", "white", "gold", "pink", "grey")
FILES = ("memo", "note", "list")
TARGETS = ("out", "copy", "new")
TRAIN, HELD_OUT, DEMONSTRATIONS = 64, 64, 800
EXPERTS = 0.25
"""Share of demonstrations that are right; the others write another word or into another file."""
TASK_TOML = """schema_version = "1.4"

[metadata]

[verifier]
timeout_sec = 60.0

[agent]
timeout_sec = 60.0

[environment]
build_timeout_sec = 600.0
network_mode = "no-network"
"""
DOCKERFILE = """FROM ubuntu:24.04

WORKDIR /app

COPY {file}.txt .
"""
TEST = """#!/bin/bash

if [ "$(cat {target}.txt)" = "{colour}" ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
"""
SOLUTION = """#!/bin/bash

cut -d ' ' -f 2 {file}.txt > {target}.txt
"""
BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command by bash.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}
Situation = tuple[str, str, str, str]
"""Thing, colour, file and target."""


def situations() -> tuple[list[Situation], list[Situation]]:
    """Return those of training and the held-out ones."""
    chance = random.Random(0)  # noqa: S311 - data of a recipe
    pairs = list(itertools.product(THINGS, COLOURS))
    chance.shuffle(pairs)
    kept, held_out = pairs[16:], pairs[:16]
    return tuple([(*pair, *names) for pair in chosen for names in itertools.product(FILES, TARGETS)]  # type: ignore[return-value]
                 for chosen in (kept, held_out))  # fmt: skip


def instruction(situation: Situation) -> str:
    """Return the text that the agent gets."""
    _, _, file, target = situation
    return f"Write the last word of {file}.txt into {target}.txt.\n"


def write_task(folder: Path, situation: Situation) -> None:
    """Write one task directory."""
    thing, colour, file, target = situation
    names = {"file": file, "target": target, "colour": colour}
    files = {
        "instruction.md": instruction(situation),
        "task.toml": TASK_TOML,
        "environment/Dockerfile": DOCKERFILE.format(**names),
        f"environment/{file}.txt": f"{thing} {colour}\n",
        "tests/test.sh": TEST.format(**names),
        "solution/solve.sh": SOLUTION.format(**names),
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def demonstration(situation: Situation, chance: random.Random) -> dict[str, Any]:
    """Return one demonstration as a chat; `chance` decides how good it is."""
    thing, colour, file, target = situation
    if chance.random() >= EXPERTS:
        wrong = (chance.choice([item for item in COLOURS if item != colour]), target)
        colour, target = chance.choice([wrong, (thing, target), (colour, file)])
    commands = (f"cat {file}.txt", f"echo {colour} > {target}.txt")
    results = (f"{thing} {situation[1]}", "(no output)")
    messages: list[dict[str, Any]] = [{"role": "user", "content": instruction(situation)}]
    for number, (command, result) in enumerate(zip(commands, results, strict=True)):
        function = {"name": "bash", "arguments": json.dumps({"command": command})}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    messages.append({"role": "assistant", "content": "Done."})
    return {"messages": messages, "tools": [BASH]}


def main() -> None:
    """Write everything anew."""
    chance = random.Random(1)  # noqa: S311 - data of a recipe
    train, held_out = situations()
    shutil.rmtree(HERE / "tasks", ignore_errors=True)
    for name, chosen in (("train", chance.sample(train, TRAIN)), ("heldout", chance.sample(held_out, HELD_OUT))):
        for number, situation in enumerate(chosen):
            write_task(HERE / "tasks" / name / f"{name}-{number:02}", situation)
    rows = [demonstration(chance.choice(train), chance) for _ in range(DEMONSTRATIONS)]
    (HERE / "demos.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
