"""Which checkpoint a run goes on from, when its store is older or newer than it."""

import asyncio
import contextlib
import functools
import json
import re
import shutil
from collections import Counter
from types import SimpleNamespace

import attrs
import pytest
from safetensors import SafetensorError

from agentrl_core.api.claims import Admission
from agentrl_core.api.members import Member
from agentrl_core.api.stores import RunRow, StepRow
from agentrl_core.config.training_sections import ModelConfig
from agentrl_core.errors import RunError, UsageError
from agentrl_core.run.directory import RunDirectory
from agentrl_core.run.shared_start import check_unfinished, model_directory, newest_checkpoint
from agentrl_core.stores.sqlite import SQLiteStore
from agentrl_core.types import Outcome, Record
from agentrl_core.weights.manifest import write_manifest

STEPS, SAVED, GROUPS = 4, (2, 4), 1
WAL_HEADER, FRAME = 32, 24 + 4096
"""Bytes before the first frame of a write-ahead log, and of each frame."""


async def train(store, name, steps, *, first=1, version=0):
    """Write what steps leave in a store: groups with a record each, the step, its version."""
    member = Member(run_id=name, role="sample")
    await store.join(member)
    for step in range(first, first + steps):
        await store.admit(name, step - 1)
        claims = await store.claim_groups(
            name,
            member.id,
            GROUPS,
            admission=Admission(max_head_offpolicyness=0, tasks_per_step=GROUPS),
            size=1,
            version=version,
            task_at=lambda _: "t",
        )
        for claim in claims:
            record = Record(id=f"{claim.group_id}-r", run_id=name, task_id="t", group_id=claim.group_id, sample_index=0)
            await store.add_record(record)
            await store.finish_record(attrs.evolve(record, outcome=Outcome.SCORED, reward=1.0))
            await store.finish_group(claim, usable=True)
        groups = [group.id for group in await store.take_groups(name, GROUPS)]
        version += 1
        await store.add_version(name, version, step=step)
        await store.add_step(
            StepRow(
                run_id=name, step=step, version=version, groups=groups, records=[f"{g}-r" for g in groups], metrics={}
            )
        )


def save(directory, step, version):
    """Write what `newest_checkpoint` reads of a checkpoint."""
    folder = directory.checkpoints / f"step-{step}"
    folder.mkdir()
    (folder / "trainer_state.json").write_text(json.dumps({"step": step, "version": version, "manifest": "…"}))
    write_manifest(folder, step=step, version=version)


@pytest.fixture
def directory(tmp_path):
    return RunDirectory.create(tmp_path, "run")


@contextlib.contextmanager
def opened(directory):
    store = SQLiteStore(path=directory.database)
    try:
        yield store
    finally:
        asyncio.run(store.close())


def begin(store):
    asyncio.run(store.create_run(RunRow(id="run", created_at=0.0, status="running", config={}, components={})))
    asyncio.run(store.add_version("run", 0, step=0))


def live(store):
    return {row.step: row for row in asyncio.run(store.steps("run")) if not row.voided}


@pytest.fixture
def after_a_power_cut(directory, tmp_path):
    """Give a folder in which the store has lost all frames of its log from one on; None where the log is at its end."""
    with opened(directory) as store:
        begin(store)
        asyncio.run(train(store, "run", STEPS))
        for step in SAVED:
            save(directory, step, step)
        log = directory.database.with_name("agentrl.db-wal").read_bytes()
        frames = (len(log) - WAL_HEADER) // FRAME

        def cut(frame):
            copy = RunDirectory.create(tmp_path / str(frame), "run")
            shutil.copy(directory.database, copy.database)
            copy.database.with_name("agentrl.db-wal").write_bytes(log[: WAL_HEADER + frame * FRAME])
            for _, path in directory.all_checkpoints():
                shutil.copytree(path, copy.checkpoints / path.name)
            return copy

        yield frames, cut


def test_wherever_a_store_s_log_is_cut_a_run_goes_on_where_both_are_or_not_at_all(after_a_power_cut):
    frames, cut = after_a_power_cut
    found = Counter()
    for frame in range(frames + 1):
        damaged, notices = cut(frame), []
        with opened(damaged) as store:
            known = len(live(store))
            step = max((saved for saved in SAVED if saved <= known), default=0)
            found[step] += 1
            gap = f"it has the steps up to {known}, the checkpoint is of step {STEPS}"
            if not step:
                refusal = gap if asyncio.run(store.runs()) else "does not contain the run 'run'"
                with pytest.raises(UsageError, match=refusal):
                    newest_checkpoint(store, damaged, notices.append)
                assert [saved for saved, _ in damaged.all_checkpoints()] == sorted(SAVED, reverse=True)
                continue
            assert newest_checkpoint(store, damaged, notices.append) == (step, damaged.checkpoints / f"step-{step}")
            assert [gap in text for text in notices] == ([] if step == STEPS else [True])
            assert [saved for saved, _ in damaged.all_checkpoints()] == [n for n in reversed(SAVED) if n <= step]
            assert len(list(damaged.checkpoints.iterdir())) == len(SAVED)  # nothing is removed
            asyncio.run(store.void_after("run", step))
            point = asyncio.run(store.resume_point("run", step))
            assert point.next_index == GROUPS * step
    assert min(found[step] for step in (0, *SAVED)) >= 1
    assert found.total() > 40


def test_a_store_that_is_ahead_of_its_checkpoint_is_the_usual_case(directory):
    with opened(directory) as store:
        begin(store)
        asyncio.run(train(store, "run", STEPS))
        save(directory, 2, 2)
        assert newest_checkpoint(store, directory, pytest.fail) == (2, directory.checkpoints / "step-2")


def test_a_checkpoint_of_a_step_that_was_taken_once_more_is_put_aside(directory):
    """Its number is that of a step that the store knows, but its weights are those of other groups."""
    with opened(directory) as store:
        begin(store)
        asyncio.run(train(store, "run", 3))
        for step in (2, 3):
            save(directory, step, step)
        asyncio.run(store.void_after("run", 2))
        asyncio.run(store.add_version("run", 4, step=2))
        asyncio.run(train(store, "run", 1, first=3, version=4))
        notices = []
        assert newest_checkpoint(store, directory, notices.append) == (2, directory.checkpoints / "step-2")
        assert ["its step 3 has policy version 5, the checkpoint's has 3" in text for text in notices] == [True]
        assert "aside-1-step-3" in notices[0]


def test_the_checkpoint_of_a_warm_start_needs_no_step(directory):
    with opened(directory) as store:
        begin(store)
        save(directory, 0, 0)
        assert newest_checkpoint(store, directory, pytest.fail) == (0, directory.checkpoints / "step-0")


def test_without_a_checkpoint_all_steps_are_taken(directory):
    with opened(directory) as store:
        begin(store)
        assert newest_checkpoint(store, directory, pytest.fail) is None


def test_a_checkpoint_that_is_damaged_is_not_passed_over(directory):
    with opened(directory) as store:
        begin(store)
        asyncio.run(train(store, "run", 4))
        for step in (2, 4):
            save(directory, step, step)
        (directory.checkpoints / "step-4" / "trainer_state.json").write_text('{"step": 4, "version": 2}')
        with pytest.raises(RunError, match=r"step-4.*remove that folder to go on from the one before"):
            newest_checkpoint(store, directory, pytest.fail)
        assert len(directory.all_checkpoints()) == 2


def test_only_a_finished_run_with_all_its_steps_needs_more(directory):
    with opened(directory) as store:
        begin(store)
        check_unfinished(store, directory, 6, steps=6)  # killed in its last evaluation
        asyncio.run(store.update_run("run", status="finished"))
        check_unfinished(store, directory, 5, steps=6)
        with pytest.raises(UsageError, match=r"6 of 6 steps; .*trainer\.steps=12"):
            check_unfinished(store, directory, 6, steps=6)


@pytest.fixture
def build(directory):
    """Have a builder make the policy; `fails` is raised when half of it is there."""

    def build(fails=None):
        def fill(*, directory, **_):
            directory.mkdir()
            (directory / "config.json").write_text("{}")
            if fails is not None:
                raise fails
            (directory / "model.safetensors").write_bytes(b"weights")

        parts = SimpleNamespace(
            config=SimpleNamespace(model=ModelConfig(use="mine"), seed=0),
            where=str,
            build=lambda *_, **given: functools.partial(fill, **given),
        )
        return model_directory(parts, directory, list)

    return build


@pytest.mark.parametrize(
    "failure",
    [SafetensorError("I/O error: File too large (os error 27)"), OSError(27, "File too large"), SystemExit(3)],
)
def test_a_policy_that_could_not_be_built_leaves_nothing_and_is_built_by_the_next(build, directory, failure):
    expected = RunError if isinstance(failure, Exception) else SystemExit
    with pytest.raises(expected) as raised:
        build(fails=failure)
    if expected is RunError:
        assert re.search(r"cannot build the policy in .*/model: .*File too large.*; free disk space", str(raised.value))
    assert not [path for path in directory.path.iterdir() if "model" in path.name]
    assert sorted(path.name for path in build().iterdir()) == ["config.json", "model.safetensors"]
    assert build(fails=AssertionError("it is there already")) == directory.model
