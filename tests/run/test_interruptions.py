"""Killed, interrupted, out of disk: what is stored stays, and a resumed run goes on exactly."""

import asyncio
import json
import os
import re
import resource
import signal
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import yaml
from safetensors.torch import load_file

from agentrl_core.cli import main
from agentrl_core.stores.sqlite import SQLiteStore

pytestmark = pytest.mark.slow
STEPS = 9


@pytest.fixture
def config_file(project):
    """Episodes run one at a time, so that equal weights give equal episodes to the last bit."""
    config = project(
        rollout={"max_concurrent_rollouts": 1},
        trainer={"steps": STEPS, "save_steps": 3, "keep_last": 9},
        trackers=["console", "jsonl"],
    )
    path = Path("config.yaml").resolve()
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


@pytest.fixture
def agentrl(warm):
    """The command line in a process of its own; no file of it grows beyond `file_bytes`."""

    @contextmanager
    def run(*arguments, file_bytes=None):
        with warm.program(*arguments, COLUMNS="200") as program:
            if file_bytes is not None:
                resource.prlimit(program.pid, resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
            yield program

    return run


@pytest.fixture
def finished(agentrl):
    """Run the command line to its end: exit code and output."""

    def run(*arguments, **options):
        with agentrl(*arguments, **options) as process:
            output, _ = process.communicate()
            return process.returncode, output

    return run


def read_until_step(process, step):
    """Follow the rows on the terminal until the row of `step`."""
    seen = []
    for line in process.stdout:
        seen.append(line)
        if line.split()[:2] == [str(step), str(step)]:
            return
    pytest.fail("the run ended first:\n" + "".join(seen))


def stored(name):
    store = SQLiteStore(path=Path("runs") / name / "agentrl.db")

    async def read():
        steps, records = await store.steps(name), await store.records(name)
        interactions = {item.id for record in records for item in (await store.episode(record.id)).interactions}
        await store.close()
        return steps, records, interactions

    return asyncio.run(read())


def final_weights(name):
    return load_file(Path("runs") / name / "checkpoints" / f"step-{STEPS}" / "model.safetensors")


def test_a_killed_run_resumes_to_the_same_weights_and_loses_nothing(config_file, agentrl, finished, capsys):
    code, output = finished("run", config_file, "--name", "undisturbed")
    assert code == 0, output
    with agentrl("run", config_file, "--name", "killed") as process:
        read_until_step(process, 5)
        process.send_signal(signal.SIGKILL)
        process.wait()
    steps_before, records_before, interactions_before = stored("killed")
    assert [row.step for row in steps_before][:5] == [1, 2, 3, 4, 5]
    assert main(["runs", "list"]) == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["undisturbed", "finished"],
        ["killed", "killed"],
    ]

    code, output = finished("runs", "resume", "killed")
    assert code == 0, output
    steps, records, interactions = stored("killed")
    assert interactions >= interactions_before
    assert {record.id for record in records} >= {record.id for record in records_before}
    restored = 3  # the newest checkpoint before step 5
    assert [row.step for row in steps if row.voided] == [row.step for row in steps_before if row.step > restored]
    assert [row.step for row in steps if not row.voided] == list(range(1, STEPS + 1))
    versions = [row.version for row in steps]
    assert versions == sorted(set(versions))

    by_id = {record.id: record for record in records}
    undisturbed_steps, undisturbed_records, _ = stored("undisturbed")
    expected = {record.id: record for record in undisturbed_records}

    def consumed(rows, table):
        return [[(table[key].task_id, table[key].reward) for key in row.records] for row in rows if not row.voided]

    assert consumed(steps, by_id) == consumed(undisturbed_steps, expected)
    for name, tensor in final_weights("undisturbed").items():
        assert (tensor == final_weights("killed")[name]).all(), name


@pytest.mark.parametrize("ask", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_kill_save_what_was_trained_and_say_so_in_one_clear_line(config_file, agentrl, finished, ask):
    if signal.getsignal(ask) is signal.SIG_IGN:
        pytest.skip("what started the tests ignores this signal (nohup does), and so do their processes")
    with agentrl("run", config_file, "--name", "stopped", "trainer.steps=99", "trainer.save_steps=99") as process:
        read_until_step(process, 4)
        process.send_signal(ask)
        output = process.communicate()[0]
    assert process.returncode == 128 + ask
    assert "Traceback" not in output
    (saved,) = re.findall(
        r"^interrupted after step (\d+), which is saved: no finished step is lost\. To resume: .*runs resume stopped$",
        output,
        flags=re.MULTILINE,
    )
    assert [path.name for path in Path("runs/stopped/checkpoints").iterdir()] == [f"step-{saved}"]
    assert "interrupted" in finished("runs", "list")[1]
    code, output = finished("runs", "resume", "stopped", f"trainer.steps={int(saved) + 1}")
    assert code == 0, output
    assert f"resumed after step {saved}" in output
    assert [(row.step, row.voided) for row in stored("stopped")[0]] == [(n + 1, False) for n in range(int(saved) + 1)]


def test_a_full_disk_stops_the_run_with_a_clear_line_and_loses_nothing(config_file, finished):
    arguments = (
        "run",
        config_file,
        "--name",
        "full",
        "trainer.steps=400",
        "trainer.save_steps=400",
        "trackers=[jsonl]",
    )
    code, output = finished(*arguments, file_bytes=1200 * 512)  # the store outgrows it, a checkpoint does not
    assert code == 1
    assert "Traceback" not in output
    assert re.search("error: .*space", output), output
    steps, _, interactions = stored("full")
    assert len(steps) > 0
    assert len(interactions) >= 8 * len(steps)


def test_an_existing_name_is_refused_with_the_way_to_go_on(config_file, finished):
    code, output = finished("run", config_file, "--name", "twice", "trainer.steps=1")
    assert code == 0, output
    before = json.dumps(sorted(str(path) for path in Path("runs/twice").rglob("*")))
    code, output = finished("run", config_file, "--name", "twice")
    assert code == 2
    assert "agentrl runs resume twice" in output
    assert json.dumps(sorted(str(path) for path in Path("runs/twice").rglob("*"))) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_of_an_agent_outlives_its_run(config_file, agentrl, number):
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("what started the tests ignores this signal (nohup does), and so do their processes")
    apart = ["rollout.agent.mode=subproc", "rollout.agent.subproc_max_workers=2", "rollout.max_concurrent_rollouts=2"]
    with agentrl("run", config_file, "--name", "apart", *apart) as process:
        read_until_step(process, 1)
        below = psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, number)
        output = process.communicate()[0]
    assert len(below) == 4  # two workers, each with its guard
    assert psutil.wait_procs(below, timeout=10)[1] == []
    assert "Traceback" not in output
    assert ("agentrl runs resume apart" in output) == (number == signal.SIGINT), output
