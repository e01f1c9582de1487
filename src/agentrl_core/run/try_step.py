"""Train one step at a run's largest shape on made-up tokens, to learn before sampling whether it fits, and its time."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from agentrl_core.errors import TrainingError
from agentrl_core.types import Episode, Group, Interaction, Outcome, Record

if TYPE_CHECKING:
    from agentrl_core.run.memory import Load
    from agentrl_core.training.learner import Learner

_LOGPROB = -1.0
_SMALL = 16
"""Tokens of a record of the step that only prepares the measured one."""


@attrs.frozen(kw_only=True)
class TriedStep:
    """Measurements of one step."""

    seconds: float
    peak_bytes: int
    """Largest memory during the step: of the whole process on the CPU, of torch's tensors on a GPU."""
    tokens: int
    """Tokens of its forward pass."""


def try_step(learner: Learner, load: Load, *, vocabulary: int, max_tokens: int) -> TriedStep:
    """Run one optimizer step of `load.pass_` tokens in records of `load.record` tokens; blocks.

    The learner's weights change, so it must be one that nobody samples from or saves. Raises `TrainingError` if the
    config's filters or its advantage leave nothing of the made-up groups to train on.
    """
    device = learner.device
    _reset_peak(device)
    # The first step allocates the optimizer's state after its backward pass; from the second on both are there at once.
    small = attrs.evolve(load, record=min(load.record, _SMALL), pass_=min(load.pass_, 2 * _SMALL))
    learner.step(_groups(small, vocabulary=vocabulary, max_tokens=max_tokens), step=1, version=1)
    groups = _groups(load, vocabulary=vocabulary, max_tokens=max_tokens)
    begun = time.perf_counter()
    # Tokens of an older version are not compared with an engine, which never saw these.
    metrics = learner.step(groups, step=2, version=2)
    seconds = time.perf_counter() - begun
    tokens = int(metrics.get("batch/tokens", 0))
    if not tokens:
        raise TrainingError(
            "the filters or the advantage of this config left nothing to train of made-up groups with rewards 0 and 1; "
            "the step was not tried"
        )
    return TriedStep(seconds=seconds, peak_bytes=_peak(device), tokens=tokens)


def _groups(load: Load, *, vocabulary: int, max_tokens: int) -> list[Group]:
    """Return groups of two or three records that together fill one forward pass, and share no prefix worth a name."""
    source = random.Random(0)  # noqa: S311 (made-up tokens)
    count = max(2, load.pass_ // load.record)
    # Each sample lacks its last token in the forward pass, which predicts nothing.
    length = max(3, min(load.record, load.pass_ // count) + 1)
    output = max(1, min(max_tokens, length - 2))
    made = []
    for index in range(count // 2):
        episodes = []
        for place in range(2 + (count % 2 if index == 0 else 0)):
            ids = [source.randrange(vocabulary) for _ in range(length)]
            episodes.append(_episode(f"{index}-{place}", f"group-{index}", ids, output, place))
        group = Group(id=f"group-{index}", run_id="try", task_id="task", index=index, episodes=tuple(episodes))
        made.append(group)
    return made


def _episode(name: str, group: str, ids: list[int], output: int, place: int) -> Episode:
    record = Record(
        id=f"record-{name}",
        run_id="try",
        task_id="task",
        group_id=group,
        sample_index=place,
        outcome=Outcome.SCORED,
        reward=float(place % 2),
    )
    call = Interaction(
        id=f"call-{name}",
        record_id=record.id,
        seq=0,
        prompt_ids=tuple(ids[:-output]),
        output_ids=tuple(ids[-output:]),
        logprobs=(_LOGPROB,) * output,
        versions=((0, output),),
        messages=({"role": "user", "content": "made up"},),
        output={"role": "assistant", "content": "made up"},
    )
    return Episode(record=record, interactions=(call,))


def _reset_peak(device: str) -> None:
    if device.startswith("cuda"):
        import torch

        torch.cuda.reset_peak_memory_stats(device)
    else:
        # Resets VmHWM (proc(5)); where the system forbids it, the peak is that of the process's whole life.
        try:
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        except OSError:
            return


def _peak(device: str) -> int:
    if device.startswith("cuda"):
        import torch

        return torch.cuda.max_memory_allocated(device)
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    except OSError:
        import resource

        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
