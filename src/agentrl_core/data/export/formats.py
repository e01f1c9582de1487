"""Make the rows of an episode in any of the export formats, for `agentrl trace export --format`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_never

import attrs

from agentrl_core.data.export.agentcpm import documents
from agentrl_core.data.export.atif import trajectories
from agentrl_core.data.export.chat import chat_rows
from agentrl_core.data.export.episodes import episode_row
from agentrl_core.data.export.names import Format
from agentrl_core.data.export.sft import export_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from agentrl_core.api.stores import RunRow, StepRow
    from agentrl_core.types import Episode, Record, Task


@attrs.define(kw_only=True)
class RowMaker:
    """Maker of rows in one format, for the records of one run."""

    form: Format
    run: RunRow
    records: Sequence[Record]
    """All records of the run, exported or not."""
    steps: Sequence[StepRow]
    tokenizer: str
    """Digest of the policy's tokenizer; empty if it is not known."""
    token_text: Callable[[int], str]
    """Function that returns the text of a token id."""
    _groups: set[str] = attrs.field(factory=set, init=False)
    """Groups whose task has a row already."""
    _members: dict[str, list[Record]] = attrs.field(init=False)
    _trained: dict[str, list[int]] = attrs.field(init=False)
    """Record id -> live steps that consumed it."""

    def __attrs_post_init__(self) -> None:
        """Index the records by group, and the steps by record."""
        self._members, self._trained = {}, {}
        for record in self.records:
            self._members.setdefault(record.group_id, []).append(record)
        for step in self.steps:
            for name in () if step.voided else step.records:
                self._trained.setdefault(name, []).append(step.step)

    def rows(self, episode: Episode, task: Task | None) -> Iterator[dict[str, Any]]:
        """Yield the rows of an episode."""
        match self.form:
            case Format.SFT:
                yield from export_rows(episode, tokenizer=self.tokenizer)
            case Format.JSONL | Format.PARQUET:
                yield episode_row(episode, task)
            case Format.CHAT:
                yield from chat_rows(episode)
            case Format.ATIF:
                yield from trajectories(episode, task, self.run)
            case Format.AGENTRL:
                yield from self._documents(episode, task)
            case _:
                assert_never(self.form)

    def _documents(self, episode: Episode, task: Task | None) -> Iterator[dict[str, Any]]:
        record = episode.record
        is_first = record.group_id not in self._groups
        self._groups.add(record.group_id)
        yield from documents(
            episode,
            task,
            group=self._members[record.group_id],
            is_first=is_first,
            trained_steps=self._trained.get(record.id, ()),
            token_text=self.token_text,
        )
