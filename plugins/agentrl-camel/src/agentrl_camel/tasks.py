"""Input text of a CAMEL agent from a task's row; imports only the standard library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def as_text(data: Mapping[str, Any], input_key: str | None = None) -> str:
    """Return the agent's input: the text under `input_key`, else the row's only user message, else its `query`.

    Raises `ValueError` for a row with a longer conversation: an agent takes one text, and no message may be dropped.
    """
    found = data.get(input_key) if input_key else data.get("messages") or data.get("query")
    if isinstance(found, str) and found:
        return found
    task = f"task '{data.get('id')}'"
    if not isinstance(found, list):
        missing = (
            f"no text '{input_key}', which the workflow's input_key names" if input_key else "no messages or query"
        )
        raise ValueError(f"{task} has {missing}; it has {', '.join(data)}")  # noqa: TRY004  # of data, not of a program
    said = [message for message in found if message.get("role") != "system"]
    if len(said) != 1 or said[0].get("role") != "user" or not isinstance(said[0].get("content"), str):
        raise ValueError(
            f"{task}: CAMEL agents take one text, but the row has {len(said)} messages besides system messages; fix: "
            "give the row a `query` instead of `messages`"
        )
    return str(said[0]["content"])
