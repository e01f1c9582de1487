"""Signals during a run's work: raised where it waits, held back where it changes the weights."""

import asyncio
import signal
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load

from agentrl_core import Trainer
from agentrl_core.errors import Interrupted, Terminated
from agentrl_core.run import resume
from agentrl_core.run.checkpoints import Checkpoints
from agentrl_core.run.directory import RunDirectory
from agentrl_core.run.in_process import InProcessSampling
from agentrl_core.run.interruption import Interruption
from agentrl_core.run.progress import Progress
from agentrl_core.run.sampling import BatchCollector
from agentrl_core.stores.sqlite import SQLiteStore
from agentrl_core.training.learner import Learner
from agentrl_core.training.optimizer import Updater

ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def nothing_ignored():
    """Whatever started the tests (nohup does), no signal is ignored; afterwards all is as before."""
    before = {number: signal.getsignal(number) for number in ALL}
    for number in ALL:
        signal.signal(number, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", ALL)
def test_a_signal_ends_what_is_not_held(number):
    done = []

    def work(_):
        signal.raise_signal(number)
        done.append("more")

    with pytest.raises(BaseException) as stopped:
        Interruption().run(work)
    assert done == []
    if number == signal.SIGINT:
        assert isinstance(stopped.value, Interrupted)
    else:
        assert isinstance(stopped.value, Terminated)
        assert stopped.value.code == 128 + number
    assert [signal.getsignal(each) for each in ALL] == [signal.default_int_handler] * 3


class SignalledLock:
    """Lock whose taking is followed by a signal, before the statement after it."""

    def __init__(self, lock):
        self._lock = lock

    def acquire(self, *, timeout):
        taken = self._lock.acquire(timeout=timeout)
        signal.raise_signal(signal.SIGINT)
        return taken

    def release(self):
        self._lock.release()


def test_a_signal_between_taking_the_stores_lock_and_its_use_leaves_the_store_usable(tmp_path):
    store = SQLiteStore(path=tmp_path / "run.db")
    plain, store._lock = store._lock, SignalledLock(store._lock)
    done = []

    def work(_):
        asyncio.run(store.runs())
        done.append("more")

    with pytest.raises(Interrupted):
        Interruption().run(work)
    assert done == []
    assert not plain.locked()
    store._lock = plain
    assert asyncio.run(store.runs()) == []
    asyncio.run(store.close())


def test_a_step_that_has_begun_to_change_the_weights_is_finished_first():
    done = []

    def work(interruption):
        with interruption.whole_step():
            interruption.hold()
            signal.raise_signal(signal.SIGTERM)
            done.append("the rest of the step")
        done.append("the next step")

    with pytest.raises(Terminated):
        Interruption().run(work)
    assert done == ["the rest of the step"]


def test_the_second_signal_ends_a_step_that_is_held():
    done = []

    def work(interruption):
        with interruption.whole_step():
            interruption.hold()
            signal.raise_signal(signal.SIGINT)
            done.append("first")
            signal.raise_signal(signal.SIGINT)
            done.append("second")

    with pytest.raises(Interrupted):
        Interruption().run(work)
    assert done == ["first"]


@pytest.mark.parametrize("held", [True, False])
def test_a_step_that_was_ended_in_its_midst_is_known(held):
    interruption = Interruption()

    def work(interruption):
        with interruption.whole_step():
            if held:
                interruption.hold()
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted):
        interruption.run(work)
    assert interruption.broke_step is held


def test_what_goes_wrong_in_a_held_step_is_not_hidden_by_a_signal():
    def work(interruption):
        with interruption.whole_step():
            interruption.hold()
            signal.raise_signal(signal.SIGINT)
            raise ValueError("in the step")

    with pytest.raises(ValueError, match="in the step"):
        Interruption().run(work)


def test_an_ignored_signal_stays_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert Interruption().run(lambda _: signal.raise_signal(signal.SIGHUP) or "went on") == "went on"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_in_an_event_loop_the_run_on_its_own_thread_is_asked_to_stop(number):
    """As in a notebook: the signal comes to the main thread, which waits for the other."""
    main, tried = threading.main_thread().ident, threading.Event()

    def work(interruption):
        assert threading.get_ident() != main
        with interruption.whole_step():
            interruption.hold()
            signal.pthread_kill(main, number)
            for _ in range(2000):  # until the main thread has handled it
                if tried.wait(0.005) or interruption._pending:
                    break
            interruption.check()  # held: nothing
        pytest.fail("the end of the step should have raised")

    async def cell():
        Interruption().run(work)

    with pytest.raises(Interrupted if number == signal.SIGINT else Terminated):
        asyncio.run(cell())


# --- checkpoints ---


class Trained:
    """Stands for what is trained; `fails` at its saves."""

    def __init__(self):
        self.saved, self.fails = [], None

    def save(self, directory, *, step, version, writer):
        if self.fails is not None:
            raise self.fails
        self.saved.append((directory.name, step, version))


class Config:
    save_steps, save_minutes = 20, 10.0


@pytest.fixture
def checkpoints(tmp_path):
    directory = RunDirectory.create(tmp_path, "run")
    store, trained, now = SQLiteStore(path=directory.database), Trained(), [100.0]

    def make(step=0):
        return (
            trained,
            now,
            Checkpoints(trained, store, directory, Config, Progress(pytest.fail), step=step, clock=lambda: now[0]),
        )

    yield make
    asyncio.run(store.close())


def test_a_checkpoint_is_written_every_so_many_steps_and_every_so_many_minutes(checkpoints):
    trained, now, writes = checkpoints()
    for step in range(1, 42):
        now[0] += 90.0 if step < 22 else 1.0
        writes.after_step(step, version=step + 1)
    assert [step for _, step, _ in trained.saved] == [7, 14, 20, 40]  # 7 x 90 s are more than 10 minutes
    assert trained.saved[0] == ("step-7", 7, 8)


def test_the_same_step_is_not_saved_twice(checkpoints):
    trained, _, writes = checkpoints(step=3)
    writes.save(3, 3)
    assert writes.save_interrupted(3, 3, pytest.fail) == "after step 3, which is saved: no finished step is lost"
    assert trained.saved == []


def test_an_interrupted_run_says_what_it_has_saved(checkpoints):
    trained, _, writes = checkpoints()
    notices = []
    assert "nothing to save" in writes.save_interrupted(0, 0, notices.append)
    assert (trained.saved, notices) == ([], [])
    assert writes.save_interrupted(4, 4, notices.append) == "after step 4, which is saved: no finished step is lost"
    assert notices == ["interrupted: saving step 4; press Ctrl-C again to end without saving"]
    trained.fails = KeyboardInterrupt()
    said = writes.save_interrupted(6, 6, notices.append)
    assert said.startswith("after step 6, and again while that step was being saved: the newest checkpoint is ")


def test_weights_of_no_step_are_not_saved(checkpoints):
    trained, _, writes = checkpoints(step=3)
    said = writes.save_interrupted(4, 4, pytest.fail, broke_step=True)
    assert said.startswith("in the middle of a step, so the weights are half updated and were not saved: the newest ")
    assert said.endswith("that of step 3; a resumed run repeats the steps after it")
    assert trained.saved == []


def test_a_terminal_that_is_gone_does_not_keep_a_run_from_being_saved(checkpoints):
    trained, _, writes = checkpoints()

    def gone(_):
        raise OSError("no terminal")

    with pytest.raises(OSError, match="no terminal"):
        writes.save_interrupted(2, 2, gone)
    assert trained.saved == [("step-2", 2, 2)]


# --- whole runs ---


@pytest.fixture
def small(project):
    """Make a config with episodes one at a time, so that equal weights give equal episodes to the last bit."""

    def make(name):
        return project(
            name=name, rollout={"max_concurrent_rollouts": 1}, trainer={"steps": 4, "save_steps": 99, "updates": 2}
        )

    return make


def outcome(name):
    folder = Path("runs") / name
    store = SQLiteStore(path=folder / "agentrl.db")
    rows, records = asyncio.run(store.steps(name)), {item.id: item for item in asyncio.run(store.records(name))}
    asyncio.run(store.close())
    live = [row for row in rows if not row.voided]
    consumed = [[(records[key].task_id, records[key].reward) for key in row.records] for row in live]
    weights = (folder / "checkpoints" / f"step-{live[-1].step}" / "model.safetensors").read_bytes()
    return [row.step for row in live], len(rows) - len(live), consumed, weights


@pytest.mark.slow
def test_a_run_that_is_ended_within_a_step_saves_none_of_it_and_is_resumed_exactly(small, monkeypatch):
    Trainer(small("undisturbed")).train()
    expected = outcome("undisturbed")
    update, calls = Updater.update, []

    def signalled(*args, **options):
        calls.append(1)
        result = update(*args, **options)
        if len(calls) == 5:  # of two in each step: the weights of step 3 are half changed
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(Updater, "update", signalled)
        with pytest.raises(Interrupted, match="in the middle of a step") as stopped:
            Trainer(small("twice")).train()
    assert "there is no checkpoint; a resumed run repeats the steps after it" in str(stopped.value)
    assert list(RunDirectory.open(Path("runs/twice")).all_checkpoints()) == []
    resume(Path("runs/twice"))
    steps, voided, consumed, weights = outcome("twice")
    assert (steps, voided) == ([1, 2, 3, 4], 2)
    assert (consumed, weights) == expected[2:]


@pytest.mark.slow
def test_wherever_a_signal_comes_a_run_is_saved_and_resumed_as_if_it_had_gone_on(small, monkeypatch):
    Trainer(small("undisturbed")).train()
    expected = outcome("undisturbed")
    places = {
        "waiting": (BatchCollector, "collect", 3, 2),
        "before-the-updates": (Updater, "update", 5, 2),  # two of them a step
        "between-the-updates": (Updater, "update", 6, 3),
        "publishing": (Learner, "weights", 3, 3),
    }
    for name, (owner, method, call, saved) in places.items():
        original, calls = getattr(owner, method), []

        def signalled(*args, original=original, calls=calls, call=call, **options):
            calls.append(1)
            if len(calls) == call:
                signal.raise_signal(signal.SIGTERM)
            return original(*args, **options)

        with monkeypatch.context() as patch:
            patch.setattr(owner, method, signalled)
            with pytest.raises(Terminated) as stopped:
                Trainer(small(name)).train()
        assert f"interrupted after step {saved}, which is saved" in stopped.value.message
        assert f"agentrl runs resume {name}" in stopped.value.message
        assert RunDirectory.open(Path("runs") / name).all_checkpoints()[0][0] == saved
        with monkeypatch.context() as patch:
            patch.setattr(InProcessSampling, "__init__", lambda *_, **__: signal.raise_signal(signal.SIGTERM))
            with pytest.raises(Terminated) as stopped:
                resume(Path("runs") / name)
        assert f"interrupted before its next step: step {saved} is saved" in stopped.value.message
        resume(Path("runs") / name)
        found = outcome(name)
        assert found[0] == expected[0] == [1, 2, 3, 4]
        assert found[1:3] == (0, expected[2]), name  # no step was taken twice
        # An engine that starts again has no prefix in its cache, so log-probabilities differ in the last bit.
        torch.testing.assert_close(load(found[3]), load(expected[3]), rtol=1e-4, atol=1e-6)


def test_a_request_of_another_thread_ends_a_run_as_sigterm_does():
    def work(interruption):
        with interruption.whole_step():
            interruption.hold()
            thread = threading.Thread(target=interruption.ask)
            thread.start()
            thread.join()
            interruption.check()  # the step is not broken
        pytest.fail("the run went on")

    with pytest.raises(Terminated) as ended:
        Interruption().run(work)
    assert ended.value.code == 128 + signal.SIGTERM
