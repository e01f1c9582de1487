"""Comparison of stored calls and training rows with the engine's own log, token by token."""

from __future__ import annotations

from array import array
from itertools import pairwise

import attrs

from agentrl_core.batching.samples import training_samples
from agentrl_core.types import FinishReason, Group
from agentrl_core.weights.witness import verify


@attrs.frozen(kw_only=True)
class Verdict:
    """How much of what is trained the engine really sampled, behind the prompt that it is trained on."""

    trained: int
    exact: int
    sampled: int
    """Tokens of the finished generations in the log: none of them may be missing among the trained."""

    @property
    def share(self) -> float:
        return self.exact / max(self.trained, self.sampled, 1)


def compare(episode, log) -> Verdict:
    """Judge a record by the log of the engine alone; the digests of `verify` are only asked whether they agree."""
    finished = {call.request.request_id: call for call in log if call.finish_reason is not FinishReason.ABORT}
    assert sorted(item.id for item in episode.interactions) == sorted(finished)
    for item in episode.interactions:
        call = finished[item.id]
        assert episode.full_ids(item) == call.request.prompt_ids + call.ids
        assert item.output_ids == call.ids
        assert array("f", item.logprobs) == array("f", call.logprobs)  # the store keeps single precision
        assert tuple(item.output_versions) == call.versions
    group = Group(id="g", run_id="run", task_id="t", index=0, episodes=(episode,))
    samples = training_samples([group], {item.id: 1.0 for item in episode.interactions})
    trained = exact = 0
    for sample in samples.samples:
        begins = {}
        for position, number in zip(sample.positions, sample.interactions, strict=True):
            begins.setdefault(number, position)
            call = finished[samples.interactions[number]]
            offset = position - begins[number]
            trained += 1
            behind_its_prompt = tuple(sample.ids[: begins[number]]) == call.request.prompt_ids
            exact += behind_its_prompt and offset < len(call.ids) and sample.ids[position] == call.ids[offset]
    assert verify(episode).share == samples.fidelity.share == 1.0
    return Verdict(trained=trained, exact=exact, sampled=sum(len(call.ids) for call in finished.values()))


def assert_one_chain(log) -> None:
    """Check that every prompt begins with the exact prompt and output of the call before."""
    finished = [call for call in log if call.finish_reason is not FinishReason.ABORT]
    for earlier, later in pairwise(finished):
        known = earlier.request.prompt_ids + earlier.ids
        assert later.request.prompt_ids[: len(known)] == known
