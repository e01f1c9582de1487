"""`agentrl trace export`: writes selected episodes of a run as demonstrations, or in formats of other tools."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import attrs
import typer

from agentrl_core.cli.find_run import RunsOption, find_run, open_run
from agentrl_core.cli.printing import echo
from agentrl_core.cli.trace_text import plain_decoder
from agentrl_core.config.invocation import command_line
from agentrl_core.data.export.names import Format
from agentrl_core.errors import RunError, UsageError
from agentrl_core.stores.files import make_private_folder, private_opener
from agentrl_core.weights.witness import verify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from agentrl_core.api.stores import RunReader, RunRow
    from agentrl_core.data.export import Selection
    from agentrl_core.data.export.formats import RowMaker
    from agentrl_core.types import Record, Task

_FORMAT_HELP = " ".join(f"{form}: {form.about}." for form in Format)


def export(
    run: Annotated[str | None, typer.Argument(help="Run: its name, folder or database; default: the newest.")] = None,
    *,
    runs: RunsOption = Path("runs"),
    min_reward: Annotated[float | None, typer.Option(help="Only episodes with at least this reward.")] = None,
    best_of_group: Annotated[
        int | None, typer.Option(min=1, help="At most this many records per group, the best.")
    ] = None,
    evaluations: Annotated[bool, typer.Option("--evaluations", help="Include episodes of evaluations.")] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Every record, whatever its outcome; not for the format sft.")
    ] = False,
    form: Annotated[Format, typer.Option("--format", help=_FORMAT_HELP)] = Format.SFT,
    output: Annotated[
        str, typer.Option("-o", "--output", help="File to write, or FOLDER/ for atif; - is standard output.")
    ] = "-",
) -> None:
    """Write scored episodes: demonstrations for `agentrl sft`, or a format for audits and other tools.

    Every format but chat has the exact token ids that were sampled.
    """
    from agentrl_core.data.export import Selection, taken_again
    from agentrl_core.data.export.formats import RowMaker

    selection = Selection(min_reward=min_reward, best_of_group=best_of_group, evaluations=evaluations)
    _check_options(selection, form, output, every=every)
    place = find_run(run, runs)
    with open_run(place) as (store, row):
        everything, steps = asyncio.run(store.records(row.id)), asyncio.run(store.steps(row.id))
        again = set() if every else taken_again(steps, everything)
        records = [record for record in everything if record.id not in again]
        maker = RowMaker(
            form=form,
            run=row,
            records=everything,
            steps=steps,
            tokenizer=_tokenizer(place.model_directory(row)),
            token_text=_token_text(place.model_directory(row)) if form is Format.AGENTRL else str,
        )
        chosen = records if every else _chosen(selection, records, row)
        writing = _Export(store=store, run=row, maker=maker, with_altered=every)
        writing.write(chosen, output)
    echo(writing.summary(), err=True)
    if again:
        echo(f"left out: {len(again)} records of steps that the run repeated when it was resumed", err=True)
    if writing.altered:
        echo(
            f"left out: {', '.join(writing.altered)}, whose tokens are not what the engine sampled "
            f"({command_line('trace', 'verify')})",
            err=True,
        )


@attrs.define(kw_only=True)
class _Export:
    """One export: makes the rows of the chosen records, writes them, and counts."""

    store: RunReader
    run: RunRow
    maker: RowMaker
    with_altered: bool
    """Whether records are written whose tokens the engine's digests do not confirm."""
    altered: list[str] = attrs.field(factory=list, init=False)
    """Records that were left out for that."""
    num_rows: int = attrs.field(default=0, init=False)
    num_records: int = attrs.field(default=0, init=False)
    num_tokens: int = attrs.field(default=0, init=False)
    """Trained tokens, in the format sft."""
    _tasks: dict[str, dict[str, Task]] = attrs.field(factory=dict, init=False)

    def write(self, records: Sequence[Record], output: str) -> None:
        """Write the records' rows to a file, to a folder with a file per trajectory, or to standard output."""
        rows = self._rows(records)
        if self.maker.form is Format.PARQUET:
            from agentrl_core.data.export.parquet import write_parquet

            with _opened(output) as file:
                write_parquet((json.loads(row) for row in rows), file.buffer)
            return
        if output.endswith("/") or (output != "-" and Path(output).is_dir()):
            if not Path(output).is_dir():
                make_private_folder(Path(output))
            for row in rows:
                with _opened(str(Path(output, f"{json.loads(row)['trajectory_id']}.json"))) as file:
                    file.write(row + "\n")
            return
        with _opened(output) as file:
            for row in rows:
                file.write(row + "\n")

    def _rows(self, records: Sequence[Record]) -> Iterator[str]:
        """Yield the records' rows as JSON, without secrets of sessions."""
        from agentrl_core.gateway.sessions import without_secrets

        for record in records:
            episode = asyncio.run(self.store.episode(record.id))
            if episode is None:
                raise RunError(f"record {record.id} is gone from the store of run {self.run.id}")
            # Exact ids are the point of an export, so a row whose tokens were altered must not be trained on.
            if not self.with_altered and verify(episode).deviation:
                self.altered.append(record.id)
                continue
            rows = list(self.maker.rows(episode, self._task(record)))
            self.num_records += bool(rows)
            self.num_rows += len(rows)
            for row in rows:
                self.num_tokens += sum(end - start for start, end in row.get("spans", ()))
                # Messages may contain a session's key or address, for example in a tool result.
                text = without_secrets(json.dumps(row, ensure_ascii=False))
                # A lone surrogate, which UTF-8 lacks, is written as the escape that JSON has for it.
                yield text.encode("utf-8", "backslashreplace").decode("utf-8")

    def _task(self, record: Record) -> Task | None:
        if record.task_set not in self._tasks:
            tasks = asyncio.run(self.store.tasks(self.run.id, task_set=record.task_set))
            self._tasks[record.task_set] = {task.id: task for task in tasks}
        return self._tasks[record.task_set].get(record.task_id)

    def summary(self) -> str:
        """Say how much was written."""
        trained = f", {self.num_tokens:,} trained tokens" if self.maker.form is Format.SFT else ""
        return f"{self.num_rows} rows of {self.num_records} records{trained}"


def _check_options(selection: Selection, form: Format, output: str, *, every: bool) -> None:
    if every and form is Format.SFT:
        raise UsageError("--all: demonstrations are made of scored episodes only; choose another --format")
    if every and selection != attrs.evolve(selection, min_reward=None, best_of_group=None):
        raise UsageError("--all takes every record; leave out --min-reward and --best-of-group, or --all")
    if output == "-" and form is Format.PARQUET:
        raise UsageError("--format parquet is no text; name its file with -o FILE")
    if form is not Format.ATIF and (output.endswith("/") or Path(output).is_dir()):
        raise UsageError(f"-o {output} is a folder; --format {form} writes one file, so name that")


def _chosen(selection: Selection, records: Sequence[Record], row: RunRow) -> list[Record]:
    chosen = selection.choose(records)
    if not chosen:
        any_reward = attrs.evolve(selection, min_reward=None, best_of_group=None)
        rewards = [record.reward for record in any_reward.choose(records) if record.reward is not None]
        highest = f"the highest of {len(rewards)} rewards is {max(rewards):g}" if rewards else "it has no scored record"
        raise UsageError(
            f"run {row.id} has no record for these options: {highest}; see `{command_line('trace', 'list', row.id)}`"
        )
    return chosen


def _tokenizer(folder: Path | None) -> str:
    """Return the digest of the policy's tokenizer; empty if its folder does not exist any more."""
    from agentrl_core.training.demonstrations import tokenizer_digest

    return "" if folder is None else tokenizer_digest(folder)


def _token_text(folder: Path | None) -> Callable[[int], str]:
    """Return the tokenizer's text of a token id; without the tokenizer, `token_id:` and the number, as vLLM writes."""
    if folder is None:
        return lambda token: f"token_id:{token}"
    decode = plain_decoder(folder)
    return lambda token: decode([token])


@contextlib.contextmanager
def _opened(output: str) -> Iterator[TextIO]:
    """Yield the output file; a real file gets its name only when it is complete."""
    if output == "-":
        yield sys.stdout
        return
    path = Path(output)
    draft = path.with_name(f".{path.name}.draft")
    try:
        with open(draft, "w", encoding="utf-8", opener=private_opener) as file:
            yield file
        draft.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)
