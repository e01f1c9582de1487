"""The export format `jsonl`: a line per record that holds the whole episode, and the reader that restores it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from agentrl_core.api.kept_tokens import ids_of, mask_of
from agentrl_core.data.lines import BadLineError, read_objects
from agentrl_core.types import Episode, Interaction, Record, Task, ToolCall

if TYPE_CHECKING:
    from cattrs import Converter

FORMAT = "agentrl.episode/1"
"""Value of a line's field `format`; the number rises when a reader of the old form would misread the new one."""


@attrs.frozen(kw_only=True)
class TaskEpisode:
    """An episode with its task."""

    episode: Episode
    task: Task | None = None
    """None if the store has no row of the task."""


def episode_row(episode: Episode, task: Task | None) -> dict[str, Any]:
    """Return the line of a record: its task, all its fields, its interactions with their token ids, and tool calls."""
    plain = _converter().unstructure
    return {
        "format": FORMAT,
        "task": None if task is None else plain(task),
        "record": plain(episode.record),
        "interactions": [plain(item) for item in episode.interactions],
        "tool_calls": [plain(item) for item in episode.tool_calls],
    }


def read_episodes(path: Path | str) -> list[TaskEpisode]:
    """Read a file of the format `jsonl`; raise `DataError` with one line per problem.

    The episodes equal those that were exported, except where a session's key or address was removed from a text.
    """
    return read_objects(Path(path), lambda row, _: read_episode(row), what="episode")


def read_episode(row: Mapping[str, Any]) -> TaskEpisode:
    """Restore an episode from its line; raise `BadLineError` if the line is none of this format."""
    import cattrs

    if row.get("format") != FORMAT:
        raise BadLineError(
            f"expected a record of `agentrl trace export --format jsonl`, with format: {FORMAT}; found "
            f"{row.get('format', 'no format')!r}"
        )
    read = _converter().structure
    try:
        record = read(row["record"], Record)
        interactions = tuple(read(item, Interaction) for item in row["interactions"])
        tool_calls = tuple(read(item, ToolCall) for item in row.get("tool_calls", ()))  # earlier versions had none
        task = None if row["task"] is None else read(row["task"], Task)
    except (cattrs.BaseValidationError, KeyError, TypeError) as error:
        told = (
            "; ".join(cattrs.transform_error(error)) if isinstance(error, cattrs.BaseValidationError) else repr(error)
        )
        raise BadLineError(f"not a record of {FORMAT}: {told}") from error
    episode = Episode(record=record, interactions=interactions, tool_calls=tool_calls)
    return TaskEpisode(episode=episode, task=task)


@functools.cache
def _converter() -> Converter:
    import cattrs  # not needed by the commands that write no episodes

    converter = cattrs.Converter(forbid_extra_keys=True)
    converter.register_structure_hook_func(lambda kind: kind == Mapping[str, Any] | str, lambda value, _: value)
    # Sampling masks, the only bytes of an episode.
    converter.register_unstructure_hook(bytes, lambda mask: list(ids_of(mask)))
    converter.register_structure_hook(bytes, lambda ids, _: mask_of(ids))
    return converter
