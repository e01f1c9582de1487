"""Links between the records, steps, versions and checkpoints of one run, from its store, its seals and its folder.

Every link comes from the store or from a manifest in the run's folder. A link that they lack is left empty, with a line
in `missing` that says why.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections import Counter
from typing import TYPE_CHECKING

from agentrl_core.api.stores import ORIGIN
from agentrl_core.batching.credit import is_trained
from agentrl_core.cli.lineage_facts import (
    CallFacts,
    Checkpoint,
    CheckpointFacts,
    Consumed,
    Origin,
    RecordFacts,
    StepFacts,
    StepUse,
    VersionFacts,
)
from agentrl_core.cli.sealed_facts import SealedFacts
from agentrl_core.errors import UsageError
from agentrl_core.run.versions import step_of_version
from agentrl_core.types import Episode, Outcome, Record
from agentrl_core.weights.manifest import peek_manifest, read_manifest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agentrl_core.api.stores import RunReader, RunRow, StepRow
    from agentrl_core.types import Interaction


class Lineage:
    """Links of one run; `folder` is the run's folder, which has the checkpoints."""

    def __init__(self, store: RunReader, run: RunRow, folder: Path) -> None:
        self._store, self._run_id, self._folder = store, run.id, folder
        model = run.config.get("model") or {}
        origin = run.components.get(ORIGIN)
        self._model = f"checkpoint of {origin}" if origin else model.get("path") or model.get("use") or ""

    @functools.cached_property
    def steps(self) -> list[StepRow]:
        """All steps in the order in which they were made."""
        return asyncio.run(self._store.steps(self._run_id))

    @functools.cached_property
    def sealed(self) -> SealedFacts:
        """The digests that the run's seals name; `trace verify` compares them with the facts."""
        return SealedFacts.of(asyncio.run(self._store.seals(self._run_id)))

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The checkpoints with a readable manifest, by step."""
        return self._checkpoints[0]

    @functools.cached_property
    def _checkpoints(self) -> tuple[list[Checkpoint], list[str]]:
        """The checkpoints with a readable manifest, and a line for each one without."""
        found, unreadable = [], []
        for path in self._folder.joinpath("checkpoints").glob("step-*"):
            if not re.fullmatch(r"step-\d+", path.name):
                continue
            try:
                manifest = peek_manifest(path)
            except ValueError as error:
                unreadable.append(str(error))
                continue
            if manifest is None:
                unreadable.append(f"{path} has no manifest")
            else:
                found.append(_checkpoint(path, manifest.step, manifest.version, manifest.digest))
        return sorted(found, key=lambda item: item.step or 0), unreadable

    def of_record(self, episode: Episode) -> RecordFacts:
        """Follow a record back to the versions that sampled it, and forward to the weights that contain it."""
        record, calls = episode.record, [_call(item) for item in episode.interactions]
        trained = sum(call.trained_tokens for call in calls)
        uses = [
            StepUse(
                step=row.step,
                voided=row.voided,
                version=row.version,
                trained_tokens=trained,
                checkpoint=self._first_with(row),
                digest=self._step_digest(row),
            )
            for row in self.steps
            if record.id in row.records
        ]
        missing = [_unsaved(use.step) for use in uses if use.checkpoint is None and not use.voided]
        if all(use.voided for use in uses):
            missing.append(self._why_untrained(record, voided=bool(uses)))
        return RecordFacts(
            run=self._run_id,
            record=record.id,
            task=record.task_id,
            task_set=record.task_set,
            group=record.group_id,
            sample_index=record.sample_index,
            outcome=record.outcome.value,
            reward=record.reward,
            calls=calls,
            sampled_by=[self.origin(version) for version in sorted(_versions(episode))],
            trained_by=uses,
            missing=[*missing, *self._checkpoints[1]],
            digest=self._record_digest(record.id),
            task_digest=self.sealed.tasks.get((record.task_set, record.task_id), ""),
            seal=self.sealed.seal_of.get(record.id),
        )

    def _record_digest(self, record_id: str) -> str:
        return next(iter(self.sealed.records.get(record_id, ())), "")

    def _step_digest(self, row: StepRow) -> str:
        return self.sealed.steps.get((row.step, row.version), ("", False))[0]

    def of_step(self, number: int) -> list[StepFacts]:
        """Follow every step of this number, voided ones first, to its records and to its weights."""
        rows = [row for row in self.steps if row.step == number]
        if not rows:
            last = max((row.step for row in self.steps), default=0)
            raise UsageError(f"run {self._run_id} has no step {number}; its last step is {last}")
        return [self._step(row) for row in rows]

    def _step(self, row: StepRow) -> StepFacts:
        episodes = [self._episode(name) for name in row.records]
        consumed = [self._consumed(item, _trained_tokens(item)) for item in episodes if item is not None]
        gone = [name for name, item in zip(row.records, episodes, strict=True) if item is None]
        missing = [f"record {name} is not in the store" for name in gone]
        checkpoint = self._first_with(row)
        if checkpoint is None and not row.voided:
            missing.append(_unsaved(row.step))
        return StepFacts(
            run=self._run_id,
            step=row.step,
            voided=row.voided,
            version=row.version,
            groups=list(row.groups),
            records=consumed,
            sampled_by=[self.origin(version) for version in sorted({v for item in consumed for v in item.versions})],
            checkpoint=checkpoint,
            missing=[*missing, *self._checkpoints[1]],
            digest=self._step_digest(row),
        )

    def of_version(self, version: int) -> VersionFacts:
        """Follow a version back to its step, and forward to the records that it sampled; reads every episode."""
        last = asyncio.run(self._store.last_version(self._run_id))
        if not 0 <= version <= last:
            raise UsageError(f"run {self._run_id} has no policy version {version}; its last version is {last}")
        found = []
        for record in asyncio.run(self._store.records(self._run_id)):
            episode = self._episode(record.id)
            if episode is not None and (tokens := _versions(episode).get(version)):
                found.append(self._consumed(episode, tokens))
        names = {item.record for item in found}
        origin = self.origin(version)
        unsaved = [] if origin.checkpoint else [f"no checkpoint has the weights of version {version}"]
        return VersionFacts(
            run=self._run_id,
            origin=origin,
            records=found,
            trained_by=[row.step for row in self.steps if not row.voided and names.intersection(row.records)],
            missing=[*unsaved, *self._checkpoints[1]],
        )

    def of_checkpoint(self, path: Path) -> CheckpointFacts:
        """Verify a checkpoint's files, and list the steps behind its weights."""
        try:
            manifest = peek_manifest(path)
        except ValueError as error:
            raise UsageError(str(error)) from error
        if manifest is None:
            raise UsageError(f"{path} has no manifest.json: it is not a checkpoint of a run")
        sealed = self.sealed.checkpoints.get(path.name, "")
        missing = [] if sealed in ("", manifest.digest) else [f"the run sealed another one of this name: {sealed}"]
        try:
            read_manifest(path)
        except ValueError as error:
            missing.append(str(error))
        verified = not missing
        behind = [row for row in self.steps if not row.voided and row.step <= (manifest.step or 0)]
        last = behind[-1] if behind else None
        if manifest.step is None:
            missing.append("these are published weights: their manifest names no step")
        elif len(behind) < manifest.step:
            missing.append(f"the store has {len(behind)} live steps up to step {manifest.step}")
        elif last is not None and last.version != manifest.version:
            missing.append(
                f"step {last.step} published version {last.version}, but the manifest says {manifest.version}: these "
                "are the weights of a step that a resumed run repeated"
            )
        return CheckpointFacts(
            run=self._run_id,
            checkpoint=_checkpoint(path, manifest.step, manifest.version, manifest.digest),
            verified=verified,
            steps=[(row.step, row.version, len(row.records)) for row in behind],
            missing=missing,
            sealed=sealed,
        )

    def origin(self, version: int) -> Origin:
        """Return the step that a version's weights come from."""
        made = {row.version: row for row in self.steps}
        step, voided = step_of_version(version, self.steps), False
        if version == 0:
            told = "the policy before the first step" + (f" ({self._model})" if self._model else "")
        elif version in made:
            voided = made[version].voided
            told = f"published by step {step}" + (", which a resumed run repeated" if voided else "")
        elif step is not None:
            told = f"the weights of step {step}, published again when the run was resumed"
        else:
            told = "no step in the store published it"
        exact = [item for item in self.checkpoints if item.step == step and not voided]
        if version in made or version == 0:
            exact = [item for item in self.checkpoints if item.version == version]
        return Origin(
            version=version,
            step=step,
            voided=voided,
            told=told,
            checkpoint=exact[0] if exact and step is not None else None,
        )

    def _first_with(self, row: StepRow) -> Checkpoint | None:
        """Return the first checkpoint whose weights contain a step."""
        if row.voided:  # only the checkpoint that was saved right after it, if nothing has replaced that
            return next((item for item in self.checkpoints if item.version == row.version), None)
        return next(
            (item for item in self.checkpoints if (item.step or 0) >= row.step and item.version >= row.version), None
        )

    def _why_untrained(self, record: Record, *, voided: bool) -> str:
        if voided:
            return "only steps that a resumed run repeated have trained it"
        if record.is_eval:
            return "no step has trained it: it belongs to an evaluation"
        if record.outcome is not Outcome.SCORED:
            return f"no step has trained it: only scored records are trained, and this one is {record.outcome.value}"
        taken = [row.step for row in self.steps if record.group_id in row.groups and not row.voided]
        if taken:
            group = asyncio.run(self._store.records(record.run_id, task_id=record.task_id))
            rewards = {item.reward for item in group if item.group_id == record.group_id and item.reward is not None}
            why = (
                f"all records of the group got the reward {record.reward:g}"
                if len(rewards) == 1
                else "the filters left it out, or its calls had no advantage"
            )
            return f"step {taken[0]} took its group, but did not train this record: {why}"
        return "no step has consumed it"

    def _consumed(self, episode: Episode, tokens: int) -> Consumed:
        record = episode.record
        return Consumed(
            record=record.id,
            digest=self._record_digest(record.id),
            task=record.task_id,
            reward=record.reward,
            tokens=tokens,
            versions=_versions(episode),
        )

    def _episode(self, record_id: str) -> Episode | None:
        return asyncio.run(self._store.episode(record_id))


def _checkpoint(path: Path, step: int | None, version: int, digest: str) -> Checkpoint:
    return Checkpoint(folder=str(path), step=step, version=version, digest=digest)


def _unsaved(step: int) -> str:
    return f"no checkpoint has the weights of step {step} or of a later step (trainer.save_steps, trainer.keep_last)"


def _call(item: Interaction) -> CallFacts:
    counts: Counter[int] = Counter()
    for version, count in item.versions:
        counts[version] += count
    return CallFacts(
        interaction=item.id,
        seq=item.seq,
        parent=item.parent,
        new_prompt_tokens=len(item.prompt_ids),
        sampled_tokens=len(item.output_ids),
        trained_tokens=len(item.output_ids) if is_trained(item) else 0,
        versions=dict(counts),
        upstream=item.upstream,
        digest=item.digest,
    )


def _versions(episode: Episode) -> Mapping[int, int]:
    """Return policy version -> number of the episode's tokens that it sampled."""
    counts: Counter[int] = Counter()
    for item in episode.interactions:
        for version, count in item.versions:
            counts[version] += count
    return dict(counts)


def _trained_tokens(episode: Episode) -> int:
    return sum(len(item.output_ids) for item in episode.interactions if is_trained(item))
