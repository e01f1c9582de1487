"""A small world to learn in, for recipes and tests: find a thing that is some steps away, one clue at a time.

A quest starts at an offset (sideways, up or down). The agent sees one clue at a time: how far it is
sideways and, once that is right, how far up or down. It has one tool, `move(dir, steps)`, and three calls.
"""

from __future__ import annotations

import json
from typing import Any

THINGS = ("door", "key", "lamp", "box", "map", "well")
FAR = 3
"""Largest offset along each axis, in steps."""
WALL = FAR + 1
"""Nobody gets farther away from the thing than this."""
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
    """One walk from `(sideways, up)` to the thing; `reward` is 1.0 once it is found."""

    def __init__(self, sideways: int, up: int) -> None:
        self.offset = [sideways, up]
        self.calls = 0
        self.reward = 0.0

    @property
    def finished(self) -> bool:
        """Found, or out of calls."""
        return self.reward == 1.0 or self.calls >= MAX_CALLS

    def clue(self) -> str:
        """What the agent sees from here."""
        sideways, up = self.offset
        if sideways:
            return f"It is {abs(sideways)} {'right' if sideways > 0 else 'left'}."
        return f"It is {abs(up)} {'up' if up > 0 else 'down'}."

    def move(self, arguments: str) -> str:
        """Take one tool call's JSON arguments; what the agent is told."""
        self.calls += 1
        try:
            wanted = json.loads(arguments)
            axis, sign = DIRECTIONS[wanted["dir"]]
            steps = int(wanted["steps"])
        except (KeyError, TypeError, ValueError):
            return "error"
        if axis == (0 if self.offset[0] else 1):  # elsewhere is a wall: the agent stays where it is
            self.offset[axis] = max(-WALL, min(WALL, self.offset[axis] - sign * steps))
        if self.offset == [0, 0]:
            self.reward = 1.0
            return "Found!"
        return self.clue()


def situations() -> list[tuple[str, int, int]]:
    """Every (thing, sideways, up) there is."""
    steps = [step for step in range(-FAR, FAR + 1) if step]
    return [(thing, sideways, up) for thing in THINGS for sideways in steps for up in steps]


def held_out(situation: tuple[str, int, int]) -> bool:
    """Whether demonstrations and training leave it out: some start offsets, and of each thing some first clues.

    About a third of all; neither an unseen offset nor an unseen pair of thing and first clue is ever shown.
    """
    thing, sideways, up = situation
    return (sideways + 2 * up) % 5 == 0 or (THINGS.index(thing) + sideways) % 7 == 0


def first_message(situation: tuple[str, int, int]) -> dict[str, str]:
    """What the user says."""
    thing, sideways, up = situation
    return {"role": "user", "content": f"Find the {thing}. {Quest(sideways, up).clue()}"}
