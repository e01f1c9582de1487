"""A toy environment for recipes and tests: the agent walks on a grid to a thing, with one clue at a time.

A quest starts at an offset from the thing, sideways and up or down. The clue tells how far it is sideways and, once
that is right, how far up or down. The agent has one tool, `move(dir, steps)`, and three calls.
"""

from __future__ import annotations

import json
from typing import Any

THINGS = ("door", "key", "lamp", "box", "map", "well")
FAR = 3
"""Largest offset at the start along each axis, in steps."""
WALL = FAR + 1
"""Largest offset that a move can reach along each axis, in steps."""
MAX_CALLS = 3
DIRECTIONS = {"right": (0, 1), "left": (0, -1), "up": (1, 1), "down": (1, -1)}
"""Name -> (axis, sign)."""
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "move",
            "description": "Walk some steps in one direction.",
            "parameters": {
                "type": "object",
                "properties": {
                    "dir": {"type": "string", "enum": list(DIRECTIONS)},
                    "steps": {"type": "integer"},
                },
                "required": ["dir", "steps"],
            },
        },
    }
]


class Quest:
    """One episode that starts at the offset `(sideways, up)`; `reward` is 1.0 once the thing is found, else 0.0."""

    def __init__(self, sideways: int, up: int) -> None:
        self.offset = [sideways, up]
        self.calls = 0
        self.reward = 0.0

    @property
    def finished(self) -> bool:
        """Whether the thing is found or all calls are used."""
        return self.reward == 1.0 or self.calls >= MAX_CALLS

    def clue(self) -> str:
        """Return the clue for the current offset, the text that the agent sees."""
        sideways, up = self.offset
        if sideways:
            return f"It is {abs(sideways)} {'right' if sideways > 0 else 'left'}."
        return f"It is {abs(up)} {'up' if up > 0 else 'down'}."

    def move(self, arguments: str) -> str:
        """Run one tool call, given its JSON arguments, and return the tool's answer.

        Malformed arguments count as a call and return "error".
        """
        self.calls += 1
        try:
            wanted = json.loads(arguments)
            axis, sign = DIRECTIONS[wanted["dir"]]
            steps = int(wanted["steps"])
        except (KeyError, TypeError, ValueError):
            return "error"
        # Any move along the axis that the clue does not name meets a wall: the agent stays, and the call counts.
        if axis == (0 if self.offset[0] else 1):
            self.offset[axis] = max(-WALL, min(WALL, self.offset[axis] - sign * steps))
        if self.offset == [0, 0]:
            self.reward = 1.0
            return "Found!"
        return self.clue()


def situations() -> list[tuple[str, int, int]]:
    """Return all situations: a thing and its offset as (thing, sideways, up)."""
    steps = [step for step in range(-FAR, FAR + 1) if step]
    return [(thing, sideways, up) for thing in THINGS for sideways in steps for up in steps]


def held_out(situation: tuple[str, int, int]) -> bool:
    """Return whether a situation is kept for evaluation, out of demonstrations and training.

    About a third of all situations: some start offsets, and for each thing some first clues. Training therefore never
    shows these offsets and these pairs of thing and first clue.
    """
    thing, sideways, up = situation
    return (sideways + 2 * up) % 5 == 0 or (THINGS.index(thing) + sideways) % 7 == 0


def first_message(situation: tuple[str, int, int]) -> dict[str, str]:
    """Return the user message that asks for the thing and gives the first clue."""
    thing, sideways, up = situation
    return {"role": "user", "content": f"Find the {thing}. {Quest(sideways, up).clue()}"}
