"""Findings behind `agentrl trace verify`: a run's store and folder compared with the seals of its audit chain.

Everything is read through `RunReader`, so the check is the same for every store. A finding is a fact that is not as it
was sealed; a note says what the chain does not cover, which is no sign of a change.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

import attrs

from agentrl_core.api.audit import (
    Seal,
    call_digest,
    config_digest,
    record_digest,
    run_digest,
    seal_digest,
    step_digest,
    task_digest,
    tool_call_digest,
    version_digest,
)
from agentrl_core.cli.sealed_facts import SealedFacts
from agentrl_core.errors import AgentRLError, StoreError, UnstorableError
from agentrl_core.types import Interaction, Outcome
from agentrl_core.weights.manifest import model_digests, read_manifest, unlisted_files
from agentrl_core.weights.witness import NOTHING, Fidelity, verify

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Iterator

    from agentrl_core.api.stores import GroupRow, RunReader, RunRow, SealRow, StepRow
    from agentrl_core.run.directory import RunDirectory
    from agentrl_core.types import Episode, Record, ToolCall

_T = TypeVar("_T")
_AT_ONCE = 16
"""Records that are read at once: each may have a hundred thousand tokens."""
_NAMED = 20
"""Most names in one note."""
Change: TypeAlias = Literal["changed", "removed", "added", "unreadable"]


@attrs.frozen(kw_only=True)
class Finding:
    """One fact that is not as it was sealed."""

    change: Change
    what: str
    """The fact, such as `record ab12…` or `step 3`."""
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.what}: {self.change}" + (f" ({self.detail})" if self.detail else "")


@attrs.define(kw_only=True)
class Verification:
    """Result of the check of one run."""

    run: str
    head: str = ""
    """Digest of the last seal; empty without seals."""
    num_seals: int = 0
    num_episodes: int = 0
    """Records of the run, sealed or not."""
    num_records: int = 0
    """Records that are exactly as they were sealed."""
    num_calls: int = 0
    """LLM calls that are exactly as they were sealed."""
    num_tool_calls: int = 0
    """Tool calls that are exactly as they were sealed."""
    findings: list[Finding] = attrs.field(factory=list)
    notes: list[str] = attrs.field(factory=list)
    fidelity: Fidelity = NOTHING
    """Comparison of the trained tokens with those that the engine sampled, over the records of live steps."""
    untrained: Fidelity = NOTHING
    """The same for the tokens of all other records, such as those of evaluations."""
    deviations: dict[str, Fidelity] = attrs.field(factory=dict)
    """Record id -> fidelity, for records with a token that the engine did not sample."""

    @property
    def intact(self) -> bool:
        """Whether nothing was changed."""
        return not self.findings and not self.deviations


class Verifier:
    """Check of one run: its chain first, then each kind of fact against what the chain names."""

    def __init__(self, store: RunReader, run: RunRow, directory: RunDirectory) -> None:
        self._store, self._run, self._directory = store, run, directory
        self._sealed = SealedFacts()
        self._trained: set[str] = set()
        self._undigested = 0
        self._complete = False
        """Whether every fact must be sealed: the chain is whole, and it ends with an orderly end."""
        self.result = Verification(run=run.id)

    def check(self, head: str = "") -> Verification:
        """Check everything; `head` is the digest of a seal that the user kept."""
        rows = self._read("the seals", self._store.seals(self._run.id))
        steps = self._read("the steps", self._store.steps(self._run.id))
        self._trained = {name for step in steps or () if not step.voided for name in step.records}
        whole = self._chain(rows or [], head)
        self._complete = whole and self._sealed.ended
        if rows:
            self._facts(steps)
        self._records(sealed=bool(rows))
        return self.result

    def _find(self, change: Change, what: str, detail: str = "") -> None:
        self.result.findings.append(Finding(change=change, what=what, detail=detail))

    def _read(self, what: str, reading: Coroutine[object, object, _T]) -> _T | None:
        """Return what the store has, None if it cannot be read."""
        try:
            return asyncio.run(reading)
        except StoreError as error:
            self._find("unreadable", what, str(error))
            return None

    def _chain(self, rows: Sequence[SealRow], head: str) -> bool:
        """Check the links, take the facts of the good ones, and return whether the chain is whole."""
        before = len(self.result.findings)
        expected, previous = 0, ""
        for place, row in enumerate(rows):
            for number in range(expected, row.number):
                self._find("removed", f"seal {number}")
            seal = self._link(row, rows[place + 1] if place + 1 < len(rows) else None)
            if seal is not None:
                if row.number == expected and seal.previous != previous:
                    self._find("changed", f"seal {row.number}", "it does not follow the one before")
                self._sealed.add(seal)
            expected, previous = row.number + 1, row.digest
        self._head([row.digest for row in rows], head)
        marked = self._read("the number of sealed records", self._store.num_sealed(self._run.id)) or 0
        if rows and not self._sealed.ended and marked > len(self._sealed.records):
            detail = f"the store has marked {marked} records as sealed, the seals name {len(self._sealed.records)}"
            self._find("removed", "the last seals", detail)
        else:
            self._end(rows)
        return len(self.result.findings) == before

    def _head(self, heads: Sequence[str], kept: str) -> None:
        """Look for the digest that the user kept."""
        self.result.num_seals, self.result.head = len(heads), heads[-1] if heads else ""
        if kept and kept not in heads:
            self._find("changed", "the chain", f"no seal has the digest {kept}")
        elif kept and (later := len(heads) - 1 - heads.index(kept)):
            self.result.notes.append(f"{later} seals were added after the one with the digest {kept}")

    def _end(self, rows: Sequence[SealRow]) -> None:
        """Check that the chain has the end that the run's status promises."""
        if not rows:
            if self._run.status != "running" and self._read("the first record", self._began_with_seals()):
                self._find("removed", "all seals")
            else:
                self.result.notes.append("there are no seals: nothing shows whether the run was changed later")
        elif self._run.status in ("finished", "interrupted") and not self._sealed.ended:
            self._find("removed", "the last seals", f"the run is {self._run.status}, but its chain has no end")
        elif not self._sealed.ended:
            self.result.notes.append("the chain has no end: the run goes on, or was killed; later facts are not sealed")

    async def _began_with_seals(self) -> bool:
        """Return whether a call has a digest: then the version that wrote it has sealed its run, too."""
        for record in await self._store.records(self._run.id, limit=1):
            episode = await self._store.episode(record.id)
            return episode is not None and any(item.digest for item in episode.interactions)
        return False

    def _link(self, row: SealRow, following: SealRow | None) -> Seal | None:
        """Return a link whose text is what was sealed, None for any other."""
        what = f"seal {row.number}"
        try:
            seal = Seal.of(row)
        except ValueError as error:
            self._find("changed", what, str(error))
            return None
        digest = seal_digest(row.body)
        if row.digest != digest:
            # The next link says which of the two is the old one.
            confirmed = following is not None and f'"previous":"{digest}"' in following.body
            self._find("changed", what, "its stored digest" if confirmed else "its text or its digest")
            return seal if confirmed else None
        if (seal.number, seal.run_id) != (row.number, self._run.id):
            self._find("changed", what, f"it was written as seal {seal.number} of run {seal.run_id}")
            return None
        return seal

    def _facts(self, steps: Sequence[StepRow] | None) -> None:
        if self._sealed.run and run_digest(self._run) != self._sealed.run:
            self._find("changed", f"run {self._run.id}", "its config, components or time of creation")
        if self._sealed.status and self._run.status not in (self._sealed.status, "running"):
            detail = f"its status: sealed {self._sealed.status}, now {self._run.status}"
            self._find("changed", f"run {self._run.id}", detail)
        elif self._sealed.status == "finished" and self._run.error:
            self._find("changed", f"run {self._run.id}", "it has an error, but its end is sealed as finished")
        self._snapshot()
        self._model()
        self._tasks()
        if steps is not None:
            self._steps(steps)
        if (found := self._read("the versions", self._store.versions(self._run.id))) is not None:
            now = {row.version: version_digest(row) for row in found}
            self._compare("version", now, self._sealed.versions)
            for row in found:
                voided = row.step > self._sealed.resumed_after.get(row.version, row.step)
                if row.version in self._sealed.versions and row.voided != voided:
                    detail = f"its mark as voided: sealed {voided}, now {row.voided}"
                    self._find("changed", f"version {row.version}", detail)
        self._folders()

    def _snapshot(self) -> None:
        """Compare the config in the run's folder, from which a resumed run starts."""
        if self._sealed.config and self._directory.snapshot.is_file():
            try:
                kept, _ = self._directory.read_snapshot()
            except AgentRLError as error:
                self._find("unreadable", self._directory.snapshot.name, str(error))
                return
            if config_digest(kept) != self._sealed.config:
                self._find("changed", self._directory.snapshot.name, "it is not the config of the run's last start")

    def _model(self) -> None:
        """Compare the files of the policy before training, in the run's folder or where the config has it."""
        if not self._sealed.model:
            return
        folder = self._directory.first_model({}, Path())
        if folder is None:
            with contextlib.suppress(AgentRLError):  # named by `_snapshot`
                folder = self._directory.first_model(*self._directory.read_snapshot())
        if folder is None:
            self.result.notes.append("the policy before training was not compared: its folder is not here")
            return
        try:
            now = model_digests(folder)
        except OSError as error:
            self._find("unreadable", f"the policy before training, {folder}", str(error))
            return
        self._compare("file of the policy before training,", now, self._sealed.model)

    def _compare(self, kind: str, now: Mapping[_T, str], sealed: Mapping[_T, str]) -> None:
        """Compare digests by name, and find what was changed, removed or added."""
        for name, digest in sealed.items():
            if name not in now:
                self._find("removed", f"{kind} {name}")
            elif now[name] != digest:
                self._find("changed", f"{kind} {name}")
        self._unsealed(kind, [str(name) for name in now if name not in sealed])

    def _unsealed(self, kind: str, names: Sequence[str]) -> None:
        """Name what no seal names: it was added later if the chain is complete."""
        if self._complete:
            for name in names:
                self._find("added", f"{kind} {name}")
        elif names:
            self.result.notes.append(f"not sealed: {kind} {_listed(names)}")

    def _tasks(self) -> None:
        for task_set in sorted({name for name, _ in self._sealed.tasks}):
            sealed = {task: digest for (name, task), digest in self._sealed.tasks.items() if name == task_set}
            reading = self._store.tasks(self._run.id, task_set=task_set, ids=sorted(sealed))
            if (found := self._read(f"the tasks of set {task_set}", reading)) is not None:
                self._compare(f"task of set {task_set}", {task.id: task_digest(task) for task in found}, sealed)

    def _steps(self, rows: Sequence[StepRow]) -> None:
        now = {(row.step, row.version): row for row in rows}
        for (step, version), (digest, voided) in self._sealed.steps.items():
            row, what = now.get((step, version)), f"step {step} (version {version})"
            if row is None:
                self._find("removed", what)
            elif step_digest(row) != digest:
                self._find("changed", what, "its version, groups, records or metrics")
            elif row.voided != voided:
                self._find("changed", what, f"its mark as voided: sealed {voided}, now {row.voided}")
        self._unsealed(
            "step", [f"{step} (version {version})" for step, version in now.keys() - self._sealed.steps.keys()]
        )
        if [key for key in now if key in self._sealed.steps] != [key for key in self._sealed.steps if key in now]:
            self._find("changed", "the steps", "their order")
        if len(now) < len(rows):
            self._find("added", "a step", "two rows have the same number and version")

    def _folders(self) -> None:
        """Verify the files of checkpoints and published weights that still exist; old ones are removed by the run."""
        kept = {path.name: path for _, path in self._directory.all_checkpoints()}
        newest = self._sealed.newest_checkpoint
        if newest and newest not in kept and not [*self._directory.checkpoints.glob(f"aside-*-{newest}")]:
            self._find("removed", f"checkpoint {newest}", "the newest one, which a run never removes")
        self._manifests("checkpoint", kept, self._sealed.checkpoints)
        place = self._directory.published
        published = {version: place / f"version-{version}" for version in self._sealed.weights}
        self._manifests("weights of version", published, self._sealed.weights)

    def _manifests(self, kind: str, folders: Mapping[str, Path], sealed: Mapping[str, str]) -> None:
        for name, path in folders.items():
            if name not in sealed:
                self._unsealed(kind, [name])
                continue
            if not path.is_dir():
                continue
            try:
                manifest = read_manifest(path)
            except (ValueError, OSError) as error:
                self._find("changed", f"{kind} {name}", str(error))
                continue
            if manifest is None:
                self._find("removed", f"manifest of {kind} {name}")
            elif manifest.digest != sealed[name]:
                self._find("changed", f"{kind} {name}", f"sealed {sealed[name]}, now {manifest.digest}")
            else:
                for file in unlisted_files(path):
                    self._find("added", f"file {file} of {kind} {name}", "a loader may prefer it")

    def _records(self, *, sealed: bool) -> None:
        """Compare each record with its seal, and its tokens with those that the engine sampled."""
        listed = self._read("the list of records", self._store.records(self._run.id))
        found = self._read("the groups", self._store.groups(self._run.id)) if sealed else None
        groups = {row.id: row for row in found or ()}
        unsealed: list[Record] = []
        names = dict.fromkeys([*(record.id for record in listed or ()), *self._sealed.records])
        for name, episode in self._episodes(list(names)):
            if episode is None:
                continue
            self.result.num_episodes += 1
            fidelity = verify(episode)
            if name in self._trained:
                self.result.fidelity += fidelity
            else:
                self.result.untrained += fidelity
            if fidelity.deviation:
                self.result.deviations[name] = fidelity
            if name in self._sealed.records:
                self._record(episode, groups.get(episode.record.group_id), self._sealed.records[name])
            elif sealed:
                unsealed.append(episode.record)
        self._unsealed_records(unsealed)
        if self._undigested:
            self.result.notes.append(f"{self._undigested} calls were stored without a digest, by an earlier version")

    def _episodes(self, names: Sequence[str]) -> Iterator[tuple[str, Episode | None]]:
        """Yield each record; None, with a finding, for one that cannot be read or is not there."""
        for start in range(0, len(names), _AT_ONCE):
            some = names[start : start + _AT_ONCE]
            try:
                found = {item.record.id: item for item in asyncio.run(self._store.episodes(some))}
            except StoreError:  # one by one, to find those that cannot be read
                yield from ((name, self._episode(name)) for name in some)
                continue
            for name in some:
                if name not in found:
                    self._find("removed", f"record {name}")
                yield name, found.get(name)

    def _episode(self, name: str) -> Episode | None:
        try:
            found = asyncio.run(self._store.episodes([name]))
        except StoreError as error:
            self._find("unreadable", f"record {name}", str(error))
            return None
        if not found:
            self._find("removed", f"record {name}")
        return found[0] if found else None

    def _unsealed_records(self, records: Iterable[Record]) -> None:
        running: list[str] = []
        ended: list[str] = []
        for record in records:
            going_on = record.outcome is Outcome.RUNNING or record.group_id in self._sealed.open_groups
            (running if going_on else ended).append(record.id)
        if running:
            self.result.notes.append(f"not sealed, because it had not ended: record {_listed(running)}")
        self._unsealed("record", ended)

    def _record(self, episode: Episode, group: GroupRow | None, sealed: Sequence[str]) -> None:
        """Compare one record and its calls."""
        before, name = len(self.result.findings), f"record {episode.record.id}"
        own, *calls = sealed
        if group is None:
            self._find("removed", f"group {episode.record.group_id} of {name}")
        elif record_digest(episode.record, group) != own:
            self._find("changed", name, "its outcome, reward or other fields, or its group's place in the run")
        tool_calls = list(self._sealed.tool_calls[episode.record.id])
        self._calls("call", episode, episode.interactions, calls)
        self._calls("tool call", episode, episode.tool_calls, tool_calls)
        self._undigested += calls.count("") + tool_calls.count("")
        if len(self.result.findings) == before:
            self.result.num_records += 1
            self.result.num_calls += len(calls) - calls.count("")
            self.result.num_tool_calls += len(tool_calls) - tool_calls.count("")

    def _calls(
        self, kind: str, episode: Episode, calls: Sequence[Interaction | ToolCall], sealed: Sequence[str]
    ) -> None:
        """Compare calls of a record with their sealed digests, which have a call's place in the record in them."""
        what = {item.seq: f"{kind} [{item.seq}] {item.id} of record {episode.record.id}" for item in calls}
        now = {item.seq: _digest_now(item) for item in calls}
        gone = {number for number, digest in enumerate(sealed) if digest and digest not in now.values()}
        for item in calls:
            digest = now[item.seq]
            if digest in sealed:
                if item.digest != digest:
                    self._find("changed", what[item.seq], "its stored digest")
            elif item.seq in gone:
                gone.remove(item.seq)
                self._find("changed", what[item.seq], _FIELDS[kind])
            elif item.seq >= len(sealed) or sealed[item.seq]:
                self._late(what[item.seq], episode.record)
        for number in sorted(gone):
            self._find("removed", f"{kind} [{number}] of record {episode.record.id}")

    def _late(self, call: str, record: Record) -> None:
        """Name a call that the seal of its record lacks: a call may be under way when its record is cancelled."""
        if self._complete and record.group_id not in self._sealed.open_groups:
            self._find("added", call)
        else:
            self.result.notes.append(f"not sealed: {call}")


_FIELDS = {
    "call": "its tokens, logprobs, messages or other fields",
    "tool call": "its name, arguments, contents or other fields",
}


def _digest_now(item: Interaction | ToolCall) -> str:
    try:
        return call_digest(item) if isinstance(item, Interaction) else tool_call_digest(item)
    except UnstorableError:  # a value that the store cannot have been given
        return ""


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
