"""What a user sees of each fault of an agent or a scorer: the record's outcome, in one process and in workers."""

import asyncio
import os
import re
import time
from pathlib import Path

import attrs
import pytest

from agentrl_core.config.sampling_sections import AgentConfig, RolloutConfig
from agentrl_core.plugins.manager import load_registry
from agentrl_core.rollout.outcome_counts import label
from agentrl_core.rollout.subproc.resolving import resolve_in_workers
from agentrl_core.rollout.workflows import resolve_workflow
from agentrl_core.types import Task
from agentrl_testing.workflows import Rehearsal

TITLE = "faults of agents and scorers: what the user sees"
INLINE, SUBPROC = "inline", "subproc"
BOTH = (INLINE, SUBPROC)


@attrs.frozen
class Fault:
    """One thing that goes wrong."""

    what: str
    agent: str
    outcome: str
    detail: str
    """A pattern of the record's line for a person."""
    modes: tuple = BOTH
    timeout_s: float = 60.0
    memory_mb: int | None = None
    scorer: object = None


async def hangs(request):
    await asyncio.Event().wait()


def raises(request):
    raise ZeroDivisionError("division by zero")


FAULTS = [
    Fault("nothing", "Sound", "scored", ""),
    Fault("agent raises", "Raises", "failed(ValueError)", r"no such tool: 'seach' \(.*agents\.py:\d+\)"),
    Fault("agent hangs", "Hangs", "timed_out", r"no reward within rollout\.timeout_s = 2 s", timeout_s=2.0),
    Fault("agent blocks", "Blocks", "timed_out", r"no reward within rollout\.timeout_s", (SUBPROC,), timeout_s=2.0),
    Fault("agent calls sys.exit", "SysExits", "failed(SystemExit)", "the agent gave up"),
    Fault(
        "agent ends its interpreter", "Dies", "failed(AgentProcessDied)", "exit code 3.*about to die", modes=(SUBPROC,)
    ),
    Fault("agent forks", "Forks", "scored", "", modes=(SUBPROC,)),
    Fault("agent leaks memory", "Leaks", "failed(AgentProcessDied)", "memory", modes=(SUBPROC,), memory_mb=400),
    Fault("agent returns NaN", "NotANumber", "rejected(not_finite)", "expected a finite number, found nan"),
    Fault("agent rewards an unknown id", "UnknownId", "rejected(unknown_interaction)", "not an interaction of"),
    Fault("agent returns a huge dict", "HugeDict", "rejected(unknown_interaction)", "not an interaction of"),
    Fault("agent makes no call", "NoCall", "rejected(no_llm_call)", "must use the injected `base_url`"),
    Fault("agent calls after the end", "CallsAfterTheEnd", "scored", ""),
    Fault("scorer raises", "Unscored", "rejected(no_score)", "ZeroDivisionError: division by zero", scorer=raises),
    Fault("scorer hangs", "Unscored", "rejected(no_score)", "gave no score within", timeout_s=2.0, scorer=hangs),
    Fault("scorer returns None", "Unscored", "rejected(no_score)", "gave no score", scorer=lambda request: None),
    Fault("scorer returns a text", "Unscored", "rejected(no_score)", "expected a number", scorer=lambda request: "1"),
]


@pytest.fixture
def rehearsal(tmp_path):
    rehearsal = Rehearsal(tmp_path / "rehearsal", lambda prompt: "4")
    yield rehearsal
    rehearsal.close()


@pytest.fixture
def resolve():
    """Resolve an agent of the file for a mode."""

    def resolving(agent, mode, **options):
        use = f"{Path(__file__).parent / 'agents.py'}:{agent}"
        registry, here = load_registry(), Path.cwd()
        if mode == INLINE:
            return resolve_workflow(use, registry=registry, base_dir=here)
        config = RolloutConfig(agent=AgentConfig(mode=mode, subproc_max_workers=1, **options))
        return resolve_in_workers(use, registry=registry, base_dir=here, rollout=config)

    return resolving


@pytest.mark.parametrize("mode", BOTH)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.what)
def test_a_fault_is_one_record_s_outcome_and_the_next_episode_is_sound(
    fault, mode, rehearsal, resolve, tmp_path, tell_row
):
    if mode not in fault.modes:
        tell_row(TITLE, fault.what, mode, "-", "it takes the run's own process along: rollout.agent.mode: subproc")
        pytest.skip("it takes the run's own process along")
    options = {"subproc_max_memory_mb": fault.memory_mb} if mode == SUBPROC else {}
    workflow = resolve(fault.agent, mode, **options)
    notes = {name: str(tmp_path / name) for name in ("pid_file", "gate", "told")}
    data = {"id": "t", "query": "2 + 2?", **notes}
    scoring = {} if fault.scorer is None else {"scorer": fault.scorer}
    (episode,) = rehearsal.play(workflow, [Task(id="t", data=data)], timeout_s=fault.timeout_s, **scoring)
    record = episode.record
    tell_row(TITLE, fault.what, mode, label(record), record.detail[:150])
    assert label(record) == fault.outcome, record.detail
    assert re.search(fault.detail, record.detail)
    assert len(record.detail) < 3_000
    if fault.agent == "Forks":
        until(lambda: not alive(int(Path(data["pid_file"]).read_text())))
    if fault.agent == "CallsAfterTheEnd":
        Path(data["gate"]).touch()
        until(Path(data["told"]).exists)
        assert re.match(r"4\d\d ", Path(data["told"]).read_text())
        assert len(episode.interactions) == 1
    (after,) = rehearsal.play(workflow, [Task(id="after", data={"id": "after", "is_sound": True})])
    assert label(after.record) == "scored", after.record.detail


def alive(pid):
    """Whether a process goes on; one that has ended and waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(holds):
    """Wait for other processes, which tell nobody when they are done."""
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        os.sched_yield()
        time.sleep(0.01)
