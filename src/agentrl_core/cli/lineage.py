"""`agentrl trace lineage`: prints what a record, step, version or checkpoint comes from, and what it went into."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentrl_core.cli.find_run import RunPlace, RunsOption, find_run, is_run, open_episode, open_run
from agentrl_core.cli.lineage_facts import (
    Checkpoint,
    CheckpointFacts,
    Origin,
    RecordFacts,
    StepFacts,
    VersionFacts,
)
from agentrl_core.cli.lineage_links import Lineage
from agentrl_core.cli.output import print_json
from agentrl_core.cli.printing import echo
from agentrl_core.errors import UsageError
from agentrl_core.weights.manifest import MANIFEST

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


_SHOWN_RECORDS = 50
"""Largest number of records that are printed; `--json` has all of them."""
_SHOWN_DIGEST = 16


def lineage(
    thing: Annotated[
        str, typer.Argument(metavar="THING", help="RECORD, step:N, version:N, or the folder of a checkpoint.")
    ],
    *,
    run: Annotated[
        str | None, typer.Option(help="Run of a step or version: its name, folder or database; default: the newest.")
    ] = None,
    runs: RunsOption = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Follow a record to the weights that contain it, or weights back to the records that made them.

    The chain is task, record, LLM call, trained tokens, optimizer step, policy version, checkpoint. A link that neither
    the store nor the run's folder has is named as missing.
    """
    facts = _facts(thing, run, runs)
    if as_json:
        print_json(facts)
        return
    for item in facts:
        for line in _lines(item):
            echo(line)


def _facts(
    thing: str, run: str | None, runs: Path
) -> Sequence[RecordFacts | StepFacts | VersionFacts | CheckpointFacts]:
    kind, numbered, number = thing.partition(":")
    if numbered and kind in {"step", "version"}:
        if not number.isdecimal():
            raise UsageError(f"{thing}: expected {kind}:N with a whole number N")
        with open_run(place := find_run(run, runs)) as (store, row):
            links = Lineage(store, row, place.directory)
            return links.of_step(int(number)) if kind == "step" else [links.of_version(int(number))]
    if Path(thing, MANIFEST).is_file():
        with open_run(place := find_run(run, runs) if run else _run_of_checkpoint(thing)) as (store, row):
            return [Lineage(store, row, place.directory).of_checkpoint(Path(thing))]
    with open_episode(thing, run, runs) as found:
        return [Lineage(found.store, found.row, found.place.directory).of_record(found.episode)]


def _run_of_checkpoint(thing: str) -> RunPlace:
    folder = Path(thing).resolve().parent.parent
    if not is_run(folder):
        raise UsageError(f"{thing} is not in the folder of a run; name its run with --run")
    return RunPlace(folder)


def _lines(facts: RecordFacts | StepFacts | VersionFacts | CheckpointFacts) -> Iterator[str]:
    match facts:
        case RecordFacts():
            yield from _record(facts)
        case StepFacts():
            yield from _step(facts)
        case VersionFacts():
            yield from _version(facts)
        case CheckpointFacts():
            yield from _checkpoint(facts)
    for line in facts.missing:
        yield f"  missing     {line}"


def _record(facts: RecordFacts) -> Iterator[str]:
    reward = "no reward" if facts.reward is None else f"reward {facts.reward:g}"
    yield f"record {facts.record}: {facts.outcome}, {reward}"
    place = f"group {facts.group}, sample {facts.sample_index}, run {facts.run}"
    yield f"  task        {facts.task} (set {facts.task_set}), {place}"
    if facts.seal is not None:
        yield f"  sealed      task {_short(facts.task_digest)}, record {_short(facts.digest)}, in seal {facts.seal}"
    yield from _origins(facts.sampled_by)
    for call in facts.calls:
        by = call.upstream or _versions(call.versions)
        yield (
            f"  call [{call.seq}]".ljust(14) + f"{call.interaction}: {call.new_prompt_tokens} new prompt tokens, "
            f"{call.sampled_tokens} sampled by {by}, {call.trained_tokens} to train"
            + (f", digest {_short(call.digest)}" if call.digest else "")
        )
    for use in facts.trained_by:
        again = " (repeated by a resumed run)" if use.voided else ""
        yield f"  trained by  step {use.step}{again}: {use.trained_tokens} tokens -> version {use.version}"
        if use.digest:
            yield f"  sealed      step {_short(use.digest)}"
        if use.checkpoint is not None:
            yield f"  saved in    {_saved(use.checkpoint)}"


def _step(facts: StepFacts) -> Iterator[str]:
    again = " (repeated by a resumed run)" if facts.voided else ""
    tokens = sum(item.tokens for item in facts.records)
    yield (
        f"step {facts.step}{again} of run {facts.run}: {len(facts.groups)} groups, {len(facts.records)} records, "
        f"{tokens} trained tokens -> version {facts.version}"
    )
    if facts.digest:
        yield f"  sealed      step {_short(facts.digest)}"
    yield from _origins(facts.sampled_by)
    for item in facts.records[:_SHOWN_RECORDS]:
        reward = "no reward" if item.reward is None else f"reward {item.reward:g}"
        trained = f"{item.tokens} trained tokens, {_versions(item.versions)}"
        digest = f", digest {_short(item.digest)}" if item.digest else ""
        yield f"  record      {item.record}: task {item.task}, {reward}, {trained}{digest}"
    yield from _others(len(facts.records))
    if facts.checkpoint is not None:
        yield f"  saved in    {_saved(facts.checkpoint)}"


def _version(facts: VersionFacts) -> Iterator[str]:
    yield f"version {facts.origin.version} of run {facts.run}: {facts.origin.told}"
    if facts.origin.checkpoint is not None:
        yield f"  saved in    {_saved(facts.origin.checkpoint)}"
    for item in facts.records[:_SHOWN_RECORDS]:
        reward = "no reward" if item.reward is None else f"reward {item.reward:g}"
        yield f"  sampled     {item.tokens} tokens of record {item.record}: task {item.task}, {reward}"
    yield from _others(len(facts.records))
    if facts.trained_by:
        yield f"  trained by  step {', '.join(map(str, facts.trained_by))}"


def _checkpoint(facts: CheckpointFacts) -> Iterator[str]:
    files = "every file is as it was written" if facts.verified else "NOT as it was written"
    files += ", and as it was sealed" if facts.verified and facts.sealed else ""
    yield f"checkpoint {_saved(facts.checkpoint)}, of run {facts.run}: {files}"
    for step, version, records in facts.steps[-_SHOWN_RECORDS:]:
        yield f"  step        {step} -> version {version}, {records} records"
    if len(facts.steps) > _SHOWN_RECORDS:
        yield f"  and {len(facts.steps) - _SHOWN_RECORDS} earlier steps (--json)"


def _origins(origins: Sequence[Origin]) -> Iterator[str]:
    for item in origins:
        saved = "" if item.checkpoint is None else f", saved in {_saved(item.checkpoint)}"
        yield f"  sampled by  version {item.version}: {item.told}{saved}"


def _saved(checkpoint: Checkpoint) -> str:
    return f"{checkpoint.folder} (version {checkpoint.version}, BLAKE2b {_short(checkpoint.digest)})"


def _short(digest: str) -> str:
    return f"{digest[:_SHOWN_DIGEST]}…" if digest else "(not sealed)"


def _versions(counts: Mapping[int, int]) -> str:
    if not counts:
        return "no version"
    if len(counts) == 1:
        return f"version {next(iter(counts))}"
    return "versions " + ", ".join(f"{version} ({count} tokens)" for version, count in sorted(counts.items()))


def _others(count: int) -> Iterator[str]:
    if count > _SHOWN_RECORDS:
        yield f"  and {count - _SHOWN_RECORDS} more records (--json)"
