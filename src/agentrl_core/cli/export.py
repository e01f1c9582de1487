"""`agentrl trace export`: writes selected episodes of a run as demonstrations for `agentrl sft`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import attrs
import typer

from agentrl_core.cli.find_run import RunsOption, find_run, open_run
from agentrl_core.config.invocation import command_line
from agentrl_core.errors import RunError, UsageError
from agentrl_core.stores.files import private_opener
from agentrl_core.weights.witness import verify

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TextIO

    from agentrl_core.api.stores import RunRow
    from agentrl_core.data.export import Selection
    from agentrl_core.types import Record


def export(
    run: Annotated[str | None, typer.Argument(help="Run: its name, folder or database; default: the newest.")] = None,
    *,
    runs: RunsOption = Path("runs"),
    min_reward: Annotated[float | None, typer.Option(help="Only episodes with at least this reward.")] = None,
    best_of_group: Annotated[
        int | None, typer.Option(min=1, help="At most this many records per group, the best.")
    ] = None,
    evaluations: Annotated[bool, typer.Option("--evaluations", help="Include episodes of evaluations.")] = False,
    form: Annotated[Literal["sft"], typer.Option("--format", help="Format of the file.")] = "sft",  # noqa: ARG001  # the only one
    output: Annotated[str, typer.Option("-o", "--output", help="JSONL file to write; - is standard output.")] = "-",
) -> None:
    """Write scored episodes as demonstrations for `agentrl sft`: messages, and the exact sampled token ids."""
    from agentrl_core.data.export import Selection, export_rows, taken_again
    from agentrl_core.gateway.sessions import without_secrets

    selection = Selection(min_reward=min_reward, best_of_group=best_of_group, evaluations=evaluations)
    num_rows = num_records = num_tokens = 0
    altered = []
    place = find_run(run, runs)
    with open_run(place) as (store, row), _opened(output) as file:
        again = taken_again(asyncio.run(store.steps(row.id)))
        records = [record for record in asyncio.run(store.records(row.id)) if record.id not in again]
        tokenizer = _tokenizer(place.model_directory(row))
        chosen = _chosen(selection, records, row)
        for record in chosen:
            episode = asyncio.run(store.episode(record.id))
            if episode is None:
                raise RunError(f"record {record.id} is gone from the store of run {row.id}")
            # Exact ids are the point of this format, so a row whose tokens were altered must not be trained on.
            if verify(episode).deviation:
                altered.append(record.id)
                continue
            rows = list(export_rows(episode, tokenizer=tokenizer))
            num_records += bool(rows)
            num_rows += len(rows)
            num_tokens += sum(end - start for item in rows for start, end in item["spans"])
            for item in rows:
                # Messages may contain a session's key or address, for example in a tool result.
                file.write(without_secrets(json.dumps(item, ensure_ascii=False)) + "\n")
    typer.echo(f"{num_rows} rows of {num_records} records, {num_tokens:,} trained tokens", err=True)
    if again:
        typer.echo(f"left out: {len(again)} records of steps that the run repeated when it was resumed", err=True)
    if altered:
        typer.echo(
            f"left out: {', '.join(altered)}, whose tokens are not what the engine sampled "
            f"({command_line('trace', 'verify')})",
            err=True,
        )


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
