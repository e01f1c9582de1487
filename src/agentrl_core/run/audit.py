"""Writer of a run's audit chain: the trainer seals what is new in the store, at every step, start and end.

`api/audit.py` has the form of the seals, `agentrl trace verify` checks them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import platform
import time
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl_core.api.audit import (
    Seal,
    SealKind,
    config_digest,
    record_digest,
    run_digest,
    step_digest,
    task_digest,
    version_digest,
)
from agentrl_core.config.invocation import command_line
from agentrl_core.errors import StoreError
from agentrl_core.weights.manifest import model_digests, peek_manifest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agentrl_core.api.stores import EndedRecord, SealRow, StepRow, Store
    from agentrl_core.run.directory import RunDirectory

logger = logging.getLogger(__name__)

_RECORDS_PER_SEAL = 500
"""Most records in one seal, so that it stays below the 16 MB that a document of MongoDB may have: 800 calls each."""
_BEING_SAMPLED = ("reserved", "open")
"""States of a group that has not ended."""


class AuditTrail:
    """The chain of one run, as its only writer sees it. Every method blocks until its seals are stored.

    The process begins after optimizer step `step`, with policy version `version`, and with this config, as plain data,
    and these components (`BuiltComponents.used`). What an earlier process left unsealed is sealed first, as it is
    found. The files of the policy before training, whose folder may be relative to `base_dir`, are read on a thread and
    sealed with a later link.
    """

    def __init__(
        self,
        store: Store,
        directory: RunDirectory,
        *,
        config: Mapping[str, Any],
        used: Mapping[str, str],
        step: int,
        version: int,
        base_dir: Path = Path(),
        member_id: str = "",
    ) -> None:
        self._store, self._directory, self._run_id, self._member_id = store, directory, directory.name, member_id
        self.head = ""
        """Digest of the last seal."""
        self._place = directory.published
        self._number, self._step, self._version = 0, step, -1
        self._tasks: set[tuple[str, str]] = set()
        self._checkpoints: dict[str, str] = {}
        self._model: Future[dict[str, str]] | None = None
        asyncio.run(self._begin(config, used, base_dir, resumed=version > 0))

    def step(self, row: StepRow) -> None:
        """Seal an optimizer step, all that is new since the last seal, and the checkpoint that was written after it."""
        self._step = row.step
        checkpoints = self._unsealed_checkpoints(newest_only=True)
        asyncio.run(self._seal("step", [row], checkpoints=checkpoints, model=self._model_digests()))

    def end(self, status: str) -> str:
        """Seal what is left when this process has closed sampling and ends with this status; return the chain's head.

        If the run has failed, the store may be the cause. The first error counts then, and the chain stays without end.
        """
        try:
            asyncio.run(self._end(status))
        except StoreError as error:
            if status != "failed":
                raise
            logger.warning("the audit trail has no end: %s", error)
        return self.head

    async def _begin(
        self, config: Mapping[str, Any], used: Mapping[str, str], base_dir: Path, *, resumed: bool
    ) -> None:
        sealed_versions: set[int] = set()
        knows_model = False
        rows = await self._store.seals(self._run_id)
        for row in rows:
            if (seal := self._read(row)) is None:
                continue
            knows_model = knows_model or bool(seal.model)
            sealed_versions.update(version for _, version, *_ in seal.steps)
            self._tasks.update((name, task) for name, tasks in seal.tasks.items() for task in tasks)
            self._version = max(self._version, *map(int, seal.versions), -1)
            self._checkpoints.update(seal.checkpoints)
        if rows:
            self._number, self.head = rows[-1].number + 1, rows[-1].digest
        if not knows_model and (model := self._directory.first_model(config, base_dir)) is not None:
            reader = ThreadPoolExecutor(1, thread_name_prefix="model-digests")
            self._model = reader.submit(model_digests, model)
            reader.shutdown(wait=False)
        (run,) = [run for run in await self._store.runs() if run.id == self._run_id]
        resumed = resumed or bool(rows)
        await self._seal(
            "resume" if resumed else "start",
            [row for row in await self._store.steps(self._run_id) if row.version not in sealed_versions],
            late=resumed,
            checkpoints=self._unsealed_checkpoints(),
            run="" if rows else run_digest(run),
            config=config_digest(config),
            packages=_packages(used),
            voided_after=self._step if resumed else None,
        )

    def _read(self, row: SealRow) -> Seal | None:
        """Return a seal of an earlier process; None if it is damaged, which must not keep the run from going on."""
        try:
            return Seal.of(row)
        except ValueError as error:
            logger.warning(
                "%s: seal %s of run '%s' is damaged (%s); the chain goes on after it, and `%s` will name it",
                *(self._store.location, row.number, self._run_id, error),
                command_line("trace", "verify", self._directory.reference),
            )
            return None

    def _model_digests(self, *, wait: bool = False) -> dict[str, str]:
        """Return the digests of the policy's files once they are there; nothing before, and after that."""
        if self._model is None or not (wait or self._model.done()):
            return {}
        reading, self._model = self._model, None
        try:
            return reading.result()
        except OSError as error:
            logger.warning("the files of the policy before training are not sealed: %s", error)
            return {}

    async def _end(self, status: str) -> None:
        groups = await self._store.groups(self._run_id)
        sampled = [group.id for group in groups if group.state in _BEING_SAMPLED and group.member_id]
        checkpoints, model = self._unsealed_checkpoints(), self._model_digests(wait=True)
        await self._seal("end", late=True, checkpoints=checkpoints, open_groups=sampled, model=model, status=status)

    def _unsealed_checkpoints(self, *, newest_only: bool = False) -> dict[str, str]:
        """Return the manifests' digests of checkpoints that no seal names, and of a new one of the last step.

        Any other checkpoint that is not as it was sealed was changed by someone else.
        """
        newest = self._directory.checkpoints / f"step-{self._step}"
        paths = [newest] if newest_only else [path for _, path in self._directory.all_checkpoints()]
        found: dict[str, str] = {}
        for path in paths:
            with contextlib.suppress(ValueError):  # a damaged one stays unsealed, and `trace verify` names it
                manifest = peek_manifest(path)
                sealed = self._checkpoints.get(path.name)
                if manifest is not None and (sealed is None or (path == newest and sealed != manifest.digest)):
                    found[path.name] = manifest.digest
        self._checkpoints |= found
        return found

    def _published(self, versions: Iterable[int]) -> dict[str, str]:
        """Return the manifests' digests of weights that were published for other processes."""
        found: dict[str, str] = {}
        for version in versions:
            with contextlib.suppress(ValueError):
                if (manifest := peek_manifest(self._place / f"version-{version}")) is not None:
                    found[str(version)] = manifest.digest
        return found

    async def _seal(self, kind: SealKind, steps: Sequence[StepRow] = (), *, late: bool = False, **facts: Any) -> None:
        """Add a seal with these facts and the records that ended, after seals of more records than it may have.

        `late` looks for calls that were added to sealed records, too.
        """
        ended: list[EndedRecord] = []
        for late_calls in (False, True) if late else (False,):
            while True:
                if ended:
                    await self._add("records", ended)
                ended = await self._store.unsealed(self._run_id, limit=_RECORDS_PER_SEAL, late=late_calls)
                if len(ended) < _RECORDS_PER_SEAL:
                    break
        versions = await self._store.versions(self._run_id, after=self._version)
        await self._add(
            kind,
            ended,
            steps=[(row.step, row.version, step_digest(row), row.voided) for row in steps],
            versions={str(row.version): version_digest(row) for row in versions},
            weights=self._published(row.version for row in versions),
            **facts,
        )
        self._version = max([self._version, *(row.version for row in versions)])

    async def _add(self, kind: SealKind, ended: Sequence[EndedRecord], **facts: Any) -> None:
        tasks = await self._new_tasks(ended)
        seal = Seal(
            run_id=self._run_id,
            number=self._number,
            previous=self.head,
            kind=kind,
            sealed_at=time.time(),
            records={item.record.id: [record_digest(item.record, item.group), *item.calls] for item in ended},
            tool_calls={item.record.id: list(item.tool_calls) for item in ended if item.tool_calls},
            tasks=tasks,
            **facts,
        )
        row = seal.row()
        records = {item.record.id: item.num_calls for item in ended}
        await self._store.add_seal(row, records=records, member_id=self._member_id)
        self._number, self.head = seal.number + 1, row.digest
        self._tasks.update((name, task) for name, digests in tasks.items() for task in digests)

    async def _new_tasks(self, ended: Sequence[EndedRecord]) -> dict[str, dict[str, str]]:
        """Return the digests of the records' tasks that no seal names, by task set."""
        new: dict[str, set[str]] = {}
        for item in ended:
            if (key := (item.record.task_set, item.record.task_id)) not in self._tasks:
                new.setdefault(key[0], set()).add(key[1])
        found = {
            name: await self._store.tasks(self._run_id, task_set=name, ids=sorted(new[name])) for name in sorted(new)
        }
        return {name: {task.id: task_digest(task) for task in tasks} for name, tasks in found.items() if tasks}


def _packages(used: Mapping[str, str]) -> dict[str, str]:
    """Return the versions of Python, core, torch, transformers and the packages of the run's components."""
    named = {place.split(" ")[0].partition("==")[0] for place in used.values() if "==" in place}
    found = {"python": platform.python_version()}
    for name in sorted({*named, "agentrl-core", "torch", "transformers"}):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
